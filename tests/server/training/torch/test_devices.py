"""The backend for the gradients, from the GPUs that the ranks see."""

import threading
from types import SimpleNamespace

import pytest
import torch

from stream_server.errors import ConfigError
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.devices import backend_of, device_of
from stream_server.server.training.torch.step import TorchStep
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.support.settings import settings
from tests.support.torch_servers import Scale


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
        device = device_of(ranks)
        return device, backend_of(ranks, device)

    found = on_ranks(len(seen), chosen)
    assert [it for _, it in found] == [backend] * len(seen)
    for (device, _), gpus in zip(found, seen, strict=True):
        assert device.type == ("cuda" if gpus else "cpu")


def test_a_study_may_leave_the_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server, refused = Scale(settings(device="cpu")), settings(device="cpu", precision="16-true")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert device_of(SoloRanks()).type == "cuda"
    with TorchStep(server, SoloRanks(), server.config):
        assert server.device.type == "cpu"
        assert {parameter.device.type for parameter in server.model.parameters()} == {"cpu"}
    with pytest.raises(ConfigError, match="needs a GPU, and this rank has none"):
        TorchStep(server, SoloRanks(), refused)
    with pytest.raises(ConfigError, match="needs a GPU, and this rank has none"):
        Scale(refused)
    # Asking CUDA would begin a context on the GPU.
    monkeypatch.setattr("torch.cuda.is_available", lambda: pytest.fail("CUDA was asked"))
    Scale(settings(device="cpu", precision="bf16-mixed"))
