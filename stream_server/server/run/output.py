"""The output folder of a study: the names of its files, and the checks before a run begins or goes on in it."""

import contextlib
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from stream_server.config import StudyConfig, check_continuation
from stream_server.errors import ConfigError
from stream_server.failpoints import failpoint
from stream_server.machine import run_folder
from stream_server.machine.program import start_folder
from stream_server.machine.study_lock import LOCKS
from stream_server.storage.disk import make_folder, read_text, remove_file, remove_leftovers, replace_file

INCARNATIONS = "incarnations"
IDENTITY = "identity.json"
BEFORE_ANYTHING = {
    *(run_folder.STUDY_FILE, run_folder.JOURNAL_FILE, run_folder.LAUNCHED_FILE, *LOCKS),
    *("logs", "metrics", "exit.json", "report.json", IDENTITY),
}
"""The files of a start that failed while it was set up."""
LIMITS = ("max_batches", "max_s", "early_stop")
"""The keys of `training` that end a study before all is trained."""


def shown(path: Path) -> str:
    """The path as a word of a shell, from the folder in which the command was typed if it lies in there."""
    # That folder may have been removed.
    with contextlib.suppress(OSError, ValueError):
        path = path.relative_to(start_folder())
    return shlex.quote(str(path))


def require_given_up(wanted: Sequence[int], given_up: Collection[int]) -> None:
    """Refuse `--retry` of simulations that were not given up.

    Raises:
        ConfigError: one of the `wanted` ones was not.
    """
    if wrong := [str(simulation) for simulation in wanted if simulation not in given_up]:
        known = ", ".join(map(str, sorted(given_up))) or "none"
        raise ConfigError(f"--retry {' '.join(wrong)}: expected simulations that were given up, which are: {known}")


