"""The loops that are compared: ours over a stream, ours over resident data, and a bare one over resident data."""

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.cases import NUM_STEPS, Case, loss_of
from benchmarks.step import NUM_PARAMETERS, Ours
from stream_server.buffers import Buffer
from stream_server.buffers.batch_memory import BatchMemory
from stream_server.buffers.row_copies import RowCopies
from stream_server.server.progress.batches import Batch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.stream import BatchStream
from stream_server.server.training.torch.device_copies import DeviceCopies, OnItsWay
from stream_server.server.training.torch.devices import device_of

DEVICE = device_of(SoloRanks())


def synchronized() -> float:
    """The wall clock, once the device has done all its work."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def random_rows(num: int, num_values: int) -> NDArray[np.float32]:
    """Random samples, of which each block of 16 is like another: zeros and ones compute faster than data does."""
    block = np.random.default_rng(1).random((min(num, 16), num_values), np.float32)
    return np.resize(block, (num, num_values))


def fill(buffer: Buffer) -> None:
    """Fill up a buffer whose arrays are there."""
    slots, num = buffer.slots, buffer.capacity - buffer.population
    claimed = buffer.claim(num)
    slots.arrays["field"][claimed] = random_rows(num, slots.arrays["field"].shape[1])
    slots.simulation_ids[claimed] = 0
    slots.time_steps[claimed] = np.arange(num) % NUM_STEPS
    buffer.enqueue(claimed)
    buffer.admit()


class Resident:
    """Inputs and fields on the device, as many as the buffer has."""

    def __init__(self, case: Case) -> None:
        self.fields = torch.from_numpy(random_rows(case.capacity, case.num_values)).to(DEVICE)
        self.inputs = torch.rand(case.capacity, NUM_PARAMETERS + 1, device=DEVICE)
        self._num = case.batch_size

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of random rows."""
        rows = torch.randint(len(self.fields), (self._num,), device=DEVICE)
        return self.inputs[rows], self.fields[rows]


class ResidentStream:
    """Our loop's stream, of batches that never leave the device."""

    def __init__(self, resident: Resident, num: int) -> None:
        self._resident = resident
        self._keys, self._is_first = np.zeros((2, num), np.int64), np.zeros(num, bool)

    def draw(self, timeout_s: float) -> Batch:
        return Batch(data=self._resident.batch(), size=len(self._is_first), keys=self._keys, is_first=self._is_first)

    def form_again(self) -> Batch:
        return self.draw(0.0)

    def release(self) -> None:
        pass

    def quiesce(self) -> None:
        pass


class Bare:
    """Random rows, forward, backward, update, in the same precision, with nothing around it and no wait."""

    def __init__(self, case: Case, resident: Resident, precision: str) -> None:
        self._case, self._resident = case, resident
        self._model, self._optimizer = case.make(DEVICE)
        kind = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
        self._autocast = torch.autocast(DEVICE.type, kind, enabled=kind is not None)
        self._scaler = torch.amp.GradScaler(DEVICE.type, enabled=kind is torch.float16)

    def rate(self) -> float:
        start_s = synchronized()
        for _ in range(self._case.num_batches):
            with self._autocast:
                loss = loss_of(self._model, *self._resident.batch())
            self._optimizer.zero_grad()
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return self._case.num_batches / (synchronized() - start_s)


class Loops:
    """Our loop with one model over several streams; each call of a rate is a round, in batches per second."""

    def __init__(self, stack: ExitStack, case: Case, precision: str, buffer: Buffer) -> None:
        self._stack, self._case, self._buffer = stack, case, buffer
        self._ours = Ours(
            stack,
            case.server_class(DEVICE),
            precision=precision,
            buffer=buffer,
            batch_size=case.batch_size,
            num_batches=case.num_batches,
            num_threads=len(os.sched_getaffinity(0)),
        )

    def resident(self, resident: Resident) -> Callable[[], float]:
        """Rounds over what lies on the device."""
        stream = ResidentStream(resident, self._case.batch_size)
        return lambda: self._ours.rate(synchronized, stream)

    def streamed(self, prefetch: int, *, pinned: bool = False, alone: bool = False) -> Callable[[], float]:
        """Rounds over the buffer; `pinned` changes the way of a batch, see `Pinned`, and `alone` one thread gathers."""
        stream: Any = self._stack.enter_context(self._ours.make_stream(prefetch))
        if pinned:
            Pinned(self._ours.step, self._case).take_over(stream)
        if alone:
            stream._forming._copies = RowCopies(1)
        return lambda: self._rate(stream)

    def _rate(self, stream: BatchStream) -> float:
        return self._ours.rate(synchronized, stream)


class Pinned(BatchMemory):
    """Batches are gathered into memory that the device reads, which is used again once it has been read."""

    def __init__(self, step: Any, case: Case) -> None:
        self._copies: DeviceCopies | None = step._copies
        self._case = case
        self._in_use: deque[OnItsWay] = deque()

    def take_over(self, stream: Any) -> None:
        """Change the way of the batches of a stream."""
        forming = stream._forming
        super().__init__(self._slots_of(forming), self._case.batch_size, max_sets=forming._memory._max_sets)
        for _ in range(self._max_sets):
            shape = (self._case.batch_size, self._case.num_values)
            self._sets.append({"field": torch.empty(shape, pin_memory=self._copies is not None).numpy()})
        forming._memory = self
        if self._copies is not None:
            forming._stage = self._stage

    @staticmethod
    def _slots_of(forming: Any) -> Any:
        return forming._buffer.slots

    def _stage(self, data: Any) -> OnItsWay:
        assert self._copies is not None
        while self._in_use and self._in_use[0].event.query():
            self._in_use.popleft()
        moved = self._copies.begin(data)
        self._in_use.append(OnItsWay(data, moved.event))
        return moved
