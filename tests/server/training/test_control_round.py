"""The control round: what all ranks do follows from one sum."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.errors import Closed, PeerFailed, ProducerFailed, TooManyFailures, UserCodeError
from stream_server.server.progress.batches import Batch, UnionBatch
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.study.failure import Failure, leave_together
from stream_server.server.training.control_round import (
    HELD_S,
    IDLE_S,
    LONELY_S,
    SaveState,
    barrier,
    in_lockstep,
    offer_failure,
)
from tests.fakes.thread_ranks import Aborted, ThreadRanks, on_ranks
from tests.support.streams import ScriptedStream, batch_of

Script = Sequence[Batch | BaseException | None]


class Walk:
    """A rank's walk through its script, in which some seconds pass before every round, and its observations."""

    def __init__(self, ranks: ThreadRanks, script: Script, *, round_s: float = 0.0, **options: Any) -> None:
        self.stream = ScriptedStream(script)
        self.stops = options.pop("stops", StopRequests())
        self.union_batches: list[UnionBatch] = []
        self.ranks = ranks
        union_batches = in_lockstep(
            self.stream, ranks, self.stops, phases=Phases(), clock=lambda: ranks.num_rounds * round_s, **options
        )
        self.union_batches.extend(union_batches)

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        return [union_batch.sizes for union_batch in self.union_batches]


def walk(scripts: Sequence[Script], **options: Any) -> list[Walk]:
    return on_ranks(len(scripts), lambda ranks: Walk(ranks, scripts[ranks.rank], **options))


def test_all_ranks_take_the_same_steps() -> None:
    first, second = walk([[batch_of("a", 2), batch_of("b", 2)], [batch_of("c", 2), batch_of("d", 1, num_first=0)]])
    assert first.sizes == second.sizes == [(2, 2), (2, 1)]
    assert [union_batch.counts.num_first for union_batch in first.union_batches] == [4, 2]
    assert [union_batch.own.data for union_batch in second.union_batches if union_batch.own] == ["c", "d"]
    assert first.stops.agreed is None


def test_a_rank_whose_stream_has_ended_takes_part_empty() -> None:
    first, second = walk([[batch_of("a", 2)], [batch_of("b", 2), batch_of("c", 2)]])
    assert first.sizes == second.sizes == [(2, 2), (0, 2)]
    assert first.union_batches[1].own is None
    assert not first.union_batches[1].lonely
    assert first.union_batches[1].lowest_rank == 1


def test_all_end_at_the_first_ended_rank_when_told_to() -> None:
    first, second = walk([[batch_of("a", 2)], [batch_of("b", 2), batch_of("c", 2)]], all_end_at_first=True)
    assert first.sizes == second.sizes == [(2, 2)]
    assert first.stops.agreed is second.stops.agreed is StopReason.UNEVEN


def test_ranks_that_end_together_end_normally_even_then() -> None:
    first, _ = walk([[batch_of("a", 2)], [batch_of("b", 2)]], all_end_at_first=True)
    assert first.stops.agreed is None


def test_a_batch_is_held_until_every_rank_has_one() -> None:
    first, second = walk([[batch_of("a", 2)], [None, None, batch_of("b", 2)]])
    assert first.sizes == second.sizes == [(2, 2)]
    assert first.ranks.num_rounds == second.ranks.num_rounds == 4
    assert second.stream.waits_s[:3] == [IDLE_S, HELD_S, HELD_S]


def test_ranks_with_data_step_alone_once_another_has_been_idle_for_2_s() -> None:
    scripts: list[Script] = [[batch_of("a", 2), batch_of("b", 2)], [None] * 6]
    first, second = walk(scripts, round_s=LONELY_S / 2)
    assert first.sizes == second.sizes == [(2, 0), (2, 0)]
    assert all(union_batch.lonely for union_batch in first.union_batches)
    # Round 1 tells that rank 0 holds a batch; 2 s later nobody waits any more, until rank 0 has ended.
    assert second.stream.waits_s == [IDLE_S, HELD_S, HELD_S, 0.0, 0.0, 0.0, IDLE_S]


