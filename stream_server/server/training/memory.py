"""How much memory this process and its device use."""

import sys
from pathlib import Path
from typing import Any

from stream_server.server.training.metrics import Metrics

STATUS = Path("/proc/self/status")
HOST = {"VmRSS": "memory/host_bytes", "VmHWM": "memory/host_peak_bytes"}


class MemoryGauge:
    """Bytes of this rank now and at their peak: resident in the host, and what torch has taken of its GPU, if any.

    Torch is looked at only where the user's class has loaded it and put something on a GPU.
    """

    def __init__(self, status: Path = STATUS) -> None:
        self._status = status

    def __call__(self, metrics: Metrics, /) -> None:
        for name, num_bytes in host_bytes(self._status).items():
            metrics.log(name, num_bytes)
        cuda = _cuda()
        if cuda is not None:
            metrics.log("memory/device_bytes", cuda.memory_allocated())
            metrics.log("memory/device_peak_bytes", cuda.max_memory_allocated())


def host_bytes(status: Path = STATUS) -> dict[str, int]:
    """Resident bytes of this process, now and at their peak, as Linux counts them."""
    lines = (line.partition(":") for line in status.read_text().splitlines())
    return {HOST[key]: 1024 * int(value.split()[0]) for key, _, value in lines if key in HOST}


def _cuda() -> Any:
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
