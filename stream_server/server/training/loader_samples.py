"""The samples that a loader of the user's is given, and what becomes of them."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread, get_ident
from typing import Any, Self

from stream_server.buffers.pins import Draw
from stream_server.errors import UserCodeError
from stream_server.server.user.collate import SharedArrays
from stream_server.server.user.simulation_data import SimulationData
from stream_server.user_code import call_user

NOT_THE_LOADER = (
    "the samples of the stream are for the loader that train_dataloader returns: do not iterate the dataset elsewhere"
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
class Made:
    """The loader made a batch.

    `dropped` are the samples that it dropped since the last event, `num_given` counts those that it was given so far.
    """

    data: Any
    taken: Taken
    dropped: Sequence[Draw]
    num_given: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """The loader dropped these samples, and goes on to its batch."""

    dropped: Sequence[Draw]


@dataclass(frozen=True, slots=True)
class Ended:
    """The loader gives no further batch."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The loader, or what it called, raised."""

    error: BaseException


Event = Made | Discarded | Ended | Raised
# None instead of a sample was dropped before, and stays None.
Block = Sequence[tuple[SimulationData | None, Draw]]


class _StopLoading(BaseException):
    """Ends the loader's thread, through whatever code of the user's is on its stack."""


class LoaderSamples:
    """The iterator that a `StreamDataset` gives. It belongs to the loader's thread.

    `num_given` counts the samples since `begin`; `none` are the draws of those that were None, until somebody clears
    it.
    """

    def __init__(self) -> None:
        self.handed = HandedSamples()
        self.none: list[Draw] = []
        self.num_given = 0
        self.block: deque[tuple[SimulationData | None, Draw]] = deque()
        self._ask: Callable[[], Block] | None = None
        self._process: Callable[[SimulationData], Any] = id
        self._thread: int | None = None

    def begin(self, ask: Callable[[], Block], process: Callable[[SimulationData], Any]) -> None:
        """Give this thread's loader what `process` makes of the samples of each block, until one is empty."""
        self._ask, self._process, self._thread = ask, process, get_ident()
        self.num_given = 0

    def end(self) -> list[Draw]:
        """The loader is given nothing more; gives the draws of all samples that were in no batch."""
        self._ask = self._thread = None
        draws = [*self.handed.all(), *draws_of(self.block)]
        self.block.clear()
        self.handed = HandedSamples()
        return draws

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
        self.num_given += 1
        if data is not None:
            self.handed.give(sample, draw)
        if sample is None:
            self.none.append(draw)
        return sample


