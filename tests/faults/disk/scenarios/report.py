"""Small files that are replaced: whoever reads one finds all of it, or all of the one before."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_server.server.study.report import write_report
from tests.faults.disk.scenarios.scenario import Tell

FILE = "run/report.json"


@dataclass(frozen=True, slots=True)
class Writing:
    """This report is about to be written."""

    number: int


@dataclass(frozen=True, slots=True)
class Written:
    """It is."""

    number: int


@dataclass(frozen=True, slots=True)
class Reports:
    """A report is written again and again."""

    name: str = "reports"

    def prepare(self, folder: Path) -> Sequence[object]:
        return []

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        for number in (1, 2, 3):
            write(folder, number, tell)

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        number = read(folder)
        allowed = _allowed(told)
        assert number in allowed, f"report {number} is there, and not one of {allowed}"
        tell(Written(number))
        write(folder, number + 1, tell)
        assert read(folder) == number + 1


def write(folder: Path, number: int, tell: Tell) -> None:
    """Write a report, which says its number more often than a sector can."""
    tell(Writing(number))
    write_report({"number": number, "again": [number] * 90}, folder / FILE)
    tell(Written(number))


def read(folder: Path) -> int:
    """The number of the report; 0 for none."""
    file = folder / FILE
    if not file.exists():
        return 0
    report = json.loads(file.read_bytes())
    assert report["again"] == [report["number"]] * 90
    return int(report["number"])


def _allowed(told: Sequence[object]) -> list[int]:
    allowed = [0]
    for fact in told:
        match fact:
            case Writing(number=number):
                allowed.append(number)
            case Written(number=number):
                allowed = [number]
    return allowed
