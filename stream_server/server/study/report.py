"""report.json: how a study ended, as one object for people and for whatever started the study."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stream_server.errors import NotBalanced
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.checkpoint.capture import versions
from stream_server.server.intake.account import Account, RankAccount, SimulationEnd, TrainedCounts, close_account
from stream_server.server.progress.batches import SMALL_PART
from stream_server.server.progress.phases import mean_over_ranks
from stream_server.server.study.set_up import UNPROTECTED, StudyRank
from stream_server.server.training.buffer_times import COUNTS
from stream_server.storage.disk import make_folder, replace_file
from stream_server.wording import counted

FAILED = "failed"
NO_ACCOUNT = "the ranks did not come together at the end, so what they received and trained is not known here"
FORMAT = 1
# Below this share of the time, and in less than this time, nothing is said of the capacity of the buffer.
LEAST_SHARE, LEAST_S = 0.1, 1.0


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
    buffer: Mapping[str, float] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def build_report(outcome: Outcome, study: StudyRank, ranks: Sequence[RankReport]) -> dict[str, Any]:
    """The whole of report.json. Without `ranks`, which did not come together at the end, it has no account.

    A study that would have ended well but whose account does not balance, or that has learned nothing from its
    samples, ends with the exit code of `NotBalanced`, and the message says why.
    """
    config, progress, identity = study.config, study.progress, study.continuation.identity
    # The output of a start that failed in its set-up: nothing, whatever earlier ones have saved.
    simulations = study.source.simulations if study.is_set_up else None
    validation, best_models = (study.validation, study.best_models) if study.is_set_up else (None, None)
    ends = {} if simulations is None else simulations.ends
    failures = [] if simulations is None else [*simulations.failures]
    if simulations is not None and outcome.reason == FAILED:
        # The last attempt of these had failed, and there would have been another one.
        failures += simulations.failing
    accounts, learned = [rank.account for rank in ranks], _trained_counts(outcome, study)
    complete = outcome.reason == "finished" and outcome.exit_code == 0
    account = close_account(accounts, ends, learned, complete=complete, num_samples_of=config.num_samples_of)
    problems = account.problems if ranks else [NO_ACCOUNT]
    has_changed_nothing = study.is_set_up and study.untrained.are_all
    outcome = _judge(outcome, account, ends, updates=progress.updates, has_changed_nothing=has_changed_nothing)
    return {
        "format": FORMAT,
        "study": config.study.name,
        "exit_code": outcome.exit_code,
        "exit_reason": outcome.reason,
        "message": outcome.message,
        "balanced": not problems,
        "unbalanced": list(problems),
        "warnings": [
            *([UNPROTECTED] if config.network.security == "none" else []),
            *study.cores.warnings,
            *_early_ends(outcome, ends),
            *_left_out(account),
            *(f"rank {number}: {warning}" for number, rank in enumerate(ranks) for warning in rank.warnings),
        ],
        "started": identity.started,
        "wall_s": round(study.wall_s(), 3),
        "restarts": identity.incarnation - 1,
        "changes": study.changes.state_dict(),
        "ranks": study.ranks.size,
        "versions": dict(versions(study.ranks.mpi_version)),
        "cores": study.cores.to_report(),
        "simulations": {
            **_count(ends, failures),
            "survived_restarts": 0 if simulations is None else simulations.num_survived,
        },
        "awaited": "" if simulations is None else simulations.awaited,
        "security": config.network.security,
        "failures": [dict(failure) for failure in failures],
        "retried": [] if simulations is None else [dict(failure) for failure in simulations.retried],
        "failed_later": [] if simulations is None else [dict(failure) for failure in simulations.failed_later],
        "samples": account.to_report("recorded" if config.offline.write_files else "trained"),
        "lonely_steps": progress.lonely_steps,
        "draws": progress.draws,
        "batches": progress.batches,
        "batches_per_rank": list(progress.batches_per_rank),
        "updates": progress.updates,
        "rounds": progress.rounds,
        "validation": [] if validation is None else [dict(entry) for entry in validation.history],
        "best_models": [] if best_models is None else [dict(entry) for entry in best_models.best],
        "best": {} if validation is None else dict(validation.best),
        "rollout": None if validation is None else validation.rollout,
        "throughput": {
            "samples_per_s": _per_second(progress.draws, progress.elapsed_s),
            "batches_per_s": _per_second(progress.batches, progress.elapsed_s),
        },
        "phases_s": {name: round(s, 3) for name, s in mean_over_ranks([rank.phases_s for rank in ranks]).items()},
        "memory_bytes": _sum([rank.memory_bytes for rank in ranks]),
        "buffer": judge_capacity(config.buffer.capacity, [rank.buffer for rank in ranks]),
    }


def _trained_counts(outcome: Outcome, study: StudyRank) -> TrainedCounts:
    progress, stopped = study.progress, study.stops.agreed
    return TrainedCounts(
        trained=progress.samples if study.is_set_up else 0,
        skipped=progress.skipped if study.is_set_up else 0,
        added=progress.added if study.is_set_up else 0,
        untrained_reason=outcome.reason if stopped is None else stopped.untrained_reason,
    )


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Put the report in place so that a reader of `path` finds all of it or the one before.

    The file is on disk when this returns. Numbers that are not finite become `null`.
    """
    make_folder(path.parent)
    text = json.dumps(_finite(report), indent=2, allow_nan=False) + "\n"
    replace_file(path, text.encode())


