"""Models whose parameters, gradients and optimizer states are spread over the ranks, by FSDP2 of torch.

Why: docs/decisions/0101-sharded-training.md
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import foreach_all_gather
from torch.distributed.fsdp._fully_shard._fsdp_param import ShardedState
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from stream_server.config.problems import nearest, one_of
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.torch.device_copies import mapped
from stream_server.server.training.torch.learning_rates import as_list
from stream_server.server.training.torch.model import shared_out
from stream_server.server.training.torch.reduction import UnionGradients, gradients_of, norm_of
from stream_server.server.training.torch.turns import MEAN, Script, Turn, Turns
from stream_server.server.training.torch.weights import other_modules
from stream_server.server.user.torch_server import TorchServer
from stream_server.wording import listed

if TYPE_CHECKING:
    from stream_server.config.training_sections import Sharding

_FIRST = MEAN + 1


def is_shard(tensor: Tensor) -> bool:
    """Whether it is spread over the ranks."""
    return isinstance(tensor, DTensor)


def check_sharding(server: TorchServer, settings: "Sharding", device: torch.device, backend: str) -> None:
    """Check that a server can be sharded, before it has a model.

    Raises:
        ConfigError: it cannot; the message says why.
    """
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ConfigError(f"training.sharding needs torch 2.13 or newer, but this is {torch.__version__}")
    if settings.offload is not None and device.type == "cpu":
        raise ConfigError(
            f'training.sharding.offload "{settings.offload}" needs a GPU: this rank trains on a CPU, where the weights '
            "are already. Leave it out"
        )
    if device.type != "cpu" and backend == "gloo":
        raise ConfigError(
            "training.sharding needs a GPU for each rank, but ranks of a node share one: start as many ranks on it as "
            'it has GPUs, or write "cpu" for training.device'
        )
    if not server.automatic_optimization:
        raise ConfigError(
            f"training.sharding cannot be combined with automatic_optimization = False, as in {type(server).__name__}: "
            "the gradients of a sharded model are added up while the backward pass runs, in which ranks without a "
            "batch have a part, but they do not run the training_step that clears them and steps the optimizers. "
            "Return the loss, or leave training.sharding out"
        )


class ShardedGradients(UnionGradients):
    """The gradients of a model of which each rank has a part of each parameter.

    torch adds them up while the backward pass runs, unit by unit. What is too small or of another type than the rest
    stays whole on each rank, and is added up as in any model. Averages of the weights (`AveragedModel`) are sharded
    like the model.

    Attributes:
        mesh: the ranks, in their order.
    """

    def __init__(self, server: TorchServer, ranks: Ranks, settings: "Sharding", device: torch.device) -> None:
        """Shard the modules of `server`, which are whole and the same on all ranks. Collective.

        Raises:
            ConfigError: the settings name classes of which no module is.
            UserCodeError: the model or an optimizer cannot be sharded.
        """
        super().__init__(ranks, server.model, as_list(server.optimizer), lambda: other_modules(server).values())
        _check(server, self.named())
        check_blocks(server.model, settings)
        self.mesh: DeviceMesh = init_device_mesh(device.type, (ranks.size,))
        averages = [each.module for each in other_modules(server).values() if isinstance(each, AveragedModel)]
        self._roots: list[Any] = [server.model, *averages]
        for root in self._roots:
            _shard(root, settings, self.mesh, as_list(server.optimizer))
        self._groups = [group for root in self._roots for group in _groups(root)]
        most = max((len(group.fsdp_params) for group in self._groups), default=0)
        beside = None if device.type == "cpu" or ranks.size == 1 else dist.new_group(backend="gloo")
        self._turns = Turns(ranks, partial(dist.all_reduce, group=beside), most_parts=most)
        self._turns.serve = self._serve
        self._turns.settle = self._settle
        self._without: set[Any] = set()
        self._has_derivative = False
        self._server = server
        for number, group in enumerate(self._groups):
            # So that each rank can serve the others before its own first pass.
            group.unshard()
            group.wait_for_unshard()
            group.reshard()
            self._agree_in(group, _FIRST + 2 * number)
        for root in self._roots:
            for module in root.modules():
                module.__deepcopy__ = _refuse_copy
            for each in root.parameters() if ranks.size > 1 else ():
                if is_shard(each):
                    # torch.distributed gives shards their gradients without hooks.
                    is_trained = each.requires_grad
                    each.requires_grad_(True).register_hook(_refuse_gradient)
                    each.requires_grad_(is_trained)

    @contextmanager
    def together(self, *, learns: bool = False, calls: bool = True) -> Iterator[None]:
        if learns:
            shards = [each.sharded_param for group in self._groups for each in group.fsdp_params]
            self._without = {each for each in shards if each.grad is None}
        with self._server.union_mean.in_turns(self._turns), self._turns.open(self._add_up_rest, learns=learns):
            self._reshard_after_backward(False)
            self._has_derivative = False
            if calls:
                # Methods of the model, and parts that are no units, find what belongs to no unit.
                for root in self._roots:
                    if root is self._server.model:
                        root.unshard()
            yield
        self._tidy()

    def begin_backward(self) -> None:
        self._reshard_after_backward(not self._has_derivative)

    @property
    def has_served(self) -> bool:
        return self._turns.has_served

    def norm(self, parameters: Sequence[Tensor], gradients: list[Tensor]) -> Tensor:
        """The norm of all elements on all ranks. Collective."""
        whole = norm_of(gradients_of(each for each in parameters if not is_shard(each)))
        of_shards = norm_of(gradients_of(each for each in parameters if is_shard(each)))
        total = self._ranks.all_reduce(np.array([float(of_shards**2)]))[0] if self._ranks.size > 1 else of_shards**2
        return (whole**2 + total).sqrt()

    def _is_whole(self, tensor: Tensor) -> bool:
        return not is_shard(tensor)

    def _add_up_rest(self) -> None:
        for group in self._groups:
            # Torch takes those that have come until the backward pass leaves the unit; of a second derivative some
            # come later.
            if any(map(_has_gradient, group.fsdp_params)):
                group.post_backward()

    def _tidy(self) -> None:
        """Leave no unit gathered, and nothing of a pass that was not gone through to its end."""
        for group in self._groups:
            # Gradients that were added up for others after the own backward pass are still on their way on a GPU.
            group.finalize_backward()
        for root in self._roots:
            root.reset_iter_state()

    def _reshard_after_backward(self, reshards: bool) -> None:
        """Whether units are given back once a backward pass has left them: a gradient within the loss needs them."""
        for group in self._groups:
            group.reshard_after_backward = reshards

    def _agree_in(self, group: Any, operation: int) -> None:
        """Let a unit take turns before it is gathered, and before its gradients are added up."""
        gather, post_backward = group._all_gather_comm, group.post_backward
        group._all_gather_comm = _AgreedGather(gather, partial(self._turns.take, operation))

        def agreed_post_backward(*unused: Any) -> None:
            # Until the backward pass begins, this is that of a gradient within the loss.
            self._has_derivative |= not group.reshard_after_backward
            parts = sum(_has_gradient(each) << index for index, each in enumerate(group.fsdp_params))
            if parts:
                for each in _chosen(group, self._turns.take(operation + 1, parts).parts & ~parts):
                    each._unsharded_param.grad = torch.zeros_like(each._unsharded_param)
            post_backward(*unused)

        group.post_backward = agreed_post_backward

    def _serve(self, turn: Turn) -> None:
        if turn.operation == MEAN:
            self._server.union_mean.join(turn.caller)
            return
        number, is_reduction = divmod(turn.operation - _FIRST, 2)
        if is_reduction:
            _add_zeros(self._groups[number], turn.parts)
        else:
            _give_shards(self._groups[number])

    def _settle(self, wanted: Script) -> None:
        """Leave no gradient that is made of zeros alone, which no rank wanted."""
        for number, group in enumerate(self._groups):
            reductions = (parts for operation, parts in wanted if operation == _FIRST + 2 * number + 1)
            for each in _chosen(group, ~reduce(or_, reductions, 0)):
                if each.sharded_param in self._without:
                    each.sharded_param.grad = None


class _AgreedGather:
    """The gathering of a unit, once it is its turn."""

    def __init__(self, gather: Any, take: Callable[[], Turn]) -> None:
        self.allocate = gather.allocate
        self._gather = gather
        self._take = take

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._take()
        return self._gather(*arguments, **named)


def _give_shards(group: Any) -> None:
    """Take part in gathering a unit that other ranks need, whatever this one does with it."""
    states = [each.sharded_state for each in group.fsdp_params]
    stream = group.device_handle.current_stream()
    for each in group.fsdp_params:
        each.sharded_state = ShardedState.SHARDED
    try:
        foreach_all_gather(
            group.fsdp_params,
            group._all_gather_process_group,
            False,
            stream,
            stream,
            group.device,
            group._all_gather_comm,
        )
    finally:
        for each, state in zip(group.fsdp_params, states, strict=True):
            each.sharded_state = state


def _add_zeros(group: Any, parts: int) -> None:
    """Take part in adding up the gradients of a unit, without any of its own; it stays as far as it is."""
    own = [each._unsharded_param.grad for each in group.fsdp_params]
    reshards, group.reshard_after_backward = group.reshard_after_backward, False
    try:
        with group.use_training_state(group._training_state):
            for each in group.fsdp_params:
                each._unsharded_param.grad = None
            for each in _chosen(group, parts):
                each._unsharded_param.grad = torch.zeros_like(each._unsharded_param)
            type(group).post_backward(group)
    finally:
        group.reshard_after_backward = reshards
        for each, gradient in zip(group.fsdp_params, own, strict=True):
            each._unsharded_param.grad = gradient


def _chosen(group: Any, parts: int) -> Iterator[Any]:
    """The parameters of a unit whose bits are set."""
    return (each for index, each in enumerate(group.fsdp_params) if parts >> index & 1)


def _has_gradient(parameter: Any) -> bool:
    own = getattr(parameter, "_unsharded_param", None)
    return own is not None and own.grad is not None


def _groups(root: nn.Module) -> list[Any]:
    states = [module._get_fsdp_state() for module in root.modules() if isinstance(module, FSDPModule)]
    # Now, and not in the first forward pass, which may be that of a part.
    states[0]._lazy_init()
    return [group for state in states for group in state._fsdp_param_groups]


def _shard(root: nn.Module, settings: "Sharding", mesh: DeviceMesh, optimizers: Sequence[Any]) -> None:
    before = dict(root.named_parameters(remove_duplicate=False))
    dtypes = Counter(each.dtype for each in before.values() if each.is_floating_point())
    whole = {
        each
        for each in before.values()
        if not each.dim() or not each.numel() or not dtypes or each.dtype is not dtypes.most_common(1)[0][0]
    }
    mixed = MixedPrecisionPolicy(
        param_dtype=None if settings.mixed_precision is None else torch.bfloat16, reduce_dtype=torch.float32
    )
    options: dict[str, Any] = {
        "mesh": mesh,
        "ignored_params": whole,
        "mp_policy": MixedPrecisionPolicy() if settings.mixed_precision is None else mixed,
        "offload_policy": OffloadPolicy() if settings.offload is None else CPUOffloadPolicy(),
    }
    for module in (*units(root, settings, whole), root):
        module.register_forward_hook(_with_own_memory)
        fully_shard(module, **options)
        # The losses are weighted: their gradients are added up, and the sum is not divided.
        module.set_gradient_divide_factor(1.0)  # type: ignore[operator]
        module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    after = dict(root.named_parameters(remove_duplicate=False))
    new = {id(old): after[name] for name, old in before.items()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [new.get(id(each), each) for each in group["params"]]
        for old in [each for each in optimizer.state if id(each) in new and new[id(each)] is not each]:
            state, parameter = optimizer.state.pop(old), new[id(old)]
            optimizer.state[parameter] = {key: _like(value, parameter) for key, value in state.items()}


def _with_own_memory(module: nn.Module, inputs: Any, output: Any) -> Any:
    """A copy of what is a view: if that is changed in place, torch does not notice that the backward pass begins."""
    return mapped(lambda each: each.clone() if isinstance(each, Tensor) and each._is_view() else each, output)


def _refuse_gradient(gradient: Tensor) -> None:
    raise UserCodeError(
        "the loss is computed from parameters outside of the model's forward pass, as by a penalty on "
        "self.model.parameters(): with training.sharding their gradient would be that of one rank. Compute it in the "
        "forward pass of the module that has them, or give the optimizer a weight_decay"
    )


def _refuse_copy(memo: Any) -> None:
    raise UserCodeError(
        "a model that training.sharding has spread over the ranks cannot be copied: copy it in "
        "prepare_training_attributes, where it is whole; self.ema = AveragedModel(model) is sharded like the model"
    )


def _like(value: Any, parameter: Any) -> Any:
    """A state of an optimizer that was made for the whole parameter, in its shards."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def check_blocks(model: nn.Module, settings: "Sharding") -> None:
    """Check that there are modules of each class of `training.sharding.blocks`.

    Raises:
        ConfigError: of one there is none; the message names the nearest.
    """
    classes = {type(module).__name__ for module in model.modules()}
    if unknown := [name for name in settings.blocks if name not in classes]:
        meant = nearest(unknown[0], classes)
        raise ConfigError(
            f'training.sharding.blocks: no module of the model is of the class "{unknown[0]}"; '
            + (f'write "{meant}"' if meant else f"there are {one_of(sorted(classes))}")
        )


