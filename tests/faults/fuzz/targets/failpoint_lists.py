"""STREAM_FAILPOINTS: what it arms can be done at once, or `ValueError` in words."""

import math
import os
import signal
import time

import pytest

from tests.faults.fuzz import scratch
from tests.faults.fuzz.target import Target
from tests.support import failpoints
from tests.support.failpoints import FailpointError, armed_by

FOLDER = scratch.folder()


def run(data: bytes) -> None:
    """Arm what stands there, and pass each place once; nothing is really killed."""
    text = data.decode(errors="surrogateescape").replace("\0", "")
    try:
        armed = armed_by(text)
    except ValueError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", _killed)
        patch.setattr(os, "_exit", _left)
        patch.setattr(time, "sleep", _slept)
        patch.setattr(failpoints.sys, "stderr", _Silence())
        for name, failpoint in armed.items():
            assert name == failpoint.name
            assert isinstance(failpoint.passed(), FailpointError | OSError | None)


def _killed(pid: int, number: int) -> None:
    assert (pid, number) in ((os.getpid(), signal.SIGKILL), (os.getpid(), signal.SIGSTOP))


def _left(code: int) -> None:
    assert 0 <= code <= 255, "the system has no such exit code"


def _slept(seconds: float) -> None:
    assert 0 <= seconds <= math.nextafter(2.0**63 / 1e9, 0), "nobody can sleep so long"


class _Silence:
    def write(self, text: str) -> None:
        text.encode(errors="surrogateescape")


TARGET = Target(
    run=run,
    seeds=(
        b"checkpoint.renamed=kill@3,client.before_send=delay:0.5",
        b"a=stop, b=exit:7@2",
        b"a=raise,b=raise:ENOSPC",
        b"a=trace",
    ),
    max_bytes=256,
)
