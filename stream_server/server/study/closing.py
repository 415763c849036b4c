"""The end of a study: each rank's account, report.json, the exit code of all ranks, and the text that a person sees."""

import logging
import resource
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
from rich.text import Text

from stream_server.errors import EXIT_SAVED, ModelNotWritten, NotBalanced, StaleIncarnation, TooManyFailures
from stream_server.failpoints import failpoint
from stream_server.machine.screen import escaped
from stream_server.machine.terminal import terminal_of_stderr
from stream_server.messages.client import Reason
from stream_server.messages.operator import Change, newest_changes
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake.account import RankAccount
from stream_server.server.intake.source import Simulations
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.simulations.design import write_csv
from stream_server.server.study.display import MUCH, console_on, number, shares
from stream_server.server.study.failure import Failure
from stream_server.server.study.report import FAILED, Outcome, RankReport, build_report, capacity_hint, write_report
from stream_server.server.study.set_up import StudyRank
from stream_server.server.user.framework import framework_of
from stream_server.wording import counted

FAILED_PHASES = (SimulationPhase.GIVEN_UP, SimulationPhase.INVALID)

_log = logging.getLogger(__name__)

MOST_IDS = 5
WIDTH = 13
REFUSALS = {
    Reason.MALFORMED: "not of this protocol, or out of order",
    Reason.WRONG_PROTOCOL: "from a client of another release",
    Reason.WRONG_STUDY: "for another study",
    Reason.UNKNOWN_SIMULATION: "of a simulation that is not running",
    Reason.STALE_ATTEMPT: "of an attempt that was over",
    Reason.STALE_INCARNATION: "for an earlier start of the server",
    Reason.WRONG_FIELDS: "with other fields than study.json has",
    Reason.WRONG_BLOCKS: "with blocks that do not make up the fields",
    Reason.WRONG_STEP: "with a time step that does not belong there",
    Reason.BEYOND_CREDIT: "with more steps than the client had credit for",
    Reason.NOT_OPEN: "on a connection that was lost or never opened",
    Reason.BUSY: "too early",
    Reason.NO_SIMULATION_LEFT: "of a client for which no simulation was left",
    Reason.WRONG_KEY: "with the key of another attempt",
    Reason.CHECKSUM: "damaged on the way",
}
"""The words for messages that were refused."""
RESULTS = {
    "finished": "finished",
    "early_stop": "finished early",
    "max_batches": "finished at training.max_batches",
    "max_s": "finished at training.max_s",
    "saved": "saved: run the same command again to go on",
}
RETRY = "once the cause is repaired, the same command with --retry tries those again that were given up"
HANDED_OVER = "saved: stream-launcher goes on in the next job"
LEAST_S = 1.0
# Phases of other threads.
BESIDE = ("receive", "prefetch")
TRAINING = ("step", "forward", "backward", "optimizer")
ADVICE = {
    "waiting": (
        "training waited for data {:.0%} of the time: run more simulations at once (launcher.max_running), or draw "
        "each sample more often (training.draws_per_sample of a reservoir)"
    ),
    "crowded": (
        "training waited for data {:.0%} of the time, and simulations for cores: give them more cores or nodes, or "
        "draw each sample more often (training.draws_per_sample of a reservoir)"
    ),
    "forming": (
        "forming batches took {:.0%} of the time: training.prefetch forms them beside the step, and process_batch a "
        "whole batch at once, where process_simulation_data is called for each sample"
    ),
    "validation": (
        "validation took {:.0%} of the time: validate less often (validation.every_batches) or on fewer samples "
        "(validation.simulations)"
    ),
    "checkpoint": "checkpoints took {:.0%} of the time: save less often (checkpoint.every_s)",
    "log": "writing metrics took {:.0%} of the time: write them less often (training.log_every_batches)",
    "ranks": (
        "the ranks took {:.0%} of the time to meet (all_reduce, round), waits for the slowest included: with fewer "
        "ranks, a larger training.batch_size or training.accumulate they meet less often"
    ),
    "training": (
        "training was busy {:.0%} of the time: where simulations wait for it, only a faster model, a faster device or "
        "more ranks end the study sooner"
    ),
}


