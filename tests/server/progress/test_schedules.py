"""Schedules: the batches and times at which something is due."""

import pytest

from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule


def due_after(schedule: Schedule, num: int, *, batch_s: float = 1.0) -> list[int]:
    """The batches of `num`, which are the whole run, after which it is due, if it is done at once."""
    progress, batches = Progress(length=TrainingLength(samples=num, draws=num)), []
    for batch in range(1, num + 1):
        progress.batches, progress.draws, progress.agreed_s = batch, batch, batch * batch_s
        if schedule.is_due(progress):
            schedule.done(progress)
            batches.append(batch)
    return batches


def test_every_so_many_batches() -> None:
    assert due_after(Schedule(every=3), 10) == [3, 6, 9]


def test_every_so_many_seconds() -> None:
    assert due_after(Schedule(every_s=2.5), 10) == [3, 6, 9]


def test_at_points() -> None:
    assert due_after(Schedule(at=(2, 7)), 10) == [2, 7]


def test_whichever_comes_first_and_what_was_done_counts_for_all() -> None:
    assert due_after(Schedule(every=4, at=(5,), every_s=3.0), 9) == [3, 4, 5, 8]


def test_in_a_fast_training_so_many_batches_are_taken_several_times_at_once() -> None:
    assert due_after(Schedule(every=2, least_s=0.5), 20, batch_s=0.1) == [6, 12, 18]
    assert due_after(Schedule(every=2, least_s=0.5), 6, batch_s=0.25) == [2, 4, 6]
    assert due_after(Schedule(every=2, least_s=0.5), 6, batch_s=9.0) == [2, 4, 6]


def test_nothing_is_never_due() -> None:
    assert due_after(Schedule(), 5) == []
    assert Schedule().is_empty
    assert not any(it.is_empty for it in (Schedule(every=3), Schedule(every_s=2.5), Schedule(at=(2,))))


def test_fractions_of_the_run() -> None:
    assert due_after(Schedule(every=0.25, at=(0.1, 7)), 20) == [2, 5, 7, 10, 15, 20]
    assert due_after(Schedule(every=0.05), 20) == [*range(1, 21)]
    assert due_after(Schedule(every=0.001), 5) == [1, 2, 3, 4, 5]


def test_fractions_are_those_of_the_samples_whatever_number_of_ranks_draws_them() -> None:
    """A third of the run on three ranks, 10 samples each; the rest on one."""
    schedule, progress, due = (
        Schedule(at=(0.5,), every=0.4),
        Progress(length=TrainingLength(samples=300, draws=300)),
        [],
    )
    for size in [*[30] * 3, *[10] * 21]:
        progress.batches, progress.draws = progress.batches + 1, progress.draws + size
        if schedule.is_due(progress):
            schedule.done(progress)
            due.append(progress.draws)
    assert due == [120, 150, 240]


def test_a_study_that_is_continued_with_more_to_train_meets_its_fractions_again() -> None:
    schedule, progress = Schedule(every=0.5), Progress(length=TrainingLength(samples=10, draws=10))
    progress.draws = 10
    schedule.done(progress)
    longer, due = Progress(length=TrainingLength(samples=40, draws=40)), []
    for draws in range(10, 41, 5):
        longer.draws = draws
        if schedule.is_due(longer):
            schedule.done(longer)
            due.append(draws)
    assert due == [20, 40]


def test_a_fraction_of_an_unknown_length_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="unknown length"):
        Schedule(every=0.5).is_due(Progress())


def test_what_is_due_stays_due_until_it_is_done() -> None:
    schedule, progress = Schedule(every=3), Progress()
    progress.batches = 4
    assert schedule.is_due(progress)
    progress.batches = 5
    assert schedule.is_due(progress)
    schedule.done(progress)
    assert not schedule.is_due(progress)
    progress.batches = 6
    assert schedule.is_due(progress)


@pytest.mark.parametrize("stop_after", range(1, 12))
def test_a_restored_schedule_goes_on(stop_after: int) -> None:
    def make() -> Schedule:
        return Schedule(every=4, every_s=5.0, at=(7,))

    undisturbed, first, second, progress = make(), make(), make(), Progress()
    expected, found = [], []
    for batch in range(1, 13):
        progress.batches = progress.agreed_s = batch
        current = first if batch <= stop_after else second
        if undisturbed.is_due(progress):
            undisturbed.done(progress)
            expected.append(batch)
        if current.is_due(progress):
            current.done(progress)
            found.append(batch)
        if batch == stop_after:
            second.load_state_dict(first.state_dict())
    assert found == expected
