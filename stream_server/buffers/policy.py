"""The protocol of a buffer's policy, and the array operations that policies share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stream_server.built_in import POLICIES, load_named
from stream_server.errors import ConfigError

SlotArray = npt.NDArray[np.intp]
State = dict[str, Any]
Seed = int | Sequence[int]

NO_SLOTS: SlotArray = np.empty(0, np.intp)


class Drawn(NamedTuple):
    """The slots of one batch, how many of them were never drawn before, and which left the population."""

    slots: SlotArray
    num_first: int
    removed: SlotArray


class Policy(ABC):
    """Decides over slot numbers which sample is drawn next and which may be evicted. For one thread at a time.

    A slot is in the population from `put` until it is evicted, drawn for the last time or removed. No sample is evicted
    before its first draw. Callers stay within the limits: `put` at most `room` slots, `draw` at most `ready(num)`.

    The constructor names the settings of study.json that it takes: `capacity`, `watermark`, `pseudo_epochs`,
    `draws_per_sample` and `seed`, a value for `generator` that differs from rank to rank; every other argument is a key
    of `buffer.args`. It raises `ValueError` for a value that it cannot take.

    Attributes:
        capacity: most samples that can wait.
    """

    capacity: int

    @property
    def draws_per_sample(self) -> float | None:
        """Draws of a sample in all, on average; None, the default, where nobody can know in advance."""
        return None

    @property
    @abstractmethod
    def population(self) -> int:
        """Samples that can be drawn, including those that were drawn before and kept."""

    @property
    @abstractmethod
    def num_unseen(self) -> int:
        """Samples of the population that were never drawn."""

    @property
    @abstractmethod
    def room(self) -> int:
        """Number of slots that can be put now, by free places and by eviction; never negative."""

    @property
    @abstractmethod
    def num_left(self) -> int:
        """Number of draws still to come if nothing is put any more; exact after `close`."""

    @abstractmethod
    def ready(self, num: int) -> int:
        """Number of samples that the next batch of `num` may have now; 0 while the gate is shut.

        While open this is `num` or 0. After `close` what is left is split into ceil(left / num) even batches, see
        `even_share`.
        """

    @abstractmethod
    def put(self, slots: Sequence[int]) -> SlotArray:
        """Take the slots in; returns the slots evicted for them."""

    @abstractmethod
    def draw(self, num: int) -> Drawn:
        """Choose `num` samples, as many as `ready` allowed; distinct ones, except after `close`."""

    @abstractmethod
    def slots(self) -> SlotArray:
        """The slots of the population, as a copy."""

    @abstractmethod
    def remove(self, slots: SlotArray) -> int:
        """Forget these slots of the population; returns how many of them were never drawn."""

    @abstractmethod
    def close(self) -> SlotArray:
        """Note that nothing will be put any more; return the slots of samples that will not be drawn again.

        From now on every draw must bring the end nearer: `num_left` falls by the size of each batch. Closing again
        changes nothing.
        """

    def end_round(self) -> SlotArray:
        """Like `close`, but more will be put after the next `reopen`: what may be drawn again need not go.

        Every sample is drawn at least once until `ready` gives 0.
        """
        return self.close()

    @abstractmethod
    def reopen(self) -> None:
        """More will be put after all, after a `close` or an `end_round`."""

    @abstractmethod
    def state_dict(self) -> State:
        """The whole state: copies in arrays, plain numbers, and the random generator's own state.

        Two entries are common to all: `slots`, those of the population, and `closed`. Slot numbers stand in `slots`
        alone; every other entry tells a sample by its place there.
        """

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Continue exactly where `state_dict` was called; the arrays given are not kept.

        There may be more slots than the capacity. Then there is no room until what must be drawn is below it.
        """

    @staticmethod
    def with_other_bound(state: State, before: float | None, now: float) -> State:
        """A saved state that goes on with another `draws_per_sample`: it is that of the samples to come.

        The default leaves it as it is, for policies that keep no count of that.
        """
        return state

    @classmethod
    def deal(cls, states: Sequence[State], seeds: Sequence[Seed]) -> list[State]:
        """Deal the states of all ranks of a run to those of a run that continues it, one for each of `seeds`.

        No slot appears in two of the states given, and every one must be in exactly one of the states returned. The
        default is `deal_evenly`.
        """
        return deal_evenly(states, seeds)


def policy_class(name: str, folder: Path) -> type[Policy]:
    """The class that `buffer.policy` names: one of `POLICIES`, or `FILE.py:Class` with a FILE relative to `folder`.

    Raises:
        ConfigError: there is no such class, or it is no `Policy`.
        UserCodeError: its file raised while it was imported.
    """
    policy = load_named(name, POLICIES, folder, kind="buffer.policy")
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise ConfigError(
            f"buffer.policy must name a subclass of stream_server.buffers.Policy, but {name} is {policy!r}"
        )
    return policy


def deal_evenly(
    states: Sequence[State], seeds: Sequence[Seed], *, order: Callable[[State], npt.NDArray[Any]] | None = None
) -> list[State]:
    """Deal the slots of all states to new ones, so that each gets as many.

    Args:
        states: as `Policy.state_dict` gives them. Every array must have one element for each of `slots`, and goes with
            it; integers are sums, which are split; `closed` is true if it is true in all; `random`, if there is one,
            is the state of a generator, and starts over from the seed.
        seeds: one for each of the states returned.
        order: given all slots in one state, in the order of arrival as far as it can be told across ranks, the key by
            which they are sorted before they are dealt like cards. Default: no sorting.
    """
    num = len(seeds)
    arrays = [name for name, value in states[0].items() if isinstance(value, np.ndarray)]
    sums = [name for name, value in states[0].items() if isinstance(value, int) and not isinstance(value, bool)]
    deck: State = {name: interleave([state[name] for state in states]) for name in arrays}
    if order is not None:
        sorted_by = np.argsort(order(deck), kind="stable")
        deck = {name: values[sorted_by] for name, values in deck.items()}
    totals = {name: sum(state[name] for state in states) for name in sums}
    common: State = {"closed": all(state["closed"] for state in states)}
    return [
        {
            **{name: values[rank::num] for name, values in deck.items()},
            **{name: total // num + (rank < total % num) for name, total in totals.items()},
            **common,
            **({"random": dict(generator(seed).bit_generator.state)} if "random" in states[0] else {}),
        }
        for rank, seed in enumerate(seeds)
    ]


def interleave(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The first element of each part, then the second of each, and so on."""
    places = np.concatenate([np.arange(len(part)) for part in parts])
    joined: npt.NDArray[Any] = np.concatenate(parts)[np.argsort(places, kind="stable")]
    return joined


def even_share(num_left: int, num: int) -> int:
    """The size of the next of ceil(num_left / num) batches of nearly equal size, so that the last is not of one row."""
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
    # Collisions are rare here, and drawing all again keeps the distribution exact at half the cost of `choice`.
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
