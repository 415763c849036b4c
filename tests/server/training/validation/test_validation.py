"""The validation mean is that of all samples, however they are dealt to batches and ranks."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.training.validation.validation import Validation, names_validated
from stream_server.server.training.validation.validation_batches import HeldOutSamples, num_samples
from stream_server.server.user.callbacks import Callback
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.fakes.thread_ranks import on_ranks
from tests.server.training.validation.validating import Model, Server, Written, at, held_out, resume, step, validation
from tests.support.examples import examples


def means_on(num_ranks: int, make_server: Callable[[], Server]) -> list[dict[str, float]]:
    """The means that each rank finds when all validate."""
    return on_ranks(num_ranks, lambda ranks: validation(make_server(), ranks).run())


def test_held_out_samples_are_weighted_one_by_one() -> None:
    server = Server()
    assert validation(server, values=[1.0, 3.0, 8.0]).run() == {"loss": 8.0}
    assert server.heard == ["start", [0, 1], [2], {"loss": 8.0}]


def test_the_loss_of_each_held_out_sample_is_observed_with_its_simulation() -> None:
    observed: list[Any] = []

    def observe(name: str, simulations: Any, losses: Any) -> None:
        observed.append((name, simulations.tolist(), losses.tolist()))

    validation(Server(), values=[1.0, 2.0, 3.0], observe=observe).run()
    assert observed == [("validation_loss", [0, 0], [3.0, 3.0]), ("validation_loss", [0], [6.0])]


def test_user_code_may_write_into_held_out_samples() -> None:
    kept = held_out([1.0, 2.0])
    one = validation(Server(), held_out=lambda: kept)
    assert one.run() == one.run() == {"loss": 3.0}


def test_without_a_complete_held_out_simulation_user_code_is_not_called() -> None:
    server = Server()
    assert validation(server).run() == {}
    assert server.heard == []


def test_what_runs_on_another_thread_is_settled_before_any_code_of_the_user() -> None:
    heard: list[str] = []

    class Loading(Server):
        def val_dataloader(self) -> Any:
            heard.append("val_dataloader")
            return [np.array([4.0])]

    validation(Loading(), quiesce=lambda: heard.append("settled")).run()
    assert heard == ["settled", "val_dataloader"]


def test_events_surround_the_validation_and_carry_its_means() -> None:
    server = Server([np.array([4.0])])
    validation(server).run()
    assert server.heard == ["start", {"loss": 4.0}]


@settings(max_examples=examples(40))
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4), min_size=1, max_size=9), st.integers(1, 4))
def test_the_mean_does_not_depend_on_the_number_of_ranks(loader: list[list[float]], num_ranks: int) -> None:
    arrays = [np.array(values) for values in loader]
    assert means_on(num_ranks, lambda: Server(arrays)) == means_on(1, lambda: Server(arrays)) * num_ranks


def test_each_item_of_the_loader_is_evaluated_on_exactly_one_rank() -> None:
    seen = []

    class Watching(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(int(batch[0]))
            return 0.0

    means_on(3, lambda: Watching([np.array([i]) for i in range(7)]))
    assert sorted(seen) == list(range(7))


def test_values_of_a_dict_are_averaged_by_name() -> None:
    class Naming(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": np.mean(batch), "largest": np.max(batch)}

    assert validation(Naming([np.array([1.0, 3.0]), np.array([5.0])])).run() == {
        "loss": 3.0,
        "largest": pytest.approx(11 / 3),
    }


def test_each_loader_of_a_dict_has_its_own_means_besides_the_common_one() -> None:
    loaders = {"near": [np.array([1.0])], "far": [np.array([5.0]), np.array([9.0])]}
    assert validation(Server(loaders)).run() == {"loss": 5.0, "near/loss": 1.0, "far/loss": 7.0}


def test_the_model_evaluates_while_user_code_runs_and_not_after() -> None:
    evaluating = []

    class Shifting(Model):
        @contextmanager
        def evaluating(self) -> Iterator[None]:
            evaluating.append(True)
            yield
            evaluating.pop()

        def to_device(self, data: Any) -> Any:
            return data + 1.0

    class Watching(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            assert evaluating
            return float(np.mean(batch))

    server = Watching([np.array([1.0])])
    assert validation(server, step=Shifting()).run() == {"loss": 2.0}
    assert not evaluating


def test_the_history_has_each_validation_and_the_best_is_the_first_of_the_smallest() -> None:
    losses = iter([3.0, 1.0, math.nan, 1.0])

    class Improving(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return next(losses)

    progress = Progress()
    one = validation(Improving([np.ones(1)]), progress=progress)
    assert (one.best, one.is_done) == ({}, False)
    for progress.batches in (10, 20, 30, 40):
        one.run()
    assert [entry["batch"] for entry in one.history] == [10, 20, 30, 40]
    assert one.best == progress.best == {"batch": 20, "loss": 1.0}
    assert one.is_done
    progress.batches = 41
    assert not one.is_done


def test_what_a_validation_found_is_written_once_under_val() -> None:
    written = Written()
    validation(Server([np.array([4.0])]), progress=at(7), metrics=written).run()
    assert written.records == [(7, {"val/loss": 4.0})]


def test_the_state_survives_a_restart() -> None:
    one = validation(Server([np.ones(1)]), progress=at(10), schedule=Schedule(every=10))
    one.run()
    progress = at(10)
    other = validation(Server([np.ones(1)]), progress=progress, schedule=Schedule(every=10))
    other.load_state_dict(from_bytes(to_bytes(one.state_dict())))
    assert other.history == one.history
    resume(other)
    assert len(other.history) == 1


def test_it_validates_after_the_steps_at_which_it_is_due() -> None:
    progress = Progress()
    one = validation(Server([np.ones(1)]), progress=progress, schedule=Schedule(every=3, at=[4]))
    resume(one)
    for progress.batches in range(1, 9):
        step(one)
    assert [entry["batch"] for entry in one.history] == [3, 4, 6]


def test_no_validation_is_due_before_the_batch_that_study_json_names() -> None:
    progress = Progress()
    one = validation(Server([np.ones(1)]), progress=progress, schedule=Schedule(every=3), after_batches=7)
    resume(one)
    for progress.batches in range(1, 13):
        step(one)
    assert [entry["batch"] for entry in one.history] == [9, 12]


SETS = {"near": [np.array([1.0])], "far": [np.array([5.0]), np.array([9.0])]}


def own_schedules(server: Server, written: Written, progress: Progress) -> Validation:
    return validation(
        server,
        progress=progress,
        metrics=written,
        schedule=Schedule(every=4),
        schedules={"far": Schedule(every=6)},
        sets={"far": {"every_batches": 6}},
    )


@pytest.mark.parametrize("restart", [None, 4, 6, 9, 12, 17])
def test_a_set_with_a_schedule_is_validated_by_that_one_and_the_loss_of_all_needs_all(restart: int | None) -> None:
    progress, server, written = Progress(), Server(SETS), Written()
    one = own_schedules(server, written, progress)
    resume(one)
    for progress.batches in range(1, 19):
        step(one)
        if progress.batches == restart:
            state = from_bytes(to_bytes(one.state_dict()))
            one = own_schedules(server, written, progress)
            one.load_state_dict(state)
            resume(one)
    one.on_train_end(None)
    near, far = {"val/near/loss": 1.0}, {"val/far/loss": 7.0}
    both = {"val/loss": 5.0, **near, **far}
    # The last batch is one of the set: its value is not written again.
    assert written.records == [
        *((4, near), (6, far), (8, near), (12, both), (16, near)),
        *((18, far), (18, {"val/loss": 5.0, **near})),
    ]
    assert [entry["batch"] for entry in one.history if "loss" in entry] == [12, 18]
    assert one.history[1] == {"batch": 6, "far/loss": 7.0}
    assert one.best == {"batch": 12, "loss": 5.0}
    assert server.heard[:4] == ["start", {"near/loss": 1.0}, "start", {"far/loss": 7.0}]


def test_what_a_history_has_after_a_batch_is_all_or_the_values_of_some_sets() -> None:
    history = [{"batch": 4, "far/loss": 7.0}, {"batch": 6, "far/loss": 7.0}]
    assert names_validated([], 6) == names_validated(history, 8) == []
    assert "val/far/loss" in (names_validated(history, 6) or [])
    assert names_validated([*history, {"batch": 6, "loss": 5.0}], 6) is None


def test_a_state_of_before_there_were_schedules_of_sets_is_taken_back() -> None:
    one = validation(Server(SETS), progress=at(8), schedule=Schedule(every=4))
    one.run()
    state = one.state_dict()
    del state["schedules"]
    other = own_schedules(Server(SETS), Written(), at(8))
    other.load_state_dict(from_bytes(to_bytes(state)))
    assert other.history == [{"batch": 8, "loss": 5.0}]


def test_a_set_that_study_json_names_must_be_there() -> None:
    with pytest.raises(ConfigError, match=r"sets of Server.val_dataloader, but has 'fra': write far"):
        resume(validation(Server(SETS), sets={"fra": {"max_batches": 1}}))
    for loader in ([np.ones(1)], None):
        with pytest.raises(ConfigError, match="it names none"):
            resume(validation(Server(loader), sets={"far": {"max_batches": 1}}))


def test_a_few_batches_are_tried_before_the_training_and_not_counted() -> None:
    def run(ranks: Ranks) -> tuple[Any, ...]:
        sets = {"near": [np.array([float(i)]) for i in range(5)], "far": [np.array([9.0])]}
        server, written = Server(sets), Written()
        one = validation(server, ranks, metrics=written, schedule=Schedule(every=2), at_start=1)
        vars(one)["_callbacks"].surround(after=[Loud()])
        resume(one)
        one.on_round(None)
        return server.heard, written.records, one.history

    class Loud(Callback):
        def on_validation_end(self, server: Any, metrics: dict[str, float]) -> None:
            raise AssertionError(metrics)

    found = {"loss": 10 / 3, "near/loss": 0.5, "far/loss": 9.0}
    assert on_ranks(2, run) == [(["start", pytest.approx(found)], [], [])] * 2


def test_what_is_logged_in_a_trial_is_in_no_curve() -> None:
    metrics = Metrics(SoloRanks())

    class Logging(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            metrics.log("error", 1.0)
            metrics.log("worst", 2.0, reduce="max")
            metrics.log("ever", 3.0, reduce="max", keep=True)
            metrics.log("now", 4.0, step=0)
            metrics.log_histogram("spread", np.ones(2))
            metrics.log_figure("picture", SimpleNamespace(savefig=lambda file, format: file.write(b"png")))
            return 0.0

        def on_validation_end(self, metrics_of_all: dict[str, float]) -> None:
            self.heard.append(metrics_of_all)
            metrics.log("after", 5.0)

    server = Logging([np.ones(1)])
    one = validation(server, metrics=metrics, at_start=1)
    resume(one)
    metrics.write(0, 0.0)
    assert server.heard == ["start", {"loss": 0.0, "error": 1.0}]
    assert (metrics.latest, metrics.state_dict(), vars(metrics)["_figures"]) == ({}, {}, {})
    one.run()
    metrics.write(1, 0.0)
    assert {"val/worst", "val/ever", "after"} <= metrics.latest.keys()
    assert metrics.state_dict().keys() == {"val/ever"}


def test_an_empty_set_that_is_due_alone_is_passed_over_and_told() -> None:
    server, written, progress = Server({**SETS, "far": []}), Written(), Progress()
    one = own_schedules(server, written, progress)
    resume(one)
    for progress.batches in range(1, 9):
        step(one)
    assert written.records == [(4, {"val/near/loss": 1.0}), (8, {"val/near/loss": 1.0})]
    assert one.warnings == ["far of validation.sets gave no batch to any rank"]


def test_a_schedule_that_has_no_set_is_told_before_the_first_batch() -> None:
    sets = {name: {"every_batches": 3} for name in SETS}
    own: Any = {name: Schedule(every=3) for name in SETS}
    one = validation(Server(SETS), schedule=Schedule(every=2), schedules=own, sets=sets)
    resume(one)
    assert [text.partition(" have")[0] for text in one.warnings] == ["validation.every_batches, every_s and at"]
    other = own_schedules(Server(SETS), Written(), Progress())
    resume(other)
    assert other.warnings == []


def test_a_study_that_goes_on_tries_nothing() -> None:
    server = Server(SETS)
    resume(validation(server, progress=at(1), at_start=1))
    assert server.heard == []


def test_a_validation_that_is_due_waits_for_the_end_of_an_accumulation() -> None:
    model, progress = Model(), Progress()
    one = validation(Server([np.ones(1)]), step=model, progress=progress, schedule=Schedule(every=3))
    for progress.batches in range(1, 6):
        model.at_boundary = progress.batches % 2 == 0
        step(one)
    assert [entry["batch"] for entry in one.history] == [4]


def test_all_else_that_belongs_to_a_step_is_done_before_it_is_validated() -> None:
    server = Server([np.ones(1)])
    one = validation(server, progress=at(3), schedule=Schedule(every=3))
    one.on_step_end(None)
    assert server.heard == []
    one.on_round(None)
    assert server.heard == ["start", {"loss": 1.0}]


def test_a_checkpoint_comes_before_each_validation_when_asked() -> None:
    server = Server([np.ones(1)])
    one = validation(
        server, progress=at(3), schedule=Schedule(every=3), save_before=lambda: server.heard.append("saved")
    )
    step(one)
    vars(one)["_progress"].batches += 1
    one.on_train_end(None)
    assert server.heard == ["saved", "start", {"loss": 1.0}] * 2


def test_the_end_of_the_training_is_validated_once() -> None:
    one = validation(Server([np.ones(1)]), progress=at(5))
    one.on_train_end(None)
    one.on_train_end(None)
    assert [entry["batch"] for entry in one.history] == [5]


def test_a_validation_that_was_due_when_the_study_was_left_is_the_first_thing_after_the_restart() -> None:
    saved = validation(Server([np.ones(1)]), progress=at(9), schedule=Schedule(every=10)).state_dict()
    one = validation(Server([np.ones(1)]), progress=at(11), schedule=Schedule(every=10))
    one.load_state_dict(saved)
    one.on_train_start(None)
    assert one.history == []
    one.on_round(None)
    one.on_round(None)
    assert [entry["batch"] for entry in one.history] == [11]


def test_a_validation_at_the_end_of_a_round_may_be_left_and_goes_on_from_there() -> None:
    class Leaving(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.heard.append(batch_idx)
            return super().validation_step(batch, batch_idx)

    server = Leaving([np.ones(1), np.zeros(1)])
    one = validation(server, progress=at(5), must_leave=lambda: server.heard[-1] == 0)
    assert one.end_round() is False
    assert one.history == []
    server.heard.append("back")
    assert one.end_round() is True
    assert [each for each in server.heard if isinstance(each, int)] == [0, 1]
    assert one.history == [{"batch": 5, "loss": 0.5}]


def test_held_out_samples_on_some_ranks_alone_are_validated_on_all() -> None:
    def run(ranks: Ranks) -> dict[str, float]:
        return validation(Server(), ranks, [2.0] if ranks.rank == 1 else None).run()

    assert on_ranks(2, run) == [{"loss": 4.0}, {"loss": 4.0}]


def test_held_out_samples_have_the_parameters_of_their_simulations() -> None:
    store = ValidationStore(2)
    samples = HeldOutSamples(store=store, parameters_of=lambda simulation: np.array([simulation + 0.5]))
    for simulation in (0, 1):
        store.add(simulation, 7, {"x": np.array(1.0)}, {"x": True})
    assert samples() is None
    store.complete(1)
    found = samples()
    assert found is not None
    assert (found.simulation_ids.tolist(), found.batch().parameters.tolist()) == ([1], [[1.5]])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "but returned None"),
        ({"accuracy": 1.0}, r"the names \['accuracy'\]"),
        ({"loss": np.ones(2)}, "a single number"),
    ],
)
def test_a_validation_step_without_a_loss_is_an_error_of_the_user(returned: Any, message: str) -> None:
    class Forgetful(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return returned

    with pytest.raises(UserCodeError, match=message):
        validation(Forgetful([np.ones(1)])).run()


def test_a_validation_step_that_raises_is_named() -> None:
    class Broken(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            raise KeyError("y")

    with pytest.raises(UserCodeError, match=r"Broken\.validation_step raised KeyError: 'y'"):
        validation(Broken([np.ones(1)])).run()


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (iter([np.ones(1)]), "gone through only once"),
        (7, "must give an iterable of batches or a dataset of samples, but gave a int"),
        ([], "gave no batch to any rank"),
    ],
)
def test_an_unusable_loader_is_an_error_of_the_user(loader: Any, message: str) -> None:
    with pytest.raises(UserCodeError, match=message):
        validation(Server(loader)).run()


def test_a_shuffled_loader_is_refused_when_ranks_share_it_out() -> None:
    class RandomSampler:
        pass

    class TwoRanks(SoloRanks):
        size = 2

    class Shuffled(list[Any]):
        sampler = RandomSampler()

    with pytest.raises(ConfigError, match="use shuffle=False"):
        validation(Server(Shuffled([np.ones(1)])), TwoRanks()).run()
    assert validation(Server(Shuffled([np.ones(1)]))).run() == {"loss": 1.0}


def test_the_loader_is_asked_for_once() -> None:
    asked = []

    class Asked(Server):
        def val_dataloader(self) -> Any:
            asked.append(True)
            return [np.ones(1)]

    one = validation(Asked())
    one.run()
    one.run()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("batch", "num"),
    [
        (np.zeros((5, 2)), 5),
        ((np.zeros((4, 2)), np.zeros(4)), 4),
        ({"name": "x", "x": [np.zeros((3, 1))]}, 3),
        (held_out([1.0, 2.0]).batch(), 2),
        (np.float64(1.0), 1),
        ("text", 1),
    ],
)
def test_the_size_of_a_batch_is_the_length_of_its_first_array(batch: Any, num: int) -> None:
    assert num_samples(batch) == num


def test_ranks_with_fewer_batches_join_the_reductions_of_the_others() -> None:
    class Reducing(Server):
        union_mean: UnionMean

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return float(self.union_mean.mean(np.mean(batch)))

    def validate(ranks: Ranks) -> dict[str, float]:
        return validation(Reducing(), ranks, values=[1.0] * (1 + 3 * ranks.rank)).run()

    assert on_ranks(3, validate) == [{"loss": 2.0}] * 3


def test_a_listener_that_changes_the_values_changes_its_own_only() -> None:
    class Spoiler(Server):
        def on_validation_end(self, metrics: dict[str, float]) -> None:
            metrics.clear()

    run = validation(Spoiler([[1.0, 2.0]]))
    assert run.run() == {"loss": 1.5}
    assert run.best["loss"] == 1.5


@pytest.mark.parametrize(("loader", "more"), [([1, 2], {}), ({"near": [1, 2]}, {"near/loss": 3.0, "near/error": 30.0})])
def test_what_validation_step_logs_is_validated_and_no_part_of_the_curves_of_the_training(
    loader: Any, more: dict[str, float]
) -> None:
    sizes = {1: np.array([1.0]), 2: np.array([3.0, 5.0])}
    metrics = Metrics(SoloRanks())

    class Logging(Server):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            # As a training_step does that is called here.
            metrics.log("error", 10 * batch.mean())
            metrics.log("val/loss", -1.0)
            return batch.mean()

    metrics.log("error", 0.5)
    sets = {name: [sizes[it] for it in batches] for name, batches in loader.items()} if more else list(sizes.values())
    values = validation(Logging(sets), metrics=metrics).run()
    assert values == {"loss": 3.0, "error": 30.0, **more}
    metrics.write(1, 0.0)
    assert metrics.latest["error"] == 0.5
    assert metrics.latest["val/error"] == 30.0


@pytest.mark.parametrize(
    ("values", "every", "num"), [(None, 10, 1), ([1.0], 10, 0), (None, None, 0)], ids=["none", "held out", "not asked"]
)
def test_a_validation_that_is_asked_for_and_never_took_place_is_a_warning(
    values: list[float] | None, every: int | None, num: int
) -> None:
    one = validation(Server(), values=values, schedule=Schedule(every=every), progress=at(5))
    assert one.warnings == []
    one.on_train_end(None)
    assert len(one.warnings) == num


@pytest.mark.parametrize(("value", "num"), [(np.nan, 1), (1.0, 0)])
def test_validations_without_a_finite_loss_are_a_warning(value: float, num: int) -> None:
    one = validation(Server(), values=[value], schedule=Schedule(every=10), progress=at(5))
    one.on_train_end(None)
    assert one.warnings == ["the loss of all validations was not finite: 1 validation"] * num
