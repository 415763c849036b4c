"""Things besides files that outlive the processes of a machine: shared memory, semaphores, message queues."""

import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SYSTEM_V = Path("/proc/sysvipc")
KINDS = ("shm", "sem", "msg")
# MPIs put theirs there at every start, and a job that is killed leaves them: tests/machine/test_shared_memory.py.
HARMLESS_NAMES = ("mpich_", "sm_segment.", "vader_", "ucx_shm", "osc_rdma", "psm", "libpod", "pmix")


def shared_things() -> frozenset[str]:
    """A line for each that belongs to this user; a POSIX semaphore is a file of shared memory, too.

    What goes with the last process that has it attached, as UCX's does, is none.
    """
    names = os.listdir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else []
    mine = (SHARED_MEMORY / name for name in names if not name.startswith(HARMLESS_NAMES))
    return frozenset(f"shared memory {path}" for path in mine if _is_our_file(path)) | _system_v()


def unused(things: Collection[str]) -> frozenset[str]:
    """Those that no running process has: other tests, which run at the same time, have theirs open or mapped."""
    if not things:
        return frozenset()
    used = _paths_in_use()
    return frozenset(it for it in things if it.removeprefix("shared memory ") not in used)


def _is_our_file(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and stat.S_ISREG(status.st_mode)


def _system_v() -> frozenset[str]:
    found = set()
    for kind in KINDS:
        try:
            lines = (SYSTEM_V / kind).read_text().splitlines()
        except OSError:
            continue
        names, *rows = (line.split() for line in lines)
        for row in rows:
            it = dict(zip(names, row, strict=True))
            if int(it["uid"]) == os.getuid() and it.get("nattch", "0") == "0":
                found.add(f"System V {kind} {row[1]}")
    return frozenset(found)


def _paths_in_use() -> set[str]:
    used: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            used |= set(re.findall(rf"{SHARED_MEMORY}/\S+", (process / "maps").read_text(errors="replace")))
            used |= {os.readlink(descriptor) for descriptor in (process / "fd").iterdir()}
        except OSError:
            continue
    return used
