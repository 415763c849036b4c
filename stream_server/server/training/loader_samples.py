"""The samples that a loader of the user's is given, and what becomes of them."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread, get_ident
from typing import Any, Self

from stream_server.buffers.pins import Draw
from stream_server.errors import UserCodeError
from stream_server.server.user.simulation_data import SimulationData
from stream_server.user_code import call_user

NOT_THE_LOADER = (
    "the samples of the stream are for the loader that train_dataloader returns, and come while the training waits for "
    "its next batch: do not iterate the dataset elsewhere"
)
END = object()


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
        """These samples make a batch."""
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
        """Forget the samples that the loader does not have any more; gives those that were in no batch."""
        left = [key for key, handed in self._handed.items() if _num_references(handed) <= _LEFT]
        none, self._none = self._none, []
        return none + [draw for key in left for draw in self._handed.pop(key).draws]

    def all(self) -> list[Draw]:
        """Forget all samples; gives those that were in no batch."""
        handed, self._handed = self._handed, {}
        none, self._none = self._none, []
        return none + [draw for it in handed.values() for draw in it.draws]


@dataclass(frozen=True, slots=True)
class Asks:
    """The loader needs further samples."""


@dataclass(frozen=True, slots=True)
class Made:
    """The loader gave a batch of these samples."""

    data: Any
    samples: list[Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The loader gives no further batch."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The loader, or what it called, raised."""

    error: BaseException


Event = Asks | Made | Ended | Raised
# None instead of a sample was dropped before, and stays None.
Block = Sequence[tuple[SimulationData | None, Draw]]


class _StopLoading(BaseException):
    """Ends the loader's thread, through whatever code of the user's is on its stack."""


class LoaderSamples:
    """The iterator that a `StreamDataset` gives. It belongs to the loader's thread.

    `none` are the draws of samples that were None, until somebody clears it.
    """

    def __init__(self) -> None:
        self.handed = HandedSamples()
        self.none: list[Draw] = []
        self.block: deque[tuple[SimulationData | None, Draw]] = deque()
        self._ask: Callable[[], Block] | None = None
        self._process: Callable[[SimulationData], Any] = id
        self._thread: int | None = None

    def begin(self, ask: Callable[[], Block], process: Callable[[SimulationData], Any]) -> None:
        """Give this thread's loader what `process` makes of the samples of each block, until one is empty."""
        self._ask, self._process, self._thread = ask, process, get_ident()

    def end(self) -> list[Draw]:
        """The loader is given nothing more; gives the draws of all samples that were in no batch."""
        self._ask = self._thread = None
        draws = [*self.handed.all(), *(draw for data, draw in self.block if data is not None)]
        self.block.clear()
        self.handed = HandedSamples()
        return sorted(draws, key=lambda draw: draw.ticket)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._ask is None or get_ident() != self._thread:
            raise RuntimeError(NOT_THE_LOADER)
        if not self.block:
            self.block.extend(self._ask())
            if not self.block:
                raise StopIteration
        data, draw = self.block[0]
        sample = None if data is None else self._process(data)
        self.block.popleft()
        if data is not None:
            self.handed.give(sample, draw)
        if sample is None:
            self.none.append(draw)
        return sample


class LoaderThread:
    """Runs a loader on a thread of its own, in turn with the main thread: one of the two always waits for the other.

    So a loader may block while it waits for samples, and the main thread still takes part in the rounds. As a context
    manager it starts and ends the thread. `name` is what errors call the loader.
    """

    def __init__(
        self, loader: Any, samples: LoaderSamples, process: Callable[[SimulationData], Any], *, name: str
    ) -> None:
        self._loader = loader
        self._samples = samples
        self._process = process
        self._name = name
        self._listed: list[list[Any]] = []
        self._given: SimpleQueue[Block | _StopLoading | None] = SimpleQueue()
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._thread = Thread(target=self._run, name="loader")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._given.put(_StopLoading())
        self._thread.join()

    def resume(self, block: Block | None = None) -> Event:
        """Let it go on: with the block that it asked for, or to its next batch."""
        self._given.put(block)
        return self._events.get()

    def _run(self) -> None:
        try:
            self._wait()
            self._samples.begin(self._ask, self._process)
            collate_fn = self._loader.collate_fn
            self._loader.collate_fn = lambda samples: collate_fn(self._note(samples))
            try:
                self._go_through()
            finally:
                self._loader.collate_fn = collate_fn
            self._events.put(Ended())
        except _StopLoading:
            pass
        except BaseException as error:
            self._events.put(Raised(error))

    def _go_through(self) -> None:
        batches = call_user(self._name, iter, self._loader)
        while (data := call_user(self._name, next, batches, END)) is not END:
            if len(self._listed) != 1:
                raise UserCodeError(
                    f"{self._name} must call its collate_fn once for each batch, which tells the samples of that "
                    f"batch, but called it {len(self._listed)} times for one: return a torch.utils.data.DataLoader "
                    "itself, and choose or change samples in its dataset"
                )
            self._events.put(Made(data, self._listed.pop()))
            del data
            self._wait()

    def _note(self, samples: list[Any]) -> list[Any]:
        self._listed.append(list(samples))
        return samples

    def _ask(self) -> Block:
        self._events.put(Asks())
        block = self._wait()
        assert block is not None, "the loader goes on without the samples that it asked for"
        return block

    def _wait(self) -> Block | None:
        given = self._given.get()
        if isinstance(given, _StopLoading):
            # It is asked again by code of the user's that swallows all exceptions.
            self._given.put(given)
            raise given
        return given
