"""The figures of the long campaigns: docs/reliability.json, and the table of them in docs/reliability.md."""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
FILE = DOCS / "reliability.json"
PAGE = DOCS / "reliability.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


def record(
    campaign: str,
    *,
    cases: Mapping[str, int],
    violations: int,
    wall_s: float,
    seed: int | None = None,
    **more: object,
) -> None:
    """Put the figures of a campaign in the place of those of its last run.

    `cases` counts them by kind. Where a case is of several kinds, the kind "all" has their number. `more` is kept, too,
    and is not in the table.
    """
    figures = recorded()
    figures[campaign] = {
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "wall_s": round(wall_s),
        "violations": violations,
        "cases": dict(cases),
        **more,
    }
    FILE.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(figures) + END + rest.partition(END)[2])


def recorded() -> dict[str, Any]:
    """The figures of all campaigns, by name."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}


def table(figures: Mapping[str, Any]) -> str:
    """The figures as a table of Markdown."""
    lines = ["| campaign | cases | violations | seed | time | date |", "|---|---|---|---|---|---|"]
    for campaign, found in sorted(figures.items()):
        by_kind = sorted(found["cases"].items())
        total = f"**{found['cases'].get('all', sum(number for _, number in by_kind)):,}**"
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in by_kind if kind != "all")
        seed = "" if found["seed"] is None else found["seed"]
        minutes, seconds = divmod(found["wall_s"], 60)
        row = (
            campaign,
            f"{total}: {kinds}",
            found["violations"],
            seed,
            f"{minutes} min {seconds} s",
            found["date"],
        )
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines) + "\n"
