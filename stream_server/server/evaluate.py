"""`stream-server --evaluate CHECKPOINT`: validates a saved model on the samples that were held out for it."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from stream_server.buffers import Buffer, Fifo, Slots
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, PeerFailed
from stream_server.launcher.forced_exit import ForcedExit
from stream_server.server.continuation import by_rank_0
from stream_server.server.cores import share_cores
from stream_server.server.design import ParameterDesign
from stream_server.server.failure import Failure, leave_together
from stream_server.server.meetings import Meetings
from stream_server.server.plain_state import read_state
from stream_server.server.ranks import Ranks, environment_rank, ranks_from_environment
from stream_server.server.restore import SavedRank
from stream_server.server.saved_model import SavedModel, find_saved_model, load_model
from stream_server.server.snapshot import STUDY
from stream_server.server.stream_server import StreamServer
from stream_server.server.training.callbacks import Callbacks, call_user
from stream_server.server.training.length import Length
from stream_server.server.training.lockstep import come_together
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.stop import StopRequests
from stream_server.server.training.validation import Validation
from stream_server.server.training.validation_batches import HeldOutSamples
from stream_server.server.user_class import load_server_class
from stream_server.server.validation_store import ValidationStore
from stream_server.server.watchdog import Watchdog


def evaluate(config: StudyConfig, checkpoint: Path) -> int:
    """Validate a saved model of this study on all ranks of this MPI job, or on one rank outside of MPI, and print it.

    The samples are those of the user's `val_dataloader`, or the held-out ones in the generation, in the newest one for
    one of the best models. Nothing is written, and the study may be running. The server's own methods hear of the
    validation; the user's callbacks, which may keep files of the run, do not. Collective.

    Returns:
        The exit code: 0, or that of the first error, which is printed.

    Raises:
        ConfigError: there is no such model, or nothing to validate it on; the same on all ranks.
        DamagedCheckpoint: it is not as it was saved; the same on all ranks.
    """
    rank, meetings = environment_rank(), Meetings()
    watchdog = Watchdog(
        meetings,
        rank=rank or 0,
        stall_s=config.server.stall_s,
        output_dir=None,
        is_under_mpirun=rank is not None,
    )
    with ForcedExit(), watchdog:
        ranks = ranks_from_environment(meetings)
        watchdog.watch(ranks)
        return _evaluate(config, checkpoint, ranks)


def _evaluate(config: StudyConfig, checkpoint: Path, ranks: Ranks) -> int:
    saved = SavedModel(**by_rank_0(ranks, lambda: find_saved_model(_where(config, checkpoint)).to_json()))
    with ExitStack() as stack:
        try:
            values = Evaluation(config, ranks, saved).run(stack)
        except Exception as error:
            return _leave(error, ranks)
    if not values:
        raise ConfigError(
            f"there is nothing to evaluate {saved.folder} on: {load_server_class(config).__name__} has no "
            "val_dataloader, and no held-out simulation was complete when the checkpoint was taken"
        )
    if ranks.rank == 0:
        print(f"{config.study.name} after {saved.batches:,} batches, {saved.folder}")
        Console().print(table(values))
    return 0


class Evaluation:
    """Sets up on one rank what a validation needs of a study, and nothing else. Main thread, collective."""

    def __init__(self, config: StudyConfig, ranks: Ranks, saved: SavedModel) -> None:
        self._config = config
        self._ranks = ranks
        self._saved = saved
        length = Length.of(config, saved.num_ranks or ranks.size)
        self._progress = Progress(ranks.size, length=length, lr_clock=config.training.lr_clock)

    def run(self, stack: ExitStack) -> dict[str, float]:
        """The values of the whole validation, by name, the same on all ranks; empty if there is nothing to validate on.

        What was set up is taken down with the `stack`.

        Raises:
            UserCodeError: the user's class raised, or makes another model than the saved one.
            DamagedCheckpoint: a file of the checkpoint cannot be what was saved.
        """
        config, ranks = self._config, self._ranks
        self._take_back_progress()
        samples = read_held_out(self._saved, config.validation.simulations, ranks)
        metrics = stack.enter_context(Metrics(ranks))
        server = self._make_server(metrics)
        callbacks = Callbacks(server)
        callbacks.surround(before=[server.normalization])
        step = stack.enter_context(server.make_step(ranks))
        load_model(self._saved, server, step, callbacks, allow_pickle=config.checkpoint.allow_pickle)
        come_together(ranks)
        validation = Validation(
            server,
            ranks,
            callbacks,
            step,
            held_out=samples,
            batch_size=config.validation.batch_size,
            progress=self._progress,
            metrics=metrics,
        )
        return validation.run()

    def _take_back_progress(self) -> None:
        """Let the user's class see the study as it was, so that schedules are built as long as they were."""
        if self._saved.generation is not None:
            self._progress.load_state_dict(read_state(Path(self._saved.generation) / STUDY)["progress"])
        self._progress.batches = self._saved.batches

    def _make_server(self, metrics: Metrics) -> StreamServer:
        config = self._config
        server_class = load_server_class(config)
        server: StreamServer = call_user(server_class.__name__, server_class, config)
        slots = Slots({name: spec.shape for name, spec in config.study.fields.items()}, 1)
        server.enter_study(
            ranks=self._ranks,
            parameter_names=ParameterDesign(config).names,
            progress=self._progress,
            buffer=Buffer(Fifo(capacity=1), slots),
            output_dir=config.output_dir,
            metrics=metrics,
            stops=StopRequests(),
            phases=Phases(),
            num_threads=share_cores(self._ranks).threads[self._ranks.rank],
        )
        return server


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedParameters:
    """The parameters of simulations, as the ranks of a generation knew them."""

    by_simulation: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def __call__(self, simulation: int) -> NDArray[np.float64]:
        return self.by_simulation[simulation]


