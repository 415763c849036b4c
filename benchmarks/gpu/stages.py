"""The stages of a batch's way to the device, each by itself, in milliseconds."""

import os
import statistics
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.loops import DEVICE, synchronized
from stream_server.buffers import Buffer
from stream_server.buffers.row_copies import RowCopies

NUM_ROUNDS = 9


def stages(case: Case, buffer: Buffer) -> dict[str, float]:
    """Medians: gather by one thread and by several, pin, copy from three kinds of memory."""
    slots, random = buffer.slots, np.random.default_rng(3)
    shape = (case.batch_size, case.num_values)
    has_gpu = DEVICE.type == "cuda"
    reused = torch.empty(shape)
    pinned = torch.empty(shape, pin_memory=has_gpu)
    target = torch.empty(shape, device=DEVICE)

    def rows() -> Any:
        return random.integers(slots.num_slots, size=case.batch_size)

    def gather(copies: RowCopies) -> float:
        return _median_ms(lambda: slots.gather(rows(), {"field": reused.numpy()}, copies.take))

    found = {"gather.alone": gather(RowCopies(1))}
    with closing(RowCopies(len(os.sched_getaffinity(0)))) as copies:
        found["gather"] = gather(copies)
    if has_gpu:
        found["pin"] = _median_ms(lambda: reused.pin_memory())
    found["copy.pageable"] = _median_ms(lambda: target.copy_(reused))
    found["copy.pinned"] = _median_ms(lambda: target.copy_(pinned, non_blocking=True))
    if has_gpu:
        # Not every system lets a process register so much memory.
        with suppress(RuntimeError):
            found["copy.rows"] = _copy_rows_ms(slots.arrays["field"], target, rows)
    return found


def _copy_rows_ms(array: Any, target: torch.Tensor, rows: Callable[[], Any]) -> float:
    """Each row straight out of the buffer, whose memory is registered meanwhile: no copy on the host at all."""
    runtime: Any = torch.cuda.cudart()
    source = torch.from_numpy(array)
    torch.cuda.check_error(runtime.cudaHostRegister(array.ctypes.data, array.nbytes, 0))
    try:

        def copy() -> None:
            for place, row in enumerate(rows().tolist()):
                target[place].copy_(source[row], non_blocking=True)

        return _median_ms(copy)
    finally:
        torch.cuda.check_error(runtime.cudaHostUnregister(array.ctypes.data))


def _median_ms(work: Callable[[], object]) -> float:
    work()
    seconds = []
    for _ in range(NUM_ROUNDS):
        start_s = synchronized()
        work()
        seconds.append(synchronized() - start_s)
    return 1e3 * statistics.median(seconds)