def _judge(
    outcome: Outcome,
    account: Account,
    ends: Mapping[int, SimulationEnd],
    *,
    updates: int,
    has_changed_nothing: bool,
) -> Outcome:
    if outcome.exit_code != 0:
        return outcome
    if not account.balanced:
        message = "the account does not balance: " + "; ".join(account.problems)
    elif updates == 0 and account.arrived:
        message = f"nothing was learned: no update was made, though {counted(account.arrived, 'time step')} came"
        fates = {"skipped": account.skipped, "rejected": account.num_rejected, "dropped": account.dropped}
        if parts := [f"{num:,} were {name}" for name, num in fates.items() if num]:
            message += f", of which {' and '.join(parts)}"
        message += ". The logs of the ranks say why; when that is repaired, start over with --fresh"
    elif has_changed_nothing:
        message = (
            f"nothing was learned: no parameter changed in {counted(updates, 'update')}, not by one bit. The "
            "optimizers were stepped without a gradient, or with a learning rate of 0: with manual optimisation call "
            "zero_grad, self.manual_backward(loss) and step in this order; then start over with --fresh"
        )
    elif outcome.reason == "finished" and account.never_produced and not outcome.message:
        return replace(outcome, message=_what_is_missing(account, ends))
    else:
        return outcome
    return Outcome(exit_code=NotBalanced.exit_code, reason=FAILED, message=message)


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
    """Number of simulations that ended in each way; the `failed` ones could have been tried again."""
    terminal = [phase.value for phase in SimulationPhase if phase.terminal]
    counts = {"requested": len(simulations), **dict.fromkeys((*terminal, "failed"), 0)}
    failed = {failure["id"] for failure in failures}
    for simulation, end in simulations.items():
        counts[end.state if end.state in terminal else "failed" if simulation in failed else "stopped"] += 1
    return counts


def _early_ends(outcome: Outcome, simulations: Mapping[int, SimulationEnd]) -> list[str]:
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


def judge_capacity(capacity: int, ranks: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The part of report.json on the capacity, from the `BufferTimes` of each rank: shares of the seconds of a rank.

    `enough` would have helped, and is None if a larger buffer would not: it would if training waited after the buffer
    was full. While it was, the simulations would have brought as many samples as in any other time, and training would
    have taken as many while it waited: the smaller number of the two, spread over the waits, had no room.
    """
    open_s, waited_s, full_s, num_first, num_turns = (sum(it.get(name, 0) for it in ranks) for name in COUNTS)
    waiting, full = (seconds / (open_s or 1) for seconds in (waited_s, full_s))
    share, enough = min(waiting, full), None
    if share >= LEAST_SHARE and num_turns:
        enough = capacity + math.ceil(num_first / num_turns * share / (1 - share))
    seconds = round(open_s / max(1, len(ranks)), 3)
    return {"seconds": seconds, "waiting": round(waiting, 4), "full": round(full, 4), "enough": enough}


def capacity_hint(buffer: Mapping[str, Any]) -> str:
    """A sentence on what `judge_capacity` found; "" if there is nothing to say."""
    waiting, full, enough = buffer["waiting"], buffer["full"], buffer["enough"]
    if buffer["seconds"] < LEAST_S or max(waiting, full) < LEAST_SHARE:
        return ""
    if enough is not None:
        advice = f"a buffer.capacity of {enough:,} or more would have helped: training waited after it was full"
    elif waiting >= LEAST_SHARE:
        advice = "a larger buffer.capacity would not have helped: training waited, and hardly ever after it was full"
    else:
        advice = "with a larger buffer.capacity simulations would have waited less, and training not: it hardly waited"
    return f"{advice} (full {full:.0%} of the time, training waited for data {waiting:.0%})"
