"""The processes of a job: those of its session, and those that left it but carry its mark in their environment.

Why: docs/decisions/0049-walk-through-proc.md
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
ENDED = frozenset("ZX")
STOPPED = "T"
# Of a process that has ended or is not ours. Any other error, such as EMFILE, says nothing of the process.
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
LOOK_S = 0.05
KILL_WAIT_S = 2.0
# The bit of SIGKILL in the masks of /proc/PID/status (proc_pid_status(5)).
_KILLED = 1 << (signal.SIGKILL - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One running process; `started` is in clock ticks since boot. `mark` is "" when its environment has none.

    `stopped`: SIGSTOP or the like holds it.
    """

    pid: int
    session: int
    started: int
    mark: str
    stopped: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """The first process of a session; pid and start time name it, for a pid is used again.

    `of` and `alive` raise OSError where /proc cannot be read, for lack of descriptors for example.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Leader | None":
        """The leader with this pid, or None when no such process runs."""
        status = _status(pid)
        return None if status is None else cls(pid=pid, started=status[1])

    @property
    def alive(self) -> bool:
        return Leader.of(self.pid) == self


def running(mark_name: str, *, since: int = 0) -> list[Process]:
    """Every other process of this machine; the mark is the value of the environment variable `mark_name`.

    Those that were started before `since`, in clock ticks since boot, are left out: what a job has started is no older
    than its first process, and to read an environment is what costs most.

    Raises:
        OSError: /proc cannot be read, for lack of descriptors for example.
    """
    processes = []
    for pid in _pids():
        if (status := _status(pid)) is not None and status[1] >= since:
            session, started, stopped = status
            mark = _mark(pid, mark_name)
            processes.append(Process(pid=pid, session=session, started=started, mark=mark, stopped=stopped))
    return processes


def is_dying(pid: int) -> bool:
    """Whether a process was killed and has not died yet, or has no memory any more, as before its files are closed."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
    except (OSError, KeyError, ValueError):
        return True
    return "VmSize" not in status or bool(pending & _KILLED)


def command_line(pid: int) -> tuple[str, ...]:
    """The command line of a process; nothing if it has ended."""
    try:
        words = _read(pid, "cmdline").split(b"\0")
    except GONE:
        return ()
    return tuple(map(os.fsdecode, words[:-1]))


def age_s() -> float:
    """Time since this process was started; 0 if /proc does not tell."""
    if (status := _status(os.getpid())) is None:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - status[1] / os.sysconf("SC_CLK_TCK"))


def descendants(pid: int) -> set[int]:
    """All running descendants of a process."""
    parents = {child: parent for child in _pids() if (parent := _parent(child))}
    children, new = set[int](), {pid}
    while new := {child for child, parent in parents.items() if parent in new} - children:
        children |= new
    return children


def this_boot() -> str:
    """The boot id; pids are meaningful only within one boot."""
    try:
        return (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return ""


def members(processes: Iterable[Process], leader: Leader | None, marks: Set[str]) -> set[int]:
    """The pids of one job: all of the leader's session, and all with one of its `marks`.

    A daemonised process has a session of its own and init for a parent; only what it inherited still tells where it
    comes from.
    """
    return {process.pid for process in processes if process.mark in marks or _of_session(process, leader)}


def send(pids: Collection[int], number: signal.Signals) -> None:
    """Signal each process, parents before those they started; those that have ended meanwhile are passed over.

    A shell that outlives its rank even for an instant writes down how the rank ended, as if it had ended by itself.
    """
    for pid in sorted(pids, key=_age):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(mark_name: str, folder: Path, grace_s: float) -> None:
    """End all processes whose mark is a path in `folder`: TERM, and KILL after `grace_s`."""
    deadline = time.monotonic() + grace_s
    marked = _marked(mark_name, folder)
    send(marked, signal.SIGTERM)
    while marked and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        marked = _marked(mark_name, folder)
    deadline = time.monotonic() + KILL_WAIT_S
    while marked:
        send(marked, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return
        time.sleep(LOOK_S)
        # One of them may have started another after we looked.
        marked = _marked(mark_name, folder)


def _marked(mark_name: str, folder: Path) -> set[int]:
    return {process.pid for process in running(mark_name) if Path(process.mark).is_relative_to(folder)}


def _of_session(process: Process, leader: Leader | None) -> bool:
    # A later session may have got the same number, but only after all of this one had ended.
    return leader is not None and process.session == leader.pid and process.started >= leader.started


def _read(pid: int, name: str) -> bytes:
    # Neither a Path nor a buffer, which cost more than the system does.
    with open(f"{PROC}/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()


def _pids() -> Iterator[int]:
    own = os.getpid()
    return (int(name) for name in os.listdir(PROC) if name.isdecimal() and int(name) != own)


def _status(pid: int) -> tuple[int, int, bool] | None:
    """Session and start time of a process that has not ended, and whether it is stopped."""
    try:
        line = _read(pid, "stat")
    except GONE:
        return None
    # The second value is the program's name in brackets, and may hold blanks and brackets itself.
    values = line.rpartition(b")")[2].split()
    state = values[0].decode()
    return None if state in ENDED else (int(values[3]), int(values[19]), state == STOPPED)


def _parent(pid: int) -> int:
    """0 if the process has ended."""
    try:
        values = _read(pid, "stat").rpartition(b")")[2].split()
    except GONE:
        return 0
    return 0 if values[0].decode() in ENDED else int(values[1])


def _age(pid: int) -> tuple[int, int]:
    """Sort key: processes in the order in which they were started."""
    try:
        status = _status(pid)
    except OSError:
        status = None
    # A clock tick is long enough to start a child in; within one, numbers are given in order.
    return (0 if status is None else status[1], pid)


def _mark(pid: int, name: str) -> str:
    prefix = f"{name}=".encode()
    try:
        entries = _read(pid, "environ").split(b"\0")
    except GONE:
        return ""
    return next((os.fsdecode(entry[len(prefix) :]) for entry in entries if entry.startswith(prefix)), "")
