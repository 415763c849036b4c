"""Disks, memory, open files and time run out or jump."""

import random
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from stream_server.machine.descriptors import OWN
from tests.campaigns import Campaign, Round, option
from tests.faults.chaos.evidence import damage, unfinished_files
from tests.faults.resources import clocks, disks, growth, sieges
from tests.faults.resources.victim import limited
from tests.support.killing import killed_at
from tests.support.runs import NUMPY_STUDY, Run, run_study
from tests.support.small_disk import PAGE

NUM_SAMPLES = 120
STUDY_BYTES = 300 << 10
PAGES = 80
SIEGE = 400
NUM_JOBS, NUM_RESTARTS = 400, 20
SETTINGS: dict[str, Any] = {"checkpoint.every_batches": 2, "checkpoint.record": True}
PACED = SETTINGS | {"simulation.command": ["python", "paced.py", "0.05"]}
KINDS = ("part of a server on a full disk", "study on a full disk", "siege", "open files", "clock", "growth")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Something to run; `run` gives the number of cases in it and the violations."""

    kind: str
    name: str
    run: Callable[[], tuple[int, list[str]]]


@dataclass(frozen=True, kw_only=True)
class ScarceResources(Campaign):
    """Everything that can run out, `rounds` times, with other sizes and moments each time."""

    figure: ClassVar[str] = "resources"

    rounds: int = option(1, "how often everything is done, with other sizes")
    only: Sequence[str] = option((), "these kinds of cases alone", choices=KINDS, nargs="+")

    @property
    def total(self) -> int:
        return len(self._steps())

    def run(self) -> Generator[Round, None, None]:
        for step in self._steps():
            try:
                num, violations = step.run()
            except Exception as error:
                num, violations = 1, [f"raised {error!r}"]
            yield Round(
                cases={step.kind: num},
                violations=[f"{step.kind}, {step.name}: {it}" for it in violations],
                again=f"--rounds {self.rounds} --only '{step.kind}'",
            )

    def _steps(self) -> list[Step]:
        draws = (random.Random(f"{self.seed}/{number}") for number in range(self.rounds))
        kinds = self.only or KINDS
        return [step for draw in draws for step in _round(draw, draw.getrandbits(32)) if step.kind in kinds]


def _round(draw: random.Random, seed: int) -> Iterator[Step]:
    parts, studies, siege, files, clock, long = KINDS
    for first in range(0, PAGES, 8):
        pages = range(first, first + 8)
        yield Step(kind=parts, name=f"seed {seed}, pages {first} to {first + 7}", run=lambda p=pages: _parts(seed, p))  # type: ignore[misc]
    for size in range(PAGE, STUDY_BYTES, 6 * PAGE):
        size += PAGE * draw.randrange(6)
        yield Step(kind=studies, name=f"{size} bytes", run=lambda s=size: _study(s))  # type: ignore[misc]
    for one in (sieges.unheld, sieges.held):
        yield Step(kind=siege, name=one.__name__, run=lambda s=one: _siege(s))  # type: ignore[misc]
    for program in ("stream-server", "stream-launcher"):
        for num in sorted(draw.sample(range(16, OWN + 24), 6)):
            yield Step(kind=files, name=f"{program}, {num} files", run=lambda p=program, n=num: _files(p, n))  # type: ignore[misc]
    for shift_s in (clocks.HOUR_S, -clocks.HOUR_S):
        for program in ("stream-server", "stream-launcher"):
            in_s = draw.randrange(1, 5)
            name = f"{program}, {shift_s} s after {in_s} s"
            yield Step(kind=clock, name=name, run=lambda p=program, s=shift_s, i=in_s: _jump(p, s, i))  # type: ignore[misc]
        name = f"{shift_s} s between two starts"
        yield Step(kind=clock, name=name, run=lambda s=shift_s: _jump_between_starts(s))  # type: ignore[misc]
    yield Step(kind=long, name=f"{NUM_JOBS} jobs", run=lambda: _growth(growth.jobs, NUM_JOBS))
    yield Step(kind=long, name=f"{NUM_RESTARTS} restarts", run=lambda: _growth(growth.restarts, NUM_RESTARTS))


def _parts(seed: int, pages: Sequence[int]) -> tuple[int, list[str]]:
    found = disks.parts(seed, pages)
    return sum(found.cases.values()), found.violations


def _study(num_bytes: int) -> tuple[int, list[str]]:
    how, violations = disks.study(num_bytes)
    return 1, [f"{how}: {it}" for it in violations]


def _siege(siege: sieges.Siege) -> tuple[int, list[str]]:
    effects = siege(SIEGE)
    return len(effects), [f"{it.attack}: grew by {it.grown} of {it.allowed} bytes" for it in effects if it.is_too_much]


def _files(program: str, num: int) -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory(prefix="res-") as folder:
        done = run_study(NUMPY_STUDY, Path(folder) / "run", mpi=None, program=program, within=limited("-n", num))
        if done.exit_code == 2 and "open files are needed" in done.output and "Traceback" not in done.output:
            return 1, []
        return 1, list(_incomplete(done))


def _jump(program: str, shift_s: int, in_s: int) -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory(prefix="res-") as name:
        folder = Path(name)
        environment = clocks.jumping(clocks.built(folder), folder / "notes", shift_s=shift_s, in_s=in_s)
        options: dict[str, Any] = {"mpi": None, "program": program, "settings": PACED, "environment": environment}
        return 1, list(_incomplete(run_study(NUMPY_STUDY, folder / "run", **options)))


def _jump_between_starts(shift_s: int) -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory(prefix="res-") as name:
        folder = Path(name)
        options: dict[str, Any] = {"num_ranks": 2, "settings": SETTINGS}
        killed_at("checkpoint.renamed=kill@3", NUMPY_STUDY, folder / "run", **options)
        environment = clocks.jumping(clocks.built(folder), folder / "notes", shift_s=shift_s, in_s=0)
        return 1, list(_incomplete(run_study(NUMPY_STUDY, folder / "run", environment=environment, **options)))


def _growth(life: Callable[[Path, int], tuple[growth.Held, growth.Held]], num: int) -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory(prefix="res-") as folder:
        first, last = life(Path(folder), num)
    return num, [] if first == last else [f"held {first} at first, and {last} at last"]


def _incomplete(run: Run) -> Iterator[str]:
    if run.exit_code:
        yield f"ended with exit code {run.exit_code}: {run.output[-2000:]}"
        return
    account = run.account
    if (account["accepted"], account["trained"], account["untrained"]) != (NUM_SAMPLES, NUM_SAMPLES, 0):
        yield f"the account is {account}"
    yield from damage(run.output_dir / "checkpoints")
    yield from unfinished_files(run.output_dir)
