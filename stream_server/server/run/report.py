"""report.json: how a study ended, as one object for people and for whatever started the study."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stream_server.errors import NotBalanced
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake.account import Account, Learned, RankAccount, SimulationEnd, close_account
from stream_server.server.progress.batches import SMALL_PART
from stream_server.server.progress.phases import mean_over_ranks
from stream_server.server.run.cores import Cores
from stream_server.storage.disk import make_folder, replace_file
from stream_server.wording import counted

UNPROTECTED = (
    "network.security is none: anybody who reaches the ports of this study can read and change what is sent over TCP, "
    "and can send data of their own"
)
NO_ACCOUNT = "the ranks did not come together at the end, so what they received and trained is not known here"
FORMAT = 1
PACKAGES = ("stream-server", "numpy", "pyzmq", "mpi4py", "torch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The reason for which the study ended.

    `reason` is one of finished, early_stop, max_batches, max_s, saved and failed; `message` is for people.
    """

    exit_code: int
    reason: str
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReport:
    """The report of a rank to rank 0 at the end; `warnings` are what people should know although all went on."""

    account: RankAccount
    phases_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for rank 0."""
        return {
            "account": self.account.to_json(),
            "phases_s": dict(self.phases_s),
            "memory_bytes": dict(self.memory_bytes),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "RankReport":
        return cls(**{**plain, "account": RankAccount.from_json(plain["account"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyReport:
    """The facts that rank 0 itself knows at the end.

    `batches` counts the steps of the whole study (a step in which several ranks had a batch is one), `updates`
    those of the optimizer, `draws` every use of a sample. `training_s` is what throughput is measured against.
    `awaited` is what had to come from outside for the study to go on, `security` that of the TCP connections. A study
    that `writes_files` trains on nothing; one that `has_changed_nothing` has each trainable parameter as at its start.
    """

    study: str
    started: str
    wall_s: float
    training_s: float
    learned: Learned
    batches: int = 0
    batches_per_rank: Sequence[int] = ()
    updates: int = 0
    draws: int = 0
    lonely_steps: int = 0
    restarts: int = 0
    num_survived: int = 0
    simulations: Mapping[int, SimulationEnd] = field(default_factory=dict)
    failures: Sequence[Mapping[str, Any]] = ()
    retried: Sequence[Mapping[str, Any]] = ()
    failed_later: Sequence[Mapping[str, Any]] = ()
    validation: Sequence[Mapping[str, Any]] = ()
    best_models: Sequence[Mapping[str, Any]] = ()
    best: Mapping[str, Any] = field(default_factory=dict)
    rollout: Mapping[str, Any] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    cores: Cores = field(default_factory=Cores)
    awaited: str = ""
    security: str = "curve"
    writes_files: bool = False
    has_changed_nothing: bool = False


def build_report(
    outcome: Outcome,
    study: StudyReport,
    ranks: Sequence[RankReport],
    num_samples_of: Callable[[int], int] = int,
) -> dict[str, Any]:
    """The whole of report.json. Without `ranks`, which did not come together at the end, it has no account.

    A study that would have ended well but whose account does not balance, or that has learned nothing from its
    samples, ends with the exit code of `NotBalanced`, and the message says why.
    """
    complete = outcome.reason == "finished" and outcome.exit_code == 0
    accounts = [rank.account for rank in ranks]
    account = close_account(
        accounts, study.simulations, study.learned, complete=complete, num_samples_of=num_samples_of
    )
    problems = account.problems if ranks else [NO_ACCOUNT]
    outcome = _judge(outcome, account, study)
    return {
        "format": FORMAT,
        "study": study.study,
        "exit_code": outcome.exit_code,
        "exit_reason": outcome.reason,
        "message": outcome.message,
        "balanced": not problems,
        "unbalanced": list(problems),
        "warnings": [
            *([UNPROTECTED] if study.security == "none" else []),
            *study.cores.warnings,
            *_ended_early(outcome, study.simulations),
            *_left_out(account),
            *(f"rank {number}: {it}" for number, rank in enumerate(ranks) for it in rank.warnings),
        ],
        "started": study.started,
        "wall_s": round(study.wall_s, 3),
        "restarts": study.restarts,
        "ranks": len(ranks) or len(study.batches_per_rank),
        "versions": dict(study.versions),
        "cores": study.cores.to_report(),
        "simulations": {**_count(study.simulations, study.failures), "survived_restarts": study.num_survived},
        "awaited": study.awaited,
        "security": study.security,
        "failures": [dict(failure) for failure in study.failures],
        "retried": [dict(failure) for failure in study.retried],
        "failed_later": [dict(failure) for failure in study.failed_later],
        "samples": account.to_report("recorded" if study.writes_files else "trained"),
        "lonely_steps": study.lonely_steps,
        "draws": study.draws,
        "batches": study.batches,
        "batches_per_rank": list(study.batches_per_rank),
        "updates": study.updates,
        "validation": [dict(entry) for entry in study.validation],
        "best_models": [dict(entry) for entry in study.best_models],
        "best": dict(study.best),
        "rollout": study.rollout,
        "throughput": {
            "samples_per_s": _per_second(study.draws, study.training_s),
            "batches_per_s": _per_second(study.batches, study.training_s),
        },
        "phases_s": {name: round(s, 3) for name, s in mean_over_ranks([rank.phases_s for rank in ranks]).items()},
        "memory_bytes": _sum([rank.memory_bytes for rank in ranks]),
    }


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Put the report in place so that a reader of `path` finds all of it or the one before.

    The file is on disk when this returns. Numbers that are not finite become `null`.
    """
    make_folder(path.parent)
    text = json.dumps(_finite(report), indent=2, allow_nan=False) + "\n"
    replace_file(path, text.encode())


