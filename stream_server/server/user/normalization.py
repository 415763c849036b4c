"""Running statistics of the stream, with which users normalize data."""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.user.callbacks import Callback
from stream_server.wording import listed

if TYPE_CHECKING:
    from stream_server.config import StudyConfig

Array = NDArray[np.float64]

_CHUNK_VALUES = 1 << 18

PARAMETERS = "parameters"
FIELDS = "fields."
# Root mean square of normalised values that is worth a warning: 1 is what they are meant to have.
FAR = 10.0

_log = logging.getLogger(__name__)


class Moments:
    """Count, mean and sum of squared deviations, of each value of a shape; scalars for the shape ().

    All are float64 arrays of that shape: `count`, `mean` and `m2`. Elements that are not finite are left out, so that
    counts may differ from value to value. Sums over pieces are put together as Chan, Golub and LeVeque do (The American
    Statistician 37, 1983): no digits cancel, whatever the mean.
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.count: Array = np.zeros(shape)
        self.mean: Array = np.zeros(shape)
        self.m2: Array = np.zeros(shape)

    @property
    def variance(self) -> Array:
        """The mean squared deviation from the mean; 0 where nothing was seen."""
        return self.m2 / np.maximum(self.count, 1)

    def update(self, block: NDArray[Any]) -> None:
        """Take in a block of shape (n, …); each row holds one shape, or any number of values when the shape is ()."""
        values_per_row = int(np.prod(block.shape[1:]))
        size = max(1, _CHUNK_VALUES // max(1, values_per_row))
        for start in range(0, len(block), size):
            rows = block[start : start + size]
            if not self.mean.ndim:
                rows = rows.reshape(-1)
            if rows.size:
                self.merge(_of_rows(rows.astype(np.float64)))

    def merge(self, other: "Moments") -> None:
        """Merge the moments of other data into these."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        delta = other.mean - self.mean
        self.m2 = self.m2 + other.m2 + delta * delta * (self.count * share)
        # Of a first piece the mean is taken as it is.
        self.mean = np.where(self.count == 0, other.mean, self.mean + delta * share)
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        """The three arrays, as copies."""
        return {name: getattr(self, name).copy() for name in ("count", "mean", "m2")}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Moments":
        """Restore moments from the result of `state_dict`."""
        moments = cls()
        for name in ("count", "mean", "m2"):
            setattr(moments, name, np.array(state[name], np.float64))
        return moments


def _of_rows(rows: Array) -> Moments:
    """The moments of rows, over their first axis, in two passes."""
    moments = Moments(rows.shape[1:])
    with np.errstate(invalid="ignore", over="ignore"):
        total = rows.sum(0)
    if np.all(np.isfinite(total)):
        count: Array = np.full(total.shape, float(len(rows)))
        deviations = rows - total / len(rows)
    else:
        finite = np.isfinite(rows)
        count = finite.sum(0).astype(np.float64)
        rows = np.where(finite, rows, 0.0)
        total = rows.sum(0)
        deviations = np.where(finite, rows - total / np.maximum(count, 1), 0.0)
    # What the rounded mean leaves over, as the corrected two-pass algorithm has it.
    rest = deviations.sum(0) / np.maximum(count, 1)
    moments.count = count
    moments.mean = np.asarray(total / np.maximum(count, 1) + rest)
    moments.m2 = np.asarray(np.einsum("i...,i...->...", deviations, deviations) - count * rest * rest)
    return moments


