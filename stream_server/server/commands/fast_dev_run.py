"""`stream-server --fast-dev-run`: try a server class in seconds, without simulations, sockets or MPI."""

import sys
import traceback
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import Any

from stream_server.config import StudyConfig
from stream_server.errors import StreamServerError, UserCodeError
from stream_server.machine import private_folder
from stream_server.server.checkpoint.user_state import learned_files, load_learned
from stream_server.server.commands.call_record import CallRecord
from stream_server.server.commands.synthetic_samples import SyntheticSource
from stream_server.server.metrics.log_record import LoggedRun
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_writers
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.run.build import make_policy
from stream_server.server.run.cores import share_cores
from stream_server.server.study.composition import Composition
from stream_server.server.study.failure import classified
from stream_server.server.training.monitoring.untrained_parameters import UntrainedParameters
from stream_server.server.training.validation.validation_record import held_out_record
from stream_server.server.user.callbacks import EVENTS
from stream_server.server.user.components import make_callbacks
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.disk import make_folder
from stream_server.storage.folders import FolderWriter
from stream_server.wording import counted

NUM_BATCHES = 3
METHODS = (
    "prepare_training_attributes",
    "process_simulation_data",
    "process_batch",
    "train_dataloader",
    "training_step",
    "val_dataloader",
    "validation_step",
    "rollout_step",
    "predict",
    "render",
    "configure_callbacks",
)


def fast_dev_run(server_class: type[StreamServer], config: StudyConfig) -> int:
    """Train a few batches of synthetic samples, validate once, and go on from a checkpoint; print what was called.

    All in this process and in a temporary folder.

    Returns:
        The exit code: 0, or that of the first error, which is printed with its traceback. A class that made no update
        does not work, unless its loss of made-up samples was not finite, and neither does one whose updates changed
        nothing.
    """
    print(f"Trying {server_class.__name__} on synthetic samples: one rank, no simulation, nothing is kept.")
    with private_folder.temporary() as folder:
        trial = Trial(server_class, _shortened(config, folder))
        try:
            logged = trial.run()
        except Exception as raised:
            error = classified(raised)
            _print_calls(trial.record)
            _print_error(error)
            return error.exit_code
    _print_calls(trial.record)
    return _print_result(trial, logged)


class Trial:
    """Sets up what a study sets up, for one rank, and trains a few batches that are there from the start.

    Files go to `config.output_dir`. `record` lists afterwards the calls of the user's methods, and `untrained` the
    parameters that did not change.
    """

    untrained: UntrainedParameters

    def __init__(self, server_class: type[StreamServer], config: StudyConfig) -> None:
        self.record = CallRecord()
        length = TrainingLength.of(config, 1, draws_per_sample=make_policy(config, 0).draws_per_sample)
        self.progress = TrialProgress(length=length, lr_clock=config.training.lr_clock)
        self._server_class = server_class
        self._config = config

    def run(self) -> dict[str, float]:
        """Train, validate once at the end, save and restore; gives the newest value of all that was logged.

        Raises:
            UserCodeError: a method of the user's class raised, which is the cause.
            ConfigError: the class and study.json do not fit together.
        """
        config, ranks = self._config, SoloRanks()
        source = SyntheticSource(
            config,
            num_batches=max(NUM_BATCHES, config.training.accumulate),
            is_validated=self._server_class.validation_step is not StreamServer.validation_step,
        )
        with ExitStack() as stack:
            writers = open_writers(LoggedRun(folder=config.output_dir / "metrics"))
            trial = self._composed(source, stack, Metrics(ranks, writers, progress=self.progress))
            trial.make_stream(source, stack)
            trial.make_validation(
                trial.held_out(source),
                quiesce=trial.stream.quiesce,
                record=held_out_record(config.output_dir / "validations", trial.server, ranks, is_strict=True),
            )
            trial.make_training(source, log_every=1).run()
            self.untrained = trial.untrained
            self._save(trial)
        with ExitStack() as stack:
            again = self._composed(source, stack)
            load_learned(self._checkpoint, again.server, again.step, again.callbacks, allow_pickle=self._allow_pickle)
        return trial.metrics.latest

    @property
    def _checkpoint(self) -> Path:
        return self._config.output_dir / "checkpoints" / "000001"

    @property
    def _allow_pickle(self) -> bool:
        return self._config.checkpoint.allow_pickle

    def _composed(self, source: SyntheticSource, stack: ExitStack, metrics: Metrics | None = None) -> Composition:
        """The user's class with its model and callbacks, as at a start of the study."""
        config, ranks = self._config, SoloRanks()
        made = Composition(
            config,
            ranks,
            output_dir=config.output_dir,
            parameter_names=source.parameter_names,
            progress=self.progress,
            buffer=source.buffer,
            num_threads=share_cores(ranks).threads[0],
        )
        made.make_server(self._server_class, stack, metrics)
        self._listen(made.server)
        made.make_step(stack, make_callbacks(made.server))
        return made

    def _save(self, trial: Composition) -> None:
        """Save what a checkpoint holds of the user's code, and tell it so."""
        files = learned_files(trial.server, trial.step, trial.callbacks, allow_pickle=self._allow_pickle)
        make_folder(self._checkpoint)
        writer = FolderWriter(self._checkpoint)
        for file in files:
            writer.write(file.path, file.write)
        trial.callbacks.tell("on_checkpoint", self._checkpoint)

    def _listen(self, server: StreamServer) -> None:
        self.record.listen(server, [name for name in METHODS + EVENTS if _is_users(server, name)])


