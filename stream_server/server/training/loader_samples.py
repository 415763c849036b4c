"""The samples that a loader of the user's is given, and what becomes of them.

Why: docs/decisions/0030-loader-of-the-users.md
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, Self

from stream_server.buffers.pins import Draw
from stream_server.server.user.simulation_data import SimulationData

NOT_THE_LOADER = (
    "the samples of the stream are for the loader that train_dataloader returns: do not iterate the dataset elsewhere"
)


@dataclass(slots=True, eq=False)
class _Handed:
    sample: Any
    draws: deque[Draw] = field(default_factory=deque)


def _num_references(handed: _Handed) -> int:
    return sys.getrefcount(handed.sample)


_LEFT = _num_references(_Handed(object()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """The samples of a batch: the draws of those that the stream gave for it, and the number of all others.

    `size` counts both.
    """

    draws: Sequence[Draw]
    num_added: int

    @property
    def size(self) -> int:
        return len(self.draws) + self.num_added


class HandedSamples:
    """The samples that a loader was given, until each was in a batch or was dropped.

    A loader passes on the objects that it was given, so that a sample is known by its identity. One that nobody else
    refers to, and that was in no batch, was dropped; one that is held back still comes. None is nobody's object and no
    sample: what it stands for is dropped as it is given. For one thread at a time; `num_given` leaves out each None.
    """

    def __init__(self) -> None:
        self.num_given = 0
        self._handed: dict[int, _Handed] = {}
        self._none: list[Draw] = []

    def give(self, sample: Any, draw: Draw) -> None:
        """The loader gets a sample; the same object may stand for several."""
        if sample is None:
            self._none.append(draw)
            return
        self.num_given += 1
        self._handed.setdefault(id(sample), _Handed(sample)).draws.append(draw)

    def take(self, samples: Iterable[Any]) -> Taken:
        """Take the samples that make a batch."""
        draws: list[Draw] = []
        num_added = 0
        for sample in samples:
            handed = self._handed.get(id(sample))
            if handed is None or not handed.draws:
                num_added += sample is not None
            else:
                draws.append(handed.draws.popleft())
        return Taken(draws=draws, num_added=num_added)

    def dropped(self) -> list[Draw]:
        """Forget the samples that the loader does not have any more; returns the ones in no batch."""
        left = [key for key, handed in self._handed.items() if _num_references(handed) <= _LEFT]
        none, self._none = self._none, []
        return none + [draw for key in left for draw in self._handed.pop(key).draws]

    def all(self) -> list[Draw]:
        """Forget all samples; returns the ones in no batch."""
        handed, self._handed = self._handed, {}
        none, self._none = self._none, []
        return none + [draw for batch in handed.values() for draw in batch.draws]


LoaderBlock = Sequence[tuple[SimulationData | None, Draw]]
"""Samples with their draws; None instead of a sample was dropped before, and stays None."""


class LoaderSamples:
    """The iterator that a `StreamDataset` gives. It belongs to the thread that runs the loader.

    `num_given` counts the samples since `begin`; `none` are the draws of those that were None, until somebody clears
    it.
    """

    def __init__(self) -> None:
        self.handed = HandedSamples()
        self.none: list[Draw] = []
        self.num_given = 0
        self._block: deque[tuple[SimulationData | None, Draw]] = deque()
        self._ask: Callable[[], LoaderBlock] | None = None
        self._process: Callable[[SimulationData], Any] = id
        self._thread: int | None = None

    def begin(self, ask: Callable[[], LoaderBlock], process: Callable[[SimulationData], Any]) -> None:
        """Give this thread's loader what `process` makes of the samples of each block, until one is empty."""
        self._ask, self._process, self._thread = ask, process, get_ident()
        self.num_given = 0

    def end(self) -> list[Draw]:
        """The loader is given nothing more; returns the draws of all samples that were in no batch."""
        self._ask = self._thread = None
        draws = [*self.handed.all(), *draws_of(self._block)]
        self._block.clear()
        self.handed = HandedSamples()
        return draws

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._ask is None or get_ident() != self._thread:
            raise RuntimeError(NOT_THE_LOADER)
        if not self._block:
            self._block.extend(self._ask())
            if not self._block:
                raise StopIteration
        data, draw = self._block[0]
        sample = None if data is None else self._process(data)
        self._block.popleft()
        self.num_given += 1
        if data is not None:
            self.handed.give(sample, draw)
        if sample is None:
            self.none.append(draw)
        return sample


def draws_of(block: Iterable[tuple[SimulationData | None, Draw]]) -> list[Draw]:
    """The draws of the samples in a block that were not None before."""
    return [draw for data, draw in block if data is not None]
