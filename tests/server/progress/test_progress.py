"""The one clock of a training."""

import numpy as np
import pytest

from stream_server.server.progress.batches import Batch, StepCounts, StepOutcome, UnionBatch
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.progress import Progress
from tests.server.progress.runs_of_ranks import study
from tests.support.settings import length_of


def union_batch(*sizes: int, num_first: int | None = None, elapsed_s: float = 0.0, num_missing: int = 0) -> UnionBatch:
    first = sum(sizes) if num_first is None else num_first
    counts = StepCounts(num_first=first, num_missing=num_missing, elapsed_us=round(elapsed_s * 1e6))
    return UnionBatch(own=None, sizes=sizes, counts=counts)


def test_progress_comes_back_as_it_was() -> None:
    now = [10.0]
    progress = Progress(2, clock=lambda: now[0])
    union_batch = UnionBatch(own=None, sizes=(0, 4), counts=StepCounts(num_first=3), lonely=True)
    progress.count_batch(union_batch)
    progress.count_update(StepOutcome(skipped=True))
    now[0] = 15.0
    restored = Progress(2, clock=lambda: now[0])
    restored.load_state_dict(progress.state_dict())
    assert restored.state_dict() == progress.state_dict()
    assert (restored.skipped, restored.lonely_steps) == (3, 1)
    assert restored.elapsed_s == pytest.approx(5.0)


def test_of_a_batch_those_samples_are_new_that_are_drawn_for_the_first_time() -> None:
    keys, is_first = np.zeros((2, 3), np.int64), np.array([True, False, True])
    batch = Batch(data=None, size=3, keys=keys, is_first=is_first, num_added=1, num_dropped=4, num_first_dropped=2)
    assert batch.counts == StepCounts(2, 1, 4, 2)


def test_a_study_whose_length_is_not_known_any_more_goes_on_where_its_schedules_were() -> None:
    before = Progress(1, length=TrainingLength(samples=8, draws=8, batches=2))
    before.count_batch(union_batch(4))
    before.count_update(StepOutcome())
    after = Progress(1, length=TrainingLength())
    after.load_state_dict(before.state_dict())
    after.count_batch(union_batch(4))
    after.count_update(StepOutcome())
    assert (before.lr_steps, after.lr_steps, after.fraction) == (1, 1, None)


def test_what_an_update_leaves_out_is_skipped_and_the_rest_is_trained() -> None:
    progress = Progress(2)
    assert progress.agreed_s == 0.0
    progress.count_batch(union_batch(4, 4, elapsed_s=1.5))
    progress.count_update(StepOutcome(num_left_out=3))
    assert (progress.updates, progress.samples, progress.skipped, progress.agreed_s) == (1, 5, 3, 1.5)


def test_the_fraction_of_a_run_of_known_length_goes_by_draws() -> None:
    progress = Progress(2, length=TrainingLength(samples=8, draws=16))
    assert progress.fraction == 0.0
    for _ in range(3):
        progress.count_batch(union_batch(2, 2, num_first=1))
    assert progress.fraction == 0.75
    for _ in range(3):
        progress.count_batch(union_batch(2, 0, num_first=1))
    assert progress.fraction == 1.0


@pytest.mark.parametrize(("draws_before", "draws_now"), [(2, 4), (4, 2), (None, 3)])
def test_a_run_whose_draws_per_sample_change_is_done_after_the_draws_of_both(
    draws_before: int | None, draws_now: int
) -> None:
    """Half of 8 samples are drawn so often as before, and the others so often as now."""
    before = Progress(1, length=TrainingLength(samples=8, draws=draws_before and 8 * draws_before))
    for number in range(4 * (draws_before or 1)):
        before.count_batch(union_batch(1, num_first=number < 4))
        before.count_update(StepOutcome())
    progress = Progress(1, length=TrainingLength(samples=8, draws=8 * draws_now))
    progress.load_state_dict(before.state_dict())
    progress.change_draws(draws_now)
    again = Progress(1, length=TrainingLength(samples=8, draws=8 * draws_now))
    again.load_state_dict(progress.state_dict())
    assert again.fraction == (before.draws / (before.draws + 4 * draws_now))
    for number in range(4 * draws_now):
        assert again.fraction != 1.0
        again.count_batch(union_batch(1, num_first=number < 4))
    assert again.fraction == 1.0


def test_the_fraction_does_not_fall_on_fewer_ranks() -> None:
    """Three ranks train four of ten batches each, then one goes on alone."""
    config = study(num_samples=60, batch_size=2)
    three, one = (Progress(num, length=length_of(config, num)) for num in (3, 1))
    for _ in range(4):
        three.count_batch(union_batch(2, 2, 2))
        three.count_update(StepOutcome())
    assert three.fraction == 0.4
    one.load_state_dict(three.state_dict())
    assert one.fraction == 0.4
    one.count_batch(union_batch(2))
    assert one.fraction == 26 / 60


def test_the_fraction_goes_by_batches_when_these_end_the_run_first() -> None:
    progress = Progress(length=TrainingLength(samples=100, draws=100, max_batches=4))
    progress.count_batch(union_batch(2))
    assert progress.fraction == 0.25


