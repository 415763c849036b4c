"""How long a client waits: as long as the server says something now and then."""

import time

# A busy machine may keep a process waiting for less than that.
OVERSLEPT_S = 1.0


class Patience:
    """Measures the server's silence during one wait, and when the question is to be asked again.

    The silence may have lasted for `silent_s` before.
    A server that is slow, but answers, is waited for without limit. Time in which this process itself was stopped is
    no silence of the server.
    """

    def __init__(self, *, timeout_s: float, repeat_s: float, silent_s: float = 0.0) -> None:
        self._timeout_s = timeout_s
        self._repeat_s = repeat_s
        self._began = self._asked = self._listened = time.monotonic()
        self._heard = self._began - silent_s

    @property
    def is_over(self) -> bool:
        """The silence has lasted `timeout_s` when the last turn of listening ended."""
        return self.silent_s >= self._timeout_s

    @property
    def silent_s(self) -> float:
        """How long the silence had lasted then."""
        return self._listened - self._heard

    @property
    def slice_s(self) -> float:
        """How long to wait before looking at `is_over` and `may_repeat` again."""
        return min(self._asked + self._repeat_s, self._heard + self._timeout_s) - time.monotonic()

    def has_lasted(self, most_s: float) -> bool:
        """Whether it is so long since the wait began."""
        return time.monotonic() - self._began >= most_s

    def listened(self, most_s: float) -> None:
        """A turn of listening is over, for which `most_s` were meant."""
        now = time.monotonic()
        overslept_s = now - self._listened - max(0.0, most_s)
        if overslept_s > OVERSLEPT_S:
            self._heard += overslept_s
        self._listened = now

    def heard(self) -> None:
        """The server said something."""
        self._heard = time.monotonic()

    def may_repeat(self) -> bool:
        """Whether it is time to ask again; if so, the next time is `repeat_s` later."""
        now = time.monotonic()
        if now - self._asked < self._repeat_s:
            return False
        self._asked = now
        return True
