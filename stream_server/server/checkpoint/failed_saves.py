"""Failed saves: their cause in plain words, the delay until the next try, and what is logged."""

import errno
import logging
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_server.errors import StreamServerError

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 600.0

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than is allowed",
    errno.EIO: "the disk fails",
    errno.EROFS: "the file system is read-only",
}

_log = logging.getLogger(__name__)


def cause_of(error: BaseException) -> str:
    """The kind of failure, the same whichever file it was met at."""
    if not isinstance(error, OSError) or error.errno is None:
        return f"{type(error).__name__}: {error}"
    return _FULL.get(error.errno) or error.strerror or type(error).__name__


@contextmanager
def noting_space(folder: Path) -> Iterator[None]:
    """Add a note to an error that is met while writing below `folder`: how much is free there, for `reason_of`.

    On the thread that writes, since a file system that hangs blocks whoever calls it.
    """
    try:
        yield
    except OSError as error:
        try:
            free = f"{shutil.disk_usage(folder).free / 2**20:,.1f} MiB are free"
        except OSError:
            free = "its free space is unknown"
        error.add_note(f"{folder}: {free}")
        raise


def reason_of(error: BaseException) -> str:
    """A sentence for people about an error that was met while writing."""
    if not isinstance(error, OSError) or error.errno not in _FULL:
        return f"{type(error).__name__}: {error}"
    where = f" at {error.filename}" if error.filename else ""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{_FULL[error.errno]}{where}{notes}"


class FailedSaves:
    """Failures of checkpoints on one rank. Main thread only.

    After the n-th failure in a row the next try waits at least `FIRST_PAUSE_S` · 2^(n-1), at most `LONGEST_PAUSE_S`: a
    disk that is full stays so for a while, and each try costs a copy of the state and the writing of what still fits.
    The log has one warning per cause, until another cause or a success follows. `warnings` are those for the report.
    """

    def __init__(self, *, rank: int, clock: Callable[[], float]) -> None:
        self._rank = rank
        self._clock = clock
        self._num_in_row = 0
        self._not_before = -math.inf
        self._cause = ""
        self._seen: dict[str, tuple[int, str]] = {}

    @property
    def is_pausing(self) -> bool:
        """Whether it is too early for another try."""
        return self._clock() < self._not_before

    @property
    def warnings(self) -> list[str]:
        """One line per cause of failures on this rank, with the newest details."""
        return [f"{num} of the checkpoints failed: {reason}" for num, reason in self._seen.values()]

    def note(self, error: BaseException | None, *, newest: int) -> None:
        """A checkpoint failed; `error` says why if it was on this rank, and `newest` is the last good one."""
        self._num_in_row += 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._num_in_row - 1, 30), LONGEST_PAUSE_S)
        self._not_before = self._clock() + pause_s
        # On a full disk ranks fail one after another, and only the first failure is news.
        cause, reason = self._cause or "a failure on another rank", "another rank could not write its part"
        if error is not None:
            cause, reason = cause_of(error), reason_of(error)
            self._seen[cause] = self._seen.get(cause, (0, ""))[0] + 1, reason
        # One line on rank 0's screen; the other ranks log what happened to themselves.
        if cause != self._cause and (error is not None or self._rank == 0):
            is_expected = error is None or isinstance(error, OSError | StreamServerError)
            _log.warning(
                "a checkpoint failed: %s; checkpoint %d is still good, training goes on, and the next try waits %g s, "
                "later ones longer",
                reason,
                newest,
                pause_s,
                exc_info=None if is_expected else error,
            )
        self._cause = cause

    def clear(self, number: int) -> None:
        """Checkpoint `number` is committed."""
        if self._num_in_row and self._rank == 0:
            _log.warning("checkpoint %d is committed, after %d that failed", number, self._num_in_row)
        self._num_in_row, self._not_before, self._cause = 0, -math.inf, ""
