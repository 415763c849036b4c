"""The stores that are damaged, and the way to read them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Verdict(Enum):
    """The verdict of a restart on a damage."""

    WHOLE = "as it was written"
    OLDER = "set aside, the one before used"
    REFUSED = "refused in words"
    SHORTER = "read up to where it ends, as after a crash"


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """Files that one part of the product writes and reads.

    `make` writes those of one of several studies, by number, into a folder. `read` reads them as a restart does.
    `targets` are the patterns of the files that may be damaged. Of those in `ends_anywhere` the end may be missing, as
    after a crash, and what is before counts. What `is_unbound` knows neither its study nor the order of its lines.
    The folder `older` has what is used in the place of what is damaged.
    """

    name: str
    make: Callable[[Path, int], None]
    read: Callable[[Path], Verdict]
    targets: tuple[str, ...]
    ends_anywhere: tuple[str, ...] = ()
    is_unbound: bool = False
    older: str = ""

    def files(self, folder: Path) -> list[str]:
        """The files that may be damaged, by their paths in the folder."""
        found = {path for pattern in self.targets for path in folder.glob(pattern) if path.is_file()}
        return sorted(path.relative_to(folder).as_posix() for path in found)
