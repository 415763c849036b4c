"""What a TorchServer trains: made by the user, wrapped by Fabric, saved and taken back."""

from typing import Any

from stream_server.errors import UserCodeError
from stream_server.server.torch_server import TorchServer
from stream_server.server.torch_state import plain, restored
from stream_server.server.training.callbacks import call_user
from stream_server.server.training.torch_compiling import compile_in_place
from stream_server.server.training.torch_learning_rates import as_list
from stream_server.server.training.torch_lightning import Fabric


def set_up(server: TorchServer, fabric: Fabric, *, compiled: bool) -> None:
    """Give the server its `model`, `optimizer` and `lr_scheduler`, those of its `prepare_training_attributes`.

    Raises:
        UserCodeError: the method raised, or returned something else.
    """
    server.fabric = fabric
    name = f"{type(server).__name__}.prepare_training_attributes"
    made = call_user(name, server.prepare_training_attributes)
    if not isinstance(made, tuple | list) or len(made) not in (2, 3):
        raise UserCodeError(f"{name} must return model, optimizer or model, optimizer, lr_scheduler")
    model, optimizers, server.lr_scheduler = [*made, None][:3]
    if not hasattr(model, "named_parameters"):
        raise UserCodeError(f"{name} must return a torch.nn.Module as the model, but returned {model!r}")
    several = isinstance(optimizers, tuple | list)
    if several and server.automatic_optimization:
        raise UserCodeError(f"{name} returned several optimizers, which needs automatic_optimization = False")
    if compiled:
        compile_in_place(model)
    server.model, *wrapped = fabric.setup(model, *as_list(optimizers))
    server.optimizer = wrapped if several else wrapped[0]


def state_of(server: TorchServer) -> dict[str, Any]:
    """The model and how it learns, in plain containers and arrays that nobody changes."""
    return {
        "model": plain(server.model.state_dict(), "the model"),
        "optimizers": [plain(it.state_dict(), "the optimizer") for it in as_list(server.optimizer)],
        "schedulers": [plain(it.state_dict(), "the lr_scheduler") for it in as_list(server.lr_scheduler)],
    }


def load_state(server: TorchServer, state: dict[str, Any]) -> None:
    """Take back what `state_of` gave.

    Raises:
        UserCodeError: the user's code makes something else now.
    """
    saved = restored(state)
    try:
        server.model.load_state_dict(saved["model"])
        for part, own in (("optimizers", server.optimizer), ("schedulers", server.lr_scheduler)):
            for it, its_state in zip(as_list(own), saved[part], strict=True):
                it.load_state_dict(its_state)
    except (RuntimeError, ValueError, KeyError) as error:
        name = f"{type(server).__name__}.prepare_training_attributes"
        text = f"{name} makes something else than what was saved: {error}"
        raise UserCodeError(f"{text}. Make the same as before, or start over with --fresh") from error
