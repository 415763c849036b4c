"""One program under strace."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.faults.sweep.calls.faults import CALLS, Fault, known
from tests.faults.sweep.calls.ran import GO, RAISED, READY, WARNED, Ran
from tests.faults.sweep.calls.trace import Trace
from tests.needs import need

DEADLINE_S = 60.0
_MAX_BYTES = 1 << 16


class Stage:
    """A process that runs programs. A context manager; one program at a time."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(self._orders)
            with theirs:
                command = [sys.executable, "-m", f"{__package__}.stage", str(theirs.fileno())]
                # Its end is that of the socket, which leaving closes first; Ctrl-C is none of its business.
                popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
                stack.enter_context(popen)
            stack.callback(self._orders.close)
            self._orders.settimeout(DEADLINE_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def run(self, program: str, folder: Path, fault: Fault | None, log: Path) -> Ran:
        """Run a program on a folder, with the fault or without; strace writes into `log`."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(DEADLINE_S)
            socket.send_fds(self._orders, [f"{program} {folder}".encode()], [theirs.fileno()])
            theirs.close()
            ready = ours.recv(_MAX_BYTES).decode().split()
            assert ready[:1] == [READY], f"the stage says {ready}"
            process = int(ready[1])
            with _strace(process, [] if fault is None else fault.options, log):
                ours.sendall(GO)
                said = _all_that_is_said(ours, process)
            self._orders.recv(_MAX_BYTES)
        return Ran(
            fault=fault,
            said=tuple(line for line in said if not line.startswith(WARNED)),
            warnings=tuple(line.removeprefix(WARNED) for line in said if line.startswith(WARNED)),
            trace=Trace.read(log),
        )


def _all_that_is_said(told: socket.socket, process: int) -> list[str]:
    """Every line until the program's end, which is forced when it does not come."""
    said = b""
    try:
        while data := told.recv(_MAX_BYTES):
            said += data
    except TimeoutError:
        os.kill(process, signal.SIGKILL)
        said += f"{RAISED}it has not ended after {DEADLINE_S:.0f} s".encode()
    return said.decode(errors="replace").splitlines()


def _strace(process: int, options: Sequence[str], log: Path) -> subprocess.Popen[str]:
    """A strace that has a grip on the process, and shows paths with descriptors."""
    need("strace")
    path = shutil.which("strace")
    assert path is not None
    command = [path, "-f", "-y", "-p", str(process), "-o", str(log), f"--trace={known(CALLS)}", *options]
    strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert strace.stderr is not None
    line = strace.stderr.readline()
    if "attached" not in line:
        strace.kill()
        strace.wait()
        raise RuntimeError(f"strace cannot trace process {process}: {line}")
    return strace
