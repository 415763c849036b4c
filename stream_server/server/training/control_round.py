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
# Where the numbers of a ballot are that the ranks do not have for themselves.
NO_STOP = (0,) * len(StopReason)
NUM_COUNTS = len(StepCounts._fields)
FIRST_OF_SAVES = NUM_COUNTS + 2
FIRST_OF_STOPS = FIRST_OF_SAVES + len(NOTHING)


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


@dataclass(kw_only=True, slots=True)
class Tally(UnionBatch):
    """The sum of the ballots of all ranks, and the step that they take by it.

    `exit_code` is that of `failed`, the lowest rank that has failed.
    """

    num_drained: int
    impatient: bool
    saves: SaveState
    stop: StopReason | None
    failed: int | None = None
    exit_code: int = 0

    @classmethod
    def of(cls, total: NDArray[np.int64], num_ranks: int) -> "Tally":
        numbers = total.tolist()
        exit_codes, counts = numbers[num_ranks : 2 * num_ranks], numbers[2 * num_ranks :]
        saves, stops = counts[FIRST_OF_SAVES:FIRST_OF_STOPS], counts[FIRST_OF_STOPS:]
        tally = cls(
            sizes=tuple(numbers[:num_ranks]),
            counts=StepCounts(*counts[:NUM_COUNTS]),
            num_drained=counts[NUM_COUNTS],
            impatient=counts[NUM_COUNTS + 1] > 0,
            saves=SaveState(*saves) if any(saves) else NOTHING,
            # Going through an enumeration takes 2 µs.
            stop=next(filter(stops.__getitem__, StopReason)) if any(stops) else None,
        )
        if any(exit_codes):
            tally.exit_code = next(filter(None, exit_codes))
            tally.failed = exit_codes.index(tally.exit_code)
        return tally

    def trains(self, batch: Batch | None, *, needs_every_rank: bool) -> bool:
        """Whether the ranks take a step now, this one with its `batch`, rather than wait for data."""
        num_empty = self.sizes.count(0)
        self.own, self.lonely = batch, num_empty > self.num_drained
        return num_empty < len(self.sizes) and not (self.lonely and (needs_every_rank or not self.impatient))


def ballot(
    ranks: Ranks,
    batch: Batch | None = None,
    *,
    drained: bool = False,
    impatient: bool = False,
    stop: StopReason | None = None,
    exit_code: int = 0,
    elapsed_s: float = 0.0,
    num_missing: int = 0,
    saves: SaveState = NOTHING,
) -> NDArray[np.int64]:
    """The part of this rank in a round, integers to be added up; without a batch it is idle, or `drained`.

    Batch sizes and exit codes by rank, then `StepCounts`, two kinds of ranks, the checkpoint and the stop.
    """
    num_ranks, rank = ranks.size, ranks.rank
    numbers = [0] * (2 * num_ranks)
    numbers[num_ranks + rank] = exit_code
    if batch is None:
        numbers += (0, 0, 0, 0)
    else:
        numbers[rank] = batch.size
        numbers += (batch.num_first, batch.num_added, batch.num_dropped, batch.num_first_dropped)
    numbers += (num_missing, round(elapsed_s * 1e6)) if rank == 0 else (0, 0)
    numbers += (drained, impatient, *saves, *NO_STOP)
    if stop is not None:
        numbers[stop - len(NO_STOP)] = 1
    return np.array(numbers, np.int64)


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

    Every decision follows from the sum of all ballots, so that all ranks take the same one. The steps end when all
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
    round_phase = phases.measure("round")
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
        own = ballot(
            ranks,
            batch,
            drained=drained,
            impatient=batch is None and waiting.over,
            stop=stops.pending,
            elapsed_s=elapsed_s(),
            num_missing=num_missing(),
            saves=saves.state(),
        )
        with round_phase:
            agreed = _meet(ranks, own)
        saves.advance(agreed.saves)
        trains = agreed.trains(batch, needs_every_rank=needs_every_rank)
        waiting.note(idle=batch is None and not drained, others_hold=any(agreed.sizes))
        if agreed.stop is not None and (at_boundary() or not any(agreed.sizes)):
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
        if trains:
            yield agreed
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
    return _meet(ranks, ballot(ranks, saves=state)).saves


def offer_failure(ranks: Ranks, exit_code: int, timeout_s: float = OFFER_S) -> int | None:
    """Tell the other ranks in their next round that this one failed; 0: only be told so in the round of another one.

    Returns:
        The exit code that all ranks agreed on, or None when they did not come to a round in time.
    """
    total = ranks.offer(ballot(ranks, exit_code=exit_code), timeout_s)
    return None if total is None else Tally.of(total, ranks.size).exit_code


def _text_of(reason: StopReason, stops: StopRequests, ranks: Ranks) -> str:
    """The text of the lowest rank that has asked to stop for this reason, on all ranks. Collective."""
    texts = ranks.gather(stops.text if stops.pending is reason else "")
    return str(ranks.broadcast(texts and next(filter(None, texts), "")))


def _meet(ranks: Ranks, own: NDArray[np.int64]) -> Tally:
    agreed = Tally.of(ranks.sum(own), ranks.size)
    if agreed.failed is not None:
        raise PeerFailed(f"rank {agreed.failed} failed; exit.json in the output folder says why", agreed.exit_code)
    return agreed
