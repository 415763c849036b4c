"""A parent that sees how a command ends, also where code that is not ours ends its process."""

import ctypes
import mmap
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

LOOK_S = 1.0
_PR_SET_PDEATHSIG = 1
# Sent by the kernel: the terminal has sent it to the child as well.
_SI_KERNEL = 128
# They stop a process, tell of a fault in it, or mean nothing to us.
_NOT_PASSED_ON = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS),
    *(signal.SIGPIPE, signal.SIGURG, signal.SIGWINCH, signal.SIGCHLD),
}
_PASSED_ON = signal.valid_signals() - _NOT_PASSED_ON
_CALLED_EXIT = (
    "ended with exit code {} before the command was done: code that it ran has called exit (os._exit, STOP in Fortran, "
    "exit in a library). That code must return, or raise an exception"
)
_WAS_KILLED = "was killed by {}{}"
_OUT_OF_MEMORY = ", as the kernel does when memory is short"

# Shared with the parent: whether this end is ours, and the incarnation whose study is under way.
_said = mmap.mmap(-1, 16)
_is_watched = False


def watch_exit(tell_loss: Callable[[str, int], int]) -> None:
    """Go on in a child process, before there are threads; the parent stays in here and ends as the child does.

    A child that ends without a word, whatever its exit code, is lost: `tell_loss` is told how, and of which
    incarnation, 0 if no study was under way, and gives the exit code instead. A signal that asks for an end is no loss.
    The parent passes on such signals; when it is killed, so is the child.
    """
    global _is_watched
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_PASSED_ON})
    parent = os.getpid()
    child = os.fork()
    if child:
        _end_as(child, tell_loss)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    _is_watched = True
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_ours() -> None:
    """Say that this process ends now since the command does, whatever its exit code."""
    _said[:8] = struct.pack("q", 1)


def leave(exit_code: int) -> NoReturn:
    """End this process at once."""
    is_ours()
    os._exit(exit_code)


def note_incarnation(incarnation: int) -> None:
    """A study is under way, in this start of its server."""
    _said[8:] = struct.pack("q", incarnation)


def starter() -> int:
    """The process that has started this command, also when the parent of this one is our own."""
    parent = os.getppid()
    if not _is_watched:
        return parent
    try:
        return int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _end_as(child: int, tell_loss: Callable[[str, int], int]) -> NoReturn:
    """Wait for the end of the child, and end with its exit code, or by its signal."""
    status = _wait(child)
    was_said, incarnation = struct.unpack("qq", _said)
    code = os.waitstatus_to_exitcode(status)
    if -code in _PASSED_ON - {signal.SIGABRT}:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    if not was_said:
        code = tell_loss(_told(code), incarnation)
    elif code < 0:
        code = 128 - code
    os._exit(code)


def _wait(child: int) -> int:
    """The status of the child at its end; until then signals are passed on to it."""
    while True:
        came = signal.sigwaitinfo({signal.SIGCHLD, *_PASSED_ON})
        if came.si_signo != signal.SIGCHLD:
            if came.si_code != _SI_KERNEL:
                os.kill(child, came.si_signo)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status


def _told(code: int) -> str:
    if code >= 0:
        return _CALLED_EXIT.format(code)
    name = signal.Signals(-code).name
    return _WAS_KILLED.format(name, _OUT_OF_MEMORY if -code == signal.SIGKILL else "")