def outcome_of(stops: StopRequests, *, is_saved: bool) -> Outcome:
    """The outcome of a training that did not fail; `is_saved`: its last checkpoint is committed."""
    if not is_saved:
        message = "the last checkpoint could not be committed: the logs of the ranks say why"
        return Outcome(exit_code=NotBalanced.exit_code, reason=FAILED, message=message)
    match stops.agreed:
        case None | StopReason.UNEVEN:
            return Outcome(exit_code=0, reason="finished", message=stops.text)
        case StopReason.SAVED:
            return Outcome(exit_code=EXIT_SAVED, reason="saved", message=stops.text or "saved")
        case reason:
            return Outcome(exit_code=0, reason=reason.untrained_reason, message=stops.text)


def outcome_of_failure(failure: Failure) -> Outcome:
    """The outcome of a study that failed."""
    message = f"rank {failure.rank}, {failure.phase}: {failure.message}"
    return Outcome(exit_code=failure.exit_code, reason=FAILED, message=message)


def close(study: StudyRank, outcome: Outcome) -> int:
    """Gather the accounts of all ranks; rank 0 writes report.json and shows the summary. Collective.

    Returns:
        The exit code: that of `outcome`, unless the account of a study that ended well does not balance.
    """
    study.ranks.abandon_calls()
    gathered = study.ranks.gather(msgspec.to_builtins(_report_of(study), str_keys=True))
    exit_code = 0
    if gathered is not None:
        exit_code = write_and_show(study, outcome, msgspec.convert(gathered, list[RankReport], str_keys=True))
    return int(study.ranks.broadcast(exit_code))


def write_and_show(study: StudyRank, outcome: Outcome, parts: list[RankReport]) -> int:
    """Write report.json and show the summary; returns the exit code. Not collective.

    Without `parts`, just before this rank aborts all, there is no account. A server that a newer start has replaced
    writes nothing: report.json is the newer one's.
    """
    if study.continuation.is_outdated():
        print("a newer start of the server has taken over: this one writes no report", file=sys.stderr, flush=True)
        return StaleIncarnation.exit_code
    simulations = study.source.simulations if study.is_set_up else None
    if simulations is not None and (study.is_online or study.config.offline.write_files):
        outcome = judged(outcome, simulations)
    if study.is_set_up and study.export is not None and study.export.problem and not outcome.exit_code:
        text = f"{study.export.problem}. The last checkpoint has it: make room and run it again"
        outcome = Outcome(exit_code=ModelNotWritten.exit_code, reason=FAILED, message=text)
    report = build_report(outcome, study, parts)
    for warning in report["warnings"]:
        _log.info("warning: %s", warning)
    try:
        if simulations is not None:
            write_csv(study.folder.parameters, simulations.parameters, simulations.origins)
        failpoint("server.before_report")
        write_report(report, study.folder.report)
    except OSError as error:
        # Without it nobody may take the study for finished; the same command closes it once more.
        print(f"there is no report: {error}. Make room and run it again", file=sys.stderr, flush=True)
        report |= {"exit_code": NotBalanced.exit_code, "message": f"there is no report: {error}"}
    # Those of a replay are in the record alone.
    places = study.folder.places(has_held_out=study.is_online)
    show_summary(report, places, hands_over=study.stops.hands_over, is_online=study.is_online)
    status = "interrupted" if report["exit_reason"] == "saved" else "failed" if report["exit_code"] else "finished"
    study.metrics.end(status, report["message"])
    return int(report["exit_code"])


def judged(outcome: Outcome, simulations: Simulations) -> Outcome:
    """The outcome, which is a failure where every simulation to train on has failed."""
    states = [end.state for end in simulations.ends.values() if not end.held_out]
    if outcome.exit_code or not states or any(state not in FAILED_PHASES for state in states):
        return outcome
    message = f"no simulation finished: {counted(len(states), 'simulation')} to train on, and all have failed"
    return Outcome(exit_code=TooManyFailures.exit_code, reason=FAILED, message=message)


