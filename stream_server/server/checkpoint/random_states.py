"""The random generators of a rank: Python's, NumPy's global one and the framework's."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from stream_server.errors import DamagedCheckpoint
from stream_server.server.user.framework import Step
from stream_server.server.user.global_generators import seed_generators

_NO_STATE = (ValueError, TypeError, KeyError, IndexError, OverflowError)


def random_states() -> dict[str, Any]:
    """The states of Python's and NumPy's global generators, for `set_random_states`."""
    return {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}


def set_random_states(states: Any) -> None:
    """Set the states of Python's and NumPy's global generators, as `random_states` gave them.

    Raises:
        DamagedCheckpoint: these are no states of generators.
    """
    try:
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
    except _NO_STATE as error:
        raise DamagedCheckpoint(f"the state of the random generators cannot be restored: {error}") from error


class RandomStates:
    """The global generators of a rank, with the framework's. On other ranks they start over."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def state_dict(self) -> dict[str, Any]:
        return {**random_states(), "framework": self._step.random_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_random_states(state)
        self._step.load_random_state(state["framework"])


def seed_random_states(numbers: Sequence[int], step: Step) -> None:
    """Seed the global generators, and the framework's, with a seed made from several numbers."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
    seed_generators(seed)
    step.seed_random_state(seed)
