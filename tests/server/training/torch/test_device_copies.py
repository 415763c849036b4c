"""Copies to a device, with a stand-in for the GPU that notes what it is asked and by whom."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from stream_server.server.training.prefetch import Prefetch
from stream_server.server.training.torch.device_copies import DeviceCopies, OnItsWay


class FakeDevice:
    """A GPU whose copies take until somebody waits for them."""

    def __init__(self) -> None:
        self.pinned: list[int] = []
        self.used: list[int] = []
        self.heard: list[str] = []
        self.is_beside = False
        self.num_marks = 0

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        self.pinned.append(copy.data_ptr())
        return copy

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.is_beside = True
        yield
        self.is_beside = False

    def move(self, data: Any) -> Any:
        where = "beside" if self.is_beside else "in the step's way"
        self.heard.append(f"move {where} on {threading.current_thread().name}")
        return data

    def mark(self) -> int:
        assert self.is_beside
        self.num_marks += 1
        return self.num_marks

    def wait(self, event: int) -> None:
        self.heard.append(f"wait for {event} on {threading.current_thread().name}")

    def use(self, tensor: torch.Tensor) -> None:
        self.used.append(tensor.data_ptr())


def test_a_batch_is_pinned_and_copied_where_it_is_formed_and_waited_for_where_it_is_trained() -> None:
    device = FakeDevice()
    copies = DeviceCopies(device, device.move)
    batches = [{"u": torch.arange(3.0) + it, "lengths": [torch.tensor([it])], "name": "a"} for it in range(2)]
    with Prefetch(copies.begin) as prefetch:
        for batch in batches:
            prefetch.begin(batch)
        made = [prefetch.take() for _ in batches]
    trained = [copies.finish(it) for it in made]
    assert device.heard == ["move beside on prefetch"] * 2 + ["wait for 1 on MainThread", "wait for 2 on MainThread"]
    assert [it["u"].tolist() for it in trained] == [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
    assert [it["name"] for it in trained] == ["a", "a"]
    # All tensors went through pinned memory, and are kept for the steps that use them.
    assert len(device.pinned) == 4
    assert device.used == device.pinned
    assert {it["u"].data_ptr() for it in trained} <= set(device.pinned)


def test_what_has_no_memory_to_pin_is_moved_as_it_is() -> None:
    device = FakeDevice()
    sparse, array = torch.eye(2).to_sparse(), np.zeros(2)
    made = DeviceCopies(device, device.move).begin((sparse, array, None))
    assert isinstance(made, OnItsWay)
    assert device.pinned == []
    assert made.data[0] is sparse
    assert made.data[1] is array


def test_what_is_on_the_device_may_change_while_its_batch_waits() -> None:
    device, there = FakeDevice(), torch.empty(2, device="meta")
    assert DeviceCopies(device, device.move).begin(there).data is not there
