"""The record of each validation: a few predictions beside the truth, and the error of every held-out sample.

Why: docs/decisions/0035-record-of-a-validation.md
"""

import io
import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import PeerFailed, UserCodeError
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.validation.rollout import TrajectoryErrors, lead_times
from stream_server.server.training.validation.validation_batches import HeldOut
from stream_server.server.user.forecast import array_of
from stream_server.server.user.rendering import Prediction
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.disk import make_folder, names_in, remove_file, replace_file

FORMAT = 1
OF_LOSS = "loss"
OF_SQUARES = "squares"
NUM_NEWEST = 10
MAX_VALUES = 2**18
MAX_OFFERED = 4096

Array = NDArray[Any]
Key = tuple[int, int]

_FILE = re.compile(r"batch-(\d{6,})-rank-\d+\.npz")

_log = logging.getLogger(__name__)


class ValidationRecord:
    """Keeps what the model predicts for held-out samples, one file per rank and validation in `folder`.

    Main thread. A file has the error of each sample of the rank, and the renderings of those of the `num` chosen ones
    that the rank has. The error is the user's loss if `validation_step` gave that of each sample, otherwise the mean
    squared error of the model's output. With `num` 0 nothing is predicted. There is no file of a validation of which
    neither is known. The files of the first validation, of the best one and of the newest ones stay. A failure costs
    the record and a warning, never the study; if `is_strict`, a `predict` or `render` of the user's that raises is an
    error.
    """

    def __init__(
        self,
        folder: Path,
        server: StreamServer,
        ranks: Ranks,
        *,
        num: int,
        facts: Mapping[str, Any],
        is_strict: bool = False,
    ) -> None:
        self._folder = folder
        self._server = server
        self._ranks = ranks
        self._num = num
        self._facts = dict(facts)
        self._is_strict = is_strict
        self._chosen_of: Any = None
        self._chosen: frozenset[Key] = frozenset()
        self.predicts = num > 0 and type(server).predict is not StreamServer.predict
        self._told: set[str] = set()
        self.warnings: list[str] = []
        self._clear()

    def begin(self, signature: Any, samples: HeldOut | None) -> None:
        """Choose the samples that are rendered, unless the sets are those of the last time. Collective."""
        self._clear()
        if signature != self._chosen_of:
            keys = [] if samples is None else _keys(samples)
            offered = self._ranks.gather(keys[:: 1 + len(keys) // MAX_OFFERED])
            chosen = None if offered is None else choose([key for of_rank in offered for key in of_rank], self._num)
            self._chosen = frozenset((simulation, step) for simulation, step in self._ranks.broadcast(chosen))
            self._chosen_of = signature

    def observe(self, raw: HeldOut, batch: Any, losses: Array | None) -> None:
        """Predict a batch of this rank, which is validated already, with the `losses` of its samples, if known.

        `raw` are its samples as they came.

        Raises:
            UserCodeError: `is_strict`, and the user's `predict` or `render` raised.
        """
        squares = self._predict(raw, batch) if self.predicts else None
        self._num_without_losses += losses is None
        if losses is None and squares is None:
            return
        unknown = np.full(len(raw), np.nan)
        self._simulations.append(raw.simulation_ids)
        self._time_steps.append(raw.first_steps)
        self._losses.append(unknown if losses is None else losses)
        self._squared.append(unknown if squares is None else squares)

    def error_over_variance(self) -> float | None:
        """The squared error of all predictions over the variance of the targets, if it is known. Collective."""
        return self._squared_error.over_variance(self._ranks) if self.predicts else None

    def write(
        self, batch: int, values: Mapping[str, float], keep: Sequence[int], rollouts: TrajectoryErrors | None = None
    ) -> None:
        """Write this rank's file of a validation, and on rank 0 remove those that need not be kept. Collective."""
        num_rollouts = 0 if rollouts is None else len(rollouts.simulations)
        counts = self._everywhere([self._num_without_losses, len(self._simulations) + num_rollouts])
        error = OF_SQUARES if any(num for num, _ in counts) else OF_LOSS
        if any(num for _, num in counts):
            self._write(batch, self._content(batch, values, error, rollouts))
        self.prune([*keep, batch])
        self._clear()

    def _write(self, batch: int, content: bytes) -> None:
        try:
            make_folder(self._folder)
            replace_file(self._folder / f"batch-{batch:06d}-rank-{self._ranks.rank}.npz", content)
        except OSError as error:
            self._warn("write", f"the predictions of the validation after batch {batch} cannot be written: {error}")

    def prune(self, batches: Sequence[int]) -> None:
        """Remove the files of other batches, those of all ranks, on rank 0."""
        if self._ranks.rank != 0:
            return
        try:
            for name in names_in(self._folder):
                match = _FILE.fullmatch(name)
                if match and int(match[1]) not in batches:
                    remove_file(self._folder / name)
        except OSError as error:
            self._warn("prune", f"old ones cannot be removed: {error}")

    def _clear(self) -> None:
        self._simulations: list[Array] = []
        self._time_steps: list[Array] = []
        self._losses: list[Array] = []
        self._squared: list[Array] = []
        self._num_without_losses = 0
        self._squared_error = SquaredError()
        self._pictures: list[dict[str, Any]] = []
        self._arrays: dict[str, Array] = {}

    def _predict(self, raw: HeldOut, batch: Any) -> Array | None:
        """The mean squared error of each sample, None without predictions; the chosen ones are rendered."""
        output, target = self._asked("predict", batch), target_of(batch)
        if output is None:
            if not self._is_users("predict"):
                name = type(self._server).__name__
                self._warn(
                    "predict",
                    f"{name}.predict knows the prediction only of a batch that is a pair of inputs and targets, which "
                    "the held-out batches are not; define predict in the server class, or write validation.pictures: 0",
                )
            return self._squared_error.add(None, None)
        outputs, targets = array_of(output), None if target is None else array_of(target)
        if outputs.ndim == 0 or len(outputs) != len(raw):
            self._warn("rows", f"predict must give a row for each of {len(raw)} samples, not {outputs.shape}")
            return self._squared_error.add(None, None)
        if targets is not None and len(targets) != len(raw):
            targets = None
        wanted = [row for row, key in enumerate(_keys(raw)) if key in self._chosen]
        for row in wanted:
            [sample] = raw[row : row + 1].batch().samples()
            prediction = Prediction(output=outputs[row], target=None if targets is None else targets[row])
            self._render(sample, prediction)
        return self._squared_error.add(outputs, targets)

    def _render(self, sample: Any, prediction: Prediction) -> None:
        rendered = self._asked("render", sample, prediction)
        names = []
        try:
            for name, (truth, predicted) in (rendered or {}).items():
                truth, predicted = subsampled(array_of(truth)), subsampled(array_of(predicted))
                if truth.shape != predicted.shape:
                    raise ValueError(f"the truth of {name} has shape {truth.shape}, the prediction {predicted.shape}")
                number = len(self._pictures)
                self._arrays |= {f"truth.{number}.{name}": truth, f"prediction.{number}.{name}": predicted}
                names.append(str(name))
        except (TypeError, ValueError, AttributeError) as error:
            self._failed("render", f"must give a dict of (truth, prediction) by name: {error}", error)
            return
        if names:
            self._pictures.append(
                {
                    "simulation": sample.simulation_id,
                    "time_step": sample.time_step,
                    "parameters": sample.parameters.tolist(),
                    "names": names,
                }
            )

    def _asked(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._server, method)(*arguments)
        except PeerFailed:
            raise
        except Exception as error:
            self._failed(method, f"raised {type(error).__name__}: {error}", error)
            return None

    def _failed(self, method: str, text: str, error: Exception) -> None:
        name = f"{type(self._server).__name__}.{method}"
        if self._is_strict and self._is_users(method):
            raise UserCodeError(f"{name} {text}") from error
        hint = (
            "" if self._is_users(method) else f"; define {method} in the server class, or write validation.pictures: 0"
        )
        self._warn(method, f"{name} {text}{hint}")

    def _is_users(self, method: str) -> bool:
        return not getattr(type(self._server), method).__module__.startswith("stream_server.")

    def _warn(self, subject: str, text: str) -> None:
        """Warn once of each subject: the next validation would say the same."""
        if subject not in self._told:
            self._told.add(subject)
            self.warnings.append(f"no prediction is kept: {text}")
            _log.warning("%s", self.warnings[-1])

    def _everywhere(self, mine: list[int]) -> list[list[int]]:
        """The values that the ranks pass, in the order of the ranks. Collective."""
        gathered: list[list[int]] = self._ranks.broadcast(self._ranks.gather(mine))
        return gathered

    def _content(self, batch: int, values: Mapping[str, float], error: str, rollouts: TrajectoryErrors | None) -> bytes:
        facts = {
            "format": FORMAT,
            "batch": batch,
            "rank": self._ranks.rank,
            "ranks": self._ranks.size,
            "values": {name: value if math.isfinite(value) else None for name, value in values.items()},
            "parameters": list(self._server.parameter_names),
            "pictures": self._pictures,
            "error": error,
            **self._facts,
        }
        memory = io.BytesIO()
        np.savez(
            memory,
            facts=np.array(json.dumps(facts)),
            simulations=np.concatenate([np.zeros(0, np.int64), *self._simulations]),
            time_steps=np.concatenate([np.zeros(0, np.int64), *self._time_steps]),
            errors=np.concatenate([np.zeros(0), *(self._losses if error == OF_LOSS else self._squared)]),
            allow_pickle=False,
            **self._arrays,
            **({} if rollouts is None else _rollout_arrays(rollouts)),
        )
        return memory.getvalue()


def _rollout_arrays(rollouts: TrajectoryErrors) -> dict[str, Array]:
    num_steps = max(of.shape[1] for of in rollouts.mse.values())
    return {
        "rollout_simulations": rollouts.simulations,
        "rollout_lead_times": np.array(lead_times(rollouts.spacing, num_steps), np.int64),
        **{f"rollout_mse.{name}": of for name, of in rollouts.mse.items()},
    }


def batches_to_keep(history: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[int]:
    """The validations whose records stay: the first, the best and the newest."""
    batches = [int(entry["batch"]) for entry in history if OF_LOSS in entry]
    return [*batches[:1], *batches[-NUM_NEWEST:], *([int(best["batch"])] if best else [])]


def choose(keys: Sequence[Sequence[int]], num: int) -> list[list[int]]:
    """At most `num` of the pairs (simulation, time step), spread over both."""
    steps_of: dict[int, list[int]] = {}
    for simulation, step in sorted(map(tuple, keys)):
        steps_of.setdefault(simulation, []).append(step)
    simulations = list(steps_of)
    chosen: list[list[int]] = []
    for number in range(num if simulations else 0):
        simulation = simulations[number * len(simulations) // num]
        steps = steps_of[simulation]
        chosen.append([simulation, steps[int((number + 0.5) / num * len(steps))]])
    return [list(pair) for pair in dict.fromkeys(map(tuple, chosen))]


def target_of(batch: Any) -> Any:
    """The second item of a batch of inputs and targets; None if it is no such pair."""
    is_pair = isinstance(batch, tuple | list) and len(batch) == 2
    return batch[1] if is_pair and hasattr(batch[1], "shape") else None


def subsampled(array: Array) -> Array:
    """A copy with values at equal distances along each axis, few enough for a small picture."""
    stride = 1
    while math.prod(-(-length // stride) for length in array.shape) > MAX_VALUES:
        stride += 1
    return array[(slice(None, None, stride),) * array.ndim].copy()


def _keys(samples: HeldOut) -> list[Key]:
    return list(zip(samples.simulation_ids.tolist(), samples.first_steps.tolist(), strict=True))


def held_out_record(folder: Path, server: StreamServer, ranks: Ranks, *, is_strict: bool = False) -> ValidationRecord:
    """The record that study.json asks for."""
    config = server.config
    facts = {"study": config.study.name, "units": dict(config.study.units)}
    return ValidationRecord(folder, server, ranks, num=config.validation.pictures, facts=facts, is_strict=is_strict)


class SquaredError:
    """The mean squared error of predictions over the variance of their targets, under construction.

    Of each of the values that a target consists of, the variance is that around its own mean over the samples: always
    to predict these means would give 1. Main thread.
    """

    def __init__(self) -> None:
        self._num = 0
        self._errors = 0.0
        self._squares = 0.0
        self._sums: Array = np.zeros(0)
        self._is_known = True
        self._memory: Array = np.empty(0)

    def add(self, outputs: Array | None, targets: Array | None) -> Array | None:
        """Add the samples of a batch; gives the mean squared error of each of them, None without outputs.

        It is NaN where there is nothing to compare with, and the ratio is then unknown.
        """
        errors = None if outputs is None else squared_errors(outputs, targets, self._room)
        if errors is None or targets is None or not np.isfinite(errors).all():
            self._is_known = False
            return errors
        flat = _numbers_of(targets, self._room)
        if self._num and flat.shape[1] != len(self._sums):
            self._is_known = False
            return errors
        self._sums = flat.sum(axis=0) + (self._sums if self._num else 0.0)
        self._squares += float(np.vdot(flat, flat))
        self._errors += float(np.sum(errors)) * targets.size / flat.size
        self._num += len(flat)
        return errors

    def over_variance(self, ranks: Ranks) -> float | None:
        """The ratio over the samples of all ranks. Collective.

        None if there is a sample of which it is not known, or if they do not vary.
        """
        sizes: list[list[int]] = ranks.broadcast(ranks.gather([len(self._sums), int(self._is_known)]))
        size = max(size for size, _ in sizes)
        if not size or not all(is_known and of_rank in (0, size) for of_rank, is_known in sizes):
            return None
        mine = np.zeros(3 + size)
        mine[:3] = self._num, self._errors, self._squares
        mine[3:] = self._sums if self._num else 0.0
        sums = ranks.all_reduce(mine)
        num, errors, squares = sums[:3]
        variance = float(squares / num - np.sum((sums[3:] / num) ** 2)) / size
        ratio = float(errors / num) / variance if variance > 0 else math.inf
        return ratio if math.isfinite(ratio) else None

    def _room(self, num: int) -> Array:
        """Memory for so many numbers, the same each time, since a copy into fresh pages takes several times as long."""
        if len(self._memory) < num:
            self._memory = np.empty(num)
        return self._memory[:num]


def squared_errors(outputs: Array, targets: Array | None, room: Callable[[int], Array] = np.empty) -> Array:
    """The mean squared error of each row in float64, of complex values that of the magnitude.

    It is NaN where there is nothing to compare with. `room` gives memory for so many numbers.
    """
    if targets is None or targets.size != outputs.size:
        return np.full(len(outputs), np.nan)
    num, is_complex = len(outputs), np.iscomplexobj(outputs) or np.iscomplexobj(targets)
    flat = room(outputs.size * (1 + is_complex)).reshape(num, -1)
    difference = flat.view(np.complex128) if is_complex else flat
    # To widen both in the subtraction takes twice as long.
    np.copyto(difference, outputs.reshape(num, -1))
    np.subtract(difference, targets.reshape(num, -1), out=difference, dtype=difference.dtype)
    return np.asarray(np.einsum("ij,ij->i", flat, flat) / difference.shape[1])


def _numbers_of(targets: Array, room: Callable[[int], Array]) -> Array:
    """The values of each row in float64, shape (n, numbers); a complex value is two numbers."""
    num, is_complex = len(targets), np.iscomplexobj(targets)
    flat = room(targets.size * (1 + is_complex)).reshape(num, -1)
    np.copyto(flat.view(np.complex128) if is_complex else flat, targets.reshape(num, -1))
    return flat
