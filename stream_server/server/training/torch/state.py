"""State with torch tensors in it, as plain state."""

import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import torch

from stream_server.errors import DamagedCheckpoint
from stream_server.server.training.torch.shards import OfShards, bytes_of, is_sharded, like, local
from stream_server.storage.plain_state import DeferredArray
from stream_server.storage.shards import reference

_TENSOR = "__tensor__"
_MODULE = "__module_state__"
_DTYPE = "__dtype__"
_JUNK = (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError)


def as_reference(name: str, tensor: torch.Tensor) -> Any:
    """What stands for a tensor that the ranks share out, each of which saves its part."""
    return reference(name)


def plain(state: Any, name: str = "the state", of_shards: OfShards | None = None) -> Any:
    """A copy of the state in which every tensor is an array with its type; later changes do not show in it.

    In the place of the array of one that the ranks share out is what `of_shards` gives; without, it is refused. Dicts,
    lists and tuples may be nested; everything that is no tensor is left for `plain_state.encode` to judge, which needs
    no further copies. Main thread: it waits for the device.

    Raises:
        TypeError: a tensor is of a kind that cannot be saved, such as a sparse one; the message says where.
    """
    if isinstance(state, torch.Tensor):
        if any(each.is_partial() for each in getattr(state, "placements", ())):
            raise TypeError(f"{name} is a DTensor that is yet to be added up over the ranks: keep its full_tensor()")
        if not is_sharded(state):
            return _plain_tensor(local(state), name)
        if of_shards is None:
            raise TypeError(f"{name} is a DTensor, of which each rank has a part: save it with the model alone")
        return {_TENSOR: [_name(state.dtype), list(state.shape), of_shards(name, state)]}
    if isinstance(state, np.ndarray):
        return state.copy(order="K")
    if isinstance(state, torch.dtype):
        return {_DTYPE: _name(state)}
    if isinstance(state, dict):
        return _plain_dict(state, name, of_shards)
    if type(state) is list:
        return [plain(item, f"{name}.{index}", of_shards) for index, item in enumerate(state)]
    if type(state) in (tuple, torch.Size):
        return tuple(plain(item, f"{name}.{index}", of_shards) for index, item in enumerate(state))
    return state


def restored(state: Any, own: Any = None) -> Any:
    """The state that `plain` was given, with tensors on the CPU that share no memory with anything.

    Where `own`, of the same structure, has a tensor that the ranks share out, they share out the restored one, too.

    Raises:
        DamagedCheckpoint: a tensor's description is junk.
    """
    if isinstance(state, dict):
        if _TENSOR in state:
            return _tensor(state[_TENSOR], own)
        if _MODULE in state:
            return _module_state(state[_MODULE], own)
        if _DTYPE in state:
            return _dtype(state[_DTYPE])
        items = {key: restored(item, _below(own, key)) for key, item in state.items()}
        if isinstance(state, defaultdict):
            return defaultdict(state.default_factory, items)
        return type(state)(items)
    if isinstance(state, list | tuple):
        return type(state)(restored(item) for item in state)
    return state[:] if isinstance(state, DeferredArray) else state


def torch_random_states() -> dict[str, Any]:
    """The states of torch's generators, on the CPU and on every CUDA device, as plain state."""
    # Asking a CUDA that nobody uses would start it.
    cuda = torch.cuda.get_rng_state_all() if _uses_cuda() else []
    return {"cpu": torch.get_rng_state().numpy().copy(), "cuda": [state.numpy().copy() for state in cuda]}


def set_torch_random_states(states: Any) -> None:
    """Restore what `torch_random_states` returned; devices that are not there any more are left out.

    Raises:
        DamagedCheckpoint: these are no states of generators.
    """
    try:
        torch.set_rng_state(torch.from_numpy(states["cpu"].copy()))
        devices = range(torch.cuda.device_count())
        for device, state in zip(devices, states["cuda"], strict=False):
            torch.cuda.set_rng_state(torch.from_numpy(state.copy()), device)
    except _JUNK as error:
        raise DamagedCheckpoint(f"the state of torch's random generators cannot be restored: {error}") from error


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _below(own: Any, key: Any) -> Any:
    return own.get(key) if isinstance(own, dict) else None


def _plain_dict(state: dict[Any, Any], name: str, of_shards: OfShards | None) -> Any:
    for key in (_TENSOR, _MODULE, _DTYPE):
        if key in state:
            raise TypeError(f"{name} has a key {key!r}, which stands for something else when it is saved")
    items = {key: plain(item, f"{name}.{key}", of_shards) for key, item in state.items()}
    if type(state) is OrderedDict and hasattr(state, "_metadata"):
        # Modules read the versions in it when they load a state.
        return {_MODULE: [items, plain(dict(state._metadata), f"{name}._metadata")]}
    if type(state) in (OrderedDict, Counter):
        return type(state)(items)
    if type(state) in (dict, defaultdict):
        return items
    raise TypeError(f"{name} is a {type(state).__name__}, but only dicts and OrderedDicts can be saved")


def _plain_tensor(tensor: torch.Tensor, name: str) -> Any:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.is_quantized:
        raise TypeError(f"{name} is a {type(tensor).__name__}, but only plain tensors can be saved")
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise TypeError(f"{name} is a {tensor.layout} tensor on {tensor.device}, but only dense ones can be saved")
    return {_TENSOR: [_name(tensor.dtype), list(tensor.shape), bytes_of(tensor)]}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: Any) -> torch.dtype:
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise DamagedCheckpoint(f"the type of a tensor cannot be restored: {name!r}"[:200])
    return dtype


def _tensor(content: Any, own: Any) -> torch.Tensor:
    try:
        name, shape, array = content
        dtype = _dtype(name)
        if array.dtype != np.uint8:
            raise ValueError(f"the {name} has no bytes")
        if math.prod(shape) * dtype.itemsize != array.size:
            raise ValueError(f"{array.size} bytes are not those of {name} in the shape {shape}")

        def read(start: int, stop: int, shape: Any = shape) -> torch.Tensor:
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
            tensor.reshape(-1).view(torch.uint8).numpy()[:] = array[start:stop]
            return tensor

        if not shape or own is None or not is_sharded(own):
            return read(0, array.size)
        num_bytes = math.prod(shape[1:]) * dtype.itemsize
        return like(
            own, shape, lambda start, stop: read(start * num_bytes, stop * num_bytes, [stop - start, *shape[1:]])
        )
    except _JUNK as error:
        raise DamagedCheckpoint(f"a tensor cannot be restored: {error}"[:200]) from error


def _module_state(content: Any, own: Any) -> Any:
    try:
        items, metadata = content
        state: Any = OrderedDict((key, restored(item, _below(own, key))) for key, item in items.items())
        state._metadata = OrderedDict(metadata)
    except _JUNK as error:
        raise DamagedCheckpoint(f"a module's state cannot be restored: {error}"[:200]) from error
    return state