def units(root: nn.Module, settings: "Sharding", whole: Iterable[Tensor] = ()) -> list[nn.Module]:
    """The modules within a model that are gathered by themselves, inner ones first."""
    inner = [module for module in reversed(list(root.modules())) if module is not root and _can_run(module)]
    if not settings.blocks and settings.min_parameters is None:
        chosen = list(_children(root))
    else:
        chosen = [module for module in inner if type(module).__name__ in settings.blocks]
    if settings.min_parameters is not None:
        for module in inner:
            within = {id(each) for part in module.modules() if part in chosen for each in part.parameters()}
            own = {each for each in module.parameters() if id(each) not in within}
            if module not in chosen and sum(each.numel() for each in own) >= settings.min_parameters:
                chosen.append(module)
    chosen = [module for module in inner if module in chosen]
    left_out = set(map(id, whole))
    while shared := _sharing(root, chosen):
        # What is tied must be gathered together.
        chosen = [module for module in chosen if module not in shared]
    return [module for module in chosen if any(id(each) not in left_out for each in module.parameters())]


def _children(module: nn.Module) -> Iterator[nn.Module]:
    """The parts that a module calls, also those in lists and dicts."""
    for child in module.children():
        if _can_run(child):
            yield child
        else:
            yield from _children(child)


