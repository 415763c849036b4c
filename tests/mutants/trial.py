"""Whether the tests notice a mutant: they run in a copy of the project that has it."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.mutants.catchers import ROOT, test_files
from tests.mutants.mutations import Mutant
from tests.support.timing import crowding
from tests.test_imports import MODULES, room_of
from tests.zoo.tree import Tree

# Tests that start MPI jobs, or measure, are for modules that have no others.
QUICK = "not full and not slow and not quiet"
ALL = "not full and not quiet"
# A mutant may make tests wait for ever: what takes this much longer than it should is noticed, too.
GRACE_S = 60.0
BASELINE_S = 600.0
# A failure that comes so soon after its test is through otherwise has waited for nothing: it is none of the machine's.
PROMPT_S = 1.0
# Most lines are run by few tests, some by all of a room: the fastest come first, and the slowest not at all.
MOST_S = 20.0
FAILURES, NO_TESTS = 1, 5
PASSED = (0, NO_TESTS)


class NoBaseline(Exception):
    """The tests cannot be run, though nothing was changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Catchers:
    """Tests that pass without mutants, with what each runs of the modules of their room.

    Attributes:
        marks: Which tests of their files are meant, as `-m` says it.
        lines: The lines that each test runs of each file.
        seconds: How long each takes, on an idle machine.
    """

    marks: str
    lines: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def running(self, file: str, first: int, last: int) -> list[str]:
        """The tests that run one of these lines, fastest first.

        Of a line that runs at the import, or in no process that was looked at, they are those that run anything of the
        file, or are named after it; if there are none, all.
        """
        wanted, own = set(range(first, last + 1)), f"/test_{Path(file).stem}.py::"
        of_file = {test: self.lines.get(test, {}).get(file, set()) for test in self.seconds}
        found = [test for test, lines in of_file.items() if lines & wanted]
        found = found or [test for test, lines in of_file.items() if lines or own in test] or list(self.seconds)
        found.sort(key=lambda test: self.seconds[test])
        until = list(accumulate(self.seconds[test] for test in found))
        return [test for test, total_s in zip(found, until, strict=True) if total_s <= MOST_S] or found[:1]


