"""The faults that strace injects into a system call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

# What changes a folder, or what a program of ours does on the way to that.
CALLS = (
    *("open", "openat", "close", "read", "pread64", "write", "pwrite64", "fsync", "fdatasync", "ftruncate", "truncate"),
    *("mkdir", "mkdirat", "rmdir", "rename", "renameat", "renameat2", "unlink", "unlinkat", "chmod", "fchmod"),
    *("fchmodat", "flock", "fadvise64", "link", "linkat", "symlink", "symlinkat"),
)
READING = ("read", "pread64")
REMOVING = ("unlink", "unlinkat", "rmdir", "ftruncate", "truncate")
# CPython calls these again after a signal, so a program must not notice.
RETRIED = ("open", "openat", "read", "pread64", "write", "pwrite64", "fsync", "fdatasync", "ftruncate", "flock")

_DELAY_US = 20_000


class Kind(Enum):
    """The kind of a fault: what happens instead of the call, or before it.

    On a full disk the calls of the same name fail from then on. On one that is stuck, nothing can be removed either.
    """

    KILL = "SIGKILL"
    EIO = "EIO"
    ENOSPC = "ENOSPC"
    EINTR = "EINTR"
    DELAY = "delay"
    FULL = "full"
    STUCK = "stuck"

    @property
    def lasts(self) -> bool:
        """It is not over with the one call."""
        return self in (Kind.FULL, Kind.STUCK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """The `number`-th call of this name since the program began, and what becomes of it.

    `stuck` are calls that fail from their given number on, for `Kind.STUCK`.
    """

    call: str
    number: int
    kind: Kind
    stuck: tuple[tuple[str, int], ...] = ()

    @property
    def is_harmless(self) -> bool:
        """A program must not notice."""
        return self.kind is Kind.DELAY or (self.kind is Kind.EINTR and self.call in RETRIED)

    @property
    def options(self) -> list[str]:
        """Those of strace."""
        return [f"--inject={self.call}:{self._what}", *(f"--inject=?{it}:error=EIO:when={n}+" for it, n in self.stuck)]

    @property
    def _what(self) -> str:
        match self.kind:
            case Kind.KILL:
                return f"signal=KILL:when={self.number}"
            case Kind.DELAY:
                return f"delay_enter={_DELAY_US}:when={self.number}"
            case Kind.FULL:
                return f"error=ENOSPC:when={self.number}+"
            case Kind.STUCK:
                return f"error=ENOSPC:when={self.number}"
        return f"error={self.kind.value}:when={self.number}"

    def __str__(self) -> str:
        return f"{self.call}:{self.kind.value}@{self.number}"


def known(calls: Sequence[str]) -> str:
    """A list for strace, which passes over calls that this machine does not have."""
    return ",".join(f"?{call}" for call in calls)


def faults_at(call: str, number: int, before: Mapping[str, int]) -> list[Fault]:
    """All that can happen to a call, before which there were so many of each name.

    A kill comes before the call, and so after the one before it. Reading needs no space, and changes nothing.
    """
    if call in READING:
        return [Fault(call=call, number=number, kind=kind) for kind in (Kind.EIO, Kind.EINTR)]
    stuck = tuple((name, before.get(name, 0) + 1) for name in REMOVING if name != call)
    return [Fault(call=call, number=number, kind=kind, stuck=stuck if kind is Kind.STUCK else ()) for kind in Kind]