def _can_run(module: nn.Module) -> bool:
    """Whether it has a forward pass, in which it could be gathered, unlike a list."""
    return type(module).forward is not nn.Module.forward


def _sharing(root: nn.Module, chosen: Sequence[nn.Module]) -> set[nn.Module]:
    """Those of the `chosen` modules that share a parameter with what is outside of them."""
    owners: dict[int, set[nn.Module]] = {}

    def walk(module: nn.Module, owner: nn.Module) -> None:
        owner = module if module in chosen else owner
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(owner)
        for child in module.children():
            walk(child, owner)

    walk(root, root)
    return {owner for each in owners.values() if len(each) > 1 for owner in each} - {root}


def _check(server: TorchServer, named: Mapping[str, Tensor]) -> None:
    name = f"{type(server).__name__}.prepare_training_attributes"
    if isinstance(server.model, nn.ModuleList | nn.ModuleDict) and not _can_run(server.model):
        raise UserCodeError(
            f"{name} returned a {type(server.model).__name__} as the model, but training.sharding needs one with a "
            "forward pass: make a subclass of nn.Module that has these modules as its parts"
        )
    for optimizer in as_list(server.optimizer):
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UserCodeError(
                f"{name} returned an LBFGS optimizer, which training.sharding cannot be combined with: it takes all "
                "parameters for one vector, of which each rank would have a part. Take another, such as Adam"
            )
    if shared_out(server):
        raise UserCodeError(
            f"{name} returned a ZeroRedundancyOptimizer, which shares out whole states of parameters, but "
            "training.sharding has spread them already: return the optimizer that is inside"
        )
    if lazy := [key for key, each in named.items() if is_lazy(each)]:
        raise UserCodeError(
            f"{name} returned a model with lazy modules, which training.sharding cannot deal out, for they have no "
            f"shapes yet: {listed(lazy)}. Give them their sizes, or call the model once there"
        )
    if hooked := [key for key, each in named.items() if each._backward_hooks or each._post_accumulate_grad_hooks]:
        raise UserCodeError(
            f"{listed(hooked)} of the model {'have' if len(hooked) > 1 else 'has'} a hook (register_hook), which would "
            "not be called with training.sharding: write training.clip_value or clip_norm instead, or do it in "
            "on_gradients"
        )
