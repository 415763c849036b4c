"""The random generators that a program shares with all its libraries."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from stream_server.errors import DamagedCheckpoint

_JUNK = (ValueError, TypeError, KeyError, IndexError, OverflowError)


def random_states() -> dict[str, Any]:
    """The states of Python's and NumPy's global generators, as plain state."""
    return {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}


def seed_of(numbers: Sequence[int]) -> int:
    """One seed of 64 bits out of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def seed_random_states(seed: int) -> None:
    """Begin the streams of Python's and NumPy's global generators anew."""
    random.seed(seed)
    np.random.seed([seed % 2**32, seed >> 32])


def set_random_states(states: Any) -> None:
    """Go on where `random_states` was called.

    Raises:
        DamagedCheckpoint: these are no states of generators.
    """
    try:
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
    except _JUNK as error:
        raise DamagedCheckpoint(f"the state of the random generators cannot be restored: {error}") from error
