"""`stream-server --fast-dev-run`: try a server class in seconds, without simulations, sockets or MPI."""

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Buffer, Fifo
from stream_server.config import StudyConfig
from stream_server.config.samples import SampleField
from stream_server.errors import StreamServerError, UserCodeError
from stream_server.machine import private_folder
from stream_server.server.checkpoint.user_state import (
    learned_files,
    load_learned,
    load_rank_states,
    rank_files,
    shard_files,
)
from stream_server.server.commands.call_record import CallRecord
from stream_server.server.intake import mailbox
from stream_server.server.intake.source import SampleSource
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.metrics.log_record import LoggedRun
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_writers
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.run.build import make_buffer, make_policy, ragged_fields
from stream_server.server.run.cores import share_cores
from stream_server.server.simulations.design import ParameterDesign
from stream_server.server.study.composition import Composition
from stream_server.server.study.failure import classified
from stream_server.server.training.monitoring.untrained_parameters import UntrainedParameters
from stream_server.server.training.rounds import Rounds
from stream_server.server.training.validation.validation_record import held_out_record
from stream_server.server.user.callbacks import EVENTS
from stream_server.server.user.components import make_callbacks
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.disk import make_folder
from stream_server.storage.folders import FolderWriter
from stream_server.wording import counted

UNKNOWN_DTYPE = "float64"
NUM_UNKNOWN_STEPS = 100
NUM_SIMULATIONS = 2

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


class SyntheticSource(SampleSource):
    """A source of samples in place of simulations: everything has come before the training begins.

    `buffer` holds `num_batches` full batches of the first training simulations, and is closed. `validation_store`
    holds one batch and a sample more of the first held-out ones; if there are none, and `is_validated`, of the others.
    """

    def __init__(self, config: StudyConfig, *, num_batches: int, is_validated: bool = False) -> None:
        samples, batch_size = SyntheticSamples(config), config.training.batch_size
        num_held_out = config.validation.simulations
        held_out = range(min(NUM_SIMULATIONS, num_held_out))
        trained = range(num_held_out, num_held_out + min(NUM_SIMULATIONS, config.study.simulations))
        design = ParameterDesign(config)
        self.parameter_names = design.names
        self._parameters = {
            simulation: np.array(list(design.parameters(simulation).values()), np.float64)
            for simulation in (*held_out, *trained)
        }
        self.buffer = samples.buffer(trained, num_batches * batch_size)
        validated = held_out or (trained if is_validated else held_out)
        self.validation_store = samples.store(validated, config.validation.batch_size + 1)
        samples.add_statics(self.buffer, (*held_out, *trained))
        self._events: list[mailbox.Event] = [
            *(mailbox.SimulationFinished(simulation=simulation) for simulation in trained),
            mailbox.ReceptionEnded(),
        ]

    @property
    def is_drained(self) -> bool:
        return True

    def begin_round(self, num_ended: int) -> None:
        """There is only one."""

    def parameters_of(self, simulation: int) -> NDArray[np.float64]:
        return self._parameters[simulation]

    def events(self) -> list[mailbox.Event]:
        # All of them come in the first round.
        events, self._events = self._events, []
        return events


