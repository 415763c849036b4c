"""Runs whose files are written as a server and a launcher write them, without either."""

import json
from collections.abc import Iterable
from pathlib import Path

from stream_server.launcher.journal import records
from stream_server.machine.study_lock import RUN_LOCK
from stream_server.messages.launcher_link import Failed
from tests.analysis.logged_run import log_run

STARTED = records.LauncherStarted(pid=1, boot="b", link="ipc:///l", supervises=False, resumed=False)


def make_run(folder: Path, *, num_simulations: int = 6, num_running: int = 0, batches: range | None = None) -> Path:
    """A run with metrics, in which every fifth simulation failed once, and the last ones still run."""
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"study": {"name": folder.name}}))
    (folder / RUN_LOCK).touch()
    logs = folder / "logs"
    logs.mkdir()
    (logs / "server-0.log").write_text("rank 0 <b>begins</b>\n")
    log_run(folder, batches or range(10, 60, 10))
    rows = (f"{simulation},{simulation / 10},{-simulation}" for simulation in range(num_simulations))
    (folder / "parameters.csv").write_text("\n".join(("simulation,slope,offset", *rows, "")))
    add_to_journal(folder, [STARTED])
    for simulation in range(num_simulations):
        add_attempts(folder, simulation, is_running=simulation >= num_simulations - num_running)
    return folder


def add_attempts(folder: Path, simulation: int, *, is_running: bool) -> None:
    """The attempts of one simulation, with their folders and records."""
    last = int(simulation % 5 == 4)
    for attempt in range(last + 1):
        place = folder / "simulations" / str(simulation) / f"attempt-{attempt}"
        place.mkdir(parents=True)
        (place / "output.log").write_text(f"simulation {simulation}, attempt {attempt}\n")
        (place / "connection.json").write_text("{}")
        written: list[records.JournalRecord] = [
            records.AttemptStarting(simulation=simulation, attempt=attempt, folder=str(place), public_key=None),
            records.AttemptStarted(simulation=simulation, attempt=attempt, handle=f"{simulation} 1 b"),
        ]
        if attempt < last:
            written.append(Failed(simulation=simulation, attempt=attempt, reason="exit code 1"))
        elif not is_running:
            written.append(
                records.AttemptEnded(simulation=simulation, attempt=attempt, reason="ended with exit code 0")
            )
        add_to_journal(folder, written)


def add_to_journal(folder: Path, written: Iterable[records.JournalRecord]) -> None:
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b"".join(map(records.encode, written)))
