"""The random generators that a program shares with all its libraries."""

import random

import numpy as np
import pytest

from stream_server.errors import DamagedCheckpoint
from stream_server.server.checkpoint.random_states import random_states, set_random_states
from stream_server.storage.plain_state import from_bytes, to_bytes


def numbers() -> list[float]:
    return [random.random(), random.gauss(), np.random.random(), np.random.normal()]


def test_the_numbers_go_on_where_they_were_saved() -> None:
    before = random_states()
    # An odd number of Gaussian ones: each generator keeps the second of a pair.
    numbers()
    saved = to_bytes(random_states())
    expected = [numbers() for _ in range(3)]
    set_random_states(from_bytes(saved))
    assert [numbers() for _ in range(3)] == expected
    set_random_states(before)


def test_later_numbers_do_not_change_what_was_saved() -> None:
    saved = random_states()
    text = to_bytes(saved)
    numbers()
    assert to_bytes(saved) == text


@pytest.mark.parametrize("junk", [None, {}, {"python": 1, "numpy": 2}, {"python": (3, (1, 2), None), "numpy": {}}])
def test_junk_is_damage(junk: object) -> None:
    with pytest.raises(DamagedCheckpoint, match="random generators cannot be restored"):
        set_random_states(junk)
