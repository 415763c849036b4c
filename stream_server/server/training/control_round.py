"""The control round, in which all ranks agree from one sum on what they do next.

A rank has a batch, is idle (it waits for data) or is drained (its stream has ended). While a rank is idle the others
hold their batches, and step without it after `LONELY_S`. A drained rank takes part in every step without a batch:
it runs no user code and adds zeros to the gradient. The training ends when all ranks are drained.

Why: docs/decisions/0031-control-round.md
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import Closed, PeerFailed
from stream_server.server.progress.batches import Batch, StepCounts, UnionBatch
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import Ranks

IDLE_S = 1.0
HELD_S = 0.05
LONELY_S = 2.0
OFFER_S = 10.0


class SaveState(NamedTuple):
    """The state of the checkpoint on one rank, or, added up, the number of ranks in each state.

    `wanted`: a checkpoint is due. `written`: this rank's part of the one under way is on disk; `failed`: it, or the
    commit, failed. `committed`: the checkpoint is in place (rank 0).
    """

    wanted: int = 0
    written: int = 0
    failed: int = 0
    committed: int = 0


NOTHING = SaveState()


class Saves(Protocol):
    """The part of the checkpoints in the control rounds. Main thread; `advance` is collective."""

    @property
    def wait_s(self) -> float:
        """The longest wait for data before the next round, in seconds."""
        ...

    def state(self) -> SaveState:
        """The state of this rank, for the next round."""
        ...

    def advance(self, total: SaveState) -> None:
        """Take the next step that the sum of the states of all ranks allows."""
        ...


class NoSaves:
    """No checkpoints: nothing is ever saved."""

    wait_s = math.inf

    def state(self) -> SaveState:
        return NOTHING

    def advance(self, total: SaveState) -> None:
        pass


class Stream(Protocol):
    """A source of batches. `release`: the last one was trained; `form_again`: give it once more.

    `quiesce`: wait until no user code runs for it on another thread.
    """

    def draw(self, timeout_s: float) -> Batch | None: ...

    def release(self) -> None: ...

    def form_again(self) -> Batch: ...

    def quiesce(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote:
    """The contribution of one rank to a round. Without a batch the rank is idle, or `drained`."""

    batch: Batch | None = None
    drained: bool = False
    impatient: bool = False
    stop: StopReason | None = None
    exit_code: int = 0
    elapsed_s: float = 0.0
    num_missing: int = 0
    saves: SaveState = NOTHING

    def packed(self, rank: int, num_ranks: int) -> NDArray[np.int64]:
        """Integers to be added up: batch sizes and exit codes by rank, then counts, the checkpoint and the stop."""
        sizes, exit_codes, stops = [0] * num_ranks, [0] * num_ranks, [0] * len(StopReason)
        counts = StepCounts()
        exit_codes[rank] = self.exit_code
        if self.batch is not None:
            sizes[rank] = self.batch.size
            counts = self.batch.counts
        if rank == 0:
            counts = counts._replace(num_missing=self.num_missing, elapsed_us=round(self.elapsed_s * 1e6))
        if self.stop is not None:
            stops[self.stop] = 1
        shared = [*counts, self.drained, self.impatient, *self.saves, *stops]
        return np.array([*sizes, *exit_codes, *shared], np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """The sum of the statements of all ranks."""

    sizes: tuple[int, ...]
    exit_codes: tuple[int, ...]
    counts: StepCounts
    num_drained: int
    impatient: bool
    saves: SaveState
    stop: StopReason | None

    @classmethod
    def of(cls, total: NDArray[np.int64], num_ranks: int) -> "Tally":
        numbers = iter(total.tolist())
        sizes, exit_codes = tuple(islice(numbers, num_ranks)), tuple(islice(numbers, num_ranks))
        counts = StepCounts(*islice(numbers, len(StepCounts._fields)))
        num_drained, num_impatient = islice(numbers, 2)
        saves = SaveState(*islice(numbers, len(SaveState._fields)))
        stops = list(numbers)
        return cls(
            sizes=sizes,
            exit_codes=exit_codes,
            counts=counts,
            num_drained=num_drained,
            impatient=num_impatient > 0,
            saves=saves,
            # Going through an enumeration takes 2 µs.
            stop=next(filter(stops.__getitem__, StopReason)) if any(stops) else None,
        )

    @property
    def exit_code(self) -> int:
        """The exit code of the first rank that failed, 0 if none did."""
        return next((code for code in self.exit_codes if code), 0)

    @property
    def num_active(self) -> int:
        return len(self.sizes) - self.sizes.count(0)

    @property
    def num_idle(self) -> int:
        return len(self.sizes) - self.num_active - self.num_drained

    def union_batch(self, batch: Batch | None, *, needs_every_rank: bool) -> UnionBatch | None:
        """The step that all ranks take now, this one with its `batch`; None if they wait for data."""
        lonely = self.num_idle > 0
        if not self.num_active or (lonely and (needs_every_rank or not self.impatient)):
            return None
        return UnionBatch(own=batch, sizes=self.sizes, counts=self.counts, lonely=lonely)


class LonelyWait:
    """The time for which this rank has waited for data while others held a batch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None

    @property
    def over(self) -> bool:
        return self._since is not None and self._clock() - self._since >= LONELY_S

    @property
    def wait_s(self) -> float:
        """The longest wait for data before the next round, in seconds."""
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
    follows: Callable[[], bool] = lambda: False,
    at_boundary: Callable[[], bool] = lambda: True,
    each_round: Callable[[], None] = lambda: None,
    saves: Saves | None = None,
    elapsed_s: Callable[[], float] = lambda: 0.0,
    num_missing: Callable[[], int] = lambda: 0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[UnionBatch]:
    """Yield the training steps that all ranks take together, each with this rank's batch, if it has one.

    Every decision follows from the sum of all statements, so that all ranks take the same one. The steps end when all
    ranks are drained, or when all agreed to stop; `stops.agreed` and `stops.text` then tell why. A batch that was drawn
    and not trained then is still held by the stream.

    Args:
        stream: this rank's batches.
        ranks: the ranks; one `sum` is made per round, and after the last one they exchange why they stop.
        stops: this rank's wish to stop.
        phases: takes the time spent in rounds.
        all_end_at_first: stop when the first rank is drained (`uneven: stop`).
        needs_every_rank: take no step for which some rank has no data yet, however long it takes.
        follows: called when all ranks are drained: whether more comes after all, the same on all ranks. Collective.
        at_boundary: whether a stop may happen now; the same on all ranks.
        each_round: called before every round, of which there is at least one a second.
        saves: the checkpoints, which are agreed on in the same rounds.
        elapsed_s: seconds of training; what rank 0 has is told to all in each step.
        num_missing: samples that will never come; so is what rank 0 has of these.
        clock: seconds, for the time that ranks wait for each other.

    Raises:
        PeerFailed: another rank failed.
        ProducerFailed: this rank's receiver failed.
        UserCodeError: a user's method raised while the batch was formed.
    """
    waiting = LonelyWait(clock)
    saves = saves or NoSaves()
    batch: Batch | None = None
    drained = False
    while True:
        each_round()
        stopping = stops.pending is not None and at_boundary()
        if batch is None and not drained and not stopping:
            try:
                batch = stream.draw(min(waiting.wait_s, saves.wait_s))
            except Closed:
                drained = True
        statement = Vote(
            batch=batch,
            drained=drained,
            impatient=waiting.over and batch is None,
            stop=stops.pending,
            elapsed_s=elapsed_s(),
            num_missing=num_missing(),
            saves=saves.state(),
        )
        with phases.measure("round"):
            agreed = _meet(ranks, statement)
        saves.advance(agreed.saves)
        waiting.note(idle=batch is None and not drained, others_hold=agreed.num_active > 0)
        if agreed.stop is not None and (at_boundary() or not agreed.num_active):
            stops.agreed, stops.text = agreed.stop, _text_of(agreed.stop, stops, ranks)
            return
        if agreed.num_drained == ranks.size:
            if not follows():
                return
            drained = False
            continue
        if all_end_at_first and agreed.num_drained:
            stops.agreed = StopReason.UNEVEN
            return
        union_batch = agreed.union_batch(batch, needs_every_rank=needs_every_rank)
        if union_batch is not None:
            yield union_batch
            if batch is not None:
                stream.release()
                batch = None


