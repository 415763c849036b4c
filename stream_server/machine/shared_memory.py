"""The shared memory of MPI: whether it is ours alone, and its names, which a killed job would leave in the file system.

MPICH makes one segment of some 2 MB per job and node, and Open MPI one per rank, which all of the job's ranks there
have mapped when MPI_Init returns. Both take what is there already under the name, whoever made it, and their names can
be guessed beforehand.

Why: docs/decisions/0076-memory-of-mpi.md
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stream_server.machine.screen import size_shown
from stream_server.storage.ownership import OTHERS, is_ours, name_of, private_files

FOLDER = "/dev/shm"  # noqa: S108 (MPI chooses it)
PREFIX = f"{FOLDER}/mpich_"
GONE = " (deleted)"
# Measured with MPICH 5.0: what a rank adds where there are two, and where there are more.
BYTES_OF_TWO, BYTES_OF_MANY = 1_100_000, 5_400_000
# Those of Open MPI 5, where the user has chosen its place, and of Open MPI 4, which complains of names that are gone.
GUESSED = (PREFIX, f"{FOLDER}/sm_segment.", f"{FOLDER}/vader_segment.")
PLACE = "OMPI_MCA_btl_sm_backing_directory"


@dataclass(frozen=True, slots=True)
class MemorySegment:
    """A file that a process has mapped to share it with others, as the kernel names it."""

    path: str
    device: int
    inode: int

    @property
    def status(self) -> os.stat_result | None:
        """The status of the file; None if its name is gone, or another file has it."""
        with suppress(OSError):
            status = os.lstat(self.path)
            if (status.st_dev, status.st_ino) == (self.device, self.inode):
                return status
        return None


def segments(pid: int | str = "self") -> set[MemorySegment]:
    """The files that a process shares by writable memory; none if it is gone or another user's."""
    try:
        maps = (Path("/proc") / str(pid) / "maps").read_text(errors="surrogateescape")
    except OSError:
        return set()
    lines = (line.split(None, 5) for line in maps.splitlines())
    return {
        MemorySegment(line[5].rstrip("\n"), os.makedev(*(int(part, 16) for part in line[3].split(":"))), int(line[4]))
        for line in lines
        if len(line) == 6 and line[1].startswith("rw") and line[1].endswith("s") and line[5].startswith("/")
    }


def names_of(pid: int | str = "self") -> set[str]:
    """The names of MPICH's segments that a process has mapped; none if it is gone or another user's."""
    return {each.path for each in segments(pid) if each.path.startswith(PREFIX) and _whose(each.status) == ""}


def lack(num_ranks: int) -> str:
    """Say that this many ranks of MPICH share more on this node than there is room for, "" if they do not.

    They would end with SIGBUS.
    """
    try:
        free = shutil.disk_usage(FOLDER).free
    except OSError:
        return ""
    needed = num_ranks * (BYTES_OF_TWO if num_ranks <= 2 else BYTES_OF_MANY)
    if free >= needed:
        return ""
    return (
        f"{FOLDER} has {size_shown(free)} free, and {num_ranks} ranks of MPICH share {size_shown(needed)} there: make "
        "room, or give it more (--shm-size of a container)"
    )


def remove(names: Collection[str]) -> None:
    """Take names away; the memory goes with the last process that has it mapped."""
    for name in names:
        with suppress(OSError):
            os.unlink(name)


def problem() -> str:
    """Say which memory this process shares with somebody else, "" if all of it is ours alone.

    What has no name any more cannot be looked at. Where the name could be guessed it is not believed, since who has
    made it can remove its name; all else that is without one was made under a name that nobody could know.
    """
    for segment in sorted(segments(), key=lambda segment: segment.path):
        status = segment.status
        whose = _whose(status) if status is not None or segment.path.startswith(GUESSED) else ""
        if whose:
            return (
                f"MPI shares memory with the other ranks of this node by {segment.path.removesuffix(GONE)}, which "
                f"{whose}: another user may read and change what they tell each other, and has perhaps made it for that"
            )
    return ""


def _whose(status: os.stat_result | None) -> str:
    """Say what makes a file not ours alone, "" if nothing does."""
    if status is None:
        return "has no name any more, so that nobody can tell whose it is"
    if not stat.S_ISREG(status.st_mode):
        return ""
    if not is_ours(status):
        return f"belongs to {name_of(status.st_uid)}"
    if status.st_mode & OTHERS:
        return f"is open to others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


@contextmanager
def keep_private(library: str) -> Iterator[None]:
    """Within, what this MPI makes is ours alone, and the segments of Open MPI 5 are in a folder of ours.

    The block ends once all ranks have mapped them. Where the user has chosen a place, or this machine has none, Open
    MPI goes by that.
    """
    with private_files(), ExitStack() as stack:
        if library.startswith("Open MPI") and PLACE not in os.environ:
            with suppress(OSError):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-segments-", dir=FOLDER))
                os.environ[PLACE] = folder
                stack.callback(os.environ.pop, PLACE)
        yield
