"""Outages: what a backend does not answer, or a file does not show, for a while, and when that is told.

Why: docs/decisions/0048-submission-without-an-answer.md
"""

import contextlib
import logging
import math
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

FIRST_S = 5.0
EXPECTED = (OSError, subprocess.SubprocessError)

log = logging.getLogger(__name__)


class Outage:
    """Questions that have no answer now and are asked again. Any thread.

    Whoever asks names the question; an outage lasts until each of them has been answered. `news` tells once of one that
    has lasted for `FIRST_S`, and of its end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unanswered: dict[str, str] = {}
        self._since = 0.0
        self._tell_at = math.inf
        self._was_told = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def within(self, what: str) -> Iterator[None]:
        """Ask a question in the block; `what` says what an OSError or SubprocessError of it means."""
        try:
            yield
        except EXPECTED as error:
            self.unanswered(what, error)
        else:
            self.answered(what)

    def unanswered(self, what: str, error: Exception) -> None:
        """A question has no answer."""
        with self._lock:
            if not self._unanswered:
                self._since = self._clock()
                self._tell_at = self._since + FIRST_S
            is_new = what not in self._unanswered
            self._unanswered[what] = stderr_of(error)
        if is_new:
            unforeseen = None if isinstance(error, EXPECTED) else error
            log.info("%s: %s", what, stderr_of(error), exc_info=unforeseen)

    def answered(self, what: str) -> None:
        """A question has an answer, or need not be asked any more."""
        with self._lock:
            self._unanswered.pop(what, None)

    def repeat(self) -> None:
        """Tell of an outage that was told before once more: somebody has not heard of it."""
        if self._was_told:
            self._tell_at = -math.inf

    def news(self) -> str:
        """The news to tell now; "" if there are none."""
        with self._lock:
            now = self._clock()
            lasted_s = now - self._since
            if not self._unanswered:
                was_told, self._was_told = self._was_told, False
                return f"there are answers again, after {lasted_s:.0f} s" if was_told else ""
            if now < self._tell_at:
                return ""
            self._was_told, self._tell_at = True, math.inf
            (what, error), *others = self._unanswered.items()
        more = f", and {len(others)} more" if others else ""
        return f"no answer for {lasted_s:.0f} s: {what} ({error}){more}; what runs goes on"


def stderr_of(error: Exception) -> str:
    """The words of a command that failed, or of any other error, with its type where nobody expects it."""
    said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) and error.stderr else ""
    return said or (str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}")
