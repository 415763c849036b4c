"""The smallest change that makes one set of columns another: what is sent to a browser. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stream_server.analysis.columns import Columns

# From this share of the cells on it is cheaper to send all of them.
LARGE_SHARE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnChange:
    """An update of a source: `replaced` instead of everything, or rows to patch and then rows to append.

    `patched` has rows and values by column.
    """

    replaced: Columns | None = None
    patched: Mapping[str, Sequence[tuple[int, Any]]] | None = None
    appended: Columns | None = None

    @property
    def num_cells(self) -> int:
        """How many values it sends."""
        columns = [*(self.replaced or {}).values(), *(self.appended or {}).values(), *(self.patched or {}).values()]
        return sum(map(len, columns))


def change(old: Columns, new: Columns) -> ColumnChange | None:
    """The change from `old` to `new`, None if they are equal."""
    before, after = num_rows(old), num_rows(new)
    if old.keys() != new.keys() or after < before:
        return ColumnChange(replaced=new)
    patched = {}
    for name, values in new.items():
        was = old[name]
        # Comparing whole lists first is done in C, and they are mostly equal.
        if list(values[:before]) != list(was):
            patched[name] = [(row, values[row]) for row in range(before) if not _equal(values[row], was[row])]
    patched = {name: rows for name, rows in patched.items() if rows}
    if sum(map(len, patched.values())) > LARGE_SHARE * before * len(new):
        return ColumnChange(replaced=new)
    appended = {name: values[before:] for name, values in new.items()} if after > before else None
    return ColumnChange(patched=patched or None, appended=appended) if patched or appended else None


def num_rows(columns: Columns) -> int:
    """The length of the columns."""
    return len(next(iter(columns.values()), ()))


def _equal(a: Any, b: Any) -> bool:
    # NaN alone differs from itself.
    return bool(a == b or (a != a and b != b))
