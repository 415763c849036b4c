"""Which faults a program can meet, and what comes of each."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.faults.sweep.calls.faults import CALLS, Fault, faults_at
from tests.faults.sweep.calls.programs import EVERY
from tests.faults.sweep.calls.run import Stage
from tests.faults.sweep.calls.trace import Call


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A program and a fault, as text "commit/fsync:EIO@3"."""

    program: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.program}/{self.fault}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a case.

    `was_struck` if the fault came about, which strace has to show; `target` is the call, as strace shows it.
    """

    case: Case
    was_struck: bool
    was_killed: bool
    target: str
    said: tuple[str, ...]
    violations: tuple[str, ...]


class Bench:
    """Runs cases on copies of the programs' folders, which it makes below `folder`."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage = stage
        self._folder = folder
        self._numbers = count(1)

    def cases(self, program: str) -> list[Case]:
        """All faults at all calls of a program that touch its folder, which a run without faults shows."""
        place = self._copy(program)
        ran = self._stage.run(program, place, None, self._log)
        assert ran.is_done, ran
        shutil.rmtree(place)
        touching = [call for call in ran.trace.calls() if call.name in CALLS and str(place) in call.text]
        _check_one_thread(touching, ran.trace.calls())
        return [Case(program=program, fault=fault) for it in touching for fault in _faults(it)]

    def run(self, case: Case) -> Outcome:
        """Run a case, and let the program's judge say what is wrong then."""
        place = self._copy(case.program)
        ran = self._stage.run(case.program, place, case.fault, self._log)
        violations = [f"unexpected: {line}" for line in ran.raised]
        try:
            violations += EVERY[case.program].judge(place, ran)
        except Exception as error:
            violations.append(f"after the restart: {type(error).__name__}: {error}")
        shutil.rmtree(place)
        return Outcome(
            case=case,
            was_struck=ran.was_struck,
            was_killed=ran.trace.was_killed,
            target=ran.target.replace(str(place), "").partition(" ")[2],
            said=ran.said,
            violations=tuple(violations),
        )

    @property
    def _log(self) -> Path:
        return self._folder / "strace.log"

    def _copy(self, program: str) -> Path:
        original = self._folder / program
        if not original.exists():
            EVERY[program].make(original)
        return shutil.copytree(original, self._folder / f"{program}-{next(self._numbers)}")


def _faults(call: Call) -> list[Fault]:
    return faults_at(call.name, call.number, call.before)


def _check_one_thread(touching: Iterable[Call], all_calls: Iterable[Call]) -> None:
    """strace counts in each thread, so another one that makes as many calls of a name would be struck as well."""
    most = {(call.thread, call.name): call.number for call in all_calls}
    threads = {call.thread for call in touching}
    assert len(threads) == 1, f"several threads touch the folder: {threads}"
    others = {name for thread, name in most if thread not in threads}
    assert not others & {call.name for call in touching}, f"another thread makes calls of the same names: {others}"
