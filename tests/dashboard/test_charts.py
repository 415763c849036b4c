"""The change of columns: what is sent is little, and makes of the old ones the new ones."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.dashboard.charts import Columns, change

VALUES = st.sampled_from([0, 1, 2.5, math.nan, "running"])


def tables(num_columns: int) -> st.SearchStrategy[Columns]:
    rows = st.lists(st.tuples(*[VALUES] * num_columns), max_size=8)
    return rows.map(lambda rows: {f"c{place}": [row[place] for row in rows] for place in range(num_columns)})


def changed(old: Columns, new: Columns) -> Columns:
    """The columns that a browser has after the change."""
    done = change(old, new)
    columns: dict[str, list[Any]] = {name: list(values) for name, values in old.items()}
    if done is None:
        return columns
    if done.replaced is not None:
        return done.replaced
    for name, rows in (done.patched or {}).items():
        for row, value in rows:
            columns[name][row] = value
    for name, values in (done.appended or {}).items():
        columns[name] += values
    return columns


@given(old=tables(2), new=tables(2))
def test_the_change_makes_the_new_columns_of_the_old_ones(old: Columns, new: Columns) -> None:
    # Text makes NaN equal to NaN.
    assert repr(changed(old, new)) == repr(new)
    assert change(new, {name: list(values) for name, values in new.items()}) is None


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
    done = change({"x": [1, 2, 3, 4], "y": [5, 6, 7, 8]}, new)
    assert (done.num_cells if done else 0) == num_cells
