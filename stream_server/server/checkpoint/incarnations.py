"""The incarnations: all starts of the server on one output folder. Only the newest may commit.

Why: docs/decisions/0045-retry-given-up.md
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from stream_server.errors import DamagedCheckpoint, OtherFormat, StaleIncarnation
from stream_server.failpoints import failpoint
from stream_server.storage.checksums import checksummed_json, parse_checksummed_json
from stream_server.storage.disk import (
    NoLocks,
    close,
    lock,
    make_folder,
    open_private_to_append,
    read_file,
    remove_leftovers,
    replace_file,
)
from stream_server.storage.typed import from_json

FORMAT = 2
INCARNATIONS_FILE = "incarnations.json"
LOCK_FILE = "incarnations.lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class Incarnation:
    """A start of the server: the checkpoint that it continues (0: none) and its batches, and the number of ranks.

    `retried` are the simulations that it was to try again, although they are given up in that checkpoint.
    """

    incarnation: int
    base: int
    batches: int
    ranks: int
    started: str
    retried: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Incarnations:
    """All starts so far, numbered 1, 2, …, in their order."""

    starts: tuple[Incarnation, ...] = ()

    @property
    def newest(self) -> int:
        """The number of the newest incarnation; 0 before the first."""
        return len(self.starts)

    def is_valid(self, checkpoint: int, incarnation: int) -> bool:
        """Whether a checkpoint of this incarnation is valid: no later incarnation began without it.

        A server that was thought dead and woke up may commit checkpoints that its successor does not continue.
        """
        return 1 <= incarnation <= self.newest and all(later.base >= checkpoint for later in self.starts[incarnation:])

    def retried_since(self, incarnation: int) -> set[int]:
        """The simulations that later starts were to try again, unknown to a checkpoint of this one."""
        return {simulation for start in self.starts[incarnation:] for simulation in start.retried}

    def check(self, incarnation: int) -> None:
        """Make sure that this incarnation is the newest.

        Raises:
            StaleIncarnation: a newer one has begun.
            DamagedCheckpoint: it is not among the starts at all.
        """
        if incarnation < self.newest:
            raise StaleIncarnation(
                f"this server is incarnation {incarnation} of the study, but incarnation {self.newest} was started at "
                f"{self.starts[-1].started}: it may not save anything any more"
            )
        if incarnation > self.newest:
            raise DamagedCheckpoint(
                f"{INCARNATIONS_FILE} must have incarnation {incarnation}, but ends with incarnation {self.newest}"
            )


def read_incarnations(folder: Path) -> Incarnations:
    """The starts that are listed in the checkpoint folder.

    Raises:
        DamagedCheckpoint: the list is damaged.
        OSError: it cannot be read.
    """
    try:
        data = read_file(folder / INCARNATIONS_FILE)
    except FileNotFoundError:
        return Incarnations()
    return _parse(data)


def begin_incarnation(
    folder: Path, *, base: int, batches: int, ranks: int, started: str, retried: Sequence[int] = ()
) -> Incarnation:
    """Begin the next incarnation, which continues checkpoint `base` of this many batches; older servers save no more.

    Raises:
        StaleIncarnation: another server is being started on this folder right now.
        DamagedCheckpoint: the list of the starts is damaged.
        OSError: the new list is not on disk.
    """
    make_folder(folder)
    with _lock(folder):
        incarnations = read_incarnations(folder)
        incarnation = Incarnation(
            incarnation=incarnations.newest + 1,
            base=base,
            batches=batches,
            ranks=ranks,
            started=started,
            retried=tuple(retried),
        )
        remove_leftovers(folder / INCARNATIONS_FILE)
        failpoint("incarnations.before_append")
        starts = [asdict(start) for start in (*incarnations.starts, incarnation)]
        replace_file(folder / INCARNATIONS_FILE, checksummed_json({"format": FORMAT, "starts": starts}))
    failpoint("incarnations.appended")
    return incarnation


def _parse(data: bytes) -> Incarnations:
    try:
        plain = parse_checksummed_json(data)
        if plain["format"] != FORMAT:
            raise OtherFormat(
                f"{INCARNATIONS_FILE} has format {plain['format']}, and this release reads format {FORMAT}"
            )
        starts = tuple(from_json(Incarnation, start) for start in plain["starts"])
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpoint(f"{INCARNATIONS_FILE} is damaged: {error}"[:200]) from error
    numbers = [start.incarnation for start in starts]
    if numbers != list(range(1, len(starts) + 1)):
        raise DamagedCheckpoint(f"{INCARNATIONS_FILE} must list the incarnations 1, 2, …, but has {str(numbers)[:80]}")
    if any(min(start.base, start.batches, start.ranks) < 0 for start in starts):
        raise DamagedCheckpoint(f"{INCARNATIONS_FILE} has a number below 0")
    return Incarnations(starts=starts)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    file = open_private_to_append(folder / LOCK_FILE)
    try:
        # Without locks, what stands in server.lock keeps other starts out of this folder.
        with suppress(NoLocks):
            if not lock(file):
                raise StaleIncarnation(f"another server is being started on {folder} at this moment")
        yield
    finally:
        close(file)
