"""Rollouts: the model applied to its own forecasts, along whole held-out trajectories.

Why: docs/decisions/0036-rollouts.md
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import WindowShape
from stream_server.config.training_sections import RolloutSettings
from stream_server.errors import UserCodeError
from stream_server.failpoints import failpoint
from stream_server.ragged import copied, is_ragged, unpack
from stream_server.server.intake.validation_store import HeldOutRows
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.validation.validation_batches import HeldOut, slices
from stream_server.server.user.forecast import array_of
from stream_server.server.user.framework import Step
from stream_server.server.user.simulation_data import SimulationBatch
from stream_server.user_code import call_user
from stream_server.wording import counted

ROLLOUT = "rollout"
ROLLOUT_ERROR = "rollout_error"
SHOWN_STEPS = (1, 2, 5)

Array = NDArray[Any]
Rows = NDArray[np.int64]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrajectoryErrors:
    """The mean squared error of each forecast step: by field an array of shape (n, steps), in the unit of the field.

    It is NaN beyond the end of a trajectory, and infinite where a forecast is not finite. The steps are `spacing` time
    steps apart.
    """

    simulations: Rows
    spacing: int
    mse: Mapping[str, NDArray[np.float64]]

    @property
    def means(self) -> NDArray[np.float64]:
        """The mean of each trajectory over fields and steps, shape (n,)."""
        steps = np.concatenate(list(self.mse.values()), axis=1)
        means: NDArray[np.float64] = np.nanmean(steps, axis=1) if steps.size else np.zeros(0)
        return means


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutErrors:
    """The mean squared errors of all ranks' rollouts by lead time: the number of time steps since the last one given.

    The lists have one length: of the `num_trajectories` that reach a lead time, `mse` has the mean, by field.
    """

    lead_times: list[int]
    num_trajectories: list[int]
    mse: Mapping[str, list[float]]

    def means(self) -> dict[str, float]:
        """By field the mean over all steps that were forecast."""
        return {name: float(np.average(of, weights=self.num_trajectories)) for name, of in self.mse.items()}

    def values(self) -> dict[str, float]:
        """The means, and the errors at lead times that are spread evenly on a logarithmic scale, by their names."""
        found = {}
        for name, mean in self.means().items():
            found[f"{ROLLOUT}/{name}"] = mean
            for number in shown_steps(len(self.lead_times)):
                found[f"{ROLLOUT}/{name}/lead_{self.lead_times[number - 1]}"] = self.mse[name][number - 1]
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values for a report and a checkpoint."""
        return {
            "lead_times": self.lead_times,
            "num_trajectories": self.num_trajectories,
            "mse": {name: list(of) for name, of in self.mse.items()},
        }


