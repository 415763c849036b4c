"""The wording of numbers and lists in messages."""

from collections.abc import Sequence

MOST_NAMES = 4


def counted(num: int, noun: str) -> str:
    """A number with its noun, which is given in the singular: `1 rank`, `2 batches`, `1,000 samples`."""
    if num == 1:
        return f"1 {noun}"
    return f"{num:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def listed(names: Sequence[str]) -> str:
    """The first few of these names, and an ellipsis for the others."""
    return ", ".join([*names[:MOST_NAMES], *(["…"] if len(names) > MOST_NAMES else [])])
