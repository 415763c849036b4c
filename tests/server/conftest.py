"""One thread for torch in this process."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def torch_has_one_thread() -> None:
    """Threads of torch wait for each other busily: where others run on the same cores, a small step takes seconds."""
    torch.set_num_threads(1)