class OutputFolder:
    """The files of a run, by name.

    Attributes:
        study_before: the study.json of checkpoints that do not have it, which are of an earlier version.
        exit: the failure of the first rank that failed.
        operator: the address and the key with which `stream-study` reaches rank 0; of use while the server runs.
        identity: the keys of the ranks, until all of them have read them.
        prometheus: the address of the page for Prometheus while the server runs.
        checkpoints: those of a study whose `checkpoint.dir` is not somewhere else.
        record: the samples in the order of their arrival, for a replay.
        samples: those of a study that only writes them: an HDF5 file for each simulation.
        validations: predictions and errors of held-out samples, a file per rank for each of some validations.
        model: the trained one, once the training has ended.
        simulations: a folder for each, and in it one for each attempt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study = path / run_folder.STUDY_FILE
        self.study_before = path / "study.before.json"
        self.report = path / "report.json"
        self.exit = path / "exit.json"
        self.connection = path / "connection.json"
        self.operator = path / "operator.json"
        self.identity = path / IDENTITY
        self.prometheus = path / "prometheus.json"
        self.parameters = path / "parameters.csv"
        self.checkpoints = path / "checkpoints"
        self.record = path / "record"
        self.samples = path / "samples"
        self.metrics = path / "metrics"
        self.validations = path / "validations"
        self.model = path / "model"
        self.simulations = path / "simulations"

    def places(self, *, has_held_out: bool) -> list[tuple[str, str]]:
        """The results that are there: the name of each, and the command that shows it.

        `has_held_out`: the checkpoints have the held-out samples; without, the model cannot be evaluated on them.
        """
        evaluation = f"stream-server --config {shown(self.study)} --evaluate {shown(self.path)}"
        path, tensorboard = shown(self.path), self.metrics / "tensorboard"
        commands = [
            ("model", self.model.exists(), evaluation if has_held_out else f"less {shown(self.model)}/README.txt"),
            ("files", self.samples.exists(), f"ls {shown(self.samples)}"),
            ("page", self.path.exists(), f"stream-study serve {path}"),
            ("pictures", self._has_metrics, f"stream-study plot {path}"),
            ("curves", self._has_metrics and tensorboard.exists(), f"tensorboard --logdir {shown(tensorboard)}"),
            ("logs", (self.path / "logs").exists(), f"less {shown(self.path / 'logs')}/*.log"),
            ("report", self.report.exists(), f"less {shown(self.report)}"),
        ]
        return [(name, command) for name, is_there, command in commands if is_there]

    @property
    def _has_metrics(self) -> bool:
        """A batch was logged; until then the files of the metrics are there and tell nothing."""
        with contextlib.suppress(OSError):
            return (self.metrics / "metrics.jsonl").stat().st_size > 0
        return False

    def is_finished(self, resolved: Mapping[str, Any]) -> bool:
        """The study in this folder came to its end, and the `resolved` one asks for nothing more.

        That is more simulations or, of one that ended before all was trained, another limit.
        """
        try:
            report, before = json.loads(read_text(self.report)), json.loads(read_text(self.study))
            if report["exit_code"] != 0 or resolved["study"]["simulations"] > before["study"]["simulations"]:
                return False
            limits, limits_before = resolved["training"], before["training"]
            return report["exit_reason"] == "finished" or all(limits[limit] == limits_before[limit] for limit in LIMITS)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def has_given_up(self, config: StudyConfig, wanted: Sequence[int]) -> bool:
        """Whether the study that is finished has given up simulations, which `--retry` tries again.

        Raises:
            ConfigError: one that is `wanted` was not, or the samples are in files, to which nothing can be added.
        """
        if config.offline.write_files:
            raise ConfigError(
                f"--retry: the samples are in {shown(self.samples)} already, and files that are there are not written "
                "again. Raise study.simulations for others, or start over with --fresh"
            )
        given_up = [failure["id"] for failure in json.loads(read_text(self.report))["failures"]]
        require_given_up(wanted, given_up)
        return bool(given_up)

    def check_start(self, config: StudyConfig, *, resume: bool, saved: Mapping[str, Any] | None = None) -> Any:
        """Ensure that a run may begin here, or go on as `config` says; nothing is changed.

        `saved` is the resolved study.json in the newest checkpoint, as `saved_settings` gives it. Gives that of the run
        that goes on, None if none does.

        Raises:
            ConfigError: what is in the folder is no run, not our own, or one of another study; or `resume` insists on a
                run, and there is none.
        """
        run_folder.check(self.path, resume=resume)
        if not self.study.exists():
            return None
        before = self._earlier_study()
        if not self._has_begun(before):
            return None
        check_continuation(before, config, saved)
        return before if saved is None else saved

    def set_aside(self) -> str:
        """Give the folder of an earlier run, if there is one, the name NAME.1 or the next that is free; says so."""
        return run_folder.set_aside(self.path) if run_folder.holds_anything(self.path) else ""

    def prepare(self, config: StudyConfig, *, resume: bool, saved: Mapping[str, Any] | None = None) -> Any:
        """Make the folder, or see that `config` can continue the run in it, and put the resolved study into it.

        Takes and gives what `check_start` does, and keeps it where no checkpoint does. The report of the last run is
        removed, since it is not known yet how this one ends.

        Raises:
            ConfigError: what is in the folder is no run, or one of another study; or `resume` insists on a run, and
                there is none.
        """
        before = self.check_start(config, resume=resume, saved=saved)
        make_folder(self.path)
        failpoint("server.before_study_file")
        if before is not None and saved is None:
            replace_file(self.study_before, read_text(self.study).encode())
        for file in (
            self.study,
            self.study_before,
            self.report,
            self.exit,
            self.connection,
            self.operator,
            self.prometheus,
            self.identity,
        ):
            remove_leftovers(file)
        remove_file(self.report)
        remove_file(self.exit)
        replace_file(self.study, (json.dumps(config.resolved(), indent=2) + "\n").encode())
        return before

    def _has_begun(self, before: Any) -> bool:
        """Whether a run got so far that something of it is here: until its sockets are open, nothing can be."""
        with contextlib.suppress(OSError, TypeError, KeyError):
            checkpoints = Path(before["checkpoint"]["dir"] or self.checkpoints)
            saved = list(checkpoints.iterdir()) if checkpoints.is_dir() else []
            others = {entry.name for entry in self.path.iterdir()} - {self.checkpoints.name, *BEFORE_ANYTHING}
            return bool(others) or any(INCARNATIONS not in name.name for name in saved) or self._has_metrics
        return True

    def _earlier_study(self) -> Any:
        try:
            return json.loads(read_text(self.study))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.study}, from which a run would be continued, cannot be read: {error}. --fresh starts over"
            ) from error
