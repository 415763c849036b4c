"""What a rank says of its memory."""

import mmap
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from stream_server.server.ranks import SoloRanks
from stream_server.server.training.memory import MemoryGauge, host_bytes
from stream_server.server.training.metrics import Metrics

NUM_BYTES = 64 * 2**20


def read(gauge: MemoryGauge) -> dict[str, float]:
    metrics = Metrics(SoloRanks())
    gauge(metrics)
    metrics.write(1, 0.0)
    return metrics.latest


def with_torch(monkeypatch: pytest.MonkeyPatch, *, initialised: bool) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: initialised, memory_allocated=lambda: 7, max_memory_allocated=lambda: 9
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_what_is_touched_adds_to_the_memory_of_the_host() -> None:
    before = host_bytes()["memory/host_bytes"]
    # Not from the heap, whose freed memory may be resident already.
    with mmap.mmap(-1, NUM_BYTES) as memory:
        np.frombuffer(memory, np.uint8)[:] = 1
        after = host_bytes()
        assert after["memory/host_bytes"] - before > NUM_BYTES / 2
    assert after["memory/host_peak_bytes"] >= after["memory/host_bytes"]


def test_the_units_of_linux_become_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n")
    with_torch(monkeypatch, initialised=False)
    assert read(MemoryGauge(status)) == {"memory/host_peak_bytes": 2 * 2**20, "memory/host_bytes": 2**20}


def test_the_memory_of_a_gpu_is_logged_once_torch_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, initialised=True)
    found = read(MemoryGauge())
    assert (found["memory/device_bytes"], found["memory/device_peak_bytes"]) == (7, 9)


def test_torch_is_not_loaded_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert "memory/device_bytes" not in read(MemoryGauge())
    assert "torch" not in sys.modules
