"""Fingerprints of torch modules, taken where their tensors are."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.fingerprint import CHUNK, FACTOR, Fingerprints, differing, multipliers, of_arrays
from stream_server.server.training.torch.shards import is_sharded, local, rows
from stream_server.server.training.torch.weights import ServerModules
from stream_server.wording import listed

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def of_model(model: nn.Module, further: Mapping[str, Tensor] = MappingProxyType({})) -> Fingerprints:
    """The fingerprints of the parameters of a model, and of the buffers in its state, by the names of its `state_dict`.

    Those of `further` tensors are among them. Only those few numbers leave the device. Tensors that a checkpoint cannot
    hold are left out, and those of which each rank has other rows.
    """
    names = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    parameters = {names.get(id(parameter), own): parameter for own, parameter in model.named_parameters()}
    buffers = {names[id(buffer)]: buffer for buffer in model.buffers() if id(buffer) in names}
    tensors = {**parameters, **buffers, **further}
    return of_tensors({name: tensor for name, tensor in tensors.items() if not is_sharded(tensor)})


def of_whole(ranks: Ranks, tensors: Mapping[str, Tensor]) -> Fingerprints:
    """Those of `of_tensors`, where those of sharded tensors are of all rows, whatever rank has them. Collective if any.

    A fingerprint is a sum over all words, so it is the sum of what the words of each rank add to it.
    """
    prints = dict(of_tensors(tensors))
    sharded = [name for name, tensor in tensors.items() if is_sharded(tensor)]
    if sharded:
        shares = ranks.broadcast(ranks.gather([_share(tensors[name]) for name in sharded]))
        for name, shares_of_it in zip(sharded, zip(*shares, strict=True), strict=True):
            prints[name] = _signed(sum(shares_of_it))
    return prints


def _share(tensor: Tensor) -> int:
    """This rank's contribution to the fingerprint of a sharded tensor."""
    own, first = local(tensor), rows(tensor).start
    words = tensor.element_size() // min(tensor.element_size(), 4)
    num_chunks, start = -(-tensor.numel() * words // CHUNK), own[:1].numel() * first * words
    total = fingerprint(own, start=start, size=tensor.numel() if first == 0 and own.numel() else 0)
    num_done = -(-(start + own.numel() * words) // CHUNK)
    return int(total) * pow(FACTOR, num_chunks - num_done, 1 << 64) % (1 << 64)


def _signed(number: int) -> int:
    number %= 1 << 64
    return number - (1 << 64) * (number >> 63)


def of_tensors(tensors: Mapping[str, Tensor]) -> Fingerprints:
    """The fingerprints of tensors by name, without those that a checkpoint cannot hold; of shards, of those alone."""
    tensors = {name: local(tensor) for name, tensor in tensors.items()}
    to_be_made: Fingerprints = {name: None for name, tensor in tensors.items() if is_lazy(tensor)}
    prints = {
        name: fingerprint(tensor)
        for name, tensor in tensors.items()
        if name not in to_be_made and tensor.layout is torch.strided and tensor.device.type != "meta"
    }
    if not prints:
        return to_be_made
    one_device = next(iter(prints.values())).device
    numbers: list[int] = torch.stack([value.to(one_device) for value in prints.values()]).tolist()
    return {**dict(zip(prints, numbers, strict=True)), **to_be_made}


def fingerprint(tensor: Tensor, *, start: int = 0, size: int | None = None) -> Tensor:
    """The fingerprint of a tensor, of one element, on its device: that of the same NumPy array.

    What begins at word `start` of a larger one is multiplied as there, up to the end of its last chunk; `size` is the
    number of elements that is part of the fingerprint.
    """
    total = torch.full((), tensor.numel() if size is None else size, dtype=torch.int64, device=tensor.device)
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # A tensor of one element counts as contiguous whatever its strides are.
    flat = dense.as_strided((dense.numel(),), (1,))
    words = flat.view(_INTEGERS[min(flat.element_size(), 4)])
    first = min(CHUNK - start % CHUNK, len(words))
    for chunk in (words[:first], *(torch.split(words[first:], CHUNK) if first < len(words) else ())):
        total = total * FACTOR + (chunk * _multipliers(tensor.device)[start % CHUNK :][: len(chunk)]).sum()
        start = 0
    return total


@cache
def _multipliers(device: torch.device) -> Tensor:
    return torch.from_numpy(multipliers()).to(device)


class Constants:
    """The arrays that modules have beside their state, which are to be the same wherever they are made.

    `warn` is told of those that are not. Main thread.

    Attributes:
        made: the fingerprints of those that are made with the modules.
    """

    _HINT = (
        "make them in prepare_training_attributes, by register_buffer, so that they are saved with the weights, or "
        "drawn there by torch, np.random or random, which the study seeds, and by no generator without a seed"
    )

    def __init__(self, ranks: Ranks, weights: ServerModules, warn: Callable[[str], None]) -> None:
        self.made: Fingerprints = {}
        self._ranks = ranks
        self._weights = weights
        self._warn = warn
        self._made_late: Fingerprints = {}

    def note_made(self) -> None:
        """Note those that there are once the modules are made. Collective."""
        trained = {*of_tensors(self._weights.trainable()).values()}
        self.made = {name: value for name, value in self._now().items() if value not in trained}
        self._tell(differing(self._ranks, lambda: self.made))

    def note_made_late(self) -> None:
        """Note those that the first batch of this rank has made."""
        self._made_late = {name: value for name, value in self._now().items() if name not in self.made}

    def compare_ranks(self, *, has_trained: bool) -> None:
        """Compare those that the first batch has made, but for what later ones have changed. Collective."""
        # What has not changed since the first batch is no result of one.
        now = self._now() if self._made_late else {}
        same = {name: mark for name, mark in self._made_late.items() if has_trained and now.get(name) == mark}
        self._tell(differing(self._ranks, lambda: same, missing=None))

    def compare(self, before: Mapping[str, int | None]) -> None:
        """Compare those of now with those of a training before this one."""
        if names := [name for name, value in self.made.items() if before.get(name, value) != value]:
            self._warn(
                f"the model was trained with other values of {listed(names)}, so that its weights stand for another "
                f"network: {self._HINT}"
            )

    def _now(self) -> Fingerprints:
        attributes = of_arrays(self._weights.attributes(), kinds="fciub")
        return {**attributes, **of_tensors(self._weights.unsaved())}

    def _tell(self, names: Sequence[str]) -> None:
        if names:
            self._warn(
                f"{listed(names)} of the model {'are' if len(names) > 1 else 'is'} not the same on all "
                f"{self._ranks.size} ranks: they train different networks with the same weights. "
                f"{self._HINT[0].upper()}{self._HINT[1:]}"
            )
