"""The memory that a rank reports."""

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stream_server import TorchServer
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring.gauges import MemoryGauge, host_bytes
from stream_server.server.user.framework import framework_of

NUM_BYTES = 64 * 2**20


def read(gauge: MemoryGauge) -> dict[str, float]:
    metrics = Metrics(SoloRanks())
    gauge(metrics)
    metrics.write(1, 0.0)
    return metrics.latest


def test_what_is_touched_adds_to_the_memory_of_the_host() -> None:
    before = host_bytes()["memory/host_bytes"]
    # Not from the heap, whose freed memory may be resident already.
    with mmap.mmap(-1, NUM_BYTES) as memory:
        np.frombuffer(memory, np.uint8)[:] = 1
        after = host_bytes()
        assert after["memory/host_bytes"] - before > NUM_BYTES / 2
    assert after["memory/host_peak_bytes"] >= after["memory/host_bytes"]


def test_the_units_of_linux_become_bytes(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n")
    assert read(MemoryGauge(status=status)) == {"memory/host_peak_bytes": 2 * 2**20, "memory/host_bytes": 2**20}


def test_the_memory_of_a_gpu_is_logged_once_torch_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = MemoryGauge(framework_of(TorchServer).device_bytes)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    assert "memory/device_bytes" not in read(gauge)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda: 7)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 9)
    found = read(gauge)
    assert (found["memory/device_bytes"], found["memory/device_peak_bytes"]) == (7, 9)


def test_torch_is_not_loaded_for_a_server_that_does_without() -> None:
    code = (
        "import sys; from stream_server import StreamServer as S; from stream_server.server.user.framework import *; "
        "print(framework_of(S).device_bytes(), 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["{}", "False"]