def test_a_step_that_needs_every_rank_waits_however_long_it_takes() -> None:
    scripts: list[Script] = [[batch_of("a", 2)], [*[None] * 6, batch_of("b", 1)]]
    first, _ = walk(scripts, round_s=LONELY_S, needs_every_rank=True)
    assert first.sizes == [(2, 1)]


def test_the_wish_of_one_rank_stops_all() -> None:
    def ask(ranks: ThreadRanks) -> Walk:
        stops = StopRequests()
        if ranks.rank == 1:
            stops.request(StopReason.EARLY_STOP, "good enough")
        return Walk(ranks, [batch_of("a", 2)] * 3, stops=stops)

    first, second = on_ranks(2, ask)
    assert first.sizes == second.sizes == []
    assert first.stops.agreed is second.stops.agreed is StopReason.EARLY_STOP
    assert first.stops.text == second.stops.text == "good enough"


def test_a_stop_waits_for_the_update_boundary_unless_there_is_no_data() -> None:
    def ask(ranks: ThreadRanks) -> Walk:
        stops = StopRequests()
        stops.request(StopReason.SAVED, "stopped")
        return Walk(ranks, [batch_of("a", 1), batch_of("b", 1), None], stops=stops, at_boundary=lambda: False)

    first, second = on_ranks(2, ask)
    assert first.sizes == second.sizes == [(1, 1), (1, 1)]
    assert first.stops.agreed is StopReason.SAVED


def test_a_signal_counts_before_other_reasons() -> None:
    reasons = [StopReason.MAX_S, StopReason.SAVED, StopReason.EARLY_STOP, StopReason.SAVED]

    def ask(ranks: ThreadRanks) -> tuple[StopReason | None, str]:
        stops = StopRequests()
        stops.request(reasons[ranks.rank], f"of rank {ranks.rank}")
        Walk(ranks, [], stops=stops)
        return stops.agreed, stops.text

    assert on_ranks(4, ask) == [(StopReason.SAVED, "of rank 1")] * 4


class FakeSaves:
    """Wants a checkpoint in some rounds of this rank, counted from 1, and writes down when it is taken.

    A checkpoint that all agreed on is due at once, or, with `due_after`, so many rounds later.
    """

    def __init__(self, wanted_in: Sequence[int] = (), *, due_after: int = 0, wait_s: float = math.inf) -> None:
        self.wait_s = wait_s
        self.totals: list[SaveState] = []
        self.taken: list[str] = []
        self.tell: Callable[[], str] = str
        self._wanted_in = wanted_in
        self._due_after = due_after
        self._num_asked = 0
        self._due_in: int | None = None

    def state(self) -> SaveState:
        self._num_asked += 1
        return SaveState(wanted=self._num_asked in self._wanted_in)

    def advance(self, total: SaveState) -> None:
        self.totals.append(total)
        if self._due_in:
            self._due_in -= 1
        if total.wanted:
            self._due_in = self._due_after

    def on_round(self) -> None:
        if self._due_in == 0:
            self._due_in = None
            self.taken.append(self.tell())


class SavedWalk(Walk):
    """A walk with checkpoints; each tells which batches were trained, and how many of the drawn ones are settled."""

    def __init__(self, ranks: ThreadRanks, script: Script, saves: FakeSaves, **options: Any) -> None:
        self.saves = saves
        self.union_batches = []
        trained: list[Any] = []
        self.stream = ScriptedStream(script)
        self.stops = options.pop("stops", StopRequests())
        saves.tell = lambda: f"{''.join(trained)}:{self.stream.num_settled}/{self.stream.num_drawn}"
        options.setdefault("each_round", saves.on_round)
        for union_batch in in_lockstep(self.stream, ranks, self.stops, phases=Phases(), saves=saves, **options):
            self.union_batches.append(union_batch)
            if union_batch.own is not None:
                trained.append(union_batch.own.data)


