"""Rounds: when they start and end, without simulations."""

from typing import Any

import pytest

from stream_server.errors import Closed
from stream_server.server.progress.batches import StepCounts, StepOutcome, UnionBatch
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.control_round import in_lockstep
from stream_server.server.training.rounds import Rounds
from stream_server.server.user.callbacks import Callback, Callbacks
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.support.streams import ScriptedStream, batch_of

LAST = ["round", "round"]
ENDED = ["round", "validation", ("end", 0)]


class Diary(Callback):
    """Notes rounds as they are told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.told: list[int] = []

    def on_round_start(self, server: Any, round_idx: int) -> None:
        self.events.append(("start", round_idx))

    def on_round_end(self, server: Any, round_idx: int) -> None:
        self.events.append(("end", round_idx))


class Source:
    """Simulations of so many rounds: `is_drained` once the last one has begun."""

    def __init__(self, diary: Diary, num_rounds: int) -> None:
        self.diary, self.num_left = diary, num_rounds - 1

    @property
    def is_drained(self) -> bool:
        return self.num_left == 0

    def begin_round(self, num_ended: int) -> None:
        self.num_left -= 1
        self.diary.events.append(("begin", num_ended))


class Walk:
    """A study whose rounds bring these numbers of new samples, each in batches of two or one."""

    def __init__(self, ranks: ThreadRanks, samples: list[int], *, save_every: int | None = None) -> None:
        self.diary, self.progress, self.num_ranks = Diary(), Progress(ranks.size), ranks.size
        self.rounds = Rounds(
            ranks,
            Source(self.diary, len(samples)),
            Callbacks(None, [self.diary]),
            self.progress,
            validate=lambda: True,
            tell_results=lambda: self.diary.told.append(self.progress.rounds),
            save_every=save_every,
            save=lambda: self.diary.events.append("save"),
        )
        for position, num in enumerate(samples):
            for size in [2] * (num // 2) + [1] * (num % 2):
                self.train(num_first=size)
            # A sample that is drawn again is of no new round.
            self.train(num_first=0)
            if position + 1 < len(samples):
                assert [self.rounds.end() for _ in range(3)] == [True] * 3
            else:
                assert [self.rounds.end() for _ in range(2)] == [True, False]

    def train(self, num_first: int) -> None:
        union_batch = UnionBatch(own=None, sizes=(2,) * self.num_ranks, counts=StepCounts(num_first=num_first))
        self.rounds.note(union_batch)
        self.progress.count_batch(union_batch)
        self.progress.count_update(StepOutcome())


def walk(*samples: int, num_ranks: int = 2, **options: Any) -> list[Any]:
    first, *others = on_ranks(num_ranks, lambda ranks: Walk(ranks, list(samples), **options))
    assert all(other.diary.events == first.diary.events for other in others)
    return first.diary.events


def test_a_round_starts_with_the_first_new_sample_and_ends_before_the_next_one_begins() -> None:
    assert walk(3, 2) == [("start", 0), ("end", 0), ("begin", 1), ("start", 1), ("end", 1)]


def test_a_round_that_brings_nothing_is_counted_and_not_told() -> None:
    assert walk(1, 0, 1) == [("start", 0), ("end", 0), ("begin", 1), ("begin", 2), ("start", 2), ("end", 2)]


def test_a_last_round_that_never_came_is_none() -> None:
    [it] = on_ranks(1, lambda ranks: Walk(ranks, [1, 0]))
    assert it.progress.rounds == 1


def test_results_are_told_at_the_end_of_each_round_also_of_one_that_brings_nothing() -> None:
    # All its simulations may have failed.
    [it] = on_ranks(1, lambda ranks: Walk(ranks, [1, 0, 1]))
    assert it.diary.told == [0, 1, 2]


@pytest.mark.parametrize(
    ("reason", "is_left", "events"),
    [
        (None, False, [*LAST, *ENDED, "round", ("begin", 1), *LAST, "round", "validation", ("end", 1)]),
        (StopReason.EARLY_STOP, False, [*LAST, *ENDED, "round"]),
        (StopReason.SAVED, True, [*LAST, "round", "validation", "round"]),
    ],
)
def test_all_ranks_may_stop_at_the_end_of_a_round_and_hear_of_its_simulations_before(
    reason: StopReason | None, is_left: bool, events: list[Any]
) -> None:
    diary, stops, ranks, progress = Diary(), StopRequests(), SoloRanks(), Progress()

    def validate() -> bool:
        diary.events.append("validation")
        if reason is not None:
            stops.request(reason, "")
        return not is_left

    rounds = Rounds(
        ranks,
        Source(diary, num_rounds=2),
        Callbacks(None, [diary]),
        progress,
        validate=validate,
        tell_results=lambda: None,
        save_every=None,
        save=lambda: None,
    )
    for union_batch in in_lockstep(
        ScriptedStream([batch_of(None, 1), *[Closed("")] * 4, batch_of(None, 1)]),
        ranks,
        stops,
        phases=Phases(),
        follows=rounds.end,
        each_round=lambda: diary.events.append("round"),
    ):
        progress.count_batch(union_batch)
    assert diary.events == events
    assert progress.rounds == len([it for it in events if it in (("end", 0), ("end", 1))])


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2]), (2, [2])])
def test_a_checkpoint_comes_after_every_so_many_rounds_before_the_next_begins(every: int, expected: list[int]) -> None:
    events = walk(1, 1, 1, save_every=every)
    assert [events[i + 1][1] for i, event in enumerate(events) if event == "save"] == expected


def test_the_rounds_that_have_ended_are_in_the_progress_and_missing_in_that_of_an_earlier_version() -> None:
    [before] = on_ranks(1, lambda ranks: Walk(ranks, [2, 2]))
    state = before.progress.state_dict()
    after = Progress()
    after.load_state_dict(state)
    assert (after.rounds, after.round_has_samples) == (2, False)
    older = Progress()
    older.load_state_dict({name: it for name, it in state.items() if name not in ("rounds", "_drawn_before_round")})
    assert older.rounds == 0
