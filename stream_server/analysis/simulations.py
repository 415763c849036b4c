"""The simulations of a run as its folder tells: its newest checkpoint, the launchers' journal, and files."""

import csv
import os
import time
from dataclasses import dataclass
from sys import intern

from stream_server.analysis.growing import PIECE_BYTES
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import SavedCheckpoint, newest_checkpoint
from stream_server.analysis.timeline import history_of, span_of
from stream_server.config.parameters import ID_COLUMN, ORIGIN_COLUMNS
from stream_server.errors import DamagedCheckpoint
from stream_server.launcher.journal.history import ENDED, FAILED, INTERRUPTED
from stream_server.machine.run_folder import SIMULATIONS, attempt_folders
from stream_server.messages.simulation_phase import SavedSimulation, SimulationPhase, saved_simulations
from stream_server.storage.disk import MAX_TABLE_BYTES, by_own_links, names_in
from stream_server.storage.plain_state import read_state

REPLAYED = "replayed"
# As many are shown where there is little room.
MOST_PARAMETERS = 8
MAX_SIMULATIONS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationSummary:
    """One row of the table of simulations; `seconds` of its newest attempt, None where no folder of it is left.

    `error` is the model's in the newest validation, None where the simulation is trained on.
    """

    simulation: int
    parameters: dict[str, float]
    state: str
    attempts: int
    seconds: float | None
    received: int | None
    reason: str
    error: float | None = None


def simulations_of(run: RunFolder) -> list[SimulationSummary]:
    """The simulations of a dead run: what its newest checkpoint knows, then the journal, then their folders.

    Those of a replay are `replayed`: it has read their samples and run none.
    """
    saved, is_replay = _saved_roster(newest_checkpoint(run))
    history = history_of(run)
    # Of a million simulations few may have been started: each is asked for only if something is there.
    with_folders = set(names_in(run.path / SIMULATIONS))
    summaries = []
    for simulation, parameters in _parameters(run).items():
        entry = saved.get(simulation)
        has_folder = str(simulation) in with_folders
        folders = attempt_folders(run.path, simulation) if has_folder else {}
        attempts = 1 + max(max(folders, default=-1), history.highest.get(simulation, -1))
        unsaved = REPLAYED if is_replay else SimulationPhase.WAITING.value
        state = entry.phase.value if entry else unsaved
        newest = history.all_attempts.get((simulation, history.highest.get(simulation, -1)))
        if history.is_given_up(simulation):
            state = SimulationPhase.GIVEN_UP.value
        elif state == SimulationPhase.RUNNING or (state == SimulationPhase.WAITING and attempts):
            # The next start of the study tries it again, as it does one that failed and is not given up.
            # One whose attempt has ended may have finished: no checkpoint knows what came of it.
            state = newest.state if newest and newest.state in (FAILED, ENDED) else INTERRUPTED
        saved_reason = entry.reason if entry and state not in (FAILED, INTERRUPTED, ENDED) else ""
        is_told = state in (FAILED, INTERRUPTED, ENDED, SimulationPhase.GIVEN_UP)
        reason = saved_reason or (newest.attempt.reason if newest and is_told else "")
        if state == ENDED:
            reason = f"{reason}, but its end is in no checkpoint: when the study goes on, it is run again"
        summaries.append(
            SimulationSummary(
                simulation=simulation,
                parameters=parameters,
                state=state,
                attempts=attempts,
                seconds=seconds_of(run, simulation, is_running=False) if has_folder else None,
                received=entry.num_settled if entry else None,
                reason=reason,
            )
        )
    return summaries


def seconds_of(run: RunFolder, simulation: int, *, is_running: bool) -> float | None:
    """The time that the newest attempt has taken, as the times of its files tell; None without a folder."""
    folders = attempt_folders(run.path, simulation)
    started_s, ended_s = span_of(folders[max(folders)]) if folders else (None, None)
    if started_s is None or ended_s is None:
        return None
    return max(0.0, (time.time() if is_running else ended_s) - started_s)


def _saved_roster(checkpoint: SavedCheckpoint | None) -> tuple[dict[int, SavedSimulation], bool]:
    """The simulations that a checkpoint knows, and whether it is one of a replay, which has none of its own."""
    if checkpoint is None:
        return {}, False
    try:
        roster = read_state(checkpoint.path / "study.state", opener=by_own_links).get("roster")
        rows = [] if roster is None else saved_simulations(roster["simulations"])
        return {saved.simulation: saved for saved in rows}, roster is None
    except (OSError, DamagedCheckpoint, LookupError, TypeError, ValueError, AttributeError):
        # The checkpoint of a run that goes on may have just been removed.
        return {}, False


def _parameters(run: RunFolder) -> dict[int, dict[str, float]]:
    parameters: dict[int, dict[str, float]] = {}
    try:
        with open(run.path / "parameters.csv", newline="", encoding="utf-8", opener=by_own_links) as file:
            if os.fstat(file.fileno()).st_size > MAX_TABLE_BYTES:
                return {}
            rows = csv.reader(iter(lambda: file.readline(PIECE_BYTES), ""))
            names = [intern(name) for name in next(rows, [])]
            shown = [place for place, name in enumerate(names) if name not in (ID_COLUMN, *ORIGIN_COLUMNS)]
            place_of_id = names.index(ID_COLUMN)
            for row in rows:
                parameters[int(row[place_of_id])] = {names[place]: float(row[place]) for place in shown}
                if len(parameters) > MAX_SIMULATIONS:
                    return {}
    except (OSError, ValueError, IndexError, csv.Error):
        return {}
    return parameters