class TrialProgress(Progress):
    """The progress of a study of which only the beginning is tried: schedules are not taken to their end."""

    def end(self) -> None:
        pass


def _shortened(config: StudyConfig, folder: Path) -> StudyConfig:
    """The study without its limits and intervals, in another output folder."""
    study = config.study.model_copy(update={"output_dir": folder})
    training = config.training.model_copy(update={"max_batches": None, "max_s": None})
    return config.model_copy(update={"study": study, "training": training})


def _print_calls(record: CallRecord) -> None:
    for name, call in record.calls.items():
        print(f"\n{name}, {call.num} {'call' if call.num == 1 else 'calls'}")
        print(f"    given     {call.given}")
        print(f"    returned  {call.returned}")


def _print_error(error: StreamServerError) -> None:
    if error.__cause__ is not None:
        print(file=sys.stderr)
        traceback.print_exception(error.__cause__, file=sys.stderr)
    print(f"\nIt does not work yet: {error}", file=sys.stderr)


def _print_result(trial: Trial, logged: dict[str, float]) -> int:
    """Say whether something was learned; gives the exit code."""
    progress, untrained = trial.progress, trial.untrained
    loss = logged.get("train/loss", 0.0)
    if not isfinite(loss):
        print(
            f"\nIt runs, and what it learns is not known: the train/loss of made-up samples is {loss}. Their floating "
            "numbers are normally distributed, so that those of which only positive ones make sense are negative, too."
        )
        return 0
    if not progress.updates:
        print(
            f"\nIt does not work yet: no update was made of {counted(progress.batches, 'batch')}. Every one was "
            "skipped by training_step, no optimizer was stepped, or none has parameters on which the loss depends",
            file=sys.stderr,
        )
        return UserCodeError.exit_code
    if untrained.are_all:
        print(f"\nIt does not work yet: {'. '.join(untrained.warnings)}", file=sys.stderr)
        return UserCodeError.exit_code
    losses = [f"{name} {logged[name]:.4g}" for name in ("train/loss", "val/loss") if name in logged]
    if progress.skipped:
        losses.append(f"{progress.skipped} samples skipped, by training_step or since a gradient was not finite")
    if "val/loss" not in logged:
        losses.append("nothing was validated: there is no validation_step")
    tried = f"{counted(progress.batches, 'batch')} with {counted(progress.draws, 'sample')}"
    print(f"\nIt works: {tried}; {'; '.join(losses)}.")
    for warning in untrained.warnings:
        print(f"However, {warning}.")
    return 0


def _is_users(server: Any, method: str) -> bool:
    found = getattr(type(server), method, None)
    return found is not None and not found.__module__.startswith("stream_server.")
