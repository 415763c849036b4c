"""The records of a journal, and their lines. Pure.

Records that are written together make one line: what a power failure tears can then only be the last line. What the
launcher sends to the server (`Attached`, `Failed`, `GaveUp`) or receives from it (`Committed`, `FinishSimulations`)
is recorded as it is.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from stream_server.errors import MalformedMessage, StreamServerError
from stream_server.messages import codec
from stream_server.messages.launcher_link import Attached, Committed, Failed, FinishSimulations, GaveUp
from stream_server.storage.typed import quoted

FORMAT = 5


class DamagedJournal(StreamServerError):
    """A journal has a line that no launcher of this version wrote."""

    exit_code = 2


class OtherJournalFormat(DamagedJournal):
    """A launcher of another version began the journal."""


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
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherLeft:
    """A launcher has ended in order: nothing that it started runs any more."""

    exit_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTaken:
    """The launcher has the plan of this incarnation."""

    incarnation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStarting:
    """The server is about to be started for the `number`-th time.

    Its sockets are in `folder`, whose name is in the environment of all its processes. At `alive` they show that they
    live. `reports_before` tells by which reports of an earlier start it is not to be judged. `backend` is what runs it.
    """

    number: int
    ranks: int
    folder: str
    alive: str
    reports_before: str
    backend: str = "local"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStarted:
    """The server runs; its first process leads a session."""

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
    """Its job was submitted; `handle` is what the backend calls that."""

    simulation: int
    attempt: int
    handle: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptCancelled:
    """Its job is about to be ended; `reason` is what is reported then, whatever its processes do."""

    simulation: int
    attempt: int
    reason: str
    excuse: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnded:
    """An attempt is over; of one that has failed by itself `Failed` is recorded.

    `exit_code` is None when it is not known or not its own. An `excuse` says why a failure would not count against the
    simulation. `log` is the path of its last words.
    """

    simulation: int
    attempt: int
    reason: str
    exit_code: int | None = None
    excuse: str = ""
    log: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstStep:
    """A time step of a simulation has come to the server: the simulations can be made to run."""


JournalRecord = (
    LauncherStarted
    | LauncherLeft
    | PlanTaken
    | ServerStarting
    | ServerStarted
    | ServerEnded
    | Committed
    | AttemptStarting
    | AttemptStarted
    | Attached
    | AttemptCancelled
    | AttemptEnded
    | Failed
    | GaveUp
    | FirstStep
    | FinishSimulations
)

_CHECKSUM = b',"crc32":'
_KINDS: dict[str, type[JournalRecord]] = codec.by_name(get_args(JournalRecord))


def encode(*records: JournalRecord) -> bytes:
    """The line of one record, or of several, which ends with the checksum of what is before."""
    encoded = [codec.encode(record) for record in records]
    text = encoded[0][:-1] if len(encoded) == 1 else b'{"records":[%b]' % b",".join(encoded)
    return with_checksum(text) + b"\n"


def decode(journal: bytes) -> Iterator[JournalRecord]:
    """All records of a journal. A last line without its end was never written to the end, and is left out.

    Raises:
        DamagedJournal: a line is none of ours, or one of another version.
    """
    lines = journal.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        text = line.rpartition(_CHECKSUM)[0]
        try:
            if with_checksum(text) != line:
                raise MalformedMessage("it does not match its checksum")
            yield from _records(text + b"}")
        except MalformedMessage as error:
            raise DamagedJournal(f"line {number} is no record of a launcher: {line[:100]!r}") from error


def with_checksum(text: bytes) -> bytes:
    """A line without its end, all but whose closing brace is `text`: with the checksum of that."""
    return text + _CHECKSUM + b"%d}" % zlib.crc32(text)


def _records(frame: bytes) -> list[JournalRecord]:
    values = codec.parse(frame)
    if "records" not in values:
        return [_record(values)]
    several = values["records"]
    if len(values) > 1 or not isinstance(several, list) or not several:
        raise MalformedMessage("it has no list of records")
    if not all(isinstance(each, dict) for each in several):
        raise MalformedMessage("what it lists are no records")
    return [_record(each) for each in several]


def _record(values: dict[str, Any]) -> JournalRecord:
    if values.get("message") == LauncherStarted.__name__ and values.get("format") != FORMAT:
        raise OtherJournalFormat(f"it is of format {quoted(values.get('format', 1))}, this version knows {FORMAT} only")
    record: JournalRecord = codec.message(values, _KINDS)
    return record
