"""A program of ours as a child of this process, which has imported all of it already: a start costs next to nothing."""

import faulthandler
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import BinaryIO

from stream_server import failpoints

NUM_DESCRIPTORS = 2**16


class ForkedProgram:
    """A process that runs `main` as a command of its own would; handled as a `subprocess.Popen`.

    Signals have their default effect, warnings are errors, and failpoints are armed as `environment` says. `stdin` is a
    pipe to it.
    """

    def __init__(
        self,
        main: Callable[[], int],
        *,
        environment: Mapping[str, str],
        executable: str = sys.executable,
        output: BinaryIO | None = None,
        errors: BinaryIO | None = None,
        new_session: bool = False,
    ) -> None:
        self.returncode: int | None = None
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            exit_code = 1
            with suppress(BaseException):
                _become(executable, environment, [read, *(file.fileno() for file in (output, errors) if file)])
                if new_session:
                    os.setsid()
                exit_code = _run(main)
            os._exit(exit_code)
        os.close(read)
        self.stdin = os.fdopen(write, "wb")
        self._ends = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """The exit status, that of a signal below 0, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            if not select.select([self._ends], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"the fork {self.pid}", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._ends)
            self.stdin.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _become(executable: str, environment: Mapping[str, str], descriptors: list[int]) -> None:
    """Leave behind what a new process would not have of this one."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    os.closerange(3, NUM_DESCRIPTORS)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    faulthandler.enable(sys.stderr)
    logging.getLogger().handlers.clear()
    warnings.resetwarnings()
    warnings.simplefilter("error")
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.executable = executable
    failpoints._hook = failpoints._load_hook()


def _run(main: Callable[[], int]) -> int:
    try:
        return main()
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