def _report_of(study: StudyRank) -> RankReport:
    """The part of this rank; of a start that failed in its set-up, none has an account."""
    source, buffer, phases, account = study.source, study.buffer, study.phases, RankAccount(intake={})
    phases.add("receive", source.receive_s)
    times: Mapping[str, float] = {}
    slots, peak_kib = buffer.slots, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory_bytes = {"buffer": slots.sample_bytes * slots.num_slots, "peak": peak_kib * 1024}
    if study.is_set_up:
        times = study.stream.times.counts
        if study.config.training.prefetch:
            phases.add("prefetch", study.stream.prefetch_s)
        if device := framework_of(study.server).device_bytes():
            memory_bytes["device_peak"] = device["memory/device_peak_bytes"]
        if received := source.account:
            stream, left = study.stream, received.left + buffer.num_never_drawn
            account = replace(received, drawn=stream.num_drawn, dropped=stream.num_dropped, left=left)
    warnings = [*source.warnings, *study.warnings]
    return RankReport(
        account=account, phases_s=phases.seconds, memory_bytes=memory_bytes, buffer=times, warnings=warnings
    )


def show_summary(
    report: Mapping[str, Any], places: Sequence[tuple[str, str]], *, hands_over: bool, is_online: bool
) -> None:
    """Print the summary to standard error."""
    console = console_on(terminal_of_stderr())
    width = console.width if console.is_terminal else None
    console.print(summary(report, places, width, hands_over=hands_over, is_online=is_online), soft_wrap=True)


def summary(
    report: Mapping[str, Any],
    places: Sequence[tuple[str, str]] = (),
    width: int | None = None,
    *,
    hands_over: bool = False,
    is_online: bool = True,
) -> Text:
    """The summary that is printed at the end of a study, with the command that shows each result in `places`.

    Longer texts are wrapped at `width`. Commands are not, so that each can be copied in one piece. A server that
    `hands_over` has saved, and stream-launcher starts the next one. The bottleneck is that of a training while
    simulations run (`is_online`): its advice has no place in a replay, or where samples go to files.
    """
    failed = report["exit_code"] != 0 and report["exit_reason"] != "saved"
    result = _wrap(f"{escaped(report['study'])}: {_result(report, hands_over=hands_over)}", width)
    text = Text(f"{result}\n", style="bold red" if failed else "bold")
    for name, lines in _summary_rows(report, is_online=is_online):
        text.append(_row(name, _wrap(escaped(lines), width and width - WIDTH - 3)), style="not bold default")
    for name, command in places:
        text.append(_row(name, command), style="not bold default")
    text.rstrip()
    return text


def _wrap(lines: str, width: int | None) -> str:
    if width is None:
        return lines
    # A path is copied more often than it is read, so it stays in one piece.
    wrapper = textwrap.TextWrapper(max(width, WIDTH), break_on_hyphens=False, break_long_words=False)
    return "\n".join(piece for line in lines.splitlines() for piece in wrapper.wrap(line))


def _row(name: str, lines: str) -> str:
    indented = lines.replace("\n", "\n" + " " * (WIDTH + 3))
    return f"  {name:<{WIDTH}} {indented}\n"


def _result(report: Mapping[str, Any], *, hands_over: bool) -> str:
    """The result of the study and its reason, in a sentence."""
    reason, code = report["exit_reason"], report["exit_code"]
    why = escaped(first_line(report["message"]))
    result = RESULTS.get(reason, f"FAILED with exit code {code}")
    if reason == "saved":
        result = f"{HANDED_OVER if hands_over else result} (exit code {code})"
    return f"{result}{': ' if why and reason != 'saved' else ', ' if why else ''}{why}"


