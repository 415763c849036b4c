"""The invariants of a schedule that has ended. `violations` is pure: how it ended in, sentences out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from tests.faults.chaos import invariants
from tests.faults.chaos.invariants import Evidence
from tests.faults.chaos.timeline import surviving
from tests.faults.simulated.end import End
from tests.faults.simulated.plan import Plan
from tests.faults.simulated.world import run

SERVER = ("of a rank", "of a mpirun")
PLENTY = 1 << 20
ENDS_ATTEMPTS = frozenset(
    {"kill of a client", "kill of a shell", "crash of a simulation", "cut of a connection", "stop of a client"}
)
ENDS_NO_ATTEMPT = frozenset({"kill of a launcher", "stop of a launcher", "duplicate"})
OUTLIVED = frozenset({"kill of a rank", "kill of a mpirun", "stop of a launcher", "duplicate"})
# What a client that is well-behaved may be told: another server or attempt has come between.
EXPECTED_REFUSALS = frozenset({"stale_incarnation", "stale_attempt", "not_open", "busy"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One schedule; `number` is its place in the campaign."""

    number: int
    end: End
    violations: Sequence[str]


def judged(plan: Plan, number: int = 0) -> Outcome:
    """Run a schedule and judge it."""
    end = run(plan)
    return Outcome(number=number, end=end, violations=violations(end))


def violations(end: End) -> list[str]:
    """A sentence for each promise that was broken; none when all is well."""
    found = [*end.seen]
    if end.hang:
        return [*found, f"the study hangs (G9): {end.hang}", *end.errors]
    evidence = Evidence(
        plan=cast("Any", end.plan),
        exit_code=end.exit_code or 0,
        report=end.report,
        incarnations=end.incarnations,
        audit=end.audit,
        suggested={} if end.steered is None else dict(end.steered.history),
        given=() if end.steered is None else end.steered.given,
    )
    return [
        *found,
        *end.errors,
        *wrong_end(end),
        *wrong_refusals(end),
        *wrong_warnings(end),
        *needless(end),
        *invariants.wrong_incarnations(end.incarnations),
        *invariants.missing_batches(evidence),
        *invariants.wrong_counts(_of_what_is_complete(evidence, end)),
        *invariants.lost_checkpoints(evidence),
        *invariants.long_replays(evidence),
        *invariants.changed_parameters(evidence),
        *wrong_steering(end),
    ]


def _of_what_is_complete(evidence: Evidence, end: End) -> Evidence:
    """Leave out the samples that may be trained, or not; samples that were never sent stay."""
    plan = end.plan
    keys = frozenset(key for key in plan.keys if key[0] not in _ended_early(end))
    optional = plan.possible - keys
    trained = [replace(it, keys=tuple(key for key in it.keys if key not in optional)) for it in evidence.audit.trained]
    complete: Any = SimpleNamespace(keys=keys, policy=plan.policy, pseudo_epochs=plan.pseudo_epochs)
    return replace(evidence, plan=complete, audit=replace(evidence.audit, trained=tuple(trained)))


def _ended_early(end: End) -> frozenset[int]:
    return frozenset() if end.steered is None else end.steered.ended_early


def wrong_end(end: End) -> Iterator[str]:
    """The study says of itself that it is complete and balanced, the simulation that always crashes aside (G2, G13)."""
    report, plan = end.report, end.plan
    if not report:
        yield f"there is no report.json, and the command ended with exit code {end.exit_code}"
        return
    samples, simulations = report["samples"], report["simulations"]
    num_expected = plan.num_simulations * plan.num_steps
    made = samples["accepted"] if plan.window is None else (samples["windows"] or {}).get("made")
    given_up = 0 if plan.crasher is None else 1
    stopped = simulations.get("stopped_early", 0)
    found = {
        "the exit code of the command": (end.exit_code, 0),
        "exit_code": (report["exit_code"], 0),
        "exit_reason": (report["exit_reason"], "finished"),
        "balanced": (report["balanced"], True),
        "restarts": (report["restarts"], len(end.incarnations) - 1),
        "simulations.finished": (simulations["finished"], plan.num_simulations - given_up - stopped),
        "simulations.given_up": (simulations["given_up"], given_up),
        "samples.expected": (samples["expected"], num_expected),
        "samples.trained": (samples["trained"], made),
        "samples.untrained": (samples["untrained"], 0),
        "samples.never_produced": (sum(samples["never_produced"].values()), num_expected - samples["accepted"]),
    }
    if stopped > len(_ended_early(end)):
        yield f"{stopped} simulations were stopped early, and {len(_ended_early(end))} were to be"
    if plan.crasher is None and not stopped:
        found["samples.accepted"] = (samples["accepted"], num_expected)
        found["samples.trained of all"] = (samples["trained"], len(plan.keys))
    for name, (is_so, must_be) in found.items():
        if is_so != must_be:
            yield f"{name} is {is_so!r} instead of {must_be!r}: {report['message']}"


def wrong_warnings(end: End) -> Iterator[str]:
    """No simulation is blamed for what a restart, a lost connection or another attempt sends once more."""
    if not end.plan.duplicates:
        yield from (it for it in end.report.get("warnings", ()) if "more than once" in it or "finished early" in it)


def needless(end: End) -> Iterator[str]:
    """Nothing was started again, or lost, for which there was no reason (G10, G12)."""
    happened, plan = end.happened, end.plan
    num_hits = sum(happened[what] for what in happened if what.endswith(SERVER))
    if len(end.incarnations) > 1 + num_hits:
        yield f"the server was started {len(end.incarnations)} times, and {num_hits} times something befell it"
    # A second attempt holds nothing of what the first one sent.
    if end.lost_steps and plan.window_bytes >= PLENTY and not happened.keys() & ENDS_ATTEMPTS:
        yield f"{end.lost_steps} attempts did not hold the steps any more that no checkpoint has"
    if happened.keys() <= ENDS_NO_ATTEMPT:
        limit = plan.num_simulations + happened["kill of a launcher"]
        if end.num_attempts > limit:
            yield f"there were {end.num_attempts} attempts, although only launchers were killed or stopped"
    if end.num_failed and plan.window_bytes >= PLENTY and happened.keys() <= OUTLIVED:
        yield f"{end.num_failed} attempts failed or were cancelled, although only the server was struck"


def wrong_steering(end: End) -> Iterator[str]:
    """Suggestions are one for each simulation, and losses those of the batches of which a study is made."""
    if end.steered is None:
        return
    history, num_losses = end.steered.history, end.steered.num_losses
    if [simulation for simulation, _ in history] != list(range(end.plan.num_simulations)):
        yield f"the log of suggestions is about the simulations {[simulation for simulation, _ in history]}"
    if dict(history) != end.steered.table:
        yield "parameters.csv differs from the log of suggestions"
    counts = Counter(key[0] for one in surviving(end.incarnations, end.audit.trained) for key in one.keys)
    for simulation in sorted(counts.keys() | num_losses.keys()):
        num, num_trained = num_losses.get(simulation, 0), counts[simulation]
        if num != num_trained:
            yield f"there are {num} losses of simulation {simulation}, and {num_trained} samples of it were trained"


def wrong_refusals(end: End) -> Iterator[str]:
    """No message of the client was outside its window or at odds with the protocol."""
    refused = end.report.get("samples", {}).get("refused", {})
    for reason in sorted(refused.keys() - EXPECTED_REFUSALS):
        yield f"the server refused {refused[reason]} messages: {reason}"
