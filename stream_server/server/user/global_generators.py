"""The global random generators of Python and NumPy, from which user code may draw."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seed_generators(seed: int) -> None:
    """Begin the global random streams of Python and NumPy again, from which user code may draw."""
    random.seed(seed)
    np.random.seed([seed % 2**32, (seed >> 32) % 2**32])


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Within, these streams begin with a seed; afterwards they go on as if they had not been used."""
    states = random.getstate(), np.random.get_state()
    seed_generators(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