def test_the_fraction_rises_when_samples_are_known_never_to_come_and_does_not_fall_when_others_do() -> None:
    progress, fractions = Progress(length=TrainingLength(samples=100, draws=200)), []
    for num_missing in (0, 50, 0, -100):
        progress.count_batch(union_batch(10, num_missing=num_missing))
        fractions.append(progress.fraction)
    assert fractions == [0.05, 0.2, 0.2, 0.2]


def test_the_end_of_the_run_is_the_end_however_much_has_come() -> None:
    progress = Progress(length=TrainingLength(samples=10, draws=10, batches=5, samples_per_update=2))
    progress.count_batch(union_batch(2))
    progress.count_update(StepOutcome())
    progress.end()
    assert (progress.fraction, progress.lr_steps, progress.expected_lr_steps) == (1.0, 5, 5)


def test_a_run_that_is_continued_with_more_to_train_is_less_far_but_no_schedule_goes_back() -> None:
    progress = Progress(length=TrainingLength(samples=10, draws=10, batches=5, samples_per_update=2))
    progress.count_batch(union_batch(10))
    progress.count_update(StepOutcome())
    progress.end()
    longer = Progress(length=TrainingLength(samples=40, draws=40, batches=20, samples_per_update=2))
    longer.load_state_dict(progress.state_dict())
    assert (longer.fraction, longer.expected_lr_steps) == (0.25, 5)
    longer.count_batch(union_batch(10))
    longer.count_update(StepOutcome())
    assert (longer.fraction, longer.lr_steps) == (0.5, 5)


def test_the_fraction_of_a_run_of_unknown_length_goes_by_the_samples_that_were_drawn() -> None:
    progress = Progress(2, length=TrainingLength(samples=16))
    progress.count_batch(union_batch(2, 2))
    progress.count_batch(union_batch(2, 2, num_first=1))
    assert progress.fraction == 5 / 16


def test_a_run_of_which_nothing_is_known_has_no_fraction() -> None:
    assert Progress().fraction is None
    assert Progress().expected_lr_steps is None


def test_where_the_length_is_unknown_each_update_is_a_step_and_a_skipped_one_is_none() -> None:
    progress = Progress()
    assert progress.expected_lr_steps is None
    progress.count_batch(union_batch(2))
    progress.count_update(StepOutcome())
    progress.count_batch(union_batch(2))
    progress.count_update(StepOutcome(skipped=True))
    assert progress.lr_steps == 1


def test_where_the_length_is_known_a_skipped_update_is_a_step_too_since_its_samples_are_used_up() -> None:
    progress, steps = Progress(length=TrainingLength(samples=10, draws=10, batches=5, accumulate=2)), []
    assert progress.expected_lr_steps == 3
    for is_last, is_skipped in [(False, False), (True, False), (False, False), (True, True), (True, False)]:
        progress.count_batch(union_batch(2))
        if is_last:
            progress.count_update(StepOutcome(skipped=is_skipped))
        steps.append(progress.lr_steps)
    assert steps == [0, 1, 1, 2, 3]


def test_on_the_clock_of_samples_each_updates_worth_of_new_samples_is_a_step() -> None:
    progress = Progress(2, length=TrainingLength(samples=19, samples_per_update=4), lr_clock="samples")
    assert progress.expected_lr_steps == 5
    steps = []
    for num_first in (4, 0, 3, 3, 9):
        progress.count_batch(union_batch(2, 2, num_first=num_first))
        progress.count_update(StepOutcome())
        steps.append(progress.lr_steps)
    assert steps == [1, 1, 1, 2, 5]


def test_schedules_keep_the_length_they_were_built_with_after_a_restart_on_another_number_of_ranks() -> None:
    progress = Progress(2, length=TrainingLength(samples=40, samples_per_update=4), lr_clock="samples")
    progress.count_batch(union_batch(3, 3))
    progress.count_update(StepOutcome())
    other = Progress(1, length=TrainingLength(samples=40, samples_per_update=2), lr_clock="samples")
    other.load_state_dict(progress.state_dict())
    assert (other.lr_steps, other.expected_lr_steps) == (1, 10)
    other.count_batch(union_batch(2))
    other.count_update(StepOutcome())
    assert other.lr_steps == 2


def test_so_does_the_worth_of_an_update_where_the_length_is_unknown() -> None:
    progress = Progress(2, length=TrainingLength(samples_per_update=4), lr_clock="samples")
    progress.count_batch(union_batch(3, 3))
    progress.count_update(StepOutcome())
    other = Progress(1, length=TrainingLength(samples_per_update=2), lr_clock="samples")
    other.load_state_dict(progress.state_dict())
    other.count_batch(union_batch(2))
    other.count_update(StepOutcome())
    assert other.lr_steps == 2


def test_the_agreed_time_is_that_of_the_round() -> None:
    progress = Progress()
    progress.count_batch(union_batch(1, elapsed_s=2.5))
    assert progress.agreed_s == 2.5
