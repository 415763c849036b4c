"""The activity of a study, as far as it can be seen from outside."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.faults.chaos.audit import committed_checkpoints, has_trained
from tests.support.failpoints import TRACE_FILE, failpoints

RECONNECTS = "client.before_reconnect"
IS_BACK = "client.after_opened"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Tells the moments of the study in `output_dir`, whose processes run with our `environment`."""

    output_dir: Path

    @property
    def environment(self) -> dict[str, str]:
        """Makes clients note when they look for a new server, and when it has let them in."""
        return failpoints(self._folder, f"{RECONNECTS}=trace", f"{IS_BACK}=trace")

    def now(self, processes: Mapping[str, Sequence[psutil.Process]]) -> str:
        """The moment, in a word.

        commit: the server writes a checkpoint that is not complete. reconnect: a client has heard of a new server,
        and has not been let in yet. restore: the server goes on from a checkpoint, and has not trained a batch since;
        start: the same without a checkpoint. training: nothing of these.
        """
        ranks = processes["rank"]
        started = min((time for time in map(_started, ranks) if time is not None), default=float("inf"))
        if self.is_committing(since=started):
            return "commit"
        if {client.pid for client in processes["client"]} & self.reconnecting():
            return "reconnect"
        if any(has_trained(self.output_dir, rank.pid) for rank in ranks):
            return "training"
        return "restore" if committed_checkpoints(self.output_dir / "checkpoints") else "start"

    def is_committing(self, since: float) -> bool:
        """There is an incomplete checkpoint, and something was added to it since then."""
        for folder in (self.output_dir / "checkpoints").glob("*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                if folder.stat().st_mtime > since:
                    return True
        return False

    def reconnecting(self) -> set[int]:
        """The pids of clients that have heard of a new server, and have not been let in by it; some may be dead."""
        trace = self._folder / TRACE_FILE
        lines = trace.read_text().splitlines() if trace.exists() else []
        last = {int(pid): name for name, pid, _ in map(str.split, lines)}
        return {pid for pid, name in last.items() if name == RECONNECTS}

    @property
    def _folder(self) -> Path:
        return self.output_dir.with_suffix(".trace")


def _started(process: psutil.Process) -> float | None:
    try:
        return float(process.create_time())
    except psutil.NoSuchProcess:
        return None
