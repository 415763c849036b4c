"""The trained server and model of a run, made by the user's own class."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import checkpoints
from stream_server.config import StudyConfig, load
from stream_server.errors import ConfigError
from stream_server.server.model.best_models import read_facts
from stream_server.server.model.saved_model import SavedModel, find_saved_model
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.study.saved_server import set_up_saved
from stream_server.server.user.stream_server import StreamServer
from stream_server.server.user.torch_server import TorchServer, modules_of

BEST = "best"


def trained_server(run: RunFolder, checkpoint: str | Path | None) -> StreamServer:
    """The user's server as it was in a checkpoint: with its model, its own state and its normalisation.

    Of a TorchServer the model is the one that is evaluated, and all its modules are in evaluation mode. The class is
    imported again, from the files beside the study as they are now. Torch's random numbers in this process go on as if
    nothing had happened.

    Args:
        run: whose newest checkpoint is taken by default.
        checkpoint: "best", the path of a checkpoint, or of one of the best models.

    Raises:
        ConfigError: there is no such model, or the class is not there any more.
        UserCodeError: the user's class raised, or makes another model now.
        DamagedCheckpoint: it is not as it was saved.
    """
    config = load(run.path / "study.json")
    # One process has all of the model.
    training = config.training.model_copy(update={"sharding": None})
    config = config.model_copy(update={"training": training})
    saved = _load_saved(run, checkpoint, config)
    with user_code_of(config), torch.random.fork_rng(devices=[]), ExitStack() as stack:
        composition = set_up_saved(config, SoloRanks(), saved, stack)
        server = composition.server
        if isinstance(server, TorchServer):
            with composition.step.evaluating():
                evaluated = server.model
            server.hold_attributes(model=evaluated)
            for _, module in modules_of(server):
                module.eval()
    return server


def trained_model(run: RunFolder, checkpoint: str | Path | None) -> torch.nn.Module:
    """The model of a TorchServer, see `trained_server`.

    Raises:
        ConfigError: the study trains no torch model; and see `trained_server`.
    """
    server = trained_server(run, checkpoint)
    if not isinstance(server, TorchServer):
        raise ConfigError(f"{type(server).__name__} is no TorchServer: take run.server(), which holds what it learned")
    model: torch.nn.Module = server.model
    return model


@contextmanager
def user_code_of(config: StudyConfig) -> Iterator[None]:
    """Within, the files of a study are imported as they are now, and afterwards the import path is as it was.

    A notebook lives on while they are edited. What it has imported of them itself stays as it was.
    """
    folder, path = config.study_dir, list(sys.path)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and file is not None and Path(file).parent == folder:
            del sys.modules[name]
    try:
        yield
    finally:
        sys.path[:] = path


def _load_saved(run: RunFolder, checkpoint: str | Path | None, config: StudyConfig) -> SavedModel:
    folder = checkpoints(run)
    if checkpoint == BEST:
        values = {kept: read_facts(kept)["value"] for kept in (folder / BEST).glob("batch-*") if not kept.suffix}
        if not values:
            raise ConfigError(f"{run.path} has none of the best models: set checkpoint.keep_best")
        choose = min if config.checkpoint.mode == "min" else max
        return find_saved_model(choose(values, key=values.__getitem__))
    return find_saved_model(folder if checkpoint is None else Path(checkpoint))
