"""How many mutants of each room are caught: docs/reliability.json, and the table by room in docs/reliability.md."""

import datetime
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import figures
from tests.campaigns import Tally
from tests.mutants.mutations import Mutant

SURVIVORS = Path(__file__).parent / "survivors.json"
CAUGHT, UNPROMISED, MATTERS = "caught", "survive, without a promise", "survive, and matter"
KINDS = (CAUGHT, UNPROMISED, MATTERS)
FIGURE = "mutants"
# No room may be below this score.
LEAST = 0.8
BEGIN, END = "<!-- mutants -->\n", "<!-- end of mutants -->\n"


def reasons() -> dict[str, str]:
    """Why a mutant that the tests of its room pass over breaks no promise, or which other test notices it, by name."""
    return dict(json.loads(SURVIVORS.read_text()))


def test_of(mutant: Mutant, reasons: Mapping[str, str]) -> str:
    """The test of another room that notices a mutant, "" if there is no need of one."""
    reason = reasons.get(mutant.name, "")
    return reason if reason.startswith("tests/") else ""


def record(tally: Tally, *, wall_s: float, seed: int) -> None:
    """Put the counts of these rooms in the place of those of their last run, and leave the others as they are."""
    rooms = dict(figures.recorded().get(FIGURE, {}).get("rooms", {}))
    today = datetime.date.today().isoformat()
    for room in {room for room, _ in tally.table}:
        rooms[room] = {**{kind: tally.table[room, kind] for kind in KINDS}, "seed": seed, "date": today}
    cases: Counter[str] = Counter()
    for counts in rooms.values():
        cases.update({kind: counts[kind] for kind in KINDS})
    figures.record(FIGURE, cases=cases, violations=cases[MATTERS], wall_s=wall_s, seed=seed, rooms=rooms)
    before, _, rest = figures.PAGE.read_text().partition(BEGIN)
    figures.PAGE.write_text(before + BEGIN + table(rooms) + END + rest.partition(END)[2])


def score(counts: Mapping[str, Any]) -> float:
    """The part of the mutants that matter which is caught."""
    return float(counts[CAUGHT] / max(1, counts[CAUGHT] + counts[MATTERS]))


def table(rooms: Mapping[str, Mapping[str, Any]]) -> str:
    """The counts as a table of Markdown."""
    lines = [f"| room | mutants | {' | '.join(KINDS)} | score | seed | date |", "|---" * 8 + "|"]
    for room, counts in sorted(rooms.items()):
        numbers = [counts[kind] for kind in KINDS]
        row = (room, sum(numbers), *numbers, f"{score(counts):.0%}", counts["seed"], counts["date"])
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines) + "\n"
