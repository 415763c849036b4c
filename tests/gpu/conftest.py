"""Tests that need a GPU: `make test-gpu`. Where torch finds none there are none, as in CI, which skips nothing."""

from collections.abc import Iterator

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """The driver and torch's compiler keep threads, files and folders until the process ends."""


@pytest.fixture
def device() -> Iterator[torch.device]:
    """The first GPU, which has done all its work at the end."""
    yield torch.device("cuda", 0)
    torch.cuda.synchronize()
