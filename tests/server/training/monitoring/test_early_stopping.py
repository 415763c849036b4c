"""A training that does not improve any more ends."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.config.training_sections import Checkpoint, EarlyStop
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.metrics.log_record import Record
from stream_server.server.training.monitoring.early_stopping import EarlyStopping
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.server.training.validation.validating import at


class Study:
    """A training that is validated every 10 batches."""

    def __init__(self, **settings: Any) -> None:
        self.reasons: list[str] = []
        self.stopping = EarlyStopping(EarlyStop(**settings), stop=self.reasons.append)
        self.batch = 0

    def validate(self, *losses: float, name: str = "loss") -> "Study":
        """Validate until it is to stop."""
        for loss in losses:
            if self.reasons:
                break
            self.batch += 10
            self.stopping.on_validation_end(self.server, {name: loss})
        return self

    @property
    def server(self) -> Any:
        return SimpleNamespace(rank=0, progress=at(self.batch))

    def log(self, **values: float) -> None:
        self.batch += 10
        named = {name.replace("_", "/"): value for name, value in values.items()}
        is_log_point = not all(name.startswith("val/") for name in named)
        self.stopping.on_record(Record(batch=self.batch, wall_s=0.0, is_log_point=is_log_point, values=named))

    def restarted(self, **settings: Any) -> "Study":
        other = Study(**settings)
        other.stopping.load_state_dict(from_bytes(to_bytes(self.stopping.state_dict())))
        other.batch = self.batch
        other.stopping.on_train_start(None)
        return other


def test_it_stops_after_so_many_validations_without_improvement_and_says_why() -> None:
    study = Study(patience=3).validate(3.0, 2.0, 1.0, 1.5, 1.0, 1.2, 0.5)
    assert study.batch == 60
    assert study.reasons == [
        "training converged: val/loss has not fallen for 3 validations (best 1 after batch 30, mode: min)"
    ]


def test_an_improvement_that_is_too_small_is_none() -> None:
    study = Study(patience=2, min_delta=0.01).validate(0.130, 0.123, 0.121, 0.1)
    assert study.reasons == [
        "training converged: val/loss has not fallen by 0.01 for 2 validations (best 0.13 after batch 10, mode: min)"
    ]
    # What was too little each time is enough in all.
    assert Study(patience=2, min_delta=0.01).validate(0.130, 0.123, 0.116, 0.109).reasons == []


def test_each_improvement_starts_the_count_again() -> None:
    assert Study(patience=2).validate(5.0, 5.0, 4.0, 4.0, 3.0, 3.0).reasons == []


def test_a_value_of_the_rollouts_may_be_missing_while_there_are_none() -> None:
    study = Study(patience=2, monitor="val/rollout/u").validate(1.0, 1.0, 1.0)
    assert study.reasons == []
    assert study.validate(1.0, 1.0, 1.0, name="rollout/u").batch == 60


def test_a_value_may_be_one_that_is_to_grow() -> None:
    study = Study(patience=1, mode="max", monitor="val/accuracy").validate(0.5, 0.7, 0.6, name="accuracy")
    assert study.reasons == [
        "training converged: val/accuracy has not grown for 1 validations (best 0.7 after batch 20, mode: max)"
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_no_improvement(value: float) -> None:
    assert Study(patience=2).validate(value, 1.0, value, 0.5, value).reasons == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_never_finite_is_no_sign_that_a_training_has_converged(value: float) -> None:
    with pytest.raises(
        UserCodeError, match=r"val/loss was not finite in 2 validations.*early_stop has nothing to go by"
    ):
        Study(patience=2).validate(value, value)


def test_validations_of_some_sets_count_for_their_values_alone() -> None:
    study = Study(patience=2).validate(1.0, 0.5).validate(9.0, 9.0, 9.0, name="far/loss")
    assert (study.batch, study.reasons) == (50, [])
    assert Study(patience=2, monitor="val/far/loss").validate(1.0, 9.0, 9.0, name="far/loss").reasons


def test_the_value_of_a_set_counts_once_where_all_are_due_right_after_it() -> None:
    study = Study(patience=2, monitor="val/far/loss").validate(1.0, 2.0, name="far/loss")
    study = study.restarted(patience=2, monitor="val/far/loss")
    study.stopping.on_validation_end(study.server, {"loss": 3.0, "far/loss": 2.0})
    assert study.reasons == []
    assert study.validate(2.0, name="far/loss").reasons


def test_a_value_that_the_first_validations_do_not_have_is_told_once() -> None:
    study = Study(patience=2).validate(9.0, name="far/loss")
    assert study.stopping.warnings == []
    study.validate(9.0, 9.0, name="far/loss").stopping.on_train_end(study.server)
    [told] = study.stopping.warnings
    assert told.startswith("training.early_stop.monitor: no val/loss in 2 validations, each of some sets alone.")


@pytest.mark.parametrize(("losses", "num"), [((), 1), ((1.0,), 1), ((1.0, 1.0), 0)])
def test_a_value_that_is_known_at_the_end_alone_is_told(losses: tuple[float, ...], num: int) -> None:
    study = Study(patience=5).validate(9.0, name="far/loss").validate(*losses)
    study.stopping.on_train_end(study.server)
    assert len(study.stopping.warnings) == num


def test_a_value_that_no_validation_gives_is_refused_with_the_names_that_there_are() -> None:
    message = 'training.early_stop.monitor must name .*, but is "val/error"; there is "val/loss"'
    with pytest.raises(ConfigError, match=message):
        Study(monitor="val/error").validate(1.0)


def test_any_logged_value_may_be_watched_where_it_is_written() -> None:
    study = Study(monitor="train/loss", patience=2)
    assert study.stopping.observes_records
    assert not Study().stopping.observes_records
    for loss in (3.0, 2.0, 2.5):
        study.log(train_loss=loss)
        study.log(val_loss=9.0)
    study.validate(9.0)
    assert study.reasons == []
    study.log(train_loss=2.0)
    assert study.reasons == [
        "training converged: train/loss has not fallen for 2 log points (best 2 after batch 30, mode: min)"
    ]


def test_a_value_that_is_never_logged_is_refused_with_the_names_that_there_are() -> None:
    study = Study(monitor="train/los", patience=2)
    study.log(train_loss=1.0)
    study.log(val_loss=1.0)
    with pytest.raises(ConfigError, match='but is "train/los"; there is "train/loss"'):
        study.log(train_loss=1.0)


def test_a_value_that_was_logged_once_may_be_left_out() -> None:
    study = Study(monitor="user/error", patience=2)
    study.log(user_error=1.0)
    for _ in range(5):
        study.log(train_loss=1.0)
    assert study.reasons == []


def test_the_count_goes_on_after_a_restart() -> None:
    study = Study(patience=3).validate(1.0, 2.0, 2.0)
    other = study.restarted(patience=3)
    assert other.reasons == []
    assert other.validate(2.0).reasons == [
        "training converged: val/loss has not fallen for 3 validations (best 1 after batch 10, mode: min)"
    ]


def test_a_study_that_was_left_before_its_end_stops_at_once_unless_it_may_wait_longer() -> None:
    study = Study(patience=2).validate(1.0, 2.0, 2.0)
    assert len(study.restarted(patience=2).reasons) == 1
    assert study.restarted(patience=3).reasons == []


def test_another_monitor_after_a_restart_begins_anew() -> None:
    study = Study(patience=2).validate(1.0, 2.0)
    assert study.restarted(patience=2, monitor="val/error").validate(5.0, 5.0, name="error").reasons == []


@pytest.mark.parametrize("section", [EarlyStop, Checkpoint])
@pytest.mark.parametrize("monitor", ["val/accuracy", "val/f1_score", "val/set/R2", "val/auc", "train/psnr"])
def test_a_value_that_is_better_when_larger_needs_a_mode(section: Any, monitor: str) -> None:
    with pytest.raises(ValueError, match="is usually better when larger"):
        section(monitor=monitor)
    assert [section(monitor=monitor, mode=mode).mode for mode in ("min", "max")] == ["min", "max"]


@pytest.mark.parametrize("monitor", ["val/loss", "val/r2_loss", "val/rollout/acc", "val/mae"])
def test_a_value_that_is_better_when_smaller_needs_no_mode(monitor: str) -> None:
    assert EarlyStop(monitor=monitor).mode == "min"