def barrier(ranks: Ranks) -> None:
    """Return when all ranks have called it. Collective.

    Raises:
        PeerFailed: another rank failed before it came here.
    """
    agree(ranks, NOTHING)


def agree(ranks: Ranks, state: SaveState) -> SaveState:
    """Add up the states of the checkpoints of all ranks, in a round apart from training. Collective.

    Raises:
        PeerFailed: another rank failed.
    """
    return _meet(ranks, Vote(saves=state)).saves


def offer_failure(ranks: Ranks, exit_code: int, timeout_s: float = OFFER_S) -> int | None:
    """Tell the other ranks in their next round that this one failed; 0: only be told so in the round of another one.

    Returns:
        The exit code that all ranks agreed on, or None when they did not come to a round in time.
    """
    total = ranks.offer(Vote(exit_code=exit_code).packed(ranks.rank, ranks.size), timeout_s)
    return None if total is None else Tally.of(total, ranks.size).exit_code


def _text_of(reason: StopReason, stops: StopRequests, ranks: Ranks) -> str:
    """The text of the lowest rank that has asked to stop for this reason, on all ranks. Collective."""
    texts = ranks.gather(stops.text if stops.pending is reason else "")
    return str(ranks.broadcast(texts and next(filter(None, texts), "")))


def _meet(ranks: Ranks, statement: Vote) -> Tally:
    agreed = Tally.of(ranks.sum(statement.packed(ranks.rank, ranks.size)), ranks.size)
    failed = [rank for rank, code in enumerate(agreed.exit_codes) if code]
    if failed:
        raise PeerFailed(f"rank {failed[0]} failed; exit.json in the output folder says why", agreed.exit_code)
    return agreed