class SyntheticSamples:
    """Endless samples of a study, from normally distributed floating numbers and small whole ones.

    An optional field is missing in every second time step.

    A ragged field has another size in each time step; where samples are windows, in each simulation, since the steps of
    a window usually have one mesh. One that may have as many rows as one that is sent once per simulation has as many.
    """

    def __init__(self, config: StudyConfig) -> None:
        self._config = config
        self._fields = config.study.step_fields
        self._statics = config.study.static_fields
        window, steps = config.window, config.study.time_steps
        num_unknown = NUM_UNKNOWN_STEPS + (0 if window is None else window.span)
        self._labels = range(num_unknown) if steps is None else steps.labels
        self._random = np.random.default_rng(config.study.data_seed)
        self._sizes: dict[tuple[int, str | int], int] = {}
        self._sizes_of_meshes = {spec.shape[0] for spec in self._statics.values() if spec.ragged}

    def of(self, simulations: Sequence[int]) -> Iterator[tuple[int, int, dict[str, NDArray[Any]]]]:
        """The next time step of each of these simulations in turn: simulation, label and fields."""
        required = {name: spec for name, spec in self._fields.items() if not spec.optional}
        for label in cycle(self._labels):
            for simulation in simulations:
                yield simulation, label, self._arrays(simulation, required if label % 2 else self._fields)

    def buffer(self, simulations: Sequence[int], num: int) -> Buffer:
        """A closed buffer with `num` samples of these simulations in it."""
        window, kept = self._config.window, self._num_kept(simulations)
        num_slots = num * (1 if window is None else window.length) + 2 * kept + 1
        buffer = make_buffer(self._config, Fifo(capacity=num), num_slots, most_kept=kept)
        slots = buffer.slots
        slots.allocate({name: spec.dtype or UNKNOWN_DTYPE for name, spec in self._fields.items()})
        last = self._labels[-1]
        for simulation, label, fields in self.of(simulations):
            if not buffer.policy.room:
                break
            [slot] = buffer.claim(1)
            slots.fill(slot, simulation, label, fields)
            buffer.enqueue([slot])
            buffer.admit()
            if label == last:
                buffer.end([simulation])
        buffer.close()
        return buffer

    def store(self, simulations: Sequence[int], num: int) -> ValidationStore:
        """A validation store with `num` samples of these simulations, all complete; empty if there are none.

        Of windows there may be more, or fewer if the simulations are short.
        """
        store = ValidationStore(len(simulations), ragged=ragged_fields(self._config))
        window = self._config.window
        num_steps = num
        if window is not None:
            # A time step must not come twice.
            num_steps = min(num * window.stride + self._num_kept(simulations), len(self._labels) * len(simulations))
        missing = {
            name: np.zeros(spec.smallest_shape, spec.dtype or UNKNOWN_DTYPE) for name, spec in self._fields.items()
        }
        for simulation, label, fields in islice(self.of(simulations), num_steps if simulations else 0):
            store.add(simulation, label, missing | fields, {name: name in fields for name in missing})
        for simulation in simulations:
            store.complete(simulation)
        return store

    def add_statics(self, buffer: Buffer, simulations: Sequence[int]) -> None:
        """Put the fields that are sent once per simulation beside the samples."""
        for simulation in simulations if self._statics else ():
            buffer.slots.statics.put(simulation, self._arrays(simulation, self._statics))

    def _num_kept(self, simulations: Sequence[int]) -> int:
        """The steps of these simulations that windows may wait for, or that wait for others."""
        return 0 if self._config.window is None else 2 * (self._config.window.span + 1) * len(simulations)

    def _arrays(self, simulation: int, specs: Mapping[str, SampleField]) -> dict[str, NDArray[Any]]:
        return {
            name: self._array(self._shape(simulation, name, spec), np.dtype(spec.dtype or UNKNOWN_DTYPE))
            for name, spec in specs.items()
        }

    def _shape(self, simulation: int, name: str, spec: SampleField) -> tuple[int, ...]:
        """The shape of one time step; the largest extent of a ragged field comes as well as the smallest."""
        if not spec.ragged:
            return spec.shape
        largest = spec.shape[0]
        is_mesh = largest in self._sizes_of_meshes
        # Whole numbers are 0 and 1, and may be those of rows.
        size = int(self._random.integers(min(2, largest) if is_mesh else 0, largest, endpoint=True))
        if is_mesh:
            size = self._sizes.setdefault((simulation, largest), size)
        elif self._config.window is not None:
            size = self._sizes.setdefault((simulation, name), size)
        return (size, *spec.shape[1:])

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if dtype.kind in "fc":
            return np.asarray(self._random.standard_normal(shape)).astype(dtype)
        return np.asarray(self._random.integers(0, 2, shape)).astype(dtype)


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
        trial = Trial(server_class, _shorten(config, folder))
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
        """Train, validate once at the end, save and restore; returns the newest value of all that was logged.

        Raises:
            UserCodeError: a method of the user's class raised, which is the cause.
            ConfigError: the class and study.json do not fit together.
        """
        config, ranks = self._config, SoloRanks()
        source = SyntheticSource(
            config,
            num_batches=max(NUM_BATCHES, config.training.accumulate),
            is_validated=self._server_class.validation_step is not StreamServer.validation_step
            or config.training.criterion is not None,
        )
        with ExitStack() as stack:
            writers = open_writers(LoggedRun(folder=config.output_dir / "metrics"))
            trial = self._compose(source, stack, Metrics(ranks, writers, progress=self.progress))
            trial.make_stream(source, stack)
            trial.make_validation(
                trial.held_out(source),
                quiesce=trial.stream.quiesce,
                record=held_out_record(config.output_dir / "validations", trial.server, ranks, is_strict=True),
            )
            trial.make_training(source, log_every=1, rounds=self._make_rounds(trial, source)).run()
            self.untrained = trial.untrained
            self._save(trial)
        with ExitStack() as stack:
            again = self._compose(source, stack)
            load_learned(self._checkpoint, again.server, again.step, again.callbacks, allow_pickle=self._allow_pickle)
            load_rank_states(self._checkpoint, ranks.size, again.server, allow_pickle=self._allow_pickle)
        return trial.metrics.latest

    def _make_rounds(self, trial: Composition, source: SyntheticSource) -> Rounds | None:
        """One round with all samples."""
        if self._config.study.rounds is None:
            return None
        return Rounds(
            trial.ranks,
            source,
            trial.callbacks,
            self.progress,
            validate=trial.validation.end_round,
            tell_results=lambda: None,
            save_every=None,
            save=lambda: None,
        )

    @property
    def _checkpoint(self) -> Path:
        return self._config.output_dir / "checkpoints" / "000001"

    @property
    def _allow_pickle(self) -> bool:
        return self._config.checkpoint.allow_pickle

    def _compose(self, source: SyntheticSource, stack: ExitStack, metrics: Metrics | None = None) -> Composition:
        """The user's class with its model and callbacks, as at a start of the study."""
        config, ranks = self._config, SoloRanks()
        composition = Composition(
            config,
            ranks,
            output_dir=config.output_dir,
            parameter_names=source.parameter_names,
            progress=self.progress,
            buffer=source.buffer,
            num_threads=share_cores(ranks).threads[0],
        )
        composition.make_server(self._server_class, stack, metrics)
        server = composition.server
        self.record.listen(server, [name for name in METHODS + EVENTS if _is_users(server, name)])
        composition.make_step(stack, make_callbacks(composition.server))
        return composition

    def _save(self, trial: Composition) -> None:
        """Save what a checkpoint holds of the user's code, and tell it so."""
        files = learned_files(trial.server, trial.step, trial.callbacks, allow_pickle=self._allow_pickle)
        files += shard_files(trial.server, trial.step)
        make_folder(self._checkpoint)
        writer = FolderWriter(self._checkpoint)
        for file in [*files, *rank_files(trial.server, allow_pickle=self._allow_pickle)]:
            writer.write(file.path, file.write)
        trial.callbacks.tell("on_checkpoint", self._checkpoint)


class TrialProgress(Progress):
    """The progress of a study that is tried from its beginning: schedules are not taken to their end."""

    def end(self) -> None:
        pass


def _shorten(config: StudyConfig, folder: Path) -> StudyConfig:
    """The study without its limits and intervals, in another output folder."""
    study = config.study.model_copy(update={"output_dir": folder})
    training = config.training.model_copy(update={"max_batches": None, "max_s": None})
    validation = config.validation.model_copy(update={"max_batches": None, "at_start": 0})
    return config.model_copy(update={"study": study, "training": training, "validation": validation})


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
    """Say whether something was learned; returns the exit code."""
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
    own = getattr(type(server), method, None)
    return own is not None and not own.__module__.startswith("stream_server.")
