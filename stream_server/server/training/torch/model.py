"""The model and optimizers of a TorchServer: made by the user, set up, saved and restored."""

import inspect
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.optim.lr_scheduler import ReduceLROnPlateau

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.training.torch.learning_rates import as_list
from stream_server.server.training.torch.precision import Precision
from stream_server.server.training.torch.shards import OfShards, is_sharded
from stream_server.server.training.torch.state import as_reference, plain, restored
from stream_server.server.user.components import make_criterion, require_part
from stream_server.server.user.torch_server import TorchServer
from stream_server.user_code import call_user


def set_up(server: TorchServer, precision: Precision, *, compiled: bool, seed: int) -> None:
    """Give the server its `model`, `optimizer` and `lr_scheduler`, those of its `prepare_training_attributes`.

    The model stays the user's own module, of which any method or part may be called.

    Raises:
        UserCodeError: the method raised, or returned something else.
    """
    if (criterion := make_criterion(server)) is not None:
        server.hold_attributes(criterion=criterion)
    name = f"{type(server).__name__}.prepare_training_attributes"
    parts = call_user(name, server.prepare_training_attributes)
    if not isinstance(parts, tuple | list) or len(parts) not in (2, 3):
        raise UserCodeError(f"{name} must return model, optimizer or model, optimizer, lr_scheduler")
    model, optimizers, lr_scheduler = [*parts, None][:3]
    for key, part in {"model": model, "optimizer": optimizers, "lr_scheduler": lr_scheduler}.items():
        if key != "lr_scheduler" or as_list(part):
            require_part(key, part, must=f"the {key} that {name} returns must be", but="is")
    for scheduler in as_list(lr_scheduler):
        _require_step(scheduler, name)
    if sharded := [name for name, parameter in model.named_parameters() if hasattr(parameter, "device_mesh")]:
        raise UserCodeError(
            f"{name} returned a model that the ranks share out: the parameter {sharded[0]} is a DTensor, as "
            "fully_shard and parallelize_module make it. A rank without a batch calls no forward pass, in which the "
            "others would wait for its part of the weights: return the whole model on each rank, and write "
            "training.sharding, which shards it"
        )
    several = isinstance(optimizers, tuple | list)
    if several and server.automatic_optimization:
        raise UserCodeError(f"{name} returned several optimizers, which needs automatic_optimization = False")
    if any(getattr(optimizer, "_overlap_with_ddp", False) for optimizer in as_list(optimizers)):
        raise UserCodeError(
            f"{name} returned a ZeroRedundancyOptimizer with overlap_with_ddp=True, which steps within DDP only: leave "
            "it out"
        )
    if compiled:
        compile_in_place(model)
        # What a model logs would be compiled anew for each name.
        server.hold_attributes(log=torch.compiler.disable(server.log))  # type: ignore[no-untyped-call]
    model = call_user(f"what {name} returned", precision.convert_module, model)
    for module_name, module in model.named_modules():
        if isinstance(module, LazyModuleMixin):
            _make_alike(module, seed=zlib.crc32(f"{seed} {module_name}".encode()))
    parts = list(optimizers) if several else optimizers
    server.hold_attributes(model=model, optimizer=parts, lr_scheduler=lr_scheduler)


def _require_step(scheduler: Any, name: str) -> None:
    is_plateau = isinstance(scheduler, ReduceLROnPlateau)
    try:
        inspect.signature(scheduler.step).bind(*([0.0] if is_plateau else []))
    except (TypeError, ValueError) as error:
        wanted = "the loss of a validation" if is_plateau else "no arguments"
        raise UserCodeError(
            f"the step of the lr_scheduler that {name} returned is called with {wanted}, but {type(scheduler).__name__}"
            f".step takes {inspect.signature(scheduler.step)}: {error}. Give it a subclass that is stepped so"
        ) from error


def _make_alike(module: Any, *, seed: int) -> None:
    """Let a lazy module be made with the same weights on all ranks, whichever of them calls it first and when."""
    initialize: Callable[..., None] = module.initialize_parameters

    def initialize_alike(*arguments: Any, **named: Any) -> None:
        devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
        with torch.random.fork_rng([device for device in devices if device.type == "cuda"]):
            torch.manual_seed(seed)
            initialize(*arguments, **named)

    module.initialize_parameters = initialize_alike


def shared_out(server: TorchServer) -> list[Any]:
    """The optimizers of which each rank has a part of the state (ZeroRedundancyOptimizer), as the user made them.

    Their steps wait for all ranks. Their `consolidate_state_dict` is collective, and brings the parts to rank 0.
    """
    return [each for each in as_list(server.optimizer) if hasattr(each, "consolidate_state_dict")]


def needs_every_rank(server: TorchServer, *, uneven: str) -> bool:
    """Whether each step of the server needs a batch on every rank, of several.

    Raises:
        ConfigError: it does, and `training.uneven` lets ranks go on whose data has ended.
    """
    needing = []
    if any(isinstance(module, nn.SyncBatchNorm) for module in server.model.modules()):
        needing.append("a model with SyncBatchNorm on several ranks: its forward pass")
    if not server.automatic_optimization and shared_out(server):
        needing.append("an optimizer that the ranks share out and training_step steps: its step")
    if needing and uneven != "stop":
        raise ConfigError(
            f"training.uneven must be stop for {needing[0]} waits for all ranks, and one whose data has ended has none"
        )
    return bool(needing)


