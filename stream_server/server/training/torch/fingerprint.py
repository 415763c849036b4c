"""Fingerprints of torch modules, taken where their tensors are."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stream_server.server.training.fingerprint import CHUNK, FACTOR, Fingerprints, multipliers

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def of_model(model: nn.Module, further: Mapping[str, Tensor] = MappingProxyType({})) -> Fingerprints:
    """The fingerprints of the parameters of a model, and of the buffers in its state, by the names of its `state_dict`.

    Those of `further` tensors are among them. Only those few numbers leave the device. Tensors that a checkpoint cannot
    hold are left out.
    """
    names = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    parameters = {names.get(id(parameter), own): parameter for own, parameter in model.named_parameters()}
    buffers = {names[id(buffer)]: buffer for buffer in model.buffers() if id(buffer) in names}
    return of_tensors({**parameters, **buffers, **further})


def of_tensors(tensors: Mapping[str, Tensor]) -> Fingerprints:
    """The fingerprints of tensors by name, without those that a checkpoint cannot hold."""
    to_be_made: Fingerprints = {name: None for name, tensor in tensors.items() if is_lazy(tensor)}
    prints = {
        name: fingerprint(tensor)
        for name, tensor in tensors.items()
        if name not in to_be_made and _can_be_saved(tensor)
    }
    if not prints:
        return to_be_made
    one_device = next(iter(prints.values())).device
    numbers: list[int] = torch.stack([value.to(one_device) for value in prints.values()]).tolist()
    return {**dict(zip(prints, numbers, strict=True)), **to_be_made}


def fingerprint(tensor: Tensor) -> Tensor:
    """The fingerprint of a tensor, of one element, on its device: that of the same NumPy array."""
    total = torch.full((), tensor.numel(), dtype=torch.int64, device=tensor.device)
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # A tensor of one element counts as contiguous whatever its strides are.
    flat = dense.as_strided((dense.numel(),), (1,))
    for chunk in torch.split(flat.view(_INTEGERS[min(flat.element_size(), 4)]), CHUNK):
        total = total * FACTOR + (chunk * _multipliers(tensor.device)[: len(chunk)]).sum()
    return total


@cache
def _multipliers(device: torch.device) -> Tensor:
    return torch.from_numpy(multipliers()).to(device)


def _can_be_saved(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta" and not hasattr(tensor, "to_local")
