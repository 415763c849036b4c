"""State that goes from rank to rank."""

import numpy as np
import pytest

from stream_server.server.plain_state import from_bytes, to_bytes


def test_containers_numbers_and_arrays_come_back_as_they_were() -> None:
    state = {
        "a": [1, 2.5, None, "x", True],
        3: ({"k": np.arange(4).reshape(2, 2)}, np.zeros(0, np.float32)),
        (1, 2): (),
    }
    back = from_bytes(to_bytes(state))
    assert back["a"] == state["a"]
    assert back[(1, 2)] == ()
    inner, empty = back[3]
    assert inner["k"].tolist() == [[0, 1], [2, 3]]
    assert (empty.dtype, empty.shape) == (np.float32, (0,))


def test_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="plain containers and arrays, but there is a object in it"):
        to_bytes({"x": object()})
