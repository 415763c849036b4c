"""The process in which a class suggests parameters, when it does not read or breaks off."""

import os
import signal
from pathlib import Path

import pytest

from stream_server.server.steering.generator_process import GeneratorProcess, NoAnswer

# More than the system keeps of what nobody reads.
LONG = {"what": "x" * (4 << 20)}


def test_a_process_that_reads_nothing_is_ended_after_the_time_limit(tmp_path: Path) -> None:
    it = GeneratorProcess(tmp_path / "log")
    try:
        it._start(timeout_s=3.0)
        assert it._process is not None
        os.kill(it._process.pid, signal.SIGSTOP)
        with pytest.raises(NoAnswer, match="did not answer within"):
            it.ask(LONG, timeout_s=1.0)
        assert not it.runs
    finally:
        it.close()
