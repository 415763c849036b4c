"""The process in which a class suggests parameters, when it does not read or breaks off."""

import os
import signal
from pathlib import Path
from queue import SimpleQueue

import pytest

from stream_server.server.steering.generator_process import GeneratorProcess, NoAnswer
from stream_server.server.steering.generator_worker import _read

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


def test_a_class_whose_requests_cannot_be_read_ends_whatever_the_reason() -> None:
    class Connection:
        def recv_bytes(self) -> bytes:
            raise MemoryError

    requests: SimpleQueue[bytes | None] = SimpleQueue()
    with pytest.raises(MemoryError):
        _read(Connection(), requests)  # type: ignore[arg-type]
    assert requests.get_nowait() is None