def test_a_checkpoint_is_taken_right_after_the_step_of_the_round_that_agreed_on_it() -> None:
    def run(ranks: ThreadRanks) -> list[str]:
        script = [batch_of(name, 1) for name in "abc"]
        return SavedWalk(ranks, script, FakeSaves([2] if ranks.rank == 1 else [])).saves.taken

    assert on_ranks(2, run) == [["ab:2/2"]] * 2


def test_while_ranks_starve_a_checkpoint_is_taken_with_the_batch_that_a_rank_holds() -> None:
    scripts: list[Script] = [[batch_of("a", 1), batch_of("b", 1)], [batch_of("c", 1), None, None, batch_of("d", 1)]]

    def run(ranks: ThreadRanks) -> list[str]:
        return SavedWalk(ranks, scripts[ranks.rank], FakeSaves([3])).saves.taken

    assert on_ranks(2, run) == [["a:1/2"], ["c:1/1"]]


def test_what_all_ranks_said_of_their_checkpoints_is_heard_by_all() -> None:
    def run(ranks: ThreadRanks) -> list[SaveState]:
        return SavedWalk(ranks, [batch_of("a", 1)], FakeSaves([1] if ranks.rank else [])).saves.totals

    assert on_ranks(3, run) == [[SaveState(wanted=2), SaveState()]] * 3


def test_a_checkpoint_that_is_due_later_is_taken_later() -> None:
    (walked,) = on_ranks(
        1, lambda ranks: SavedWalk(ranks, [batch_of(name, 1) for name in "abc"], FakeSaves([1], due_after=1))
    )
    assert walked.saves.taken == ["ab:2/2"]


def test_while_a_checkpoint_is_under_way_a_starving_rank_does_not_wait_for_long() -> None:
    (walked,) = on_ranks(1, lambda ranks: SavedWalk(ranks, [None, None], FakeSaves(wait_s=0.01)))
    assert walked.stream.waits_s == [0.01, 0.01, 0.01]


def test_a_stop_leaves_the_batch_that_was_not_trained_with_the_stream() -> None:
    def run(ranks: ThreadRanks) -> tuple[list[tuple[int, ...]], str]:
        stops = StopRequests()
        script: Script = [batch_of("a", 1), batch_of("b", 1)] if ranks.rank == 0 else [batch_of("c", 1), None]

        def each_round() -> None:
            if ranks.num_rounds == 2:
                stops.request(StopReason.SAVED, "SIGTERM")

        walked = SavedWalk(ranks, script, FakeSaves(), stops=stops, each_round=each_round)
        return [union_batch.sizes for union_batch in walked.union_batches], walked.saves.tell()

    assert on_ranks(2, run) == [([(1, 1)], "a:1/2"), ([(1, 1)], "c:1/1")]


def test_when_all_end_at_the_first_the_batches_of_the_others_stay_with_their_streams() -> None:
    def run(ranks: ThreadRanks) -> str:
        script = [batch_of(name, 1) for name in "abc"[: 1 + ranks.rank]]
        return SavedWalk(ranks, script, FakeSaves(), all_end_at_first=True).saves.tell()

    assert on_ranks(2, run) == ["a:1/1", "a:1/2"]


def failing(error: BaseException, output_dir: Path) -> Callable[[ThreadRanks], int | None]:
    """Rank 1 of a job fails with `error` when it forms its second batch."""

    def run(ranks: ThreadRanks) -> int | None:
        script: Script = [batch_of("a", 1), error if ranks.rank == 1 else batch_of("b", 1), batch_of("c", 1)]
        try:
            Walk(ranks, script)
        except Exception as raised:
            return leave_together(raised, ranks, output_dir, phase="transform")
        return 0

    return run


def test_an_error_ends_all_ranks_with_one_exit_code_and_the_first_cause(tmp_path: Path) -> None:
    error = UserCodeError("HeatServer.process_simulation_data raised KeyError: 'temperature'")
    assert on_ranks(3, failing(error, tmp_path)) == [3, 3, 3]
    failure = Failure.read(tmp_path)
    assert failure is not None
    assert (failure.rank, failure.phase, failure.exit_code) == (1, "transform", 3)
    assert "KeyError: 'temperature'" in failure.traceback