def state_of(server: TorchServer, of_shards: OfShards = as_reference) -> dict[str, Any]:
    """The learning state of the model, in plain containers and arrays that are not modified later.

    Of optimizers that are `shared_out` it is what was last brought to this rank; for `of_shards` see `plain`.
    """
    return {
        "optimizers": [
            plain(each.state_dict(), f"the optimizer{f'[{place}]' if place else ''}", of_shards)
            for place, each in enumerate(as_list(server.optimizer))
        ],
        "schedulers": [plain(each.state_dict(), "the lr_scheduler") for each in as_list(server.lr_scheduler)],
        "kinds": {"optimizers": kinds(server.optimizer), "schedulers": kinds(server.lr_scheduler)},
    }


def kinds(parts: Any) -> list[str]:
    """The class of each optimizer or scheduler, with an optimizer's numbers of parameters and a scheduler's parts.

    Optimizers of different classes take each other's states without complaint, and train something else.
    """
    return [_kind(part) for part in as_list(parts)]


def check_kinds(saved: list[str], parts: Any, what: str, *, by_size: bool = False) -> None:
    """Check that optimizers or schedulers, `what` they are, can take the states of those that were `saved`.

    Raises:
        ValueError: they are others, or with `by_size` have other parameters; the message names both.
    """
    present = kinds(parts)
    if by_size:
        fits = [kind.partition(" of ")[2] for kind in present] == [kind.partition(" of ")[2] for kind in saved]
    else:
        fits = present == saved
    if not fits:
        was, now = (" and ".join(each) or f"no {what}" for each in (saved, present))
        raise ValueError(f"{was} was saved, but there is {now} now")


def _kind(component: Any) -> str:
    if hasattr(component, "param_groups"):
        # What ranks share out has the state of the optimizer inside.
        name = type(getattr(component, "optim", component)).__qualname__
        return f"{name} of {' + '.join(str(len(group['params'])) for group in component.param_groups)} parameters"
    parts = [_kind(part) for part in getattr(component, "_schedulers", ())]
    return type(component).__qualname__ + (f"({', '.join(parts)})" if parts else "")


def load_state(
    server: TorchServer, state: Mapping[str, Any], renew: Callable[[dict[str, Any]], None] | None = None
) -> None:
    """Restore the state that `state_of` returned.

    With `renew`, which fits the state to what is made now and says None where nothing is to be loaded, classes and
    schedulers may be others.

    Raises:
        UserCodeError: the user's code makes something else now.
    """
    try:
        check_kinds(state["kinds"]["optimizers"], server.optimizer, "optimizer", by_size=renew is not None)
        states = {
            "optimizers": restored_optimizers(server, state["optimizers"]),
            "schedulers": restored(state["schedulers"]),
            "kinds": state["kinds"],
        }
        if renew is None:
            check_kinds(state["kinds"]["schedulers"], server.lr_scheduler, "lr_scheduler")
        else:
            renew(states)
        for part, own in (("optimizers", server.optimizer), ("schedulers", server.lr_scheduler)):
            for component, its_state in zip(as_list(own), states[part], strict=True):
                if its_state is not None:
                    component.load_state_dict(its_state)
                    _keep_types(component, its_state)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        name = f"{type(server).__name__}.prepare_training_attributes"
        text = f"{name} makes something else than what was saved: {error}"
        raise UserCodeError(
            f"{text}. Make the same as before (self.progress knows how far the study is, for groups that were added "
            "on the way), or start over with --fresh"
        ) from error


def restored_optimizers(server: TorchServer, states: list[Any]) -> list[Any]:
    """The states of the optimizers of a server, whose parts the ranks share out as they do its parameters."""
    return [
        restored(state, _own(optimizer, state))
        for optimizer, state in zip(as_list(server.optimizer), states, strict=True)
    ]


def _own(optimizer: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """The parameter in place of each part of an optimizer's saved state that belongs to a sharded one."""
    parameters = enumerate(each for group in optimizer.param_groups for each in group["params"])
    saved = state.get("state", {})
    return {"state": {index: dict.fromkeys(saved.get(index, ()), it) for index, it in parameters if is_sharded(it)}}


def _keep_types(optimizer: Any, saved: Any) -> None:
    """Put back what torch has cast to the type of its parameter: a state in 32 bits of weights in 16, for example."""
    states = saved.get("state", {})
    parameters = [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]
    for index, parameter in enumerate(parameters):
        own = optimizer.state.get(parameter) or {}
        for key, value in (states.get(index) or {}).items():
            if isinstance(value, torch.Tensor) and key in own and own[key].dtype != value.dtype:
                own[key] = value.to(own[key].device)


def compile_in_place(model: nn.Module) -> None:
    """Compile the forward pass of a model at its first call, unless its maker has done it.

    The names of the model's state stay what they are. `torch.compile` of the model and
    `model.compile()` quietly leave a model such as nn.Sequential as it is, as torch compiles no function of its own
    unless one of another package calls it (measured with 2.13).
    """
    if not isinstance(model, torch._dynamo.OptimizedModule):
        model.forward = torch.compile(_calling(model.forward))


def _calling(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        return forward(*arguments, **named)

    return call