class Scaling:
    """(array − mean) / std and its inverse, for means of one shape; `name` is what they are of, for errors.

    A standard deviation of 0 divides by 1.
    """

    def __init__(self, name: str, mean: Array, std: Array) -> None:
        self.mean = mean
        self.std = std
        self._name = name
        self._divisor: Array = np.where(std > 0, std, 1.0)

    def apply(self, array: Any) -> Any:
        """The array at order one, in its own type; whole numbers become float64.

        Raises:
            UserCodeError: its shape does not go with that of the means.
        """
        array = _floating(array)
        return (array - self._like(array, self.mean)) / self._like(array, self._divisor)

    def undo(self, array: Any) -> Any:
        """The inverse of `apply`, and raises the same."""
        array = _floating(array)
        return array * self._like(array, self._divisor) + self._like(array, self.mean)

    def size_of(self, mean: Array, std: Array, where: Any) -> float:
        """The largest root mean square, after `apply`, of values of such means and standard deviations, if `where`."""
        sizes = np.sqrt((mean - self.mean) ** 2 + std**2) / self._divisor
        return float(np.max(sizes, initial=0.0, where=where))

    def _like(self, array: Any, values: Array) -> Any:
        """Means or divisors as the same kind of array, in a shape that goes with it."""
        shape, extents = values.shape, tuple(array.shape)
        if shape and extents[-len(shape) :] != shape:
            if extents[-1:] != (values.size,):
                raise UserCodeError(
                    f"the statistics of {self._name} go with arrays of shape (…, {', '.join(map(str, shape))}) or "
                    f"(…, {values.size}), but one of {extents} was given"
                )
            values = values.reshape(-1)
        return array.new_tensor(values) if hasattr(array, "new_tensor") else values.astype(array.dtype)


def _floating(array: Any) -> Any:
    if hasattr(array, "new_tensor"):
        return array if array.is_floating_point() else array.double()
    if not hasattr(array, "dtype"):
        array = np.asarray(array)
    return array.astype(np.float64) if array.dtype.kind in "biu" else array


