"""The failure of a rank, which ends all ranks.

Why: docs/decisions/0006-failing-rank.md
"""

import json
import logging
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

import stream_server
from stream_server.errors import (
    InternalError,
    PeerFailed,
    ProducerFailed,
    RankLost,
    StreamServerError,
    UserCodeError,
)
from stream_server.machine.refusals import refusal
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.control_round import offer_failure
from stream_server.storage.disk import exists, read_file, replace_file

_OURS = Path(stream_server.__file__).parent
_STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
# gloo and NCCL raise a RuntimeError when the process at the other end has died.
_LOST_PEER = ("gloo/transport", "ncclRemoteError")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failure of a rank: where and what it was; `batch` is the one that was trained, None outside of training."""

    rank: int
    thread: str
    phase: str
    message: str
    traceback: str
    exit_code: int
    batch: int | None = None

    @classmethod
    def of(cls, error: BaseException, *, rank: int, phase: str, batch: int | None = None) -> "Failure":
        """Describe `error`; an error that came through the buffer is reported as the receiver's."""
        thread = threading.current_thread().name
        if isinstance(error, ProducerFailed) and error.__cause__ is not None:
            error, thread, phase = error.__cause__, "receiver", "receive"
        error = classified(error)
        return cls(
            rank=rank,
            thread=thread,
            phase=phase,
            message=str(error) or type(error).__name__,
            traceback=_explain(error),
            exit_code=error.exit_code,
            batch=batch,
        )

    def record(self, output_dir: Path) -> None:
        """Write exit.json, unless another rank was first; a disk that refuses it hides no failure.

        The file appears with all that is in it: who finds it may end the rank that writes it.
        """
        path = output_dir / "exit.json"
        if exists(path):
            return
        try:
            replace_file(path, json.dumps(asdict(self), indent=2).encode())
        except OSError as error:
            _log.warning("%s cannot be written: %s", path, error)

    @classmethod
    def read(cls, output_dir: Path) -> "Failure | None":
        """The first failure of a run, if there was one."""
        try:
            return msgspec.json.decode(read_file(output_dir / "exit.json"), type=cls)
        except (OSError, ValueError, RecursionError):
            return None


def classified(error: BaseException) -> StreamServerError:
    """The error of our tree that stands for `error`, which is its cause unless it belongs to the tree itself.

    Any other exception is a UserCodeError if the user's code raised it, a RankLost if the machine refused something,
    and an InternalError otherwise. A connection that broke because another rank died is a RankLost, also where the
    user's code was waiting for that rank.
    """
    kind: StreamServerError
    if any(mark in str(cause) for cause in _chain(error) for mark in _LOST_PEER):
        # The words of gloo or NCCL, an address and a line of its source, stand in the traceback.
        kind = RankLost("another rank died or lost its connection")
    elif isinstance(error, StreamServerError):
        return error
    elif method := _method_of_user(error):
        kind = UserCodeError(f"{method} raised {type(error).__name__}: {error}")
    elif words := refusal(error):
        kind = RankLost(words)
    else:
        kind = InternalError.of(error)
    kind.__cause__ = error
    return kind


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, its cause, the cause of that and so on, each once: a user's code may raise an error from itself."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__


def _method_of_user(error: BaseException) -> str:
    """The method of the user's that we called and that raised, "" if ours did.

    It is the user's if the innermost function that raised, or called the library that did, is neither ours nor a
    library's.
    """
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    method = ""
    for code in reversed(codes):
        file = Path(code.co_filename)
        if file.is_relative_to(_OURS):
            break
        if not _is_library(file):
            method = code.co_qualname
    return method


def _is_library(file: Path) -> bool:
    return (
        not file.is_absolute()
        or not _INSTALLED.isdisjoint(file.parts)
        or any(file.is_relative_to(folder) for folder in _STANDARD)
    )


def _explain(error: StreamServerError) -> str:
    """The text for people: the traceback of an exception that is not ours, and the message of the error."""
    if error.__cause__ is None:
        return f"{error}\n"
    return "".join(traceback.format_exception(error.__cause__)) + f"{error}\n"


def leave_together(
    error: BaseException, ranks: Ranks, output_dir: Path | None, *, phase: str, batch: int | None = None
) -> int | None:
    """Make all ranks end because of `error`; main thread only.

    The failure goes into exit.json, unless `output_dir` is None, and then into the control round. Call this before
    anything is taken down: a peer that waits for this rank in a step must find no closed connection, which it would
    take for the first failure.

    Returns:
        The exit code that all ranks agreed on, or None if the others were not reached in time because user code or a
        library does not return. Only `ranks.abort` can follow then.
    """
    if isinstance(error, PeerFailed):
        agreed = offer_failure(ranks, 0) if ranks.is_cut_short else error.exit_code
    else:
        failure = Failure.of(error, rank=ranks.rank, phase=phase, batch=batch)
        _log.info("rank %d failed in %s:\n%s", failure.rank, failure.phase, failure.traceback)
        if output_dir is not None:
            failure.record(output_dir)
        agreed = offer_failure(ranks, failure.exit_code)
    if agreed is not None:
        # What is taken down now, and the account, need all ranks once more.
        ranks.abandon_calls()
    return agreed
