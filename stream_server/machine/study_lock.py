"""The locks of an output folder: one process runs the study in it, and one server writes into it.

Why: docs/decisions/0046-locks.md
"""

import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from stream_server.errors import ConfigError
from stream_server.machine import processes
from stream_server.machine.processes import Leader
from stream_server.storage import disk

RUN_LOCK = "run.lock"
SERVER_LOCK = "server.lock"
LOCKS = (RUN_LOCK, SERVER_LOCK)
DYING_S = 10.0
# A network file system gives the lock of a host that is away to others only after a minute or two.
AWAY_S = 150.0
UNNAMED_S = 1.0
GLANCE_S = 0.2
LOOK_S = 0.05
# Of the file system, from one process that writes to another that reads.
SETTLE_S = 1.0
MAX_BYTES = 1 << 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The process that has a lock, as it wrote itself down in the file; `started` is in clock ticks since boot."""

    program: str
    pid: int
    started: int
    host: str
    since: str

    @classmethod
    def this(cls, program: str) -> "Holder":
        """This process as the holder of a lock."""
        leader = Leader.of(os.getpid())
        return cls(
            program=program,
            pid=os.getpid(),
            started=0 if leader is None else leader.started,
            host=socket.gethostname(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @classmethod
    def read(cls, path: Path) -> "Holder | None":
        """The last process that wrote itself down; None if the text is not sound."""
        try:
            content = disk.read_file(path, max_bytes=MAX_BYTES, opener=disk.by_own_links)
            return msgspec.json.decode(content, type=cls)
        except (OSError, ValueError, RecursionError):
            return None

    @property
    def is_elsewhere(self) -> bool:
        """Whether it runs, or ran, on another host."""
        return self.host != socket.gethostname()

    @property
    def may_run(self) -> bool:
        """Whether the holder may still run; nothing is known here of a process on another host."""
        if self.is_elsewhere:
            return True
        return Leader(pid=self.pid, started=self.started).alive and not processes.is_dying(self.pid)

    def write(self, descriptor: int) -> None:
        """Write it into the file, in place of another one."""
        disk.truncate(descriptor, 0)
        disk.write_all(descriptor, memoryview(msgspec.json.encode(self) + b"\n"))

    def __str__(self) -> str:
        return f"{self.program}, process {self.pid} on {self.host}, since {self.since}"


def holder_of(path: Path) -> Holder | None:
    """The process that has this lock now, whose name may be an older one's for a moment; None if nobody has it."""
    try:
        descriptor = disk.by_own_links(path)
    except (FileNotFoundError, disk.UnusableFile):
        return None
    try:
        # Shared: several may look at once, and a process that wants the lock meanwhile asks again.
        if disk.lock(descriptor, shared=True):
            return None
    except disk.NoLocks:
        holder = Holder.read(path)
        return holder if holder is not None and holder.may_run else None
    finally:
        disk.close(descriptor)
    return Holder.read(path) or Holder(program="a process", pid=0, started=0, host="", since="")


class StudyLock:
    """Keeps a file locked while the `with` block lasts. Main thread only.

    The kernel unlocks it when the process ends, however that ends, also on network file systems, where a lock on the
    file is one at its server. A holder that is dying is waited for, and any holder for DYING_S when `was_killed`, or
    for AWAY_S if it was on another host: the caller knows that the last one was. For GLANCE_S any other is, since it
    may only be looking (`holder_of`). `program` is what others are told of this process.

    Where the file system has no locks, what the holder has written into the file stands for one, by Fischer's algorithm
    (Lamport, "A fast mutual exclusion algorithm", 1987): each writes itself down once it sees nobody who may run, and
    has the lock if that still stands there after SETTLE_S. The algorithm relies on time: a process that stands still
    for longer than SETTLE_S between the look and the write may have the lock beside another one, as no process can with
    `flock`. A holder that was killed on another host stays in the way.
    """

    def __init__(self, path: Path, program: str, *, was_killed: bool = False) -> None:
        self.path = path
        self.program = program
        self.was_killed = was_killed

    def __enter__(self) -> Self:
        """Lock it.

        Raises:
            ConfigError: another process has it, which the message names.
            OSError: the file cannot be opened.
        """
        disk.make_folder(self.path.parent)
        began = time.monotonic()
        while (descriptor := self._open()) is None:
            holder = Holder.read(self.path)
            if time.monotonic() - began >= self._patience_s(holder):
                is_away = holder is not None and holder.is_elsewhere
                removal = f"; if you are sure that it has ended, remove {self.path}" if is_away else ""
                raise ConfigError(
                    f"{self.path.parent} is in use: {holder or 'another process'} runs the study there. Wait for its "
                    f"end or end it, or write another study.output_dir ({self.path.name} is locked{removal})"
                )
            # A lock that another process holds can only be asked for again.
            time.sleep(LOOK_S)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            disk.truncate(self._descriptor, 0)
        disk.close(self._descriptor)

    def _patience_s(self, holder: Holder | None) -> float:
        if self.was_killed and holder is not None and holder.is_elsewhere:
            return AWAY_S
        if self.was_killed or (holder is not None and not holder.may_run):
            return DYING_S
        return UNNAMED_S if holder is None else GLANCE_S

    def _open(self) -> int | None:
        """The descriptor of the file, which this process has now; None if another one has it."""
        while True:
            descriptor = disk.open_private_to_append(self.path)
            try:
                is_taken = self._take(descriptor)
                if is_taken and _is_still(self.path, descriptor):
                    return descriptor
            except BaseException:
                disk.close(descriptor)
                raise
            # Its folder was renamed, or the file removed, before we had it.
            disk.close(descriptor)
            if not is_taken:
                return None

    def _take(self, descriptor: int) -> bool:
        this = Holder.this(self.program)
        try:
            if not disk.lock(descriptor):
                return False
            this.write(descriptor)
        except disk.NoLocks as error:
            holder = Holder.read(self.path)
            if holder is not None and holder.may_run and not (self.was_killed and holder.is_elsewhere):
                return False
            this.write(descriptor)
            time.sleep(SETTLE_S)
            if Holder.read(self.path) != this:
                return False
            if self.path.name == RUN_LOCK:
                log.warning(
                    "%s is on a file system without locks (%s; Lustre has them with the mount option flock): after a "
                    "kill, a start on another node is refused until you remove %s",
                    self.path.parent,
                    error.strerror,
                    " and ".join(LOCKS),
                )
        return True


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