class Observed:
    """The moments of what one rank has observed since the ranks last came together, and whether it asked to freeze."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes
        self.clear()

    def clear(self) -> None:
        """Start over: the ranks came together."""
        self.num_samples = 0
        self.wants_to_freeze = False
        self.moments = _nothing(self._shapes)

    def state_dict(self) -> list[dict[str, Any]]:
        """A list of one, to which those of other ranks may be added."""
        moments = _states(self.moments)
        return [{"num_samples": self.num_samples, "freeze": self.wants_to_freeze, "moments": moments}]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        for state in states:
            self.num_samples += state["num_samples"]
            self.wants_to_freeze |= state["freeze"]
            for key, its_state in state["moments"].items():
                self.moments[key].merge(Moments.from_state(its_state))

    @staticmethod
    def redealt(states: Sequence[list[dict[str, Any]]], rank: int, dealing: object) -> list[dict[str, Any]]:
        """All of them on rank 0: they are merged at the next sync anyway."""
        return [] if rank else [*chain.from_iterable(states)]


class Normalization(Callback):
    """Mean and standard deviation of fields and parameters, over all samples that any rank has drawn.

    Each sample counts once, when it is first drawn. A rank keeps what it saw to itself until the ranks `sync`: before
    the first training step, then every this many batches, and at the end. So all ranks hold the same numbers, bit by
    bit, and these do not change between two syncs. Before the first one `is_ready` is False, and `normalize` and its
    like give back what they are given. Main thread.

    Attributes:
        num_samples: how many samples the shared statistics are of.
        frozen: whether they stay as they are from now on.
        version: a number that changes with the shared statistics.
        num_uses: how often somebody has normalised by them, or asked for them.
        warnings: on rank 0, statistics that were far from those of the samples that came next.
        observed: what this rank has observed since the last sync.
        before_change: called before they change, so that nobody is reading them on another thread then.
    """

    def __init__(
        self,
        ranks: Ranks,
        shapes: Mapping[str, Sequence[int]] | None = None,
        *,
        num_parameters: int | None = None,
        every_batches: int = 10,
        freeze_after: int | None = None,
    ) -> None:
        """Keep the moments of fields, of a shape each, and of `num_parameters` parameters; None: not of these."""
        self.num_samples = 0
        self.frozen = False
        self.version = 0
        self.num_uses = 0
        self.warnings: list[str] = []
        self.before_change: Callable[[], None] = lambda: None
        self._ranks = ranks
        self._every_batches = every_batches
        self._freeze_after = freeze_after
        self._shapes = {FIELDS + name: tuple(shape) for name, shape in (shapes or {}).items()}
        if num_parameters is not None:
            self._shapes[PARAMETERS] = (num_parameters,)
        self._shared = _nothing(self._shapes)
        self.observed = Observed(self._shapes)
        self._refresh()

    @classmethod
    def of(cls, config: "StudyConfig", ranks: Ranks | None = None, *, num_parameters: int = 0) -> "Normalization":
        """The normalization that the section `normalization` of study.json describes; `ranks` None: one rank alone."""
        settings = config.normalization
        shapes = {
            name: config.study.fields[name].row_shape if settings.per == "value" else () for name in settings.fields
        }
        return cls(
            SoloRanks() if ranks is None else ranks,
            shapes,
            num_parameters=num_parameters if settings.parameters else None,
            every_batches=settings.every_batches,
            freeze_after=settings.freeze_after,
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields whose statistics are kept."""
        return tuple(key.removeprefix(FIELDS) for key in self._shapes if key != PARAMETERS)

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to wait for: the ranks came together, or study.json asks for no statistics."""
        return self.num_samples > 0 or not self._shapes

    @property
    def is_observing(self) -> bool:
        """Whether samples still count."""
        return bool(self._shapes) and not self.frozen

    @property
    def mean(self) -> dict[str, Array]:
        """By field: a scalar, or an array of the field's shape, of a row's if it is ragged; 0 for values never seen."""
        self.num_uses += 1
        return {key.removeprefix(FIELDS): each.mean for key, each in self._scalings.items() if key != PARAMETERS}

    @property
    def std(self) -> dict[str, Array]:
        """By field, as `mean`: the root of the mean squared deviation."""
        self.num_uses += 1
        return {key.removeprefix(FIELDS): each.std for key, each in self._scalings.items() if key != PARAMETERS}

    @property
    def parameters_mean(self) -> Array:
        """The mean of each parameter over the samples, shape (P,), in the order of study.json."""
        return self._scaling(PARAMETERS).mean

    @property
    def parameters_std(self) -> Array:
        """The standard deviation of each parameter over the samples, shape (P,)."""
        return self._scaling(PARAMETERS).std

    def normalize(self, field: str, array: Any) -> Any:
        """(array − mean) / std, in the type of the array; whole numbers become float64.

        The array may be NumPy's, torch's or JAX's, of any shape if there is one mean for the field. Otherwise its last
        axes are those of the field, of one row of it if it differs in size, or one with all its values. A
        standard deviation of 0 divides by 1.

        Raises:
            ConfigError: study.json does not ask for the statistics of this field.
            UserCodeError: the array has another shape.
        """
        scaling = self._scaling(FIELDS + field)
        return scaling.apply(array) if self.num_samples else array

    def denormalize(self, field: str, array: Any) -> Any:
        """array × std + mean: the inverse of `normalize`, and raises the same."""
        scaling = self._scaling(FIELDS + field)
        return scaling.undo(array) if self.num_samples else array

    def normalize_parameters(self, array: Any) -> Any:
        """As `normalize`, for parameters of shape (…, P)."""
        scaling = self._scaling(PARAMETERS)
        return scaling.apply(array) if self.num_samples else array

    def denormalize_parameters(self, array: Any) -> Any:
        """The inverse of `normalize_parameters`."""
        scaling = self._scaling(PARAMETERS)
        return scaling.undo(array) if self.num_samples else array

    def freeze(self) -> None:
        """Freeze the statistics from the next sync on; one rank's request is enough."""
        self.observed.wants_to_freeze = True

    def observe(self, fields: Mapping[str, NDArray[Any]], parameters: NDArray[np.float64]) -> None:
        """Count samples that were drawn for the first time.

        `parameters` has shape (n, P); the arrays of `fields` have the rows in which the field was sent, n at most. Of a
        field that differs in size, they have the rows of all these steps or simulations.
        """
        if not self.is_observing:
            return
        self.observed.num_samples += len(parameters)
        for key, moments in self.observed.moments.items():
            moments.update(parameters if key == PARAMETERS else fields[key.removeprefix(FIELDS)])

    def sync(self) -> None:
        """Bring together what the ranks have observed since the last time. Collective."""
        if not self.is_observing:
            return
        self.before_change()
        own = list(self.observed.moments.values())
        flags = np.array([self.observed.wants_to_freeze, self.observed.num_samples], np.float64)
        totals = self._ranks.all_reduce(
            _flat([flags, *(each.count for each in own), *(each.count * each.mean for each in own)])
        )
        (wants_to_freeze, num_new), totals = totals[:2], totals[2:]
        before = self.num_samples, self._scalings
        had_come: dict[str, Any] = {key: each.count > 0 for key, each in self._shared.items()}
        if num_new:
            counts, sums = np.split(totals, 2)
            means = sums / np.maximum(counts, 1)
            deviations = _flat([each.mean for each in own]) - means
            m2 = _flat([each.m2 for each in own]) + _flat([each.count for each in own]) * deviations**2
            self._take_in(counts, means, self._ranks.all_reduce(m2))
            self.num_samples += int(num_new)
        self.observed.clear()
        limit = self._freeze_after
        self.frozen = bool(wants_to_freeze) or (limit is not None and self.num_samples >= limit)
        self._refresh()
        self._tell_of_jump(*before, had_come)

    def on_step_end(self, server: Any) -> None:
        if server.progress.batches % self._every_batches == 0:
            self.sync()

    def on_train_end(self, server: Any) -> None:
        self.sync()

    def state_dict(self) -> dict[str, Any]:
        """The shared statistics, the same on all ranks."""
        return {"num_samples": self.num_samples, "frozen": self.frozen, "moments": _states(self._shared)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore, on every rank, the state that `state_dict` returned on any.

        Raises:
            ConfigError: these are statistics of other fields or shapes.
        """
        moments = {key: Moments.from_state(its_state) for key, its_state in state["moments"].items()}
        shapes = {key: each.mean.shape for key, each in moments.items()}
        if shapes != self._shapes:
            raise ConfigError(
                f"the section normalization of study.json asks for {_described(self._shapes)}, but what was saved is "
                f"{_described(shapes)}"
            )
        self._shared = {key: moments[key] for key in self._shapes}
        self.num_samples, self.frozen = state["num_samples"], state["frozen"]
        self._refresh()

    def arrays(self) -> dict[str, Array]:
        """The shared statistics by names such as "fields.temperature.mean", "parameters.std" and "parameters.count"."""
        arrays: dict[str, Array] = {}
        for key, scaling in self._scalings.items():
            arrays |= {f"{key}.mean": scaling.mean, f"{key}.std": scaling.std, f"{key}.count": self._shared[key].count}
        return arrays

    def _take_in(self, counts: Array, means: Array, m2: Array) -> None:
        start = 0
        for moments in self._shared.values():
            size, shape = moments.mean.size, moments.mean.shape
            new = Moments(shape)
            new.count, new.mean, new.m2 = (all_[start : start + size].reshape(shape) for all_ in (counts, means, m2))
            moments.merge(new)
            start += size

    def _tell_of_jump(self, num_samples: int, before: Mapping[str, Scaling], had_come: Mapping[str, Any]) -> None:
        """Warn once if all values, with the statistics until now, are far from order one; those that `had_come`."""
        if not num_samples or self.warnings or self._ranks.rank:
            return
        far = {
            key: before[key].size_of(each.mean, np.sqrt(each.variance), had_come[key])
            for key, each in self._shared.items()
        }
        names = [f"{key.removeprefix(FIELDS)} (root mean square {size:.3g})" for key, size in far.items() if size > FAR]
        if names:
            self.warnings.append(
                "the training has seen badly normalised values: with the statistics of the first "
                f"{num_samples} samples those of {self.num_samples} are far from order one: {listed(names)}. What it "
                "has learned until now is of another scale, and the optimizer may remember it for long. Let the "
                "training begin with samples of several simulations: a larger buffer.watermark, or "
                "launcher.max_running"
            )
            _log.warning("%s", self.warnings[0])

    def _refresh(self) -> None:
        self.version += 1
        self._scalings = {
            key: Scaling(key.removeprefix(FIELDS), each.mean, np.sqrt(each.variance))
            for key, each in self._shared.items()
        }

    def _scaling(self, key: str) -> Scaling:
        self.num_uses += 1
        if key not in self._scalings:
            name = key.removeprefix(FIELDS)
            missing = "normalization.parameters: true" if key == PARAMETERS else f'"{name}" in normalization.fields'
            raise ConfigError(f"the server class asks for the statistics of {name}: write {missing} in study.json")
        return self._scalings[key]


def _nothing(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Moments]:
    return {key: Moments(shape) for key, shape in shapes.items()}


def _flat(arrays: Sequence[Array]) -> Array:
    return np.concatenate([array.reshape(-1) for array in arrays])


def _states(moments: Mapping[str, Moments]) -> dict[str, Any]:
    return {key: each.state_dict() for key, each in moments.items()}


def _described(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{key} {shape}" for key, shape in shapes.items()) or "nothing"