class Workshop:
    """A copy of the project in which one mutant after the other is tried, while the block lasts."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "output"
        self._baselines: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._num = 0

    def __enter__(self) -> Self:
        self._tree = Tree().__enter__()
        environment = {**self._tree.environment, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.worker"],
            cwd=self._tree.path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.close()
        self._worker.wait()
        self._worker.stdout.close()
        self._tree.__exit__(kind, error, traceback)

    def catches(self, mutant: Mutant, module: str, *, elsewhere: str = "") -> str:
        """The test that notices a mutant, or how it ended otherwise; "" if none notices it.

        `elsewhere` is a test of another room to try, too.

        Raises:
            NoBaseline: tests cannot be run without it.
        """
        tests = self._tests_of(module)
        chosen = tests.running(str(self._path(mutant)), mutant.line, mutant.last_line)
        how = ""
        if chosen:
            files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
            limit_s = limit_of(sum(tests.seconds[test] for test in chosen))
            how = self._noticed(mutant, [*_arguments(tests.marks), *files], chosen, tests.seconds, limit_s)
        return how or (self.notices(mutant, [elsewhere], BASELINE_S) if elsewhere else "")

    def notices(self, mutant: Mutant, arguments: Sequence[str], limit_s: float) -> str:
        """The first of the tests that these arguments of pytest name to notice a mutant; "" if none does.

        Raises:
            NoBaseline: they cannot be run without it.
        """
        return self._noticed(mutant, [*_arguments(ALL), *arguments], None, {}, limit_s)

    def _noticed(
        self,
        mutant: Mutant,
        arguments: Sequence[str],
        tests: list[str] | None,
        seconds: Mapping[str, float],
        limit_s: float,
    ) -> str:
        """Which test notices a mutant, or how it ended otherwise.

        What a busy machine may have done counts for nothing: unless a test that took so many `seconds` without it fails
        as soon, it must pass without the mutant now, and in a third of the time unless it fails with it once more; and
        a mutant takes too long by what the tests need without it now.
        """
        while True:
            ran = self._try(mutant, ["-x", *arguments], tests, limit_s)
            if ran["exit_code"] in PASSED:
                return ""
            test = next(iter(ran.get("failed", ())), "")
            if test in seconds and ran["failed"][test] <= seconds[test] + PROMPT_S:
                return test
            suspects = [test] if test else tests
            without = self._run(arguments, tests=suspects, limit_s=BASELINE_S)
            passes = without["exit_code"] in PASSED
            if test:
                is_far_quicker = 3 * without.get("seconds", {}).get(test, math.inf) < ran["failed"][test]
                if passes and (is_far_quicker or not self._passes(mutant, arguments, suspects, limit_s)):
                    return test
                arguments = [*arguments, "--deselect", test]
            elif not passes:
                raise NoBaseline(f"{' '.join(tests or arguments)}: exit code {without['exit_code']}")
            elif ran["exit_code"] is not None:
                return f"exit code {ran['exit_code']}"
            elif (needed_s := 3 * without["wall_s"] + GRACE_S) <= limit_s:
                return "takes too long"
            else:
                limit_s = needed_s

    def _passes(self, mutant: Mutant, arguments: Sequence[str], tests: list[str] | None, limit_s: float) -> bool:
        return self._try(mutant, arguments, tests, limit_s)["exit_code"] in PASSED

    def _try(self, mutant: Mutant, arguments: Sequence[str], tests: list[str] | None, limit_s: float) -> dict[str, Any]:
        with self._in_place(mutant, self._path(mutant)):
            return self._run(arguments, tests=tests, limit_s=limit_s)

    def _path(self, mutant: Mutant) -> Path:
        return self._tree.path / mutant.file.relative_to(ROOT)

    @contextmanager
    def _in_place(self, mutant: Mutant, file: Path) -> Iterator[None]:
        before, times = file.read_bytes(), file.stat()
        file.write_text(mutant.text)
        # What is compiled of a source is known by its time and its size, and two mutants may be of one size.
        self._num += 1
        os.utime(file, (times.st_mtime + 1000 + self._num,) * 2)
        try:
            yield
        finally:
            file.write_bytes(before)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _tests_of(self, module: str) -> Catchers:
        """The tests of a module; if no quick one runs anything of it, the slow ones, too."""
        files = test_files(module)
        file = str(self._tree.path / MODULES[module].relative_to(ROOT))
        for marks in (QUICK, ALL):
            tests = self._baseline(files, marks, room_of(module))
            if any(lines.get(file) for test, lines in tests.lines.items() if test):
                break
        return tests

    def _baseline(self, files: Sequence[str], marks: str, room: str) -> Catchers:
        """The tests of these files that pass. Each file runs once only, for all modules of the room."""
        covers = [str(self._tree.path / it.relative_to(ROOT)) for name, it in MODULES.items() if room_of(name) == room]
        tests = Catchers(marks=marks)
        for it in files:
            if (it, marks, room) not in self._baselines:
                ran = self._run([*_arguments(marks), it], covers=covers, limit_s=BASELINE_S)
                if ran["exit_code"] not in (0, FAILURES, NO_TESTS):
                    failed = ", ".join(ran.get("failed", ()))
                    raise NoBaseline(f"{it}: {failed} (exit code {ran['exit_code']})")
                self._baselines[it, marks, room] = ran
            ran = self._baselines[it, marks, room]
            tests.seconds.update(ran["seconds"])
            tests.lines.update(
                {test: {file: set(them) for file, them in lines.items()} for test, lines in ran["lines"].items()}
            )
        return tests

    def _run(
        self, arguments: Sequence[str], *, tests: list[str] | None = None, covers: Sequence[str] = (), limit_s: float
    ) -> dict[str, Any]:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        job = {"arguments": arguments, "tests": tests, "covers": covers, "limit_s": limit_s}
        print(json.dumps({**job, "output": str(self._output)}), file=self._worker.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._worker.stdout.readline())
        return found


def limit_of(due_s: float) -> float:
    """How long tests may take now that are through after `due_s` on an idle machine without a mutant."""
    return (3 * due_s + GRACE_S) * crowding()


def _arguments(marks: str) -> list[str]:
    return ["-q", "-p", "no:cacheprovider", "--tb=line", "-m", marks]
