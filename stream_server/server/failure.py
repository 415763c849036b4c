"""How a rank that failed takes the others with it."""

import json
import logging
import threading
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from stream_server.errors import PeerFailed, ProducerFailed, RankLost, StreamServerError
from stream_server.launcher.typed import typed
from stream_server.server.ranks import Ranks
from stream_server.server.training.lockstep import offer_failure

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Which rank failed first, where and with what; `batch` is the one that was trained, None outside of training."""

    rank: int
    thread: str
    phase: str
    message: str
    traceback: str
    exit_code: int
    batch: int | None = None

    @classmethod
    def of(cls, error: BaseException, *, rank: int, phase: str, batch: int | None = None) -> "Failure":
        """Describe `error`; one that came through the buffer is told as the receiver's."""
        thread = threading.current_thread().name
        if isinstance(error, ProducerFailed) and error.__cause__ is not None:
            error, thread, phase = error.__cause__, "receiver", "receive"
        return cls(
            rank=rank,
            thread=thread,
            phase=phase,
            message=str(error) or type(error).__name__,
            traceback=_told(error),
            exit_code=error.exit_code if isinstance(error, StreamServerError) else RankLost.exit_code,
            batch=batch,
        )

    def record(self, output_dir: Path) -> None:
        """Write exit.json, unless another rank was first; a disk that refuses it hides no failure."""
        path = output_dir / "exit.json"
        try:
            with path.open("x") as file:
                json.dump(asdict(self), file, indent=2)
        except FileExistsError:
            return
        except OSError as error:
            _log.warning("%s cannot be written: %s", path, error)
            with suppress(OSError):
                path.unlink(missing_ok=True)

    @classmethod
    def read(cls, output_dir: Path) -> "Failure | None":
        """The first failure of a run, if there was one."""
        try:
            return typed(cls, json.loads((output_dir / "exit.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            return None


def _told(error: BaseException) -> str:
    """What a person needs to see: of the user's own error its traceback, of one that we foresaw what it says."""
    if not isinstance(error, StreamServerError):
        return "".join(traceback.format_exception(error))
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
        The exit code that all ranks agreed on. None when the others did not come to a round in time, since they wait
        for this rank in a collective call of the step: then there is nothing left to do but `ranks.abort`.
    """
    if isinstance(error, PeerFailed):
        return error.exit_code
    failure = Failure.of(error, rank=ranks.rank, phase=phase, batch=batch)
    _log.info("rank %d failed in %s:\n%s", failure.rank, failure.phase, failure.traceback)
    if output_dir is not None:
        failure.record(output_dir)
    return offer_failure(ranks, failure.exit_code)
