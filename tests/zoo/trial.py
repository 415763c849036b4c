"""Whether the tests that should catch a bug do."""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.zoo.bug import Bug
from tests.zoo.tree import DoesNotApply, Tree

DEADLINE_S = 900.0
LEAVE_S = 30.0
LAST_LINES = 12

FAILED = re.compile(r"^part \d+: (?:FAILED|died in) (\S+(?: .*\])?)", re.MULTILINE)
_SKIPPED = re.compile(r"(\d+) skipped in ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """The outcome of tests or of a command: those that `failed` or died, and how long each took.

    `tests` are those that were run to an end, in either way. `is_well`: nothing went wrong, and none was skipped.
    """

    tests: frozenset[str]
    failed: frozenset[str]
    seconds: Mapping[str, float]
    wall_s: float
    is_well: bool
    output: str

    @property
    def last_words(self) -> str:
        return "\n".join(self.output.strip().splitlines()[-LAST_LINES:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How a bug fared: `caught_by` has the seconds of each that noticed it; `problem` says why it was not caught."""

    bug: Bug
    caught_by: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""
    wall_s: float = 0.0

    @property
    def is_caught(self) -> bool:
        return not self.problem


def try_bug(bug: Bug, *, seed: int) -> Verdict:
    """Put a bug back in a copy, and see whether each of its catchers notices it."""
    started = time.monotonic()
    with Tree() as tree:
        try:
            tree.apply(bug.file)
        except (DoesNotApply, SyntaxError) as error:
            return Verdict(bug=bug, problem=f"does not apply: {error}")
        ran = run(bug.catchers, tree, seed=seed)
    caught_by = {catcher: ran.seconds.get(catcher, ran.wall_s) for catcher in bug.catchers if _noticed(catcher, ran)}
    missing = [catcher for catcher in bug.catchers if catcher not in caught_by]
    problem = f"not noticed by {', '.join(missing)}\n{ran.last_words}" if missing else ""
    return Verdict(bug=bug, caught_by=caught_by, problem=problem, wall_s=time.monotonic() - started)


def try_without(bugs: Sequence[Bug], *, seed: int) -> str:
    """Run all that should catch these bugs where none was put back; why that is no proof, "" if all is well."""
    catchers = sorted({catcher for bug in bugs for catcher in bug.catchers})
    with Tree() as tree:
        tree.check()
        ran = run(catchers, tree, seed=seed)
    unseen = [catcher for catcher in catchers if not any(_is_of(test, catcher) for test in ran.tests)]
    if ran.is_well and not unseen:
        return ""
    return f"without any bug: {', '.join([*sorted(ran.failed), *(f'{it} did not run' for it in unseen)])}\n" + (
        ran.output if ran.failed else ran.last_words
    )


def run(catchers: Sequence[str], tree: Tree, *, seed: int) -> Ran:
    """Run tests, all in one go, and commands, one after the other, in a tree."""
    tests = [catcher for catcher in catchers if catcher.startswith("tests/")]
    parts = [_run_tests(tests, tree, seed)] if tests else []
    parts += [_run_command(catcher, tree) for catcher in catchers if catcher not in tests]
    return Ran(
        tests=frozenset().union(*(part.tests for part in parts)),
        failed=frozenset().union(*(part.failed for part in parts)),
        seconds={name: seconds for part in parts for name, seconds in part.seconds.items()},
        wall_s=sum(part.wall_s for part in parts),
        is_well=all(part.is_well for part in parts),
        output="\n".join(part.output for part in parts),
    )


def _run_tests(tests: Sequence[str], tree: Tree, seed: int) -> Ran:
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        times = Path(folder) / "times.json"
        options = ["--parts=1", f"--deadline-s={DEADLINE_S:g}", f"--times={times}", f"--hypothesis-seed={seed}"]
        exit_code, output, wall_s = _run([sys.executable, "-m", "tests.run", *options, *tests], tree)
        seconds: dict[str, float] = json.loads(times.read_text())["seconds"] if times.exists() else {}
    failed = frozenset(FAILED.findall(output))
    skipped = _SKIPPED.search(output)
    of_catchers = {
        test: sum(seconds.get(it, 0.0) for it in {*seconds, *failed} if _is_of(it, test)) or wall_s for test in tests
    }
    return Ran(
        tests=frozenset(seconds) | failed,
        failed=failed,
        seconds=of_catchers,
        wall_s=wall_s,
        is_well=exit_code == 0 and skipped is not None and int(skipped[1]) == 0,
        output=output,
    )


def _run_command(command: str, tree: Tree) -> Ran:
    _, *arguments = command.split()
    exit_code, output, wall_s = _run([sys.executable, *arguments], tree)
    # Any other exit code tells of a campaign that could not be run.
    failed = frozenset([command]) if exit_code == 1 else frozenset()
    return Ran(
        tests=frozenset([command]),
        failed=failed,
        seconds={command: wall_s},
        wall_s=wall_s,
        is_well=exit_code == 0,
        output=output,
    )


def _run(command: Sequence[str], tree: Tree) -> tuple[int, str, float]:
    started = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=tree.path,
        env=tree.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            # It ends all that it has started before it leaves.
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)
            process.kill()
            raise
    return process.returncode, output, time.monotonic() - started


def _noticed(catcher: str, ran: Ran) -> bool:
    return any(_is_of(test, catcher) for test in ran.failed)


def _is_of(test: str, catcher: str) -> bool:
    """Whether this is the test, or that test with one of its parameters."""
    return test == catcher or test.startswith(f"{catcher}[")
