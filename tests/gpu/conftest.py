"""Tests that need a GPU: `make test-gpu`. Where torch finds none there are none, as in CI, which skips nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

# The drivers of NVIDIA, of AMD, and of either in Windows' Linux.
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def _has_gpu() -> bool:
    """Whether torch finds one; each process of a run would import it for that, although hardly a machine has any."""
    if not any(Path(it).exists() for it in DRIVERS):
        return False
    import torch

    return torch.cuda.is_available()


collect_ignore_glob = [] if _has_gpu() else ["test_*.py"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """The driver and torch's compiler keep threads, files and folders until the process ends."""


@pytest.fixture
def device() -> "Iterator[torch.device]":
    """The first GPU, which has done all its work at the end."""
    import torch

    yield torch.device("cuda", 0)
    torch.cuda.synchronize()
