"""Counts what a test may leave behind.

Threads, processes, sockets, open files, temporary folders, shared memory, and files in the folder of the project.
"""

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import zmq

from tests.faults.resources.listeners import listeners
from tests.faults.resources.shared_things import shared_things, unused
from tests.support.timing import Deadline

GRACE_S = 5.0
PROJECT = Path(__file__).parent.parent
HARMLESS_FILES = ("/dev/", "anon_inode:[eventpoll]", "/proc/")
HARMLESS_FOLDERS = ("pytest-of-", "ompi.", "prte.", "pmix", "torchinductor_")
# What tools keep in a project, and git does not.
HARMLESS_IN_PROJECT = (".", "build", "dist", "site", "__pycache__", "stream_server.egg-info")

_sockets_and_contexts: "weakref.WeakSet[zmq.Socket | zmq.Context]" = weakref.WeakSet()


def _remember_creations(cls: type) -> None:
    create = cls.__init__

    def __init__(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: N807
        create(self, *args, **kwargs)
        _sockets_and_contexts.add(self)

    cls.__init__ = __init__  # type: ignore[misc]


_remember_creations(zmq.Socket)
_remember_creations(zmq.Context)


@dataclass(frozen=True, kw_only=True, slots=True)
class Census:
    """The resources that exist at one moment. `since` lists those that another census did not have."""

    threads: frozenset[threading.Thread]
    processes: frozenset[psutil.Process]
    zmq_objects: frozenset[int]
    files: frozenset[tuple[int, str]]
    temporary: frozenset[str]
    shared: frozenset[str]
    project: frozenset[str]

    @classmethod
    def take(cls, temporary: Path) -> "Census":
        return cls(
            threads=frozenset(it for it in threading.enumerate() if it.is_alive()),
            processes=frozenset(_descendants()),
            zmq_objects=frozenset(id(it) for it in _sockets_and_contexts if not it.closed),
            files=frozenset(_open_files()),
            temporary=frozenset(str(it) for it in temporary.iterdir() if not it.name.startswith(HARMLESS_FOLDERS)),
            shared=shared_things(),
            project=frozenset(name for name in os.listdir(PROJECT) if not name.startswith(HARMLESS_IN_PROJECT)),
        )

    def since(self, before: "Census") -> list[str]:
        """One line for each thing that is new."""
        alive = {id(it): it for it in _sockets_and_contexts}
        return [
            *(f"thread {thread.name}" for thread in self.threads - before.threads),
            *(
                f"process {_describe(process)}"
                for process in self.processes - before.processes
                if not _has_parent_in(before.processes, process)
            ),
            *(f"open {alive.get(key)!r}" for key in self.zmq_objects - before.zmq_objects),
            *(_describe_file(number, target) for number, target in self.files - before.files),
            *(f"temporary {path}" for path in self.temporary - before.temporary),
            *unused(self.shared - before.shared),
            *(f"{PROJECT / name}" for name in self.project - before.project),
        ]


def leaks_since(before: Census, take: Callable[[], Census]) -> list[str]:
    """The leaks of a test, once the things that end by themselves had `GRACE_S` to do so."""
    leaks = take().since(before)
    if leaks:
        gc.collect()
        deadline = Deadline(GRACE_S)
        while (leaks := take().since(before)) and not deadline.has_passed:
            time.sleep(0.02)
    return leaks


def _descendants() -> list[psutil.Process]:
    """All processes below this one. psutil reads each process of the machine for that, which takes 3 ms."""
    found, unseen = [], [os.getpid()]
    while unseen:
        for task in Path("/proc").glob(f"{unseen.pop()}/task/*"):
            with suppress(OSError, psutil.NoSuchProcess):
                for pid in map(int, (task / "children").read_text().split()):
                    unseen.append(pid)
                    found.append(psutil.Process(pid))
    return found


def _has_parent_in(older: frozenset[psutil.Process], process: psutil.Process) -> bool:
    """A browser that tests share starts and ends processes when it likes: whoever started it answers for them."""
    with suppress(psutil.Error):
        return not older.isdisjoint(process.parents())
    return False


def _open_files() -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if not target.startswith(HARMLESS_FILES):
            found.append((int(name), target))
    return found


def _describe_file(number: int, target: str) -> str:
    listens_at = listeners().get(target)
    return f"file descriptor {number}: {target}" + (f", which listens at {listens_at}" if listens_at else "")


def _describe(process: psutil.Process) -> str:
    try:
        # Of a zombie only the status is left.
        facts = process.as_dict(["status", "cmdline"], ad_value=())
    except psutil.Error:
        return str(process.pid)
    return f"{process.pid} ({facts['status']}): {' '.join(facts['cmdline'])}"
