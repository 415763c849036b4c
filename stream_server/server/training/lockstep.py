"""The control round: what all ranks do next, from one sum."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import Closed, PeerFailed
from stream_server.server.ranks import Ranks
from stream_server.server.stream import Batch
from stream_server.server.training.phases import Phases
from stream_server.server.training.saves import NOTHING, NoSaves, Saves, SaveWords
from stream_server.server.training.stop import StopReason, StopRequests

IDLE_S = 1.0
HELD_S = 0.05
LONELY_S = 2.0
OFFER_S = 2.0
NUM_SHARED = 5


class Stream(Protocol):
    """Where batches come from. `settle`: the last one was trained; `form_again`: give it once more."""

    def draw(self, timeout_s: float) -> Batch | None: ...

    def settle(self) -> None: ...

    def form_again(self) -> Batch: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One training step: this rank's batch, if it has one, and `sizes`, the number of samples of each rank.

    `num_first` of the union batch are drawn for the first time. `lonely`: ranks that wait for data take part empty.
    `elapsed_s`: the seconds of training on rank 0's clock. `num_missing`: samples that rank 0 knows will never come.
    """

    batch: Batch | None
    sizes: tuple[int, ...]
    num_first: int
    lonely: bool
    elapsed_s: float = 0.0
    num_missing: int = 0

    @property
    def num_samples(self) -> int:
        return sum(self.sizes)

    @property
    def lowest_rank(self) -> int:
        """The lowest rank with a batch."""
        return next(rank for rank, size in enumerate(self.sizes) if size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What one rank says in a round. Without batch it is idle, or ended."""

    batch: Batch | None = None
    ended: bool = False
    impatient: bool = False
    stop: StopReason | None = None
    exit_code: int = 0
    elapsed_s: float = 0.0
    num_missing: int = 0
    saves: SaveWords = NOTHING

    def packed(self, rank: int, num_ranks: int) -> NDArray[np.int64]:
        """Integers to be added up: batch sizes and exit codes by rank, then counts."""
        numbers = np.zeros(2 * num_ranks + NUM_SHARED + len(SaveWords._fields) + len(StopReason), np.int64)
        shared = numbers[2 * num_ranks :]
        numbers[num_ranks + rank] = self.exit_code
        if self.batch is not None:
            numbers[rank] = self.batch.size
            shared[0] = self.batch.num_first
        shared[1] = self.ended
        shared[2] = self.impatient
        shared[3] = round(self.elapsed_s * 1e6) if rank == 0 else 0
        shared[4] = self.num_missing if rank == 0 else 0
        shared[NUM_SHARED : NUM_SHARED + len(self.saves)] = self.saves
        if self.stop is not None:
            shared[NUM_SHARED + len(self.saves) + self.stop] = 1
        return numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What the sum over the ranks says."""

    sizes: tuple[int, ...]
    exit_codes: tuple[int, ...]
    num_first: int
    num_ended: int
    impatient: bool
    elapsed_s: float
    num_missing: int
    saves: SaveWords
    stop: StopReason | None

    @classmethod
    def of(cls, total: NDArray[np.int64], num_ranks: int) -> "Round":
        numbers = total.tolist()
        first, ended, impatient, elapsed_us, num_missing, *others = numbers[2 * num_ranks :]
        saves, stops = SaveWords(*others[: len(SaveWords._fields)]), others[len(SaveWords._fields) :]
        return cls(
            sizes=tuple(numbers[:num_ranks]),
            exit_codes=tuple(numbers[num_ranks : 2 * num_ranks]),
            num_first=first,
            num_ended=ended,
            impatient=impatient > 0,
            elapsed_s=elapsed_us / 1e6,
            num_missing=num_missing,
            saves=saves,
            stop=next((reason for reason in StopReason if stops[reason]), None),
        )

    @property
    def num_active(self) -> int:
        return len(self.sizes) - self.sizes.count(0)

    @property
    def num_idle(self) -> int:
        return len(self.sizes) - self.num_active - self.num_ended


class Patience:
    """How long this rank has waited for data while others held a batch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None

    @property
    def over(self) -> bool:
        return self._since is not None and self._clock() - self._since >= LONELY_S

    @property
    def wait_s(self) -> float:
        """How long to wait for data before the next round."""
        if self._since is None:
            return IDLE_S
        return 0.0 if self.over else HELD_S

    def note(self, *, idle: bool, others_hold: bool) -> None:
        if not (idle and others_hold):
            self._since = None
        elif self._since is None:
            self._since = self._clock()


def in_lockstep(
    stream: Stream,
    ranks: Ranks,
    stops: StopRequests,
    *,
    phases: Phases,
    all_end_at_first: bool = False,
    needs_every_rank: bool = False,
    at_boundary: Callable[[], bool] = lambda: True,
    each_round: Callable[[], None] = lambda: None,
    saves: Saves | None = None,
    elapsed_s: Callable[[], float] = lambda: 0.0,
    num_missing: Callable[[], int] = lambda: 0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Turn]:
    """The training steps that all ranks take together, each with what this rank has for it.

    Every decision comes from the sum of what the ranks say, so they take the same ones. It ends when all streams
    have ended, or when all agreed to stop, which `stops.agreed` then tells. A batch that was drawn and not trained
    then is still held by the stream.

    Args:
        stream: this rank's batches.
        ranks: the ranks; one `sum` is made per round.
        stops: this rank's wish to stop.
        phases: takes the time spent in rounds.
        all_end_at_first: stop when the first stream has ended (`uneven: stop`).
        needs_every_rank: take no step for which some rank has no data yet, however long it takes.
        at_boundary: whether a stop may happen now; the same on all ranks.
        each_round: called before every round, of which there is at least one a second.
        saves: the checkpoints, which are agreed on in the same rounds.
        elapsed_s: seconds of training; what rank 0 has is told to all in each turn.
        num_missing: samples that will never come; so is what rank 0 has of these.
        clock: seconds, for the time that ranks wait for each other.

    Raises:
        PeerFailed: another rank failed.
        ProducerFailed: this rank's receiver failed.
        UserCodeError: a user's method raised while the batch was formed.
    """
    patience = Patience(clock)
    saves = saves or NoSaves()
    batch: Batch | None = None
    ended = False
    while True:
        each_round()
        stopping = stops.pending is not None and at_boundary()
        if batch is None and not ended and not stopping:
            try:
                batch = stream.draw(min(patience.wait_s, saves.wait_s))
            except Closed:
                ended = True
        said = Statement(
            batch=batch,
            ended=ended,
            impatient=patience.over and batch is None,
            stop=stops.pending,
            elapsed_s=elapsed_s(),
            num_missing=num_missing(),
            saves=saves.words(),
        )
        with phases.measure("round"):
            agreed = Round.of(ranks.sum(said.packed(ranks.rank, ranks.size)), ranks.size)
        _raise_if_failed(agreed)
        saves.hear(agreed.saves)
        patience.note(idle=batch is None and not ended, others_hold=agreed.num_active > 0)
        if agreed.stop is not None and (at_boundary() or not agreed.num_active):
            stops.agreed = agreed.stop
            return
        if agreed.num_ended == ranks.size:
            return
        if all_end_at_first and agreed.num_ended:
            stops.agreed = StopReason.UNEVEN
            return
        lonely = agreed.num_idle > 0
        if agreed.num_active and (not lonely or (agreed.impatient and not needs_every_rank)):
            yield Turn(
                batch=batch,
                sizes=agreed.sizes,
                num_first=agreed.num_first,
                lonely=lonely,
                num_missing=agreed.num_missing,
                elapsed_s=agreed.elapsed_s,
            )
            if batch is not None:
                stream.settle()
                batch = None


def come_together(ranks: Ranks) -> None:
    """Return when all ranks have called it. Collective.

    Raises:
        PeerFailed: another rank failed before it came here.
    """
    agree(ranks, NOTHING)


def agree(ranks: Ranks, words: SaveWords) -> SaveWords:
    """What all ranks together say of their saves, in a round apart from training. Collective.

    Raises:
        PeerFailed: another rank failed.
    """
    agreed = Round.of(ranks.sum(Statement(saves=words).packed(ranks.rank, ranks.size)), ranks.size)
    _raise_if_failed(agreed)
    return agreed.saves


def offer_failure(ranks: Ranks, exit_code: int, timeout_s: float = OFFER_S) -> int | None:
    """Tell the other ranks in their next round that this one failed.

    Returns:
        The exit code that all ranks agreed on, or None when they did not come to a round in time, since they wait
        for this rank in some other collective call.
    """
    total = ranks.offer(Statement(exit_code=exit_code).packed(ranks.rank, ranks.size), timeout_s)
    return None if total is None else _exit_code(Round.of(total, ranks.size))


def _exit_code(said: Round) -> int:
    return next((code for code in said.exit_codes if code), 0)


def _raise_if_failed(said: Round) -> None:
    failed = [rank for rank, code in enumerate(said.exit_codes) if code]
    if failed:
        raise PeerFailed(f"rank {failed[0]} failed; exit.json in the output folder says why", _exit_code(said))
