"""The user's server with a saved model in it, as it was in its study."""

from contextlib import ExitStack
from pathlib import Path

from stream_server.buffers import Fifo
from stream_server.config import StudyConfig
from stream_server.server.checkpoint.folder import STUDY
from stream_server.server.model.saved_model import SavedModel, load_model
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.run.build import make_buffer, make_policy
from stream_server.server.run.cores import share_cores
from stream_server.server.simulations.design import ParameterDesign
from stream_server.server.study.composition import Composition
from stream_server.server.user.components import load_server_class
from stream_server.storage.plain_state import read_state


def set_up_saved(config: StudyConfig, ranks: Ranks, saved: SavedModel, stack: ExitStack) -> Composition:
    """Make the server of a study and give it a saved model. Main thread, collective.

    What was set up is taken down with the `stack`. Nothing is written.

    Raises:
        ConfigError: there is no such class, or what was saved was pickled, which the study does not allow.
        UserCodeError: the user's class raised, or makes another model than the saved one.
        DamagedCheckpoint: a file of the checkpoint cannot be what was saved.
    """
    # As it was, so that the user's class builds schedules as long as they were.
    num_ranks, policy = saved.num_ranks or ranks.size, make_policy(config, ranks.rank)
    length = TrainingLength.of(config, num_ranks, draws_per_sample=policy.draws_per_sample)
    progress = Progress(ranks.size, length=length, lr_clock=config.training.lr_clock)
    if saved.checkpoint is not None:
        progress.load_state_dict(read_state(Path(saved.checkpoint) / STUDY)["progress"])
    progress.batches = saved.batches
    composition = Composition(
        config,
        ranks,
        output_dir=config.output_dir,
        parameter_names=ParameterDesign(config).names,
        progress=progress,
        buffer=make_buffer(config, Fifo(capacity=1), 1),
        num_threads=share_cores(ranks).threads[ranks.rank],
    )
    composition.make_server(load_server_class(config), stack)
    composition.make_step(stack)
    server, callbacks = composition.server, composition.callbacks
    callbacks.surround(before=[server.normalization])
    load_model(saved, server, composition.step, callbacks, allow_pickle=config.checkpoint.allow_pickle)
    return composition