def test_an_error_of_the_receiver_is_told_as_its_own(tmp_path: Path) -> None:
    error = ProducerFailed("the receiver failed")
    error.__cause__ = TooManyFailures("3 of 3 simulations failed")
    assert on_ranks(2, failing(error, tmp_path)) == [4, 4]
    failure = Failure.read(tmp_path)
    assert failure is not None
    assert (failure.thread, failure.phase, failure.message) == ("receiver", "receive", "3 of 3 simulations failed")


def test_the_first_cause_is_kept(tmp_path: Path) -> None:
    Failure.of(ValueError("first"), rank=1, phase="step").record(tmp_path)
    Failure.of(ValueError("second"), rank=0, phase="step").record(tmp_path)
    failure = Failure.read(tmp_path)
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (1, 70)
    assert failure.message.startswith("ValueError: first.")


def test_ranks_that_wait_inside_a_step_do_not_hear_of_an_error_and_are_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_server.server.study.failure.offer_failure", partial(offer_failure, timeout_s=0.05))

    def run(ranks: ThreadRanks) -> str:
        try:
            if ranks.rank == 0:
                assert leave_together(UserCodeError("training_step raised"), ranks, tmp_path, phase="step") is None
                ranks.abort(3)
            ranks.all_reduce(np.ones(1))
        except Aborted as aborted:
            return str(aborted)
        return "went on"

    assert on_ranks(2, run) == ["3", "3"]


def test_a_peer_learns_who_failed(tmp_path: Path) -> None:
    def run(ranks: ThreadRanks) -> str:
        try:
            Walk(ranks, [UserCodeError("x")] if ranks.rank == 1 else [batch_of("a", 1)])
        except PeerFailed as failed:
            return str(failed)
        except UserCodeError as error:
            leave_together(error, ranks, tmp_path, phase="transform")
        return ""

    assert on_ranks(2, run)[0].startswith("rank 1 failed")


def test_a_rank_that_failed_before_the_others_came_together_ends_them_in_order() -> None:
    def come(ranks: ThreadRanks) -> int | None:
        if ranks.rank == 1:
            return offer_failure(ranks, UserCodeError.exit_code)
        with pytest.raises(PeerFailed, match="rank 1 failed") as failed:
            barrier(ranks)
        return failed.value.exit_code

    assert on_ranks(3, come) == [UserCodeError.exit_code] * 3


def test_the_time_of_a_turn_is_that_of_rank_0_on_all_ranks() -> None:
    def run(ranks: ThreadRanks) -> list[float]:
        stream = ScriptedStream([batch_of("a", 1)])
        clock = iter([0.25, 1.5]) if ranks.rank == 0 else iter([7.0, 8.0])
        union_batches = in_lockstep(stream, ranks, StopRequests(), phases=Phases(), elapsed_s=lambda: next(clock))
        return [union_batch.counts.elapsed_us / 1e6 for union_batch in union_batches]

    assert on_ranks(3, run) == [[0.25]] * 3


def test_ranks_whose_streams_have_ended_go_on_together_if_more_follows() -> None:
    def walk_on(ranks: ThreadRanks) -> tuple[list[tuple[int, ...]], int]:
        ends = 0

        def follows() -> bool:
            nonlocal ends
            ends += 1
            return ends < 3

        # Rank 1 has one batch less in the first round, and none in the second.
        mine: Script = [batch_of("a", 2), batch_of("b", 1), Closed(), batch_of("c", 2), Closed(), Closed()]
        other: Script = [batch_of("d", 2), Closed(), Closed(), Closed()]
        it = Walk(ranks, (mine, other)[ranks.rank], follows=follows)
        return it.sizes, ends

    assert on_ranks(2, walk_on) == [([(2, 2), (1, 0), (2, 0)], 3)] * 2
