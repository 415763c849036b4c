"""Copies of batches to a GPU beside the step: through pinned memory, on a stream of their own.

Why: docs/decisions/0029-gathering-and-copies.md
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True, eq=False)
class OnItsWay:
    """Data on the device, complete once the device has come to `event`."""

    data: Any
    event: Any


class Device(Protocol):
    """The operations of a GPU that copies need."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in memory of the host that the device reads by itself."""
        ...

    def beside(self) -> AbstractContextManager[Any]:
        """Within, the device works beside the steps."""
        ...

    def mark(self) -> Any:
        """An event that the device comes to after all that it was given so far within `beside`."""
        ...

    def wait(self, event: Any) -> None:
        """Make the steps of the calling thread begin after an event; the thread itself goes on."""
        ...

    def use(self, tensor: torch.Tensor) -> None:
        """Keep the memory of a tensor until the steps of the calling thread have come past this point."""
        ...


class CudaDevice:
    """A GPU, with a stream of its own for copies."""

    def __init__(self, device: torch.device) -> None:
        self._copies: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def beside(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._copies)

    def mark(self) -> Any:
        return self._copies.record_event()

    def wait(self, event: Any) -> None:
        torch.cuda.current_stream().wait_event(event)

    def use(self, tensor: torch.Tensor) -> None:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream())


class DeviceCopies:
    """Brings batches to a device while it still computes an earlier one.

    `begin` belongs to the thread that forms batches, `finish` to the one that trains. `move` copies whatever can be
    moved, without waiting where the source is pinned.
    """

    def __init__(self, device: Device, move: Callable[[Any], Any]) -> None:
        self._device = device
        self._move = move

    def begin(self, data: Any) -> OnItsWay:
        """Start to copy a batch's data, which may change afterwards."""
        own = mapped(self._copy, data)
        with self._device.beside():
            return OnItsWay(self._move(own), self._device.mark())

    def finish(self, on_its_way: OnItsWay) -> Any:
        """The data on the device, for what the calling thread computes from now on."""
        self._device.wait(on_its_way.event)
        mapped(self._use, on_its_way.data)
        return on_its_way.data

    def _use(self, data: Any) -> None:
        if isinstance(data, torch.Tensor):
            self._device.use(data)

    def _copy(self, data: Any) -> Any:
        """A copy of what moving does not copy, or does not wait for."""
        if not isinstance(data, torch.Tensor):
            return data
        if data.device.type != "cpu":
            return data.clone()
        return self._device.pin(data) if data.layout is torch.strided else data


def mapped(function: Callable[[Any], Any], data: Any, is_whole: Callable[[Any], bool] = lambda _: False) -> Any:
    """`data` with everything in it replaced by what `function` gives, through tuples, lists, dicts and dataclasses.

    What `is_whole` is not opened, although it may be one of these.
    """
    if is_whole(data):
        return function(data)
    if isinstance(data, Mapping):
        items = {key: mapped(function, value, is_whole) for key, value in data.items()}
        make: Any = type(data) if not isinstance(data, defaultdict) else partial(defaultdict, data.default_factory)
        return make(items)
    if isinstance(data, tuple | list):
        values = [mapped(function, value, is_whole) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    if is_dataclass(data) and not isinstance(data, type):
        copied = copy(data)
        for field in fields(data):
            object.__setattr__(copied, field.name, mapped(function, getattr(data, field.name), is_whole))
        return copied
    return function(data)