@cache
def versions(mpi: str = "") -> Mapping[str, str]:
    """Versions of Python and of the packages that matter, without importing them; `mpi` names the MPI."""
    # Once, since it reads files of each package (2 ms in all), and rank 0 asks at every checkpoint.
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, "mpi": mpi} if mpi else found


def _judge(outcome: Outcome, account: Account, study: StudyReport) -> Outcome:
    if outcome.exit_code != 0:
        return outcome
    if not account.balanced:
        message = "the account does not balance: " + "; ".join(account.problems)
    elif study.updates == 0 and account.arrived:
        message = f"nothing was learned: no update was made, though {counted(account.arrived, 'time step')} came"
        fates = {"skipped": account.skipped, "rejected": account.num_rejected, "dropped": account.dropped}
        if found := [f"{num:,} were {name}" for name, num in fates.items() if num]:
            message += f", of which {' and '.join(found)}"
        message += ". The logs of the ranks say why; when that is repaired, start over with --fresh"
    elif study.has_changed_nothing:
        message = (
            f"nothing was learned: no parameter changed in {counted(study.updates, 'update')}, not by one bit. The "
            "optimizers were stepped without a gradient, or with a learning rate of 0: with manual optimisation call "
            "zero_grad, self.manual_backward(loss) and step in this order; then start over with --fresh"
        )
    elif outcome.reason == "finished" and account.never_produced and not outcome.message:
        return replace(outcome, message=_what_is_missing(account, study.simulations))
    else:
        return outcome
    return Outcome(exit_code=NotBalanced.exit_code, reason="failed", message=message)


def _what_is_missing(account: Account, simulations: Mapping[int, SimulationEnd]) -> str:
    num = counted(sum(account.never_produced.values()), "time step")
    given_up = sum(end.state == SimulationPhase.GIVEN_UP for end in simulations.values())
    why = f": {given_up:,} of {counted(len(simulations), 'simulation')} failed for good" if given_up else ""
    return f"{num} of {account.expected:,} never came{why}"


def _left_out(account: Account) -> list[str]:
    """Warnings of samples that the training has left out, if they are more than a small part."""
    num_used = account.trained + account.skipped
    num_drawn = num_used + account.dropped
    reasons = ", ".join(account.rejected)
    rejected = f"{account.num_rejected:,} of {account.arrived:,} time steps were rejected ({reasons})"
    skipped = (
        f"{account.skipped:,} of {num_used:,} samples were in batches that no update has used: training_step skipped "
        "them, or their gradient was not finite"
    )
    dropped = (
        f"{account.dropped:,} of {num_drawn:,} samples were in no batch: a loader dropped them, "
        "process_simulation_data returned None, or numbers were too large for training.precision"
    )
    return [
        *([rejected] if account.num_rejected > SMALL_PART * account.arrived else []),
        *([skipped] if account.skipped > SMALL_PART * num_used else []),
        *([dropped] if account.dropped > SMALL_PART * num_drawn else []),
    ]


def _count(simulations: Mapping[int, SimulationEnd], failures: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many simulations ended in each way; the `failed` ones could have been tried again."""
    terminal = [phase.value for phase in SimulationPhase if phase.terminal]
    counts = {"requested": len(simulations), **dict.fromkeys((*terminal, "failed"), 0)}
    failed = {failure["id"] for failure in failures}
    for simulation, end in simulations.items():
        counts[end.state if end.state in terminal else "failed" if simulation in failed else "stopped"] += 1
    return counts


def _ended_early(outcome: Outcome, simulations: Mapping[int, SimulationEnd]) -> list[str]:
    """A warning if no training simulation came to its last time step, which is rarely meant."""
    whole_or_stopped = (SimulationPhase.FINISHED, SimulationPhase.STOPPED_EARLY)
    ends = [end for end in simulations.values() if not end.held_out and end.state in whole_or_stopped]
    num_stopped = sum(end.state == SimulationPhase.STOPPED_EARLY for end in ends)
    by_itself = [end for end in ends if end.num_sent is not None and end.num_sent < (end.num_steps or 0)]
    if not ends or outcome.reason == "saved" or num_stopped + len(by_itself) < len(ends):
        return []
    causes = [
        *([f"the study stopped {num_stopped}"] if num_stopped else []),
        *([f"{len(by_itself)} sent fewer than study.time_steps says"] if by_itself else []),
    ]
    return [f"no simulation came to its last time step: of {len(ends)}, {' and '.join(causes)}"]


def _per_second(num: int, seconds: float) -> float:
    return round(num / seconds, 3) if seconds > 0 else 0.0


def _sum(per_rank: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = sorted({name for of_rank in per_rank for name in of_rank})
    return {name: sum(of_rank.get(name, 0) for of_rank in per_rank) for name in names}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