def read_held_out(saved: SavedModel, num_held_out: int, ranks: Ranks) -> HeldOutSamples:
    """This rank's share of the held-out samples that go with a model: its own part, or every so many-th of all parts.

    Raises:
        DamagedCheckpoint: a file cannot be what was saved.
    """
    store, parameters = ValidationStore(num_held_out), SavedParameters()
    if saved.generation is not None:
        is_own = saved.num_ranks == ranks.size
        rows = slice(None) if is_own else slice(ranks.rank, None, ranks.size)
        for rank in [ranks.rank] if is_own else range(saved.num_ranks):
            part = SavedRank(Path(saved.generation), rank)
            parameters.by_simulation.update(part.state["reception"].get("parameters", {}))
            store.load(_rows_of(part.state["held_out"], rows), {name: it[rows] for name, it in part.held_out().items()})
    return HeldOutSamples(store=store, parameters_of=parameters)


def table(values: Mapping[str, float]) -> Table:
    """All values of a validation, for people."""
    shown = Table(show_header=False)
    shown.add_column(style="bold")
    shown.add_column(justify="right")
    for name, value in values.items():
        shown.add_row(name, f"{value:.6g}")
    return shown


def _where(config: StudyConfig, checkpoint: Path) -> Path:
    """The path itself, but for a study whose checkpoints lie elsewhere than in its output folder."""
    is_output = checkpoint.resolve() == config.output_dir.resolve()
    return config.checkpoint.dir if is_output and config.checkpoint.dir is not None else checkpoint


def _rows_of(state: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    return {
        "simulation_ids": state["simulation_ids"][rows],
        "time_steps": state["time_steps"][rows],
        "present": {name: present[rows] for name, present in state["present"].items()},
        "complete": state["complete"],
    }


def _leave(error: Exception, ranks: Ranks) -> int:
    """Make all ranks end because of `error`; gives the exit code of all."""
    failure = Failure.of(error, rank=ranks.rank, phase="evaluation")
    text = f"rank {failure.rank} failed in {failure.phase}:\n{failure.traceback}"
    agreed = leave_together(error, ranks, None, phase=failure.phase)
    if agreed is None:
        print(text, file=sys.stderr, flush=True)
        ranks.abort(failure.exit_code)
    told = ranks.gather("" if isinstance(error, PeerFailed) else text)
    if told is not None:
        print(next(filter(None, told)), file=sys.stderr, flush=True)
    return agreed
