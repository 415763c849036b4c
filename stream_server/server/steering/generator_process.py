"""Rank 0's child in which a user's class suggests parameters: asked, waited for within bounds, and killed.

Why: docs/decisions/0063-generator-process.md
"""

import json
import math
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

from stream_server.errors import ConfigError, UserCodeError
from stream_server.launcher.backends.environment import scrubbed
from stream_server.machine.interpreter import python_command
from stream_server.storage.disk import make_folder, open_regular

WORKER = "stream_server.server.steering.generator_worker"
LEAVE_S = 5.0
LATE = "it did not answer within parameters.sampler.timeout_s"


class NoAnswer(Exception):
    """The process did not answer in time, or has ended; it is gone. The text says which."""


class GeneratorProcess:
    """Runs the class in a process of its own, which is started when it is first asked, and again when it is gone.

    One thread asks; any may `stop` it, which makes an `ask` that waits raise `NoAnswer`. It is closed when none asks
    any more. What the class prints goes to `log`. The process ends when its standard input does, with this one.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_closed = False

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended since."""
        return self._connection is not None

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            NoAnswer: there is none after `timeout_s`, or the process has ended, or cannot be started.
            ConfigError, UserCodeError: the class cannot be used, or raised.
        """
        try:
            connection = self._connection or self._start(timeout_s)
        except OSError as error:
            raise NoAnswer(f"its process cannot be started: {error}") from error
        until = time.monotonic() + timeout_s
        try:
            connection.send_bytes(json.dumps(request).encode())
            if not connection.poll(max(0.0, until - time.monotonic())):
                raise NoAnswer(LATE)
            answer: dict[str, Any] = json.loads(connection.recv_bytes())
        except BlockingIOError as error:
            self._end()
            raise NoAnswer(LATE) from error
        except (EOFError, OSError) as error:
            raise NoAnswer(f"its process {self._end()}") from error
        except NoAnswer:
            self._end()
            raise
        if "error" in answer:
            raise (ConfigError if answer["is_config"] else UserCodeError)(answer["error"])
        return answer

    def close(self) -> None:
        """Stop it and let go of the connection."""
        self.stop()
        if self._connection is not None:
            self._connection.close()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """End the process; it has a few seconds to do so by itself unless it is computing."""
        with self._lock:
            self._is_closed = True
            process, connection = self._process, self._connection
        if process is None or connection is None:
            return
        with suppress(OSError):
            connection.send_bytes(b"null")
        with suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)
        _kill(process)

    def _start(self, timeout_s: float) -> Connection:
        ours, theirs = Pipe()
        # A process that is stopped, or holds its interpreter for ever, reads nothing and may leave an answer half-way.
        limit = struct.pack("ll", max(1, math.ceil(timeout_s)), 0)
        with socket.socket(fileno=os.dup(ours.fileno())) as pair:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                pair.setsockopt(socket.SOL_SOCKET, option, limit)
        with self._lock, theirs:
            if self._is_closed:
                raise NoAnswer("it was switched off")
            make_folder(self.log.parent)
            with open(self.log, "ab", opener=open_regular) as log:
                self._process = subprocess.Popen(
                    python_command("-m", WORKER, str(theirs.fileno())),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    # Its node's cores are the ranks'. A user may say otherwise.
                    env={"OMP_NUM_THREADS": "1"} | scrubbed(os.environ),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            self._connection = ours
        return ours

    def _end(self) -> str:
        """Kill what is left; returns how the process ended."""
        process, connection = self._process, self._connection
        assert process is not None
        assert connection is not None
        self._connection = None
        with suppress(subprocess.TimeoutExpired):
            # Closed by itself: how it ended is known in a moment.
            process.wait(0.5)
        code = process.poll()
        _kill(process)
        connection.close()
        if process.stdin is not None:
            process.stdin.close()
        if code is None:
            return "was killed"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # All of its session, also when it has ended itself: the class may have started others.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