def _summary_rows(report: Mapping[str, Any], *, is_online: bool) -> list[tuple[str, str]]:
    samples, rate = report["samples"], report["throughput"]
    # Of a start that failed in its set-up, or whose ranks did not come together at the end, nothing is known.
    is_known = report["simulations"]["requested"] or samples["accepted"]
    rows = [("simulations", _simulations(report)), *_samples(samples)] if is_known else []
    if report["failures"]:
        retry = f"\n{RETRY}" if report["simulations"][SimulationPhase.GIVEN_UP] else ""
        rows.append(("failed", _some(_failures(report["failures"])) + retry))
    if retried := _retries(report):
        rows.append(("tried again", _some(_failures(retried))))
    if report["failed_later"]:
        later = "{id} after its last time step: {reason} ({log})"
        rows.append(("failed later", _some([later.format(**failure) for failure in report["failed_later"]])))
    if samples["duplicates"]:
        rows.append(("duplicates", f"{samples['duplicates']:,}, each dropped"))
    if samples["rejected"]:
        reasons = [f"{reason}: {num:,}" for reason, num in samples["rejected"].items()]
        simulations = [f"simulation {simulation}: {num:,}" for simulation, num in samples["rejected_of"].items()]
        rows.append(("rejected", f"{', '.join(reasons)}; of\n{_some(simulations)}"))
    if samples["never_produced"]:
        title = "still to come" if report["exit_reason"] == "saved" else "never produced"
        rows.append((title, _some(_fates(samples["never_produced"]))))
    if samples["refused"]:
        rows.append(("refused", _some([_refusal(reason, num) for reason, num in samples["refused"].items()])))
    if samples["untrained_reasons"]:
        rows.append(("untrained", _some([f"{why}: {num:,}" for why, num in samples["untrained_reasons"].items()])))
    if "recorded" in samples:
        rows.append(("held out", f"{_counts(samples['held_out'], ('expected', 'accepted'))}, recorded too"))
    else:
        rows += [
            (
                "batches",
                f"{report['batches']:,} on {counted(report['ranks'], 'rank')}, {rate['batches_per_s']:,.1f}/s",
            ),
            ("updates", f"{report['updates']:,}"),
            ("draws", f"{report['draws']:,}, {rate['samples_per_s']:,.0f}/s"),
        ]
    if whole := [entry for entry in report["validation"] if "loss" in entry]:
        first, last = whole[0], whole[-1]
        best = f", best {number(report['best'].get('loss'))} at batch {report['best'].get('batch')}"
        ratio = last.get("error_over_variance")
        error = "" if ratio is None else f"\n{_over_variance(ratio)}"
        earlier = f"{number(first['loss'])} -> " if len(whole) > 1 else ""
        rows.append(("validation", f"{earlier}{number(last['loss'])}{best if earlier else ''}{error}"))
    if report["rollout"] is not None:
        rows.append(("rollout", _rollout(report["rollout"])))
    rows.append(("time", _time(report)))
    oversubscribed = any(node["oversubscribed"] for node in report["cores"])
    bottleneck = bottleneck_of_run(report["phases_s"], oversubscribed=oversubscribed)
    if is_online and report["batches"] and bottleneck:
        rows.append(("bottleneck", bottleneck))
    if is_online and (hint := capacity_hint(report["buffer"])):
        rows.append(("buffer", hint))
    if report["restarts"]:
        num_survived = report["simulations"]["survived_restarts"]
        survived = f", {counted(num_survived, 'running simulation')} went on" if num_survived else ""
        # An earlier one may have failed before anything came, or have been stopped.
        rows.append(("starts", f"{report['restarts'] + 1:,} of the server{survived}"))
    if report["changes"]:
        changes = msgspec.convert(report["changes"], list[Change])
        rows.append(("changed", "\n".join(newest_changes(changes))))
    if report["warnings"]:
        rows.append(("warnings", _some(list(report["warnings"]))))
    if not report["balanced"]:
        rows.append(("account", ("NOT BALANCED: " if is_known else "none: ") + _some(list(report["unbalanced"]))))
    elif report["exit_code"] == 0:
        rows.append(("account", "balanced"))
    return rows


