"""Whether a server that ended is started again. Pure."""

from dataclasses import dataclass

from stream_server.errors import InternalError, RankLost, RanksDiverged, UserCodeError

FINAL_CODES = frozenset({0, 2, 4, 5, 6, 75})
# What happens at the same batch again will happen each time.
CODES_BY_BATCH = frozenset({UserCodeError.exit_code, RanksDiverged.exit_code, InternalError.exit_code})
MAX_PAUSE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerEnd:
    """How a server ended; `batch` is the one at which it failed, None when that was outside of training."""

    exit_code: int
    message: str
    batch: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """Start it again after `pause_s`."""

    pause_s: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveIn:
    """It stays away: leave with this exit code."""

    exit_code: int
    text: str


class Restarts:
    """Counts the restarts without progress, of which `limit` are allowed in a row."""

    def __init__(self, limit: int, *, num_in_a_row: int = 0, failed_batch: int | None = None) -> None:
        self.limit = limit
        self.num_in_a_row = num_in_a_row
        self.failed_batch = failed_batch

    def progressed(self) -> None:
        """A checkpoint was committed."""
        self.num_in_a_row = 0

    def decide(self, end: ServerEnd, *, stopping: bool) -> Restart | GiveIn:
        """What to do after this end; `stopping` when the study was asked to stop."""
        if end.exit_code in FINAL_CODES:
            return GiveIn(exit_code=end.exit_code, text=end.message)
        if stopping:
            return GiveIn(exit_code=end.exit_code, text=f"{end.message}; it is not restarted, for it was to stop")
        if end.exit_code == UserCodeError.exit_code and end.batch is None:
            return GiveIn(exit_code=end.exit_code, text=f"{end.message}; that was outside of training")
        if end.exit_code in CODES_BY_BATCH and end.batch is not None:
            before, self.failed_batch = self.failed_batch, end.batch
            if end.batch == before:
                return GiveIn(exit_code=end.exit_code, text=f"{end.message}; batch {before} failed twice")
        if self.num_in_a_row >= self.limit:
            limit = f"{self.num_in_a_row} restarts in a row brought no new checkpoint, launcher.restarts allows no more"
            return GiveIn(exit_code=end.exit_code, text=f"{end.message}; {limit}")
        self.num_in_a_row += 1
        # 0, 1, 2, 4 … s; the exponent is bounded, for a float is.
        pause_s = min(MAX_PAUSE_S, 2.0 ** min(self.num_in_a_row - 2, 9)) if self.num_in_a_row > 1 else 0.0
        count = f"restart {self.num_in_a_row} of {self.limit} without a new checkpoint"
        return Restart(pause_s=pause_s, text=f"{end.message}; it is started again ({count})")


def lost(message: str) -> ServerEnd:
    """The end of a server that left no word."""
    return ServerEnd(exit_code=RankLost.exit_code, message=message)
