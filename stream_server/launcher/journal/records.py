"""The records of a journal, and their lines. Pure.

Records that are written together make one line: what a power failure tears can then only be the last line. What the
launcher sends to the server (`Attached`, `Failed`, `GaveUp`) or receives from it (`Committed`, `FinishSimulations`)
is recorded as it is.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct

from stream_server.errors import MalformedMessage, StreamServerError
from stream_server.messages import codec
from stream_server.messages.codec import JsonMessage
from stream_server.messages.launcher_link import Attached, Committed, Failed, FinishSimulations, GaveUp
from stream_server.storage.typed import quoted

FORMAT = 6


class DamagedJournal(StreamServerError):
    """A journal has a line that no launcher of this version wrote."""

    exit_code = 2


class OtherJournalFormat(DamagedJournal):
    """A launcher of another version began the journal."""


class LauncherStarted(JsonMessage, frozen=True, kw_only=True):
    """A launcher has begun: a new run, or, when `resumed`, in place of one that was killed, with the jobs of that.

    `boot` tells which start of which machine its process numbers belong to. At `link` rank 0 speaks to it. One that
    `supervises` starts the server itself, one that does not was started by rank 0.
    """

    pid: int
    boot: str
    link: str
    supervises: bool
    resumed: bool
    format: int = FORMAT


class LauncherLeft(JsonMessage, frozen=True, kw_only=True):
    """A launcher has ended in order: nothing that it started runs any more."""

    exit_code: int


class PlanTaken(JsonMessage, frozen=True, kw_only=True):
    """The launcher has the plan of this incarnation."""

    incarnation: int


class ServerStarting(JsonMessage, frozen=True, kw_only=True):
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


class ServerStarted(JsonMessage, frozen=True, kw_only=True):
    """The server runs; its first process leads a session."""

    number: int
    pid: int
    started: int


class ServerEnded(JsonMessage, frozen=True, kw_only=True):
    """No process of it is left. `num_in_a_row` restarts without progress count from now on."""

    number: int
    exit_code: int
    num_in_a_row: int
    failed_batch: int | None


class AttemptStarting(JsonMessage, frozen=True, kw_only=True):
    """The job of an attempt of `ranks` ranks is about to be submitted.

    `job` is the folder of one that it shares with others.
    """

    simulation: int
    attempt: int
    folder: str
    public_key: str | None
    job: str | None = None
    ranks: int = 1


class AttemptStarted(JsonMessage, frozen=True, kw_only=True):
    """Its job was submitted; `handle` is what the backend calls that."""

    simulation: int
    attempt: int
    handle: str


class AttemptCancelled(JsonMessage, frozen=True, kw_only=True):
    """Its job is about to be ended; `reason` is what is reported then, whatever its processes do."""

    simulation: int
    attempt: int
    reason: str
    excuse: str


class AttemptEnded(JsonMessage, frozen=True, kw_only=True):
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


class FirstStep(JsonMessage, frozen=True, kw_only=True):
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


class Together(JsonMessage, frozen=True, kw_only=True):
    """Records that are written together."""

    records: Annotated[tuple[JournalRecord, ...], Meta(min_length=1)]


class _Begin(Struct):
    """The part of a record that tells the format of a journal, which only the first kind has."""

    message: Any = None
    format: Any = 1


_CHECKSUM = b',"crc32":'
_line: Callable[[bytes], JournalRecord | Together] = codec.decoder(JournalRecord | Together)
_begin: Callable[[bytes], _Begin] = codec.decoder(_Begin)


def encode(*records: JournalRecord) -> bytes:
    """The line of one or several records, which ends with a checksum."""
    line = records[0] if len(records) == 1 else Together(records=records)
    return with_checksum(codec.encode(line)[:-1]) + b"\n"


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
    """The line `text` with its checksum and closing brace."""
    return text + _CHECKSUM + b"%d}" % zlib.crc32(text)


def _records(frame: bytes) -> tuple[JournalRecord, ...]:
    begin = _begin(frame)
    if begin.message == LauncherStarted.__name__ and begin.format != FORMAT:
        raise OtherJournalFormat(f"it is of format {quoted(begin.format)}, this version knows {FORMAT} only")
    line = _line(frame)
    return line.records if isinstance(line, Together) else (line,)
