"""What a launcher writes into its journal, and how it reads that back. Pure."""

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, get_args

from stream_server.errors import StreamServerError
from stream_server.launcher.typed import typed


class DamagedJournal(StreamServerError):
    """A journal has a line that no launcher of this version wrote."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherStarted:
    """A launcher has begun: a new run, or, when `resumed`, in the place of one that was killed, with the jobs of that.

    `boot` tells which start of which machine its process numbers belong to. At `link` rank 0 speaks to it. One that
    `supervises` starts the server itself, one that does not was started by rank 0.
    """

    pid: int
    boot: str
    link: str
    supervises: bool
    resumed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherLeft:
    """A launcher has ended in order: nothing that it started runs any more."""

    exit_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTaken:
    """The launcher has the plan of this epoch."""

    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStarting:
    """The server is about to be started for the `number`-th time.

    Its sockets are in `folder`, whose name is in the environment of all its processes. At `alive` they show that they
    live. `words_before` tells by which reports of an earlier start it is not to be judged.
    """

    number: int
    ranks: int
    folder: str
    alive: str
    words_before: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStarted:
    """It runs; its first process leads a session."""

    number: int
    pid: int
    started: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerEnded:
    """No process of it is left. `num_in_a_row` restarts without progress count from now on."""

    number: int
    exit_code: int
    num_in_a_row: int
    failed_batch: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerProgressed:
    """A checkpoint was committed: the restarts in a row count from 0 again."""

    generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptStarting:
    """The job of an attempt of `ranks` ranks is about to be submitted.

    `job` is the folder of one that it shares with others.
    """

    simulation: int
    attempt: int
    folder: str
    public_key: str | None
    job: str | None = None
    ranks: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptStarted:
    """It runs; its first process leads a session."""

    simulation: int
    attempt: int
    pid: int
    started: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptGiven:
    """A client that nobody started runs this attempt, the one of this name."""

    simulation: int
    attempt: int
    client: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptCancelled:
    """Its job is about to be ended, and this is what will be said of it, whatever its processes do then."""

    simulation: int
    attempt: int
    reason: str
    excuse: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnded:
    """It is over; `counted` when that was a failure of its own."""

    simulation: int
    attempt: int
    counted: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenUp:
    """No attempt is left for this simulation."""

    simulation: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstStep:
    """A time step of a simulation has come to the server: the simulations can be made to run."""


Record = (
    LauncherStarted
    | LauncherLeft
    | PlanTaken
    | ServerStarting
    | ServerStarted
    | ServerEnded
    | ServerProgressed
    | AttemptStarting
    | AttemptStarted
    | AttemptGiven
    | AttemptCancelled
    | AttemptEnded
    | GivenUp
    | FirstStep
)

SECTOR_BYTES = 512

_SEAL = b', "crc32": '
_KINDS: dict[str, type[Record]] = {kind.__name__: kind for kind in get_args(Record)}


def encode(record: Record) -> bytes:
    """The line of a record, which ends with the checksum of what is before."""
    text = json.dumps({"record": type(record).__name__, **asdict(record)}).encode()
    return sealed(text[:-1]) + b"\n"


def whole(journal: bytes) -> bytes:
    """A journal without a last line that was never written to its end.

    That one may have an end all the same: a power failure can leave zeros in the place of any sector of it.
    """
    end = journal.rfind(b"\n") + 1
    start = journal.rfind(b"\n", 0, max(end - 1, 0)) + 1
    is_torn = journal.startswith(b"\0", start, end) or bytes(SECTOR_BYTES) in journal[start:end]
    return journal[: start if is_torn else end]


def decode(journal: bytes) -> Iterator[Record]:
    """All records of a journal. A last line without its end was never written to the end, and is left out.

    Raises:
        DamagedJournal: a line is none of ours.
    """
    lines = journal.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            if sealed(line.rpartition(_SEAL)[0]) != line:
                raise ValueError("it does not match its checksum")
            yield _record(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedJournal(f"line {number} is no record of a launcher: {line[:100]!r}") from error


def sealed(text: bytes) -> bytes:
    """A line without its end, all but whose closing brace is `text`: with the checksum of that."""
    return text + _SEAL + b"%d}" % zlib.crc32(text)


def _record(values: dict[str, Any]) -> Record:
    del values["crc32"]
    return typed(_KINDS[values.pop("record")], values)
