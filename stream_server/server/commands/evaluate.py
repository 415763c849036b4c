"""`stream-server --evaluate CHECKPOINT`: validate a saved model on the samples that were held out for it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, PeerFailed
from stream_server.machine.forced_exit import ForcedExit
from stream_server.machine.screen import print_escaped
from stream_server.server.checkpoint.continuation import by_rank_0
from stream_server.server.checkpoint.restore import SavedRank
from stream_server.server.intake.parameters import SimulationParameters
from stream_server.server.intake.source import REPLAY
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.model.saved_model import SavedModel, find_saved_model
from stream_server.server.ranks.collectives import CollectiveCalls
from stream_server.server.ranks.communicator import Ranks, ranks_from_environment
from stream_server.server.run.build import make_slots, ragged_fields, window_shape
from stream_server.server.study.failure import Failure, leave_together
from stream_server.server.study.saved_server import set_up_saved
from stream_server.server.study.watchdog import Watchdog
from stream_server.server.training.control_round import barrier
from stream_server.server.training.validation.validation_batches import HeldOutSamples
from stream_server.server.user.components import load_server_class
from stream_server.wording import counted


@contextmanager
def ranks_of_this_job(config: StudyConfig) -> Iterator[Ranks]:
    """The ranks of this MPI job, or one rank outside of MPI, watched for stalls. Main thread, collective."""
    collectives = CollectiveCalls()
    watchdog = Watchdog.of(config, collectives, None)
    with ForcedExit(), watchdog:
        ranks = ranks_from_environment(collectives)
        watchdog.watch(ranks)
        yield ranks


def leave_because_of(error: Exception, ranks: Ranks, *, phase: str) -> int:
    """Make all ranks end because of `error`, which rank 0 prints; returns the exit code of all."""
    failure = Failure.of(error, rank=ranks.rank, phase=phase)
    text = f"rank {failure.rank} failed in {failure.phase}:\n{failure.traceback}"
    agreed = leave_together(error, ranks, None, phase=failure.phase)
    if agreed is None:
        print_escaped(text, sys.stderr)
        ranks.abort(failure.exit_code)
    texts = ranks.gather("" if isinstance(error, PeerFailed) else text)
    if texts is not None:
        print_escaped(next(filter(None, texts)), sys.stderr)
    ranks.barrier()
    if ranks.is_cut_short:
        ranks.abort(agreed)
    return agreed


def evaluate(config: StudyConfig, checkpoint: Path) -> int:
    """Validate a saved model of this study on all ranks of this MPI job, or on one rank outside of MPI, and print it.

    The samples are those of the user's `val_dataloader`, or the held-out ones in the checkpoint, in the newest one for
    one of the best models. Nothing is written, and the study may be running. The server's own methods hear of the
    validation; the user's callbacks, which may keep files of the run, do not. Collective.

    Returns:
        The exit code: 0, or that of the first error, which is printed.

    Raises:
        ConfigError: there is no such model, or nothing to validate it on; the same on all ranks.
        DamagedCheckpoint: it is not as it was saved; the same on all ranks.
    """
    with ranks_of_this_job(config) as ranks:
        return _evaluate(config, checkpoint, ranks)


def _evaluate(config: StudyConfig, checkpoint: Path, ranks: Ranks) -> int:
    saved = SavedModel(**by_rank_0(ranks, lambda: asdict(find_saved_model(_where(config, checkpoint)))))
    with ExitStack() as stack:
        try:
            values = validate(config, ranks, saved, stack)
        except Exception as error:
            return leave_because_of(error, ranks, phase="evaluation")
    if not values:
        raise ConfigError(
            f"there is nothing to evaluate {saved.folder} on: {load_server_class(config).__name__} has no "
            "val_dataloader, and the checkpoint has no held-out samples: no such simulation was complete when it was "
            "taken, or it is that of a replay, whose held-out samples are in the record alone"
        )
    if ranks.rank == 0:
        print(f"{config.study.name} after {counted(saved.batches, 'batch')}, {saved.folder}")
        Console().print(table(values))
    return 0


def validate(config: StudyConfig, ranks: Ranks, saved: SavedModel, stack: ExitStack) -> dict[str, float]:
    """The values of a whole validation of a saved model, by name, the same on all ranks. Main thread, collective.

    They are empty if there is nothing to validate on. What was set up is taken down with the `stack`.

    Raises:
        UserCodeError: the user's class raised, or makes another model than the saved one.
        DamagedCheckpoint: a file of the checkpoint cannot be what was saved.
    """
    samples = read_held_out(saved, config, ranks)
    evaluation = set_up_saved(config, ranks, saved, stack)
    barrier(ranks)
    return evaluation.make_validation(samples).run()


def read_held_out(saved: SavedModel, config: StudyConfig, ranks: Ranks) -> HeldOutSamples:
    """This rank's share of the held-out samples that go with a model: its own part, or a share of all parts.

    Raises:
        DamagedCheckpoint: a file cannot be what was saved.
    """
    store, windows = ValidationStore(config.validation.simulations, ragged=ragged_fields(config)), window_shape(config)
    statics = make_slots(config, 1).statics
    parameters = SimulationParameters()
    if saved.checkpoint is not None:
        is_own = saved.num_ranks == ranks.size
        share = (0, 1) if is_own else (ranks.rank, ranks.size)
        for rank in [ranks.rank] if is_own else range(saved.num_ranks):
            part = SavedRank(Path(saved.checkpoint), rank)
            if REPLAY not in part.state:
                parameters.load_state_dict(part.state["parameters"])
            part.into_store(store, *share, by_simulation=windows is not None)
            for simulation in part.state["held_out"]["complete"]:
                store.complete(simulation)
            part.into_statics(statics, range(config.validation.simulations))
    return HeldOutSamples(store=store, parameters_of=parameters.__getitem__, window_shape=windows, statics=statics)


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
