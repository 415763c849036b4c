"""The weights of a TorchServer: the model it trains, its further modules, and those that are evaluated."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.metrics.logged_numbers import is_metric
from stream_server.server.training.torch.learning_rates import as_list
from stream_server.server.training.torch.precision import Precision
from stream_server.server.training.torch.reduction import further_parameters
from stream_server.server.training.torch.shards import OfShards, is_sharded, local
from stream_server.server.training.torch.state import as_reference, plain, restored
from stream_server.server.user.stream_server import left_out_by_filter
from stream_server.server.user.torch_server import TorchServer, modules_of
from stream_server.user_code import call_user

MODEL = "model"
# The names in messages, and before those of sharded tensors.
THE_MODEL = "the model"
EVALUATED = "model_to_evaluate()"
# The attributes of a module that hold what its state has.
IN_STATE = ("_parameters", "_buffers", "_modules")


class ServerModules:
    """Saves and restores all modules of a server, and puts what `model_to_evaluate` gives in place of the model.

    Besides the model these are the modules that are attributes of the server, alone or in lists and dicts, such as
    averages of the weights, and the parameters that only an optimizer has. A checkpoint leaves out frozen parameters
    whose names match `exclude` or not the server's `save_filter`, since the user's code loads their values at each
    start; one that was trained or written to since is saved after all. Main thread.
    """

    def __init__(self, server: TorchServer, *, exclude: Sequence[str] = ()) -> None:
        self._server = server
        self._patterns = tuple(exclude)
        self._excluded: dict[str, tuple[int, int]] = {}
        """The number of changes in place to each parameter that is left out, as the user's code has loaded it."""
        self._pending: dict[str, Any] = {}

    def move(self, precision: Precision) -> None:
        """Bring the further modules to the device of the model, in its precision."""
        for module in other_modules(self._server).values():
            precision.convert_module(module)

    def exclude(self) -> None:
        """Find the parameters that checkpoints leave out; called once all ranks have the model.

        Raises:
            ConfigError: one of them is trained, or a pattern matches none.
        """
        parameters, owner = dict(self._parameters()), type(self._server).__name__
        matching = {
            f"checkpoint.exclude: {pattern!r} matches": [name for name in parameters if fnmatchcase(name, pattern)]
            for pattern in self._patterns
        }
        for what in [what for what, names in matching.items() if not names]:
            raise ConfigError(
                f"{what} no parameter of {owner}; its parameters begin with {', '.join(list(parameters)[:3])}"
            )
        matching[f"{owner}.save_filter leaves out"] = left_out_by_filter(self._server, parameters)
        for what, names in matching.items():
            trained = [name for name in names if parameters[name].requires_grad]
            if trained:
                raise ConfigError(
                    f"{what} {', '.join(trained[:3])}, of {len(trained)} parameters that are trained: a restart would "
                    "lose their training. Freeze them by requires_grad_(False) in prepare_training_attributes, or "
                    "leave them in"
                )
            self._excluded |= {name: _mark(parameters[name]) for name in names if not is_lazy(parameters[name])}

    def trainable(self) -> dict[str, Tensor]:
        """The parameters that require a gradient by name, each once, also those that no module has registered."""
        hidden = ((_full(name, key), each) for name, module in self._modules() for key, each in _in_containers(module))
        unique: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in (*self._parameters(), *hidden):
            unique.setdefault(id(tensor), (name, tensor))
        loose = further_parameters(as_list(self._server.optimizer), unique.keys())
        return {name: tensor for name, tensor in (*unique.values(), *loose.items()) if tensor.requires_grad}

    def unsaved(self) -> dict[str, Tensor]:
        """The floating-point buffers of modules that are in no state, since they are not persistent, by name."""
        tensors: dict[str, Tensor] = {}
        for name, module in self._modules():
            saved = _tensors(module)
            buffers = module.named_buffers()
            tensors |= {
                _full(name, key): each for key, each in buffers if id(each) not in saved and each.is_floating_point()
            }
        return tensors

    def attributes(self) -> dict[str, dict[str, Any]]:
        """Plain attributes of the modules, which are in no state, by the place of the module.

        Without those of metrics objects, and what is computed from parameters, as `weight_norm`, `spectral_norm` and
        pruning have it beside them.
        """
        return {
            _full(name, place).strip("."): {
                key: each
                for key, each in vars(part).items()
                if key not in IN_STATE and not _is_computed(part, key, each)
            }
            for name, module in self._modules()
            for place, part in module.named_modules()
            if not is_metric(part)
        }

    def state(self, of_shards: OfShards = as_reference) -> dict[str, Any]:
        """The state for a checkpoint, in plain containers and arrays that are not modified later; see `plain`."""
        stepped = {
            id(parameter)
            for optimizer in as_list(self._server.optimizer)
            for parameter, its_state in optimizer.state.items()
            if its_state
        }
        # Fused optimizers change weights without counting it.
        return self._saved(
            {
                name
                for name, each in (self._parameters() if self._excluded else ())
                if self._excluded.get(name) == _mark(each) and not each.requires_grad and id(each) not in stepped
            },
            of_shards,
        )

    def whole_state(self, of_shards: OfShards = as_reference) -> dict[str, Any]:
        """All of them; and "evaluated", if that is something else than the model."""
        state, evaluated = self._saved(frozenset(), of_shards), self.evaluated
        if evaluated is not self._server.model:
            state["evaluated"] = _plain(evaluated, EVALUATED, frozenset(), of_shards)
        return state

    def exported(self, tensor_of: Callable[[str], Any]) -> dict[str, Any]:
        """The tensors of the evaluated module; `tensor_of` gives those that the ranks share out, by their places."""
        evaluated = self.evaluated
        place = THE_MODEL if evaluated is self._server.model else EVALUATED
        return {
            name: tensor_of(f"{place}.{name}") if isinstance(each, Tensor) and is_sharded(each) else each
            for name, each in evaluated.state_dict().items()
        }

    @property
    def are_sharded(self) -> bool:
        """Whether the ranks share out parameters of the model."""
        # Of a call outside of a step, what is left gathered is given back by that.
        state = self._server.model.state_dict().values()
        return any(is_sharded(each) for each in state if isinstance(each, Tensor))

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` or `whole_state` gave; what is made later, in `on_train_start`, waits for that.

        Raises:
            UserCodeError: the user's code makes something else now.
        """
        self._load(MODEL, self._server.model, state[MODEL])
        self._load_loose(state.get("parameters", {}))
        self._pending = dict(state.get("modules", {}))
        others = other_modules(self._server)
        for name in [name for name in self._pending if name in others]:
            self._load(name, others[name], self._pending.pop(name))

    def load_pending(self) -> None:
        """Load the states of modules that did not exist before; called before the first step and the first validation.

        Raises:
            UserCodeError: it is still not there.
        """
        if not self._pending:
            return
        others, owner = other_modules(self._server), type(self._server).__name__
        for name, state in self._pending.items():
            if name not in others:
                raise UserCodeError(
                    f"the checkpoint has the state of a module {owner}.{name}, which is not there: make it in "
                    "prepare_training_attributes or on_train_start, as before, or start over with --fresh"
                )
            self._load(name, others[name], state)
        self._pending = {}

    def versions(self) -> dict[str, tuple[Tensor, int]]:
        """The tensors of the model that are saved, each with a number that grows when it is changed in place."""
        state = self._server.model.state_dict(keep_vars=True).items()
        tensors = {
            name: each
            for name, each in state
            if isinstance(each, Tensor) and not (is_lazy(each) or each.is_inference())
        }
        return {name: (tensor, tensor._version) for name, tensor in tensors.items()}

    @property
    def returned(self) -> nn.Module:
        """The module that `model_to_evaluate` returns.

        Raises:
            UserCodeError: it raised, or it is no module.
        """
        name = f"{type(self._server).__name__}.model_to_evaluate"
        model = call_user(name, self._server.model_to_evaluate)
        if not isinstance(model, nn.Module):
            raise UserCodeError(f"{name} must return a torch module, but returned {type(model).__name__}")
        return model

    @property
    def evaluated(self) -> nn.Module:
        """The module that is validated, exported and kept among the best; of an AveragedModel the one inside."""
        model = self.returned
        return model.module if isinstance(model, AveragedModel) else model

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within, the server's `model` is the evaluated one, and all its modules are in evaluation mode."""
        server = self._server
        trained, evaluated = server.model, self.evaluated.to(server.device)
        parts = (evaluated, *(module for _, module in modules_of(server)))
        modes = [(module, module.training) for part in parts for module in part.modules()]
        server.hold_attributes(model=evaluated)
        try:
            for part in parts:
                part.eval()
            with server.remember_calls():
                yield
        finally:
            server.hold_attributes(model=trained)
            for module, training in modes:
                module.training = training

    def _saved(self, left_out: Set[str], of_shards: OfShards) -> dict[str, Any]:
        modules = other_modules(self._server)
        others = {name: _plain(module, name, left_out, of_shards) for name, module in modules.items()}
        loose = {name: plain(tensor.detach(), name) for name, tensor in self._loose().items()}
        return {
            MODEL: _plain(self._server.model, MODEL, left_out, of_shards),
            **({"modules": others} if others else {}),
            **({"parameters": loose} if loose else {}),
        }

    def _loose(self) -> dict[str, Tensor]:
        """The parameters that are in no module of the server, but in an optimizer."""
        known = {id(parameter) for _, parameter in self._parameters()}
        return further_parameters(as_list(self._server.optimizer), known)

    def _load_loose(self, state: Mapping[str, Any]) -> None:
        own = self._loose() if state else {}
        for name, saved in state.items():
            value = restored(saved)
            if name not in own or own[name].shape != value.shape:
                raise UserCodeError(
                    f"{type(self._server).__name__}.prepare_training_attributes makes something else than what was "
                    f"saved: {name} of shape {list(value.shape)}. Make the same as before, or start over with --fresh"
                )
            own[name].data.copy_(value)

    def _load(self, name: str, module: nn.Module, state: Any) -> None:
        problem = ""
        try:
            keys = module.load_state_dict(restored(state, module.state_dict()), strict=False)
            missing = [key for key in keys.missing_keys if _full(name, key) not in self._excluded]
            if missing or keys.unexpected_keys:
                problem = f"missing: {missing or 'none'}, unexpected: {keys.unexpected_keys or 'none'}"
        except (RuntimeError, ValueError, KeyError) as error:
            problem = str(error)
        if problem:
            owner = type(self._server).__name__
            text = f"{owner}.prepare_training_attributes makes something else than what was saved: {name}: {problem}"
            raise UserCodeError(f"{text}. Make the same as before, or start over with --fresh")

    def _modules(self) -> Iterable[tuple[str, nn.Module]]:
        return {MODEL: self._server.model, **other_modules(self._server)}.items()

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, module in self._modules():
            for key, parameter in module.named_parameters(remove_duplicate=False):
                yield _full(name, key), parameter


def other_modules(server: TorchServer) -> dict[str, nn.Module]:
    """The modules among the attributes of a server that have tensors to save which the model has not, by name."""
    known = _tensors(server.model)
    modules = {}
    for name, module in modules_of(server):
        tensors = _tensors(module)
        if not tensors <= known:
            modules[name] = module
            known |= tensors
    return modules


def _in_containers(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters in lists, tuples and dicts that are attributes of a module, in which torch looks for none."""
    for place, part in module.named_modules():
        for name, value in vars(part).items():
            if not isinstance(value, dict | list | tuple):
                continue
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                path = f"{place}.{name}.{key}".removeprefix(".")
                if isinstance(item, nn.Parameter):
                    yield path, item
                elif isinstance(item, nn.Module):
                    yield from ((f"{path}.{inner}", parameter) for inner, parameter in item.named_parameters())


def _tensors(module: nn.Module) -> set[int]:
    return {id(tensor) for tensor in module.state_dict(keep_vars=True).values() if isinstance(tensor, Tensor)}


def _full(module: str, name: str) -> str:
    """The name of a parameter for patterns: that of the model's own module, or with the attribute before it."""
    return name if module == MODEL else f"{module}.{name}"


def _plain(module: nn.Module, name: str, left_out: Set[str], of_shards: OfShards) -> Any:
    state = module.state_dict()
    for key in [key for key in state if _full(name, key) in left_out]:
        del state[key]
    try:
        return plain(state, THE_MODEL if name == MODEL else name, of_shards)
    except TypeError as error:
        raise UserCodeError(f"the state of a module of the server cannot be saved: {error}") from error


def _is_computed(module: nn.Module, key: str, value: Any) -> bool:
    if isinstance(value, Tensor) and value.grad_fn is not None:
        return True
    return any(hasattr(module, f"{key}{end}") for end in ("_orig", "_g"))


def _mark(tensor: Tensor) -> tuple[int, int]:
    """A mark that changes when a parameter gets other values, in place or by other memory."""
    own = local(tensor)
    return own.data_ptr(), own._version
