"""The backend for the gradients, from the GPUs that the ranks see."""

import threading
from types import SimpleNamespace

import pytest
import torch

from stream_server.server.training.torch.devices import backend_of, device_of
from tests.fakes.thread_ranks import ThreadRanks, on_ranks


@pytest.mark.parametrize(
    ("seen", "backend"),
    [
        ([["a", "b"], ["a", "b"]], "nccl"),
        # As with one GPU for each task of a job: it is device 0 of every rank.
        ([["a"], ["b"]], "nccl"),
        ([["a"], ["a"]], "gloo"),
        ([["a", "b"]] * 3, "gloo"),
        ([["a"], []], "gloo"),
        ([[], []], "gloo"),
    ],
)
def test_ranks_with_gpus_of_their_own_take_nccl(
    seen: list[list[str]], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.local()
    monkeypatch.setattr("torch.cuda.is_available", lambda: bool(here.gpus))
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(here.gpus))
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda device: SimpleNamespace(uuid=here.gpus[device.index])
    )

    def chosen(ranks: ThreadRanks) -> tuple[torch.device, str]:
        here.gpus = seen[ranks.rank]
        return device_of(ranks), backend_of(ranks)

    found = on_ranks(len(seen), chosen)
    assert [it for _, it in found] == [backend] * len(seen)
    for (device, _), gpus in zip(found, seen, strict=True):
        assert device.type == ("cuda" if gpus else "cpu")
