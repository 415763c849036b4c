"""What the long campaigns found, in figures: docs/reliability.json, which docs/reliability.md tells in words."""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "docs" / "reliability.json"


def record(campaign: str, *, cases: Mapping[str, int], violations: int, wall_s: float, seed: int | None = None) -> None:
    """Put the figures of a campaign in the place of those of its last run; `cases` counts them by kind."""
    figures = recorded()
    figures[campaign] = {
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "wall_s": round(wall_s),
        "violations": violations,
        "cases": dict(cases),
    }
    FILE.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


def recorded() -> dict[str, Any]:
    """The figures of all campaigns, by name."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}
