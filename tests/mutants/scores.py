"""How many mutants of each room are caught: docs/reliability.json, and the table by room in docs/reliability.md."""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import figures
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


def open_ones(room: str) -> list[str]:
    """The mutants of a room that survived its recorded run, and matter."""
    return list(_rooms().get(room, {}).get("open", []))


def record(
    fates: Mapping[str, tuple[str, str]], *, wall_s: float, seed: int, again: bool = False, more: bool = False
) -> None:
    """Put the counts of rooms in the place of those of their last run, and leave the other rooms as they are.

    `fates` has room and kind by the name of each mutant. With `again` it is about some of the last run's mutants only;
    with `more` the counts are added to those of the last run, which had another seed.
    """
    rooms, today = _rooms(), datetime.date.today().isoformat()
    if not again:
        nothing = {**dict.fromkeys(KINDS, 0), "seed": ""}
        known = rooms if more else {}
        rooms |= {room: {"open": [], **nothing, **known.get(room, {})} for room, _ in fates.values()}
        for room in {room for room, _ in fates.values()}:
            rooms[room]["seed"] = ", ".join(filter(None, (str(rooms[room]["seed"]), str(seed))))
    for name, (room, kind) in fates.items():
        counts = rooms[room]
        if again:
            counts["open"].remove(name)
            counts[MATTERS] -= 1
        counts[kind] += 1
        counts["open"] += [name] if kind == MATTERS else []
        counts["date"] = today
    cases = {kind: sum(counts[kind] for counts in rooms.values()) for kind in KINDS}
    figures.record(FIGURE, cases=cases, violations=cases[MATTERS], wall_s=wall_s, seed=seed, rooms=rooms)
    before, _, rest = figures.PAGE.read_text().partition(BEGIN)
    figures.PAGE.write_text(before + BEGIN + table(rooms) + END + rest.partition(END)[2])


def _rooms() -> dict[str, dict[str, Any]]:
    return dict(figures.recorded().get(FIGURE, {}).get("rooms", {}))


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