def _samples(samples: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The samples that were received, and the use that the training made of them."""
    used = ("trained", "recorded", "skipped", "dropped", "added", "withdrawn", "untrained")
    windows = samples["windows"]
    if windows is None:
        return [("samples", _counts(samples, ("expected", "accepted", *used)))]
    return [
        ("time steps", _counts(samples, ("expected", "accepted"))),
        ("windows", _counts({**samples, **windows}, ("expected", "made", "impossible", "late", *used))),
    ]


def _rollout(rollout: Mapping[str, Any]) -> str:
    """The squared errors of the last rollouts at the smallest and the largest lead time."""
    first, last = rollout["lead_times"][0], rollout["lead_times"][-1]
    errors = [f"{name} {number(of[0])} -> {number(of[-1])}" for name, of in rollout["mse"].items()]
    over = counted(rollout["num_trajectories"][0], "held-out simulation")
    return f"squared error at lead time {first} -> {last}, of {over}:\n{_some(errors)}"


def _over_variance(ratio: float) -> str:
    """A clause on the mean squared error of the last validation."""
    return (
        f"squared error at the end: {100 * ratio:.3g}% of the variance of the held-out data (always their mean: 100%)"
    )


def _simulations(report: Mapping[str, Any]) -> str:
    """Number of simulations that ended in each way; failures come before those merely stopped."""
    counts = report["simulations"]
    named = {
        "requested": counts["requested"],
        "finished": counts[SimulationPhase.FINISHED],
        "failed": counts[SimulationPhase.GIVEN_UP] + counts["failed"],
        "withdrawn": counts[SimulationPhase.INVALID],
        "stopped early": counts[SimulationPhase.STOPPED_EARLY],
        "stopped with the study": counts[SimulationPhase.STOPPED],
    }
    return _counts(named, tuple(named))


def _time(report: Mapping[str, Any]) -> str:
    parts = shares({name: seconds for name, seconds in report["phases_s"].items() if name not in BESIDE})
    return duration(report["wall_s"]) + (f": {parts}" if parts else "")


def _failures(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """One text for each way to fail, with the log of the first simulation that did so."""
    alike: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for failure in failures:
        alike.setdefault((failure["attempts"], failure["reason"]), []).append(failure)
    texts = []
    for (num_attempts, reason), of_reason in alike.items():
        log = f" ({of_reason[0]['log']})" if of_reason[0]["log"] else ""
        each, ids = " each" if len(of_reason) > 1 else "", _ids([failure["id"] for failure in of_reason])
        texts.append(f"{ids} after {counted(num_attempts, 'attempt')}{each}: {reason}{log}")
    return texts


def _fates(missing: Mapping[str, int]) -> list[str]:
    """One text for all simulations with the same fate, `simulation 7: stopped (why)`, and what they lack."""
    alike: dict[str, dict[int, int]] = {}
    for label, num in missing.items():
        name, _, fate = label.partition(": ")
        alike.setdefault(fate, {})[int(name.removeprefix("simulation "))] = num
    return [
        f"{sum(nums.values()):,} of simulation{'s' * (len(nums) > 1)} {_ids(list(nums))}: {fate}"
        for fate, nums in alike.items()
    ]


def _ids(simulations: Sequence[int]) -> str:
    num_more = len(simulations) - MOST_IDS
    return ", ".join(map(str, simulations[:MOST_IDS])) + (f" and {num_more:,} more" if num_more > 0 else "")


def _refusal(reason: str, num: int) -> str:
    return f"{counted(num, 'message')} {REFUSALS[Reason[reason.upper()]]} ({reason})"


def _retries(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The failures that a further attempt followed, of simulations that did not fail again."""
    failed = {failure["id"] for failure in report["failures"]}
    return [failure for failure in report["retried"] if failure["id"] not in failed]


def _counts(counts: Mapping[str, int], names: tuple[str, ...]) -> str:
    required = names[:2]
    return ", ".join(
        f"{counts[kind]:,} {kind.replace('_', ' ')}" for kind in names if counts.get(kind) or kind in required
    )


def _some(texts: list[str], num: int = 5) -> str:
    more = [f"and {len(texts) - num} more, see report.json"] if len(texts) > num else []
    return "\n".join(texts[:num] + more)


def first_line(text: str) -> str:
    """The first line; the others have been shown above the table."""
    return text.partition("\n")[0]


def duration(seconds: float) -> str:
    """A time as people read it: `12.3 s`, and hours, minutes and seconds from a minute on."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def bottleneck_of_run(phases_s: Mapping[str, float], *, oversubscribed: bool = False) -> str:
    """One sentence on what took most of the time of the ranks' main threads; "" if nothing stands out.

    `phases_s` are seconds by phase, those of `Phases`, as in report.json. `oversubscribed`: there were more processes
    than cores.
    """
    seconds = {name: s for name, s in phases_s.items() if name not in BESIDE}
    total = sum(seconds.values())
    if total < LEAST_S:
        return ""
    groups = {
        "crowded" if oversubscribed else "waiting": seconds.get("wait_for_data", 0.0),
        "forming": seconds.get("transform", 0.0) + seconds.get("gather", 0.0),
        "validation": seconds.get("validation", 0.0),
        "checkpoint": seconds.get("checkpoint", 0.0),
        "log": seconds.get("log", 0.0),
        "ranks": seconds.get("all_reduce", 0.0) + seconds.get("round", 0.0),
        "training": sum(seconds.get(kind, 0.0) for kind in TRAINING),
    }
    name = max(groups, key=groups.__getitem__)
    share = groups[name] / total
    return ADVICE[name].format(share) if share >= MUCH else ""