class LoaderThread:
    """Runs a loader on a thread of its own, as far as the main thread allows.

    It waits before each batch until that is allowed, and for samples where it has none, so that a loader may block and
    the main thread still takes part in the rounds. What it does depends only on the blocks that it is given and on
    their order, and not on the time: so its events are the same however far it is ahead. As a context manager it starts
    and ends the thread; all other methods are the main thread's. `convert` is applied to each batch, `shared` looks at
    its samples, `name` is what errors call the loader, `seconds` is how long it has run so far.
    """

    def __init__(
        self,
        loader: Any,
        samples: LoaderSamples,
        process: Callable[[SimulationData], Any],
        convert: Callable[[Any], Any],
        shared: SharedArrays,
        *,
        name: str,
    ) -> None:
        self.seconds = 0.0
        self._loader = loader
        self._samples = samples
        self._process = process
        self._convert = convert
        self._shared = shared
        self._name = name
        self._listed: list[list[Any]] = []
        self._changed = Condition()
        self._blocks: deque[Block] = deque()
        self._events: deque[Event] = deque()
        self._num_allowed = 0
        self._num_made = 0
        self._can_go_on: Callable[[], bool] | None = None
        self._is_stopped = False
        self._is_over = False
        self._since_s = time.perf_counter()
        self._thread = Thread(target=self._run, name="loader")

    def __enter__(self) -> Self:
        self._since_s = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()

    def allow(self, num_batches: int) -> None:
        """Let it make so many batches, all in all."""
        with self._changed:
            self._num_allowed = max(self._num_allowed, num_batches)
            self._changed.notify_all()

    def give(self, block: Block) -> None:
        """Further samples for it; an empty block is the end of the stream."""
        with self._changed:
            self._blocks.append(block)
            self._changed.notify_all()

    def next(self) -> Event | None:
        """Wait for its next event; None if it needs samples to get there."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._events) or self._rests)
            return self._events.popleft() if self._events else None

    def quiesce(self) -> None:
        """Wait until it cannot go on by itself."""
        with self._changed:
            self._changed.wait_for(lambda: self._rests)

    def rest(self) -> tuple[list[Event], list[Draw]]:
        """Once the thread has ended: the events that nobody has seen, and the draws that it was not given."""
        return list(self._events), [draw for block in self._blocks for draw in draws_of(block)]

    @property
    def _rests(self) -> bool:
        return self._is_over or (self._can_go_on is not None and not self._can_go_on())

    def _run(self) -> None:
        event: Event | None = None
        try:
            self._wait(self._may_make_one)
            self._samples.begin(self._ask, self._process)
            collate_fn = self._loader.collate_fn
            self._loader.collate_fn = lambda samples: collate_fn(self._note(samples))
            try:
                self._go_through()
            finally:
                self._loader.collate_fn = collate_fn
            event = Ended()
        except _StopLoading:
            pass
        except BaseException as error:
            event = Raised(error)
        with self._changed:
            self._events.extend([] if event is None else [event])
            self.seconds += time.perf_counter() - self._since_s
            self._is_over = True
            self._changed.notify_all()

    def _go_through(self) -> None:
        batches = call_user(self._name, iter, self._loader)
        has_recognised = False
        while (data := call_user(self._name, next, batches, END)) is not END:
            if len(self._listed) != 1:
                raise UserCodeError(
                    f"{self._name} must call its collate_fn once for each batch, which tells the samples of that "
                    f"batch, but called it {len(self._listed)} times for one: return a torch.utils.data.DataLoader "
                    "itself, and choose or change samples in its dataset"
                )
            handed = self._samples.handed
            taken = handed.take(self._listed.pop())
            has_recognised = has_recognised or bool(taken.draws)
            if not has_recognised and handed.num_given and taken.num_added:
                raise UserCodeError(
                    f"no sample of the first batch that {self._name} made is one of the stream, although it was given "
                    "some: pass on the objects that the dataset gives, and transform them in process_simulation_data "
                    "or in collate_fn"
                )
            if taken.size:
                data = call_user(self._name, self._convert, data)
                self._tell(Made(data, taken, handed.dropped(), self._samples.num_given))
            del data
            self._wait(self._may_make_one)

    def _note(self, samples: list[Any]) -> list[Any]:
        self._listed.append(list(samples))
        self._shared.check(samples, self._name)
        return samples

    def _ask(self) -> Block:
        dropped = self._samples.handed.dropped()
        if dropped:
            self._tell(Discarded(dropped))
        self._wait(lambda: bool(self._blocks))
        return self._blocks.popleft()

    def _may_make_one(self) -> bool:
        return self._num_made < self._num_allowed

    def _tell(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._num_made += isinstance(event, Made)
            self._changed.notify_all()

    def _wait(self, can_go_on: Callable[[], bool]) -> None:
        with self._changed:
            self._can_go_on = can_go_on
            self._changed.notify_all()
            self.seconds += time.perf_counter() - self._since_s
            self._changed.wait_for(lambda: self._is_stopped or can_go_on())
            self._since_s = time.perf_counter()
            self._can_go_on = None
            if self._is_stopped:
                # Again and again, where code of the user's swallows all exceptions.
                raise _StopLoading


def draws_of(block: Iterable[tuple[SimulationData | None, Draw]]) -> list[Draw]:
    """The draws of the samples in a block that were not None before."""
    return [draw for data, draw in block if data is not None]
