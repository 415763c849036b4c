"""The conditions to reach each failpoint: read from docs/internals/failpoints.md, the list of all of them."""

import re
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parents[3] / "docs" / "internals" / "failpoints.md"
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<happened>[^|]+) \| (?P<situation>[^|]+) \|$", re.MULTILINE)

# What else is armed, so that a study comes into the situation. The server dies between two checkpoints, and goes on
# from the first.
SITUATIONS = {
    "every study": "",
    "a restarted server": "checkpoint.before_rename=kill@2",
    "a stopped server": "checkpoint.before_rename=stop@2",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Documented:
    """A row of the list."""

    name: str
    happened: str
    situation: str

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_in_a_study(self) -> bool:
        """Whether the studies of the sweep meet it; the others say who tests them."""
        return self.situation in SITUATIONS

    def armed(self, action: str) -> str:
        """The value of STREAM_FAILPOINTS for a study that meets it."""
        return ",".join(filter(None, (SITUATIONS[self.situation], f"{self.name}={action}")))


def documented() -> list[Documented]:
    """All failpoints, in the order of the list."""
    rows = (match.groupdict() for match in ROW.finditer(LIST.read_text()))
    return [Documented(**{name: text.strip() for name, text in row.items()}) for row in rows]
