"""How each simulation of a job ended, and which of them brought the job down. All but the reading is pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from stream_server.launcher.entry import RESTARTED
from stream_server.launcher.job_spec import LOG_FILE, Ended, describe, exit_code_in
from stream_server.launcher.log_end import log_end
from stream_server.launcher.mpirun import RANKS_FILE
from stream_server.launcher.verdict import ENDED_WITH_JOB, excuse_of_failed

Attempt = tuple[int, int]
ABORT = "Abort("


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnd:
    """An attempt is over. `exit_code` is None when it is not known or not its own.

    An `excuse` says why a failure would not count against its simulation. `log` holds the last words.
    """

    simulation: int
    attempt: int
    exit_code: int | None
    reason: str
    log: Path
    excuse: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traces:
    """What the ranks of a simulation left: the exit codes of those that ended by themselves, and whether one aborted.

    MPICH ends a job of which a rank calls MPI_Abort before there is an exit code, but writes into the log.
    """

    codes: tuple[int, ...] = ()
    aborted: bool = False

    @classmethod
    def read(cls, folder: Path) -> Self:
        lines = log_end(folder / LOG_FILE).splitlines()
        return cls(codes=_codes(folder), aborted=any(line.startswith(ABORT) for line in lines))

    @classmethod
    def of_running(cls, folder: Path) -> Self:
        """What they have left so far; an abort ends the job."""
        return cls(codes=_codes(folder))

    @property
    def at_fault(self) -> str:
        """What it did to bring the job down, "" if nothing."""
        code = next((code for code in self.codes if code), 0)
        return f"a rank {describe(code)}" if code else "a rank called MPI_Abort" if self.aborted else ""

    def all_ended(self, num_ranks: int) -> bool:
        return len(self.codes) >= num_ranks

    def ended_well(self, num_ranks: int) -> bool:
        return self.all_ended(num_ranks) and not any(self.codes)


def ends(folders: Mapping[Attempt, Path], job: Ended, *, num_ranks: int) -> list[AttemptEnd]:
    """How the attempts in these folders ended, which shared a job or had one alone."""
    if len(folders) > 1:
        return judge({attempt: Traces.read(folder) for attempt, folder in folders.items()}, folders, job, num_ranks)
    return [_end(attempt, job, folder / LOG_FILE, job.exit_code, job.reason) for attempt, folder in folders.items()]


def judge(
    traces: Mapping[Attempt, Traces], folders: Mapping[Attempt, Path], job: Ended, num_ranks: int
) -> list[AttemptEnd]:
    """How the attempts of one job ended. When nobody can be shown to be at fault, all that did not end well are."""
    guilty = next((simulation for (simulation, _), it in traces.items() if it.at_fault), None)
    judged = []
    for attempt, it in traces.items():
        log = _log(folders[attempt], job.folder)
        if job.exit_code == 0 or it.ended_well(num_ranks):
            judged.append(_end(attempt, job, log, 0, describe(0)))
        elif it.at_fault or guilty is None:
            judged.append(_end(attempt, job, log, job.exit_code or None, it.at_fault or job.reason))
        else:
            judged.append(_end(attempt, job, log, None, ENDED_WITH_JOB, excuse_of_failed(guilty)))
    return judged


def _end(attempt: Attempt, job: Ended, log: Path, exit_code: int | None, reason: str, excuse: str = "") -> AttemptEnd:
    simulation, number = attempt
    excuse = excuse or (RESTARTED if job.unseen else "")
    return AttemptEnd(simulation=simulation, attempt=number, exit_code=exit_code, reason=reason, log=log, excuse=excuse)


def _codes(folder: Path) -> tuple[int, ...]:
    try:
        words = (folder / RANKS_FILE).read_bytes().split()
    except OSError:
        return ()
    codes = map(exit_code_in, words)
    return tuple(code for code in codes if code is not None)


def _log(folder: Path, job: Path) -> Path:
    """Where to read of its end: in its own log, or in mpirun's if it never wrote any."""
    own = folder / LOG_FILE
    return own if own.exists() and own.stat().st_size else job / LOG_FILE
