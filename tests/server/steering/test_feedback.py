"""Losses and scores of simulations, from the batches of all ranks to what a class is told."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from stream_server.server.progress.batches import Batch, StepOutcome, UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.steering.feedback import Feedback, Result, SampleScores
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.fakes.thread_ranks import on_ranks


def batch(*keys: tuple[int, int], first: list[bool] | None = None) -> Batch:
    is_first = np.array([True] * len(keys) if first is None else first)
    return Batch(data=None, size=len(keys), keys=np.array(keys, np.int64).T.copy(), is_first=is_first)


def outcome(*losses: float) -> StepOutcome:
    return StepOutcome(loss=float(np.mean(losses)), sample_losses=torch.tensor(losses))


def means(scores: SampleScores) -> dict[int, dict[str, float]]:
    return {
        simulation: {name: total / num for name, (total, num) in sums.items()}
        for simulation, sums in scores.take().items()
    }


def feedback(
    ranks: Ranks, told: list[Mapping[int, Result]], progress: Progress, failures: Callable[[], list[int]] = list
) -> Feedback:
    return Feedback(ranks, schedule=Schedule(every=1), progress=progress, ingest=told.append, failures=failures)


def stepped(progress: Progress) -> None:
    progress.count_batch(UnionBatch(own=None, sizes=(1,)))


def test_losses_are_counted_by_simulation_and_above_the_mean_of_their_batch() -> None:
    scores = SampleScores()
    scores.note(batch((3, 0), (3, 1), (5, 0), (5, 1)), outcome(1.0, 2.0, 3.0, 6.0))
    losses = np.array([1.0, 2.0, 3.0, 6.0])
    deviations = np.maximum(losses - 3.0, 0) / losses.std()
    found = means(scores)
    assert found[3] == pytest.approx({"loss": 1.5, "deviation": 0.0, "first_loss": 1.5})
    assert found[5] == pytest.approx({"loss": 4.5, "deviation": deviations[2:].mean(), "first_loss": 4.5})
    assert scores.take() == {}


def test_a_loss_is_at_first_sight_only_once() -> None:
    scores = SampleScores()
    scores.note(batch((3, 0), (4, 0)), outcome(8.0, 8.0))
    scores.note(batch((3, 0), (3, 1), first=[False, True]), outcome(2.0, 4.0))
    assert means(scores)[3] == pytest.approx({"loss": 14 / 3, "first_loss": 6.0, "deviation": 1 / 3})


def test_errors_of_held_out_simulations_are_means_and_leave_losses_alone() -> None:
    told: list[Mapping[int, Result]] = []
    progress = Progress(1)
    it = feedback(SoloRanks(), told, progress)
    it.scores.note_held_out("validation_loss", np.array([0, 0, 1]), np.array([1.0, 3.0, 5.0]))
    it.scores.note_held_out("rollout_error", np.array([0, 1]), np.array([0.5, np.inf]))
    stepped(progress)
    it.on_round(None)
    assert told[0][0] == pytest.approx(
        {"loss": np.nan, "num_losses": 0, "failed": 0, "validation_loss": 2.0, "rollout_error": 0.5}, nan_ok=True
    )
    assert "rollout_error" not in told[0][1]


def test_a_mean_stands_for_each_sample_and_a_batch_without_a_loss_for_none() -> None:
    scores = SampleScores()
    scores.note(batch((3, 0), (4, 0)), StepOutcome(loss=2.5))
    scores.note(batch((3, 1), (4, 1)), StepOutcome(loss=None))
    assert means(scores) == {i: {"loss": 2.5, "deviation": 0.0, "first_loss": 2.5} for i in (3, 4)}


def test_a_loss_of_a_batch_with_samples_of_no_simulation_is_their_mean() -> None:
    scores, mixed = SampleScores(), batch((3, 0), (4, 0))
    scores.note(replace(mixed, size=3, num_added=1), outcome(1.0, 2.0, 6.0))
    assert means(scores) == {i: {"loss": 3.0, "deviation": 0.0, "first_loss": 3.0} for i in (3, 4)}


def test_losses_that_are_not_finite_are_left_out() -> None:
    scores = SampleScores()
    with np.errstate(invalid="ignore"):
        scores.note(batch((3, 0), (3, 1)), outcome(float("nan"), 4.0))
    assert scores.take()[3]["loss"] == [4.0, 1.0]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_the_results_of_all_ranks_come_together(num_ranks: int) -> None:
    told: list[Mapping[int, Result]] = []

    def train(ranks: Ranks) -> None:
        progress = Progress(1)
        it = feedback(ranks, told, progress, failures=lambda: [9])
        it.scores.note(batch((1, ranks.rank), (2, ranks.rank)), outcome(1.0 + ranks.rank, 3.0))
        stepped(progress)
        it.on_round(None)
        it.on_round(None)

    on_ranks(num_ranks, train)
    [results] = told
    assert results[1]["loss"] == results[1]["first_loss"] == pytest.approx(1.0 + (num_ranks - 1) / 2)
    assert results[2]["loss"] == 3.0
    assert results[2]["num_losses"] == num_ranks
    assert np.isnan(results[9]["loss"])
    assert [results[i]["failed"] for i in (1, 2, 9)] == [0.0, 0.0, 1.0]


def test_the_last_loss_is_that_of_the_last_interval_and_the_first_that_of_all_samples() -> None:
    told: list[Mapping[int, Result]] = []
    progress = Progress(1)
    it = feedback(SoloRanks(), told, progress)
    for steps, loss, first in (((0, 1), 8.0, [True, True]), ((1, 2), 2.0, [False, True])):
        it.scores.note(batch(*((7, step) for step in steps), first=first), outcome(loss, loss))
        stepped(progress)
        it.on_round(None)
    assert told[-1][7] == {"loss": 2.0, "first_loss": 6.0, "deviation": 0.0, "num_losses": 4.0, "failed": 0.0}


def test_a_restarted_study_tells_all_that_it_knew() -> None:
    told: list[Mapping[int, Result]] = []
    progress = Progress(1)
    before = feedback(SoloRanks(), told, progress)
    before.scores.note(batch((7, 0)), outcome(8.0))
    stepped(progress)
    before.on_round(None)
    after = feedback(SoloRanks(), told, progress)
    after.load_state_dict(from_bytes(to_bytes(before.state_dict())))
    assert told[1] == told[0]
    for it in (before, after):
        it.scores.note(batch((7, 1)), outcome(2.0))
    stepped(progress)
    after.on_round(None)
    assert told[2][7] == {"loss": 2.0, "first_loss": 5.0, "deviation": 0.0, "num_losses": 2.0, "failed": 0.0}


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_no_class_was_told_yet_is_counted_after_a_restart_on_as_many_ranks_or_fewer(num_ranks: int) -> None:
    """A checkpoint between two log points has what each rank has counted since the first of them."""
    told: list[Mapping[int, Result]] = []
    before = [SampleScores(), SampleScores()]
    before[0].note(batch((7, 0), (8, 0)), outcome(8.0, 4.0))
    before[1].note(batch((7, 1)), outcome(2.0))
    states = from_bytes(to_bytes([it.state_dict() for it in before]))

    def restarted(ranks: Ranks) -> None:
        progress = Progress(1)
        after = feedback(ranks, told, progress)
        after.scores.load_state_dict(SampleScores.redealt(states, ranks.rank, None))
        if ranks.rank == 0:
            after.scores.note(batch((7, 2)), outcome(5.0))
        stepped(progress)
        after.on_round(None)

    on_ranks(num_ranks, restarted)
    assert told[-1][7] == {"loss": 5.0, "first_loss": 5.0, "deviation": 1 / 3, "num_losses": 3.0, "failed": 0.0}
    assert told[-1][8]["num_losses"] == 1.0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_samples_of_a_simulation_that_was_given_up_may_be_trained_later(is_restarted: bool) -> None:
    told: list[Mapping[int, Result]] = []
    progress = Progress(1)
    it = feedback(SoloRanks(), told, progress, failures=lambda: [7, 8])
    it.scores.note(batch((9, 0)), outcome(1.0))
    stepped(progress)
    it.on_round(None)
    if is_restarted:
        state = from_bytes(to_bytes(it.state_dict()))
        it = feedback(SoloRanks(), told, progress, failures=lambda: [7, 8])
        it.load_state_dict(state)
    it.scores.note(batch((7, 0)), outcome(2.0))
    stepped(progress)
    it.on_round(None)
    assert told[-1] == {7: {"loss": 2.0, "first_loss": 2.0, "deviation": 0.0, "num_losses": 1.0, "failed": 1.0}}


def test_a_simulation_that_is_given_up_keeps_its_losses() -> None:
    told: list[Mapping[int, Result]] = []
    progress, failures = Progress(1), list[int]()
    it = feedback(SoloRanks(), told, progress, failures=lambda: failures)
    it.scores.note(batch((7, 0)), outcome(2.0))
    stepped(progress)
    it.on_round(None)
    failures.append(7)
    stepped(progress)
    it.on_round(None)
    assert told[-1] == {7: {**told[0][7], "failed": 1.0}}


def test_a_checkpoint_before_the_first_result_has_none() -> None:
    told: list[Mapping[int, Result]] = []
    before, after = (feedback(SoloRanks(), told, Progress(1)) for _ in range(2))
    after.load_state_dict(from_bytes(to_bytes(before.state_dict())))
    assert told == [{}]


def test_the_class_of_the_user_reports_scores_of_its_own() -> None:
    scores, server = SampleScores(parameters=["diffusivity"]), StreamServer()
    server.report([3], [0], difficulty=[1.0])
    server.hold_attributes(_take_scores=scores.report)
    server.report([3, 3, 4], [0, 1, 0], difficulty=[1.0, 2.0, float("nan")], rough=1)
    assert scores.take() == {
        3: {"difficulty": [3.0, 2.0], "rough": [2.0, 2.0]},
        4: {"rough": [1.0, 1.0]},
    }
    with pytest.raises(ValueError, match="loss is a result that every simulation has"):
        server.report([3], [0], loss=1.0)
    with pytest.raises(ValueError, match="diffusivity is a parameter of the study"):
        server.report([3], [0], diffusivity=1.0)
    with pytest.raises(ValueError, match="2 simulation_ids, but 1 time_steps"):
        server.report([3, 4], [0], difficulty=1.0)