class Rollouts:
    """Forecasts the complete held-out trajectories of all ranks from their first steps. Main thread.

    A trajectory is that of the steps of a simulation, `shape.spacing` apart, from the first one that was accepted until
    one is missing, or has another number of rows than the first one. Each rank forecasts those that it has, and only
    the errors are shared.

    Attributes:
        fields: the fields that are forecast.
        mine: the errors of this rank's trajectories in the last `run`.
        warnings: why there are none of some simulations of this rank.
    """

    def __init__(
        self,
        server: Any,
        ranks: Ranks,
        step: Step,
        *,
        settings: RolloutSettings,
        shape: WindowShape,
        held_out: Callable[[], HeldOut | None],
        batch_size: int,
    ) -> None:
        self.fields = settings.fields
        self.mine = _joined([], settings.fields, shape.spacing)
        self.warnings: list[str] = []
        self._server = server
        self._ranks = ranks
        self._step = step
        self._settings = settings
        self._shape = shape
        self._held_out = held_out
        self._batch_size = batch_size

    def run(self, must_leave: Callable[[], bool]) -> RolloutErrors | None:
        """The errors of all ranks; None if some rank had to leave before. Collective.

        The ranks agree after each application of the model. Random numbers and the model are left as they were.

        Raises:
            UserCodeError: `process_batch` or `rollout_step` raised, or gave something unusable.
        """
        state = self._step.random_state()
        done: list[TrajectoryErrors] = []
        try:
            with self._step.evaluating():
                work = self._forecast_all(done)
                while True:
                    with self._step.together():
                        goes_on = next(work, None) is not None
                    said = [goes_on, must_leave()]
                    goes_on, leave = self._ranks.all_reduce(np.array(said, np.float64))
                    if leave:
                        return None
                    if not goes_on:
                        break
        finally:
            self._step.load_random_state(state)
        self.mine = _joined(done, self.fields, self._shape.spacing)
        return self._shared()

    def _forecast_all(self, done: list[TrajectoryErrors]) -> Iterator[int]:
        """Forecast all trajectories of this rank; yields after each application of the model."""
        held_out = self._held_out()
        if held_out is not None:
            found = trajectories(held_out.steps, self._shape, self.fields)
            found = [rows for rows in found if len(rows) > self._settings.input_steps]
            self._warn_of_missing(len(np.unique(held_out.steps.simulation_ids)) - len(found))
            if found:
                self._show_windows(held_out, found[: self._batch_size])
            for batch in slices(len(found), self._batch_size):
                yield from self._forecast(held_out, found[batch], done)

    def _warn_of_missing(self, num: int) -> None:
        if num and not self.warnings:
            self.warnings.append(
                f"no rollout of {counted(num, 'held-out simulation')}: fewer than {self._settings.input_steps + 1} "
                "steps follow one another from the first one on, with as many rows in each"
            )
            _log.warning("%s", self.warnings[-1])

    def _forecast(self, held_out: HeldOut, found: Sequence[Rows], done: list[TrajectoryErrors]) -> Iterator[int]:
        fields, given, length = self.fields, self._settings.input_steps, self._shape.length
        steps = held_out.steps
        at_once = length - given
        num_steps = np.array([len(rows) - given for rows in found])
        if self._settings.horizon is not None:
            num_steps = np.minimum(num_steps, self._settings.horizon)
        columns = np.arange(given + -(-int(num_steps.max()) // at_once) * at_once)
        # A trajectory that has ended stays where it is; what is forecast beyond is left out of the errors.
        rows = np.stack([it[np.minimum(columns, len(it) - 1)] for it in found])
        mse = {name: np.full((len(found), len(columns) - given), np.nan) for name in fields}
        known = {name: steps.take(name, rows[:, :given]) for name in fields}
        for first in range(0, len(columns) - given, at_once):
            failpoint("rollout.before_step")
            window_rows = rows[:, first : first + length]
            # A model that is not trained yet may well go to infinity.
            with np.errstate(over="ignore", invalid="ignore"):
                forecasts = self._apply(held_out, window_rows, known)
            for name, forecast in forecasts.items():
                truth = steps.take(name, window_rows[:, given:])
                mse[name][:, first : first + at_once] = squared_errors(forecast, truth)
                known[name] = np.concatenate([known[name], as_kept(forecast, truth)], axis=1)[:, -given:]
            yield first
        for of in mse.values():
            of[np.arange(of.shape[1]) >= num_steps[:, None]] = np.nan
        mse = {name: of[:, : num_steps.max()] for name, of in mse.items()}
        done.append(
            TrajectoryErrors(simulations=steps.simulation_ids[rows[:, 0]], spacing=self._shape.spacing, mse=mse)
        )

    def _show_windows(self, held_out: HeldOut, found: Sequence[Rows]) -> None:
        """Let the server see windows of these trajectories as they were sent, one of each, spread over time.

        In the first ones all values may still be 0, as changes of them would be.
        """
        num, length = len(found), self._shape.length
        starts = [max(0, len(it) - length) * (2 * number + 1) // (2 * num) for number, it in enumerate(found)]
        steps = [np.minimum(start + np.arange(length), len(it) - 1) for start, it in zip(starts, found, strict=True)]
        rows = np.stack([it[of_window] for it, of_window in zip(found, steps, strict=True)])
        self._server.enter_rollout(*self._batch_of(held_out, rows, {}))

    def _batch_of(self, held_out: HeldOut, rows: Rows, known: Mapping[str, Array]) -> tuple[SimulationBatch, Any]:
        """Windows, and what the user's class makes of them."""
        server, name = self._server, type(self._server).__name__
        # User code may write into the window.
        window = window_of(held_out, rows, known)
        made = call_user(f"{name}.process_batch", server.process_batch, window, server.config)
        batch = call_user(f"converting what {name}.process_batch returned", server.collate.convert, made)
        return window_of(held_out, rows, known), batch

    def _apply(self, held_out: HeldOut, rows: Rows, known: Mapping[str, Array]) -> dict[str, Array]:
        """The forecasts of the user's class after the known steps: by field, shape (n, steps, …)."""
        where = f"{type(self._server).__name__}.rollout_step"
        window, batch = self._batch_of(held_out, rows, known)
        returned = call_user(where, self._server.rollout_step, window, self._step.to_device(batch))
        if not isinstance(returned, Mapping) or set(returned) != set(known):
            found = (
                f"the fields {sorted(map(str, returned))}" if isinstance(returned, Mapping) else repr(type(returned))
            )
            raise UserCodeError(f"{where} must return a dict of the fields {sorted(known)}, but returned {found}")
        return {field: self._in_shape(where, field, returned[field], last[:, -1]) for field, last in known.items()}

    def _in_shape(self, where: str, name: str, value: Any, last: Array) -> Array:
        """A forecast as steps of its field, of which `last` are the last ones that are known."""
        forecast, at_once = array_of(value), self._shape.length - self._settings.input_steps
        lengths = [len(array) for array in last] if is_ragged(last) else None
        num, of_row = (len(last), last.shape[1:]) if lengths is None else (sum(lengths), last[0].shape[1:])
        shape, one_step = (num, at_once, *of_row), (num, *of_row)
        if forecast.shape != shape and not (at_once == 1 and forecast.shape == one_step):
            expected = f"{shape} or {one_step}" if at_once == 1 else f"{shape}"
            raise UserCodeError(f"{where} must return {name} in the shape {expected}, but returned {forecast.shape}")
        forecast = forecast.reshape(shape)
        return forecast if lengths is None else unpack(forecast, lengths)

    def _shared(self) -> RolloutErrors:
        """The means over the trajectories of all ranks. Collective."""
        mine, spacing = self.mine.mse, self.mine.spacing
        widths = self._ranks.broadcast(self._ranks.gather(next(iter(mine.values())).shape[1]))
        sums = np.zeros((1 + len(mine), max(widths)))
        for row, of in enumerate(mine.values(), start=1):
            sums[0, : of.shape[1]] = np.sum(~np.isnan(of), axis=0)
            sums[row, : of.shape[1]] = np.nansum(of, axis=0)
        if sums.size:
            sums = self._ranks.all_reduce(sums)
        return RolloutErrors(
            lead_times=lead_times(spacing, sums.shape[1]),
            num_trajectories=sums[0].astype(int).tolist(),
            mse={name: (sums[row] / sums[0]).tolist() for row, name in enumerate(mine, start=1)},
        )


def trajectories(steps: HeldOutRows, shape: WindowShape, fields: Sequence[str]) -> list[Rows]:
    """Rows of the steps of each simulation, `shape.spacing` apart, until a step or one of these fields is missing.

    Also until one of these fields has another number of rows than in the first step: no forecast says which rows of a
    step go on in the next one. The rows of a simulation must be in the order of their time steps.
    """
    is_there = np.logical_and.reduce([steps.present[name] for name in fields])
    num_rows = np.array([steps.lengths[name] for name in steps.ragged.intersection(fields)]).reshape(-1, len(steps))
    found = []
    for simulation in np.unique(steps.simulation_ids):
        rows = np.flatnonzero(steps.simulation_ids == simulation)
        numbers = (steps.time_steps[rows] - steps.time_steps[rows[0]]) // shape.every
        rows, numbers = rows[numbers % shape.spacing == 0], numbers[numbers % shape.spacing == 0]
        goes_on = is_there[rows] & (numbers == np.arange(len(rows)) * shape.spacing)
        goes_on &= np.all((num_rows[:, rows] == num_rows[:, rows[:1]]) & (num_rows[:, rows] > 0), axis=0)
        found.append(rows if goes_on.all() else rows[: int(np.argmin(goes_on))])
    return found


def window_of(held_out: HeldOut, rows: Rows, known: Mapping[str, Array]) -> SimulationBatch:
    """Windows of the steps in `rows`, shape (n, length), with what is known of the fields that are forecast.

    Copies of the last known step stand in place of those that are not.
    """
    given = {}
    for name, steps in known.items():
        unknown = np.repeat(steps[:, -1:], rows.shape[1] - steps.shape[1], axis=1)
        given[name] = np.concatenate([steps, unknown], axis=1)
        if is_ragged(steps):
            given[name] = copied(given[name])
    return replace(held_out, rows=rows).batch(given)


def squared_errors(forecast: Array, truth: Array) -> NDArray[np.float64]:
    """The mean squared error of each step, shape (n, steps); infinite where the forecast is not finite."""
    if is_ragged(truth):
        pairs = zip(forecast.flat, truth.flat, strict=True)
        return np.reshape([squared_errors(one[None, None], other[None, None]) for one, other in pairs], truth.shape)
    with np.errstate(all="ignore"):
        squares = np.abs(forecast - truth.astype(np.result_type(truth, np.float64))) ** 2
        errors = np.mean(squares.reshape(*truth.shape[:2], -1), axis=2)
    return np.where(np.isfinite(errors), errors, np.inf)


def as_kept(forecast: Array, truth: Array) -> Array:
    """A forecast in the type in which its field is kept."""
    if is_ragged(truth):
        kept = np.empty_like(forecast)
        for place, one in np.ndenumerate(forecast):
            kept[place] = as_kept(one, truth[place])
        return kept
    with np.errstate(all="ignore"):
        return (np.rint(forecast) if truth.dtype.kind in "biu" else forecast).astype(truth.dtype)


def lead_times(spacing: int, num: int) -> list[int]:
    return [spacing * number for number in range(1, num + 1)]


def shown_steps(num: int) -> list[int]:
    """The steps of 1 … `num` that are shown: 1, 2, 5, 10, 20, …, and the last one."""
    spread = (step * 10**power for power in range(len(str(num))) for step in SHOWN_STEPS)
    return sorted({num, *(step for step in spread if step <= num)}) if num else []


def _joined(parts: Sequence[TrajectoryErrors], fields: Sequence[str], spacing: int) -> TrajectoryErrors:
    """The errors of several batches of trajectories, which may differ in length."""
    width = max((of.shape[1] for part in parts for of in part.mse.values()), default=0)
    simulations = np.concatenate([np.zeros(0, np.int64), *(part.simulations for part in parts)])
    mse = {name: np.full((len(simulations), width), np.nan) for name in fields}
    start = 0
    for part in parts:
        for name, of in part.mse.items():
            mse[name][start : start + len(of), : of.shape[1]] = of
        start += len(part.simulations)
    return TrajectoryErrors(simulations=simulations, spacing=spacing, mse=mse)
