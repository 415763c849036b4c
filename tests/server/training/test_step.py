"""The settings that a plain StreamServer's step refuses."""

from typing import Any

import pytest

from stream_server.errors import ConfigError
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.user.framework import framework_of
from stream_server.server.user.stream_server import StreamServer
from tests.support.settings import settings


@pytest.mark.parametrize(
    "ignored",
    [
        {"accumulate": 2},
        {"clip_norm": 1.0},
        {"clip_value": 1.0},
        {"compile": True},
        {"matmul_precision": "high"},
        {"deterministic": True},
    ],
)
def test_settings_for_torch_are_refused(ignored: dict[str, Any]) -> None:
    server = StreamServer(settings(**ignored))
    with pytest.raises(
        ConfigError, match=rf"^training\.{next(iter(ignored))} must be left out: that is for a TorchServer"
    ):
        framework_of(server).make_step(server, SoloRanks())


def test_all_that_is_refused_is_told_at_once() -> None:
    server = StreamServer(settings(accumulate=2, compile=True))
    with pytest.raises(ConfigError, match=r"^training\.accumulate and training\.compile must be left out"):
        framework_of(server).make_step(server, SoloRanks())
