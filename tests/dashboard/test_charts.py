"""The change of columns: what is sent is little, and makes of the old ones the new ones."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.dashboard.charts import Columns, bring_up_to_date

VALUES = st.sampled_from([0, 1, 2.5, math.nan, "running"])


def tables(num_columns: int) -> st.SearchStrategy[Columns]:
    rows = st.lists(st.tuples(*[VALUES] * num_columns), max_size=8)
    return rows.map(lambda rows: {f"c{place}": [row[place] for row in rows] for place in range(num_columns)})


class Source:
    """A source of a browser, and the number of values that it was sent."""

    def __init__(self, data: Columns) -> None:
        self.num_cells = 0
        self._data = {name: list(values) for name, values in data.items()}

    @property
    def data(self) -> dict[str, list[Any]]:
        return self._data

    @data.setter
    def data(self, data: dict[str, list[Any]]) -> None:
        self._data = data
        self.num_cells += sum(map(len, data.values()))

    def patch(self, patched: Mapping[str, Sequence[tuple[int, Any]]]) -> None:
        for name, rows in patched.items():
            for row, value in rows:
                self._data[name][row] = value
            self.num_cells += len(rows)

    def stream(self, appended: Columns) -> None:
        for name, values in appended.items():
            self._data[name] += values
            self.num_cells += len(values)


def changed(old: Columns, new: Columns) -> tuple[Columns, int]:
    """The columns that a browser has after a change, and how many values were sent."""
    source: Any = Source(old)
    bring_up_to_date(source, new)
    return source.data, source.num_cells


@given(old=tables(2), new=tables(2))
def test_the_change_makes_the_new_columns_of_the_old_ones(old: Columns, new: Columns) -> None:
    # Text makes NaN equal to NaN.
    assert repr(changed(old, new)[0]) == repr(new)
    assert changed(new, {name: list(values) for name, values in new.items()})[1] == 0


@pytest.mark.parametrize(
    ("new", "num_cells"),
    [
        ({"x": [1, 2, 3, 4], "y": [5, 6, 7, 8]}, 0),
        ({"x": [1, 2, 3, 4, 5], "y": [5, 6, 7, 8, 9]}, 2),
        ({"x": [1, 2, 3, 4], "y": [5, 6, 7, 0]}, 1),
        ({"x": [1, 2, 3, 4, 5], "y": [5, 6, 7, 0, 9]}, 3),
        ({"x": [1, 2], "y": [5, 6]}, 4),
        ({"x": [9, 8, 7, 6], "y": [5, 6, 7, 0]}, 8),
    ],
)
def test_only_what_differs_is_sent_unless_that_is_most_of_it(new: Columns, num_cells: int) -> None:
    assert changed({"x": [1, 2, 3, 4], "y": [5, 6, 7, 8]}, new) == (new, num_cells)
