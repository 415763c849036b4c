"""What every policy offers, and the few array operations they share."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

SlotArray = npt.NDArray[np.intp]
State = dict[str, Any]
Seed = int | Sequence[int]

NO_SLOTS: SlotArray = np.empty(0, np.intp)


class Drawn(NamedTuple):
    """The slots of one batch, how many of them were never drawn before, and which left the population."""

    slots: SlotArray
    num_first: int
    removed: SlotArray


class Policy(Protocol):
    """Decides over slot numbers which sample is drawn next and which may be evicted. For one thread at a time.

    A slot is in the population from `put` until it is evicted, drawn for the last time or removed. Who calls
    respects the limits: at most `room` slots to `put`, at most `ready(num)` to `draw`.
    """

    @property
    def capacity(self) -> int:
        """Most samples that can wait."""

    @property
    def population(self) -> int:
        """Samples that can be drawn, including those that were drawn before and kept."""

    @property
    def num_unseen(self) -> int:
        """Samples of the population that were never drawn."""

    @property
    def room(self) -> int:
        """How many slots can be put now, by free places and by eviction."""

    @property
    def num_left(self) -> int:
        """How many draws are still to come if nothing is put any more; exact after `close`."""

    def ready(self, num: int) -> int:
        """How many samples the next batch of `num` may have now; 0 while the gate is shut.

        While open this is `num` or 0. After `close` what is left is split into ceil(left / num) even batches.
        """

    def put(self, slots: Sequence[int]) -> SlotArray:
        """Take the slots in, and give those that were evicted for them."""

    def draw(self, num: int) -> Drawn:
        """Choose `num` samples, as many as `ready` allowed."""

    def slots(self) -> SlotArray:
        """The slots of the population, as a copy."""

    def remove(self, slots: SlotArray) -> int:
        """Forget these slots of the population; gives how many of them were never drawn."""

    def close(self) -> SlotArray:
        """Nothing will be put any more; gives the slots of samples that will not be drawn again."""

    def reopen(self) -> None:
        """More will be put after all, after a `close`."""

    def state_dict(self) -> State:
        """All that decides what comes next: copies in arrays, plain numbers, and the generator's own state.

        Two entries are common to all: `slots`, those of the population, and `closed`.
        """

    def load_state_dict(self, state: State) -> None:
        """Continue exactly where `state_dict` was called; the arrays given are not kept.

        There may be more slots than the capacity. Then there is no room until what must be drawn is below it.
        """


def even_share(num_left: int, num: int) -> int:
    """The size of the next of ceil(num_left / num) batches as even as can be: nobody meets a batch of one row."""
    if not num_left or not num:
        return 0
    num_batches = -(-num_left // num)
    return -(-num_left // num_batches)


def generator(seed: Seed) -> np.random.Generator:
    """A PCG64 generator; `seed` is one number or several, such as (seed of the study, rank)."""
    return np.random.Generator(np.random.PCG64(seed))


def distinct(random: np.random.Generator, population: int, num: int) -> SlotArray:
    """Draw `num` distinct positions below `population`, all sets equally likely, in O(num)."""
    if num * num > population:
        return random.choice(population, num, replace=False, shuffle=False)
    if num == 1:
        return np.array([int(random.random() * population)], np.intp)
    # Collisions are rare here, and drawing all again leaves the law exact at half the price of `choice`.
    while True:
        positions: SlotArray = (random.random(num) * population).astype(np.intp)
        positions.sort()
        if not np.count_nonzero(positions[1:] == positions[:-1]):
            return positions


def exchange(positions: SlotArray, start: int, *arrays: npt.NDArray[Any]) -> None:
    """Swap within each array so that what stood at the distinct `positions` stands from `start` on, in any order."""
    if len(positions) == 1:
        position = int(positions[0])
        for array in arrays:
            array[start], array[position] = array[position], array[start]
        return
    stop = start + len(positions)
    inside = (positions >= start) & (positions < stop)
    movers = positions[~inside]
    if not len(movers):
        return
    wanted = np.ones(len(positions), bool)
    wanted[positions[inside] - start] = False
    holes = np.flatnonzero(wanted) + start
    for array in arrays:
        array[holes], array[movers] = array[movers], array[holes]


def check_capacity(capacity: int, watermark: int) -> None:
    """Refuse sizes with which nothing could ever be drawn.

    Raises:
        ValueError: `capacity` is below 1 or `watermark` is not within 1 … `capacity`.
    """
    if capacity < 1:
        raise ValueError(f"The capacity must be at least 1 sample, but is {capacity}.")
    if not 1 <= watermark <= capacity:
        raise ValueError(f"The watermark must be within 1 and the capacity of {capacity}, but is {watermark}.")
