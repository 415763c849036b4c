"""The best models, kept on disk beside the checkpoints."""

import errno
import logging
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_server.errors import DamagedCheckpoint, OtherFormat
from stream_server.failpoints import failpoint
from stream_server.server.metrics.monitor import Monitor
from stream_server.server.progress.phases import Phases
from stream_server.server.user.callbacks import Callback
from stream_server.server.user.framework import Step
from stream_server.storage.checksums import checksummed_json, parse_checksummed_json
from stream_server.storage.disk import exists, names_in, read_file, remove_tree
from stream_server.storage.folders import (
    PendingFile,
    damaged_files,
    records_from_json,
    records_to_json,
    replace_folder,
    withdraw,
)
from stream_server.storage.typed import listed, quoted

if TYPE_CHECKING:
    from stream_server.config.training_sections import Checkpoint

FORMAT = 2
BEST = "best"
FACTS_FILE = "facts.json"

_OURS = re.compile(r"batch-\d{6,}(\.tmp|\.old)?")

_log = logging.getLogger(__name__)


class BestModels(Callback):
    """After each validation, keeps the model if it is among the `checkpoint.keep_best` best by `checkpoint.monitor`.

    Of two equally good models the earlier one is kept. `capture` gives the files of the model as it is now, on rank 0,
    which writes them in the main thread. A model that cannot be written is not kept, and the training goes on.

    After a restart, models that are newer than the checkpoint are removed, since their batches are trained again. A
    server that `is_outdated`, since a newer start of it has taken over, changes nothing.
    """

    def __init__(
        self,
        folder: Path,
        step: Step,
        settings: "Checkpoint",
        *,
        capture: Callable[[], Sequence[PendingFile]],
        is_outdated: Callable[[], bool],
        phases: Phases | None = None,
    ) -> None:
        self._folder = BestFolder(folder, is_outdated)
        self._step = step
        self._num = settings.keep_best
        self._monitor = Monitor(name=settings.monitor, mode=settings.mode, key="checkpoint.monitor")
        self._capture = capture
        self._phases = phases or Phases()
        self._kept: list[dict[str, Any]] = []

    @property
    def warnings(self) -> list[str]:
        """Why the value was not there."""
        return self._monitor.warnings

    @property
    def best(self) -> list[dict[str, Any]]:
        """The kept models, the best first: batch, value, and the name of the folder. Rank 0."""
        return [
            {**best, "monitor": self._monitor.name, "folder": self._folder.path(best["batch"]).name}
            for best in self._kept
        ]

    def on_train_start(self, server: Any) -> None:
        if server.rank == 0:
            there = [entry for entry in self._kept if exists(self._folder.path(entry["batch"]))]
            self._kept = there[: self._num]
            self._prune()

    def on_validation_end(self, server: Any, metrics: dict[str, float]) -> None:
        value = self._monitor.of_validation(metrics, server)
        if value is None:
            return
        # Collective, so all ranks take part, though only rank 0 writes.
        self._step.synchronize()
        with self._step.lending():
            if server.rank == 0 and math.isfinite(value):
                with self._phases.measure("checkpoint"):
                    self._consider(server.progress.batches, value, metrics)

    def on_train_end(self, server: Any) -> None:
        self._monitor.end(server)

    def state_dict(self) -> dict[str, Any]:
        return {
            "monitor": self._monitor.name,
            "mode": self._monitor.mode,
            "kept": [dict(best) for best in self._kept],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Values of another monitor cannot be compared: those models go."""
        same = (state["monitor"], state["mode"]) == (self._monitor.name, self._monitor.mode)
        self._kept = [dict(entry) for entry in state["kept"]] if same else []
        self._monitor.first_batch = min((entry["batch"] for entry in self._kept), default=None)

    def _consider(self, batch: int, value: float, metrics: Mapping[str, float]) -> None:
        others = [entry for entry in self._kept if entry["batch"] != batch]
        place = next(
            (i for i, other in enumerate(others) if self._monitor.is_better(value, other["value"])), len(others)
        )
        if place >= self._num:
            return
        try:
            self._write(batch, value, metrics)
        except OSError as error:
            _log.warning("the model after batch %d is among the best, but cannot be written: %s", batch, error)
            self._kept = others
        else:
            self._kept = [*others[:place], {"batch": batch, "value": value}, *others[place:]][: self._num]
        self._prune()

    def _write(self, batch: int, value: float, metrics: Mapping[str, float]) -> None:
        facts = {
            "batch": batch,
            "monitor": self._monitor.name,
            "value": value,
            "metrics": {name: number if math.isfinite(number) else None for name, number in metrics.items()},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._folder.write(batch, self._capture(), facts)

    def _prune(self) -> None:
        self._folder.keep_only([entry["batch"] for entry in self._kept])


class BestFolder:
    """Models under the number of the batch after which they were validated. Rank 0 only.

    Each is a folder with the files of the model, by the paths that they have in a checkpoint, and facts.json; it is
    there completely or not at all. Nothing is changed once this server `is_outdated`.
    """

    def __init__(self, folder: Path, is_outdated: Callable[[], bool] = lambda: False) -> None:
        self.folder = folder
        self._is_outdated = is_outdated

    def path(self, batch: int) -> Path:
        return self.folder / f"batch-{batch:06d}"

    def write(self, batch: int, files: Sequence[PendingFile], facts: Mapping[str, Any]) -> Path:
        """Put a model on disk, in place of one of the same batch; `facts` are plain.

        Raises:
            OSError: the disk is full or fails, or the server is outdated; a model of the same batch is as it was.
        """
        path = self.path(batch)
        with replace_folder(path) as writer:
            records = {file.path: writer.write(file.path, file.write) for file in files}
            text = checksummed_json({"format": FORMAT, **facts, "files": records_to_json(records)})
            writer.write(FACTS_FILE, lambda file: file.write(text))
            failpoint("best.before_rename")
            if self._is_outdated():
                raise OSError(errno.ESTALE, "A newer start of the server has taken over", str(path))
        failpoint("best.renamed")
        return path

    def keep_only(self, batches: Collection[int]) -> None:
        """Remove the models of all other batches, and what was left half-written; what cannot be removed is logged."""
        if self._is_outdated():
            return
        kept = {self.path(batch).name for batch in batches}
        names = names_in(self.folder)
        for name in sorted(name for name in names if _OURS.fullmatch(name) and name not in kept):
            try:
                (remove_tree if Path(name).suffix else withdraw)(self.folder / name)
            except OSError as error:
                _log.warning("%s could not be removed: %s", self.folder / name, error)


def read_facts(folder: Path) -> dict[str, Any]:
    """The facts of a best model, every byte of which is as it was written.

    Raises:
        DamagedCheckpoint: a file is missing or is another one.
        OtherFormat: another release wrote it.
    """
    try:
        facts = parse_checksummed_json(read_file(folder / FACTS_FILE))
        if facts["format"] != FORMAT:
            raise OtherFormat(f"{folder} has format {quoted(facts['format'])}, and this release reads format {FORMAT}")
        damaged = damaged_files(folder, records_from_json(facts["files"]))
        if type(facts["batch"]) is not int:
            raise ValueError(f"{FACTS_FILE} has no batch number")
    except OtherFormat:
        raise
    except (OSError, ValueError, KeyError, DamagedCheckpoint) as error:
        raise DamagedCheckpoint(f"{folder} is no model that can be read: {error}") from error
    if damaged:
        raise DamagedCheckpoint(f"{folder} is not as it was written: {listed(damaged.values(), '; ')}")
    return facts
