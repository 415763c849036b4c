"""Runs programs in processes that wait for whoever traces them: python -m tests.faults.sweep.calls.stage DESCRIPTOR.

One that is started anew for every fault would spend its time importing, and under strace most of that. So the stage
imports once and forks. Everything that is said goes through a socket: `sendto` is none of the calls that fail.
"""

import ctypes
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.faults.sweep.calls.programs import EVERY
from tests.faults.sweep.calls.ran import DONE, GO, RAISED, READY, WARNED, Say

_PR_SET_PTRACER = 0x59616D61
_MAX_BYTES = 4096


class Speaker(logging.Handler):
    """Says a line to the harness; the warnings of the product too."""

    def __init__(self, told: socket.socket) -> None:
        super().__init__(logging.WARNING)
        self._told = told

    def __call__(self, line: str) -> None:
        self._told.sendall(line.encode()[: _MAX_BYTES - 1] + b"\n")

    def emit(self, record: logging.LogRecord) -> None:
        self(WARNED + record.getMessage())


def serve(orders: socket.socket) -> None:
    """Run what is ordered, "PROGRAM FOLDER" with a socket for what it says; answers with the status of each."""
    while order := socket.recv_fds(orders, _MAX_BYTES, 1):
        data, descriptors, _, _ = order
        if not data:
            return
        name, folder = data.decode().split(" ", 1)
        with socket.socket(fileno=descriptors[0]) as told:
            child = os.fork()
            if child == 0:
                orders.close()
                _play(EVERY[name].run, Path(folder), told)
        _, status = os.waitpid(child, 0)
        with suppress(BrokenPipeError):
            orders.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _play(run: Callable[[Path, Say], None], folder: Path, told: socket.socket) -> None:
    # Where only a parent may trace, this lets strace in, which is none.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
    say = Speaker(told)
    logging.getLogger().handlers = [say]
    try:
        say(f"{READY} {os.getpid()}")
        assert told.recv(len(GO)) == GO
        run(folder, say)
        say(DONE)
    except BaseException:
        say(RAISED + traceback.format_exc().replace("\n", " | "))
    finally:
        os._exit(0)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        serve(given)
