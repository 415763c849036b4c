"""The records of validations: predictions beside the truth, and the errors of held-out samples."""

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from stream_server.analysis.reading import RunFolder
from stream_server.errors import ConfigError
from stream_server.ragged import Array
from stream_server.storage.disk import by_own_links, read_file
from stream_server.storage.typed import quoted, shortened

FOLDER = "validations"
FORMAT = 1
LABEL_OF_LOSS = "loss of the server class"
LABEL_OF_SQUARES = "mean squared error of the output\n(in the scale of the training)"
ROLLOUT_SIMULATIONS = "rollout_simulations"
ROLLOUT_LEAD_TIMES = "rollout_lead_times"
ROLLOUT_MSE = "rollout_mse."
_COLUMNS = ("simulations", "time_steps", "errors")


_FILE = re.compile(r"batch-(\d{6,})-rank-(\d+)\.npz")


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedSample:
    """One held-out sample as the server class rendered it: by name the truth and the prediction, of one shape."""

    simulation: int
    time_step: int
    parameters: dict[str, float]
    shown: dict[str, tuple[Array, Array]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedRollouts:
    """The mean squared errors of forecasts along held-out simulations.

    By field `mse` has the shape (simulations, lead times), in the unit of the field; it is NaN beyond the end of a
    simulation, and infinite where a forecast is not finite. `simulations` and `lead_times` say which these are.
    """

    simulations: Array
    lead_times: Array
    mse: dict[str, Array]

    def by_lead_time(self, field: str) -> Array:
        """The mean over the simulations that reach each lead time."""
        known = ~np.isnan(self.mse[field])
        return np.asarray(np.sum(self.mse[field], axis=0, where=known) / known.sum(axis=0))


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedValidation:
    """A validation: its values such as "loss", and of each held-out sample simulation, time step and error.

    The error is the mean squared error of the model's output, in the scale of the training; if `has_losses`, it is the
    loss that `validation_step` gave of each sample. The three arrays have one length; `samples` are the few that were
    rendered, in the order of their simulations and time steps. `rollouts` are there if study.json asked for them.
    `is_whole` says whether the files of all ranks are there.
    """

    batch: int
    values: dict[str, float]
    units: dict[str, str]
    simulations: Array
    time_steps: Array
    errors: Array
    samples: tuple[RenderedSample, ...]
    is_whole: bool
    has_losses: bool = False
    rollouts: RecordedRollouts | None = None

    @property
    def error_label(self) -> str:
        """The words for the error on the axis of a picture."""
        return LABEL_OF_LOSS if self.has_losses else LABEL_OF_SQUARES

    def by_simulation(self) -> dict[int, float]:
        """The mean error of each simulation."""
        return _means(self.simulations, self.errors)

    def by_time_step(self) -> dict[int, float]:
        """The mean error over all simulations at each time step."""
        return _means(self.time_steps, self.errors)


def recorded_batches(run: RunFolder) -> list[int]:
    """The batches after which there was a validation whose record is there, in ascending order."""
    return sorted({batch for batch, _ in _files(run)})


def relative_error(truth: Array, prediction: Array) -> float | None:
    """The norm of the difference over the norm of the truth, at finite values; None if that is no number."""
    known = np.isfinite(truth) & np.isfinite(prediction)
    values = truth[known].astype(np.complex128)
    length = float(np.linalg.norm(values))
    return float(np.linalg.norm(prediction[known] - values)) / length if length > 0 else None


def read_validation(run: RunFolder, batch: int | None = None) -> RecordedValidation | None:
    """The record of the validation after a batch, by default the newest that all ranks have written; None without one.

    A file that another rank left at an earlier start, when there were more of them, is not counted.

    Raises:
        ConfigError: a file is damaged, or of another release.
    """
    if batch is not None:
        return _read(run, batch)
    for newest in reversed(recorded_batches(run)):
        validation = _read(run, newest)
        if validation is not None and validation.is_whole:
            return validation
    return None


def version_of(run: RunFolder) -> frozenset[tuple[str, int]]:
    """A value that changes whenever a record is added, removed or rewritten."""
    try:
        return frozenset((path.name, path.stat().st_mtime_ns) for path in _files(run).values())
    except FileNotFoundError:
        # One was removed meanwhile: it is another version the next time, too.
        return frozenset()


def errors_of_simulations(run: RunFolder) -> dict[int, float]:
    """The mean error of each held-out simulation in the newest validation; empty if none can be read."""
    try:
        newest = read_validation(run)
    except ConfigError:
        return {}
    return {} if newest is None else newest.by_simulation()


def _files(run: RunFolder) -> dict[tuple[int, int], Path]:
    """The files by batch and rank."""
    folder = run.path / FOLDER
    names = {file: _FILE.fullmatch(file.name) for file in folder.iterdir()} if folder.is_dir() else {}
    return {(int(match[1]), int(match[2])): path for path, match in names.items() if match}


def _read(run: RunFolder, batch: int) -> RecordedValidation | None:
    paths = [path for (of, _), path in sorted(_files(run).items()) if of == batch]
    parts = [part for path in paths if (part := _content(path)) is not None]
    try:
        return _assembled(batch, parts)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        folder = run.path / FOLDER
        raise ConfigError(f"the record of batch {batch} in {folder} is damaged: {quoted(error)}") from error


def _assembled(batch: int, parts: list[tuple[dict[str, Any], Mapping[str, Array]]]) -> RecordedValidation | None:
    newest = next((facts for facts, _ in parts if facts["rank"] == 0), None)
    if newest is None:
        return None
    parts = [part for part in parts if part[0]["ranks"] == newest["ranks"]]
    samples = [sample for facts, arrays in parts for sample in _samples(facts, arrays)]
    stacked = {name: np.concatenate([arrays[name] for _, arrays in parts]) for name in _COLUMNS}
    if len({array.shape for array in stacked.values()}) != 1 or any(
        each.dtype.kind not in "iuf" for each in stacked.values()
    ):
        raise ValueError("its columns differ in length, or hold no numbers")
    values = {name: np.nan if value is None else value for name, value in newest["values"].items()}
    return RecordedValidation(
        batch=batch,
        values=values,
        units=newest["units"],
        samples=tuple(sorted(samples, key=lambda sample: (sample.simulation, sample.time_step))),
        is_whole=len(parts) == newest["ranks"],
        has_losses=newest.get("error") == "loss",
        rollouts=_rollouts([arrays for _, arrays in parts]),
        **stacked,
    )


def _rollouts(parts: list[Mapping[str, Array]]) -> RecordedRollouts | None:
    parts = [part for part in parts if ROLLOUT_SIMULATIONS in part and len(part[ROLLOUT_SIMULATIONS])]
    if not parts:
        return None
    lead_times = max((part[ROLLOUT_LEAD_TIMES] for part in parts), key=len)
    names = [name.removeprefix(ROLLOUT_MSE) for name in parts[0] if name.startswith(ROLLOUT_MSE)]
    simulations = np.concatenate([part[ROLLOUT_SIMULATIONS] for part in parts])
    arrays = [simulations, lead_times, *(part[ROLLOUT_MSE + name] for part in parts for name in names)]
    if lead_times.ndim != 1 or simulations.ndim != 1 or any(array.dtype.kind not in "iuf" for array in arrays):
        raise ValueError("the arrays of its rollouts hold no numbers, or have other axes")
    mse = {name: np.full((len(simulations), len(lead_times)), np.nan) for name in names}
    start = 0
    for part in parts:
        for name in names:
            of = part[ROLLOUT_MSE + name]
            mse[name][start : start + len(of), : of.shape[1]] = of
        start += len(part[ROLLOUT_SIMULATIONS])
    order = np.argsort(simulations)
    return RecordedRollouts(
        simulations=simulations[order], lead_times=lead_times, mse={name: of[order] for name, of in mse.items()}
    )


def _content(path: Path) -> tuple[dict[str, Any], Mapping[str, Array]] | None:
    """Facts and arrays; None if the file was removed meanwhile."""
    try:
        # Of a damaged file that it has opened itself, NumPy would keep the descriptor.
        content = io.BytesIO(read_file(path, opener=by_own_links))
        _refuse_more_than_is_there(content)
        with np.load(content, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(str(arrays["facts"]))
        if facts["format"] != FORMAT:
            raise ConfigError(f"{path} has format {quoted(facts['format'])}, and this release reads format {FORMAT}")
        return facts, arrays
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, MemoryError, BadZipFile) as error:
        raise ConfigError(f"{path} is damaged: {shortened(str(error))}") from error


def _refuse_more_than_is_there(content: io.BytesIO) -> None:
    """Refuse an archive that would give more bytes than it has: a few compressed ones may stand for any number.

    Raises:
        ValueError: it would.
        BadZipFile: it is no archive.
    """
    with ZipFile(content) as archive:
        num_bytes = sum(member.file_size for member in archive.infolist())
    if num_bytes > content.getbuffer().nbytes:
        raise ValueError(f"it is to hold {num_bytes:,} bytes, and has {content.getbuffer().nbytes:,}")
    content.seek(0)


def _samples(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> list[RenderedSample]:
    return [
        RenderedSample(
            simulation=picture["simulation"],
            time_step=picture["time_step"],
            parameters=dict(zip(facts["parameters"], picture["parameters"], strict=True)),
            shown={name: (arrays[f"truth.{i}.{name}"], arrays[f"prediction.{i}.{name}"]) for name in picture["names"]},
        )
        for i, picture in enumerate(facts["pictures"])
    ]


def _means(of: Array, errors: Array) -> dict[int, float]:
    keys, rows = np.unique(of, return_inverse=True)
    sums = np.bincount(rows, errors, len(keys)) / np.bincount(rows, minlength=len(keys))
    return {int(key): float(mean) for key, mean in zip(keys, sums, strict=True) if np.isfinite(mean)}
