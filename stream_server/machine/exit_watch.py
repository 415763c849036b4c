"""A parent that sees how a command ends, also where code that is not ours ends its process.

Why: docs/decisions/0007-parent-of-a-rank.md
"""

import ctypes
import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from stream_server.machine import processes

LOOK_S = 0.2
HOLD_S = 10.0
MOST_SHOWN = 80
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
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
_REASONS = {
    signal.SIGKILL: ", as the kernel does when memory is short",
    signal.SIGBUS: ", as the kernel does when there is no room for memory that processes share (df /dev/shm)",
}

# Shared with the parent: whether this end is ours, the incarnation whose study is under way, the exit code that the end
# should have, and how many signals the parent has passed on.
_said = mmap.mmap(-1, 32)
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
    libc = ctypes.CDLL(None)
    # What the child leaves behind becomes a child of the parent.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child:
        _end_as(child, tell_loss)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    _is_watched = True
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_ours(exit_code: int) -> None:
    """Say that this process ends now since the command does; one that does not end gets this exit code."""
    _said[16:24] = struct.pack("q", exit_code)
    _said[:8] = struct.pack("q", 1)
    if _is_watched:
        os.kill(os.getppid(), signal.SIGCHLD)


def leave_soon(exit_code: int) -> None:
    """Say that this process ends now; if it has not ended after `HOLD_S`, say what holds it, and end it.

    Python waits for threads that are no daemons, for processes of multiprocessing and for functions of `atexit`, for
    ever if need be. Users' code has no more to do once its study is over. A library may hold it when no Python runs any
    more: the parent ends it then.
    """
    is_ours(exit_code)
    threading.Thread(target=_leave_anyway, args=(exit_code,), name="leave", daemon=True).start()


def _leave_anyway(exit_code: int) -> None:
    time.sleep(HOLD_S)
    others = {threading.main_thread(), threading.current_thread()}
    names = [repr(thread.name) for thread in threading.enumerate() if thread not in others and not thread.daemon]
    children = processes.descendants(os.getpid())
    who = [*(f"the thread {name}" for name in names), *map(_shown, children)] or ["a function of atexit"]
    _say(f"the command is done, but its process has not ended after {HOLD_S:g} s: {', '.join(who)}; it is ended now")
    processes.send(children, signal.SIGKILL)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    leave(exit_code)


def leave(exit_code: int) -> NoReturn:
    """End this process at once."""
    is_ours(exit_code)
    os._exit(exit_code)


def note_incarnation(incarnation: int) -> None:
    """A study is under way, in this start of its server."""
    _said[8:16] = struct.pack("q", incarnation)


def num_passed_on() -> int:
    """How many signals our parent has passed on; it counts each before it sends it."""
    return int(struct.unpack("q", _said[24:])[0])


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
    was_said, incarnation, said_code = struct.unpack("qqq", _said[:24])
    if status is None:
        _say(f"{_shown(child)} has not ended after {2 * HOLD_S:g} s, held by a library: it is killed")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    code = said_code if status is None else os.waitstatus_to_exitcode(status)
    if -code in _PASSED_ON - {signal.SIGABRT}:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    if not was_said:
        code = tell_loss(_explain(code), incarnation)
    else:
        code = 128 - code if code < 0 else code
        _end_holders_of_output()
    os._exit(code)


def _end_holders_of_output() -> None:
    """End what this command has left behind with its output open: the reader waits for its end."""
    pipes = {pipe for pipe in map(_pipe_of, (("self", 1), ("self", 2))) if pipe}
    end_at, holders = time.monotonic() + HOLD_S, set[int]()
    while pipes and time.monotonic() < end_at:
        children = processes.descendants(os.getpid())
        holders = {pid for pid in children if not pipes.isdisjoint(map(_pipe_of, ((pid, 1), (pid, 2))))}
        if not holders:
            return
        time.sleep(LOOK_S)
    for pid in holders:
        _say(f"{_shown(pid)} was left behind and holds the output of this command, whose reader waits: it is ended")
    processes.send(holders, signal.SIGKILL)


def _pipe_of(place: tuple[int | str, int]) -> str:
    """The pipe or socket that is this descriptor of a process; "" if it is something else."""
    pid, number = place
    try:
        target = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""
    return target if target.startswith(("pipe:", "socket:")) else ""


def _shown(pid: int) -> str:
    return f"process {pid} ({' '.join(processes.command_line(pid))[:MOST_SHOWN]})"


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"stream-server: {text}\n".encode())


def _wait(child: int) -> int | None:
    """The status of the child at its end, None if it does not end as it said; signals are passed on meanwhile."""
    kill_at = threading.TIMEOUT_MAX
    while (left_s := kill_at - time.monotonic()) > 0:
        came = signal.sigtimedwait({signal.SIGCHLD, *_PASSED_ON}, left_s)
        if came is None:
            continue
        if came.si_signo != signal.SIGCHLD:
            if came.si_code != _SI_KERNEL:
                _said[24:] = struct.pack("q", num_passed_on() + 1)
                os.kill(child, came.si_signo)
            continue
        # What has lost its parent is ours as well.
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return ended[1]
        if struct.unpack("q", _said[:8])[0]:
            # The child itself says first what holds it.
            kill_at = min(kill_at, time.monotonic() + 2 * HOLD_S)
    return None


def _explain(code: int) -> str:
    if code >= 0:
        return _CALLED_EXIT.format(code)
    number = signal.Signals(-code)
    return _WAS_KILLED.format(number.name, _REASONS.get(number, ""))
