"""The starts of the server on one output folder, and which of them may still speak."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from stream_server.disk import close, make_folder, open_to_append, read_file, remove_leftovers, replace_file
from stream_server.errors import DamagedCheckpoint, StaleEpoch
from stream_server.failpoints import failpoint

EPOCHS_FILE = "epochs.jsonl"
LOCK_FILE = "epochs.lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """One start: the generation that it continues (0: none) and its batches, its number of ranks, and when."""

    epoch: int
    base: int
    batches: int
    ranks: int
    started: str

    def to_line(self, *, is_last: bool = False) -> bytes:
        """One line of JSON with a checksum of the rest; the last one says so, lest the end of the file be lost."""
        plain = {**asdict(self), "last": True} if is_last else asdict(self)
        plain["xxh3"] = xxhash.xxh3_64_hexdigest(json.dumps(plain).encode())
        return json.dumps(plain).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> tuple["Epoch", bool]:
        """Read back what `to_line` gave, and whether it was the last; every byte of it counts.

        Raises:
            DamagedCheckpoint: it is something else.
        """
        try:
            plain = json.loads(line)
            del plain["xxh3"]
            is_last = plain.pop("last", False)
            epoch = cls(**plain)
            if epoch.to_line(is_last=is_last) == line and _is_sound(plain):
                return epoch, is_last
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise DamagedCheckpoint(f"{EPOCHS_FILE} has a damaged line: {line[:80]!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Epochs:
    """All starts so far, 1, 2, …, in their order."""

    starts: tuple[Epoch, ...] = ()

    @property
    def newest(self) -> int:
        """The number of the newest epoch; 0 before the first."""
        return len(self.starts)

    def is_valid(self, generation: int, epoch: int) -> bool:
        """Whether a generation of this epoch counts: no later epoch began without it.

        A server that was thought dead and woke up may commit generations that its successor does not continue.
        """
        return 1 <= epoch <= self.newest and all(later.base >= generation for later in self.starts[epoch:])

    def check(self, epoch: int) -> None:
        """Make sure that this epoch is the newest.

        Raises:
            StaleEpoch: a newer one has begun.
            DamagedCheckpoint: it is not among the starts at all.
        """
        if epoch < self.newest:
            raise StaleEpoch(
                f"this server is epoch {epoch} of the study, but epoch {self.newest} was started at "
                f"{self.starts[-1].started}: it may not save anything any more"
            )
        if epoch > self.newest:
            raise DamagedCheckpoint(f"{EPOCHS_FILE} must have epoch {epoch}, but ends with epoch {self.newest}")


def read_epochs(folder: Path) -> Epochs:
    """The starts that the checkpoint folder knows of.

    Raises:
        DamagedCheckpoint: the file is junk.
        OSError: it cannot be read.
    """
    try:
        data = read_file(folder / EPOCHS_FILE)
    except FileNotFoundError:
        return Epochs()
    return _parsed(data)


def begin_epoch(folder: Path, *, base: int, batches: int, ranks: int, started: str) -> Epoch:
    """Begin the next epoch, which continues generation `base`, of so many batches; older servers can save no more.

    Raises:
        StaleEpoch: another server is being started on this folder right now.
        DamagedCheckpoint: the file of the starts is junk.
        OSError: the line is not on disk.
    """
    make_folder(folder)
    with _locked(folder):
        epochs = read_epochs(folder)
        epoch = Epoch(epoch=epochs.newest + 1, base=base, batches=batches, ranks=ranks, started=started)
        remove_leftovers(folder / EPOCHS_FILE)
        failpoint("epochs.before_append")
        before = b"".join(start.to_line() for start in epochs.starts)
        replace_file(folder / EPOCHS_FILE, before + epoch.to_line(is_last=True))
    failpoint("epochs.appended")
    return epoch


def _parsed(data: bytes) -> Epochs:
    # The file is put in place as a whole, so no crash leaves a part of it.
    found = [Epoch.from_line(line) for line in data.splitlines(keepends=True)]
    starts = tuple(epoch for epoch, _ in found)
    numbers = [start.epoch for start in starts]
    if numbers != list(range(1, len(starts) + 1)):
        raise DamagedCheckpoint(f"{EPOCHS_FILE} must list the epochs 1, 2, …, but has {str(numbers)[:80]}")
    if [number for number, (_, is_last) in enumerate(found, start=1) if is_last] != [len(found)]:
        raise DamagedCheckpoint(f"{EPOCHS_FILE} has lost its end")
    return Epochs(starts=starts)


def _is_sound(plain: dict[str, Any]) -> bool:
    counts = [plain[name] for name in ("epoch", "base", "batches", "ranks")]
    return all(type(count) is int and count >= 0 for count in counts) and isinstance(plain["started"], str)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    file = open_to_append(folder / LOCK_FILE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise StaleEpoch(f"another server is being started on {folder} at this moment") from error
    finally:
        close(file)
