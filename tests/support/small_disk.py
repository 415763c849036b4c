"""A small disk in memory that can be filled up, for one process and what it starts."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096
BALLAST = "ballast"


def mounted(folder: Path, num_bytes: int, command: Sequence[str]) -> list[str]:
    """The command, with an empty disk of its own at `folder`, in a namespace that ends with it."""
    script = f'mount -t tmpfs -o size={num_bytes} none "$0" && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(folder), *command]


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """The disk at `folder`, on which the process was started by `mounted`."""

    folder: Path

    @property
    def num_free(self) -> int:
        """Bytes that are free."""
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    @property
    def num_used(self) -> int:
        """Bytes that are in use, of the ballast too."""
        status = os.statvfs(self.folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def leave(self, num_bytes: int) -> None:
        """Fill the disk up until so many bytes are free; more than that if it is full already."""
        num = self.num_free - num_bytes
        if num > 0:
            name = next(f"{BALLAST}-{i}" for i in itertools.count() if not (self.folder / f"{BALLAST}-{i}").exists())
            with (self.folder / name).open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, num)

    def clear(self) -> None:
        """Remove what `leave` has put there."""
        for path in self.folder.glob(f"{BALLAST}-*"):
            path.unlink()
