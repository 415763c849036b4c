"""Rank 0's child: the launcher process that runs the simulations."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Self

from stream_server.launcher.backends.environment import scrubbed
from stream_server.machine.interpreter import python_command
from stream_server.machine.log_end import log_end
from stream_server.machine.processes import end_all
from stream_server.messages.connection import ENVIRONMENT_VARIABLE
from stream_server.storage.disk import make_folder, open_regular

LEAVE_S = 30.0
GRACE_S = 5.0


class LauncherProcess:
    """Starts the launcher, keeps the pipe by which it notices that rank 0 is gone, and waits for its end.

    It runs in a session of its own, with an environment that does not make it believe to be an MPI rank, so that
    neither Ctrl-C nor mpirun's clean-up takes the simulations away before it could end them in order. Should it be
    killed, the one that `restart` starts takes them over; without that, we end them in the end: all of them run in
    `simulations`.
    """

    _process: "subprocess.Popen[bytes]"

    def __init__(self, study: Path, address: str, *, log: Path, simulations: Path) -> None:
        self._command = [
            *python_command("-m", "stream_server.launcher.supervision.cli"),
            *("--config", str(study), "--link", address),
        ]
        self._log = log
        self._simulations = simulations

    def __enter__(self) -> Self:
        self._process = self._start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the launcher, None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The last line that it wrote."""
        return log_end(self._log).rpartition("\n")[2]

    def restart(self) -> None:
        """Start another launcher in place of one that has ended without being told to.

        It takes over what runs, and asks for the plan of the study.
        """
        assert self._process.stdin is not None
        assert self.exit_code is not None
        self._process.stdin.close()
        self._process = self._start()

    def wait(self, timeout_s: float) -> bool:
        """Whether the launcher, asked to leave, has seen its last job end within `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def leave(self) -> None:
        """Close the pipe, which tells the launcher to cancel its jobs and go, and wait for that."""
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode != 0:
            end_all(ENVIRONMENT_VARIABLE, self._simulations, GRACE_S)

    def _start(self) -> "subprocess.Popen[bytes]":
        make_folder(self._log.parent)
        with open(self._log, "ab", opener=open_regular) as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=scrubbed(os.environ),
                start_new_session=True,
            )
