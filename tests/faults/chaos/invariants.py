"""The invariants of a study that has ended, whatever was killed meanwhile. Pure: evidence in, sentences out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.faults.chaos.audit import Audit, Incarnation, Key
from tests.faults.chaos.plan import Plan
from tests.faults.chaos.timeline import replayed, surviving

# A save goes on while the training does, and the next one begins only after it: what is trained meanwhile is lost, too.
SAVE_S = 2.0
NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The evidence that a study left behind; `damage` and `leftovers` are sentences.

    Of a steered study `suggested` has the parameter of each simulation at the end, and `given` that of each attempt.
    Of one with shards `weights` are those of the exported model, and `expected_weights` those of a plain loop.
    """

    plan: Plan
    exit_code: int
    report: Mapping[str, Any]
    incarnations: Sequence[Incarnation]
    audit: Audit
    damage: Sequence[str] = field(default_factory=tuple)
    leftovers: Sequence[str] = field(default_factory=tuple)
    suggested: Mapping[int, float] = field(default_factory=dict)
    given: Sequence[tuple[int, float]] = ()
    weights: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    expected_weights: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


def violations(evidence: Evidence) -> list[str]:
    """A sentence for each invariant that does not hold; none when all is well."""
    return [
        *wrong_ends(evidence),
        *wrong_incarnations(evidence.incarnations),
        *missing_batches(evidence),
        *wrong_counts(evidence),
        *lost_checkpoints(evidence),
        *long_replays(evidence),
        *changed_parameters(evidence),
        *wrong_weights(evidence),
        *evidence.damage,
        *evidence.leftovers,
    ]


def wrong_ends(evidence: Evidence) -> Iterator[str]:
    """The study says of itself that it is complete and balanced (G8)."""
    report, plan = evidence.report, evidence.plan
    if not report:
        yield f"there is no report.json, and the command ended with exit code {evidence.exit_code}"
        return
    found = {
        "the exit code of the command": (evidence.exit_code, 0),
        "exit_code": (report.get("exit_code"), 0),
        "exit_reason": (report.get("exit_reason"), "finished"),
        "balanced": (report.get("balanced"), True),
        "restarts": (report.get("restarts"), len(evidence.incarnations) - 1),
    }
    samples = report.get("samples", {})
    found |= {f"samples.{name}": (samples.get(name), plan.num_sent) for name in ("expected", "accepted")}
    found |= {
        "samples.trained": (samples.get("trained"), len(plan.keys)),
        "samples.untrained": (samples.get("untrained"), 0),
    }
    if plan.window is not None:
        found["samples.windows.made"] = ((samples.get("windows") or {}).get("made"), len(plan.keys))
    for name, (is_so, must_be) in found.items():
        if is_so != must_be:
            yield f"{name} is {is_so!r} instead of {must_be!r}: {report.get('message')}"


def wrong_incarnations(incarnations: Sequence[Incarnation]) -> Iterator[str]:
    """The starts of the server count on without a gap, and none goes back behind the base of an earlier one (G11)."""
    numbers = [incarnation.number for incarnation in incarnations]
    if numbers != list(range(1, len(incarnations) + 1)):
        yield f"the incarnations are numbered {numbers}"
    for before, after in pairwise(incarnations):
        if after.base < before.base or after.batches < before.batches:
            yield f"incarnation {after.number} goes on from checkpoint {after.base}, the one before from {before.base}"


def missing_batches(evidence: Evidence) -> Iterator[str]:
    """Every batch of the surviving timeline was trained by some rank, and there are as many as the report says."""
    indices = {one.batch for one in surviving(evidence.incarnations, evidence.audit.trained)}
    expected = set(range(evidence.report.get("batches", 0)))
    if indices - expected:
        yield f"batches beyond the last one of the report were trained: {some(indices - expected)}"
    if expected - indices:
        yield f"batches of the surviving timeline were never trained: {some(expected - indices)}"


def wrong_counts(evidence: Evidence) -> Iterator[str]:
    """Each sample was trained as often as its policy promises, and nothing else was (G1, G2)."""
    plan = evidence.plan
    counts = Counter(key for one in surviving(evidence.incarnations, evidence.audit.trained) for key in one.keys)
    unknown = set(counts) - plan.keys
    if unknown:
        yield f"samples that no simulation has sent were trained: {some(unknown)}"
    lost = {key for key in plan.keys if counts[key] < plan.pseudo_epochs}
    if lost:
        yield f"{len(lost)} samples were trained less than {plan.pseudo_epochs} times: {some(lost)}"
    repeated = {key for key in plan.keys if counts[key] > plan.pseudo_epochs}
    if repeated and plan.policy != "reservoir":
        yield f"{len(repeated)} samples were trained more than {plan.pseudo_epochs} times: {some(repeated)}"


def lost_checkpoints(evidence: Evidence) -> Iterator[str]:
    """Starts of the server that went back behind a committed checkpoint."""
    for before, after in pairwise(evidence.incarnations):
        newest = max(
            (one.checkpoint for one in evidence.audit.committed if one.incarnation == before.number), default=0
        )
        if after.base < newest:
            yield f"incarnation {after.number} goes on from checkpoint {after.base}, but {newest} was committed before"


def long_replays(evidence: Evidence) -> Iterator[str]:
    """A restart redoes at most what is trained between two checkpoints (G5)."""
    for number, times in enumerate(replayed(evidence.incarnations, evidence.audit.trained), start=2):
        interval = evidence.plan.every_batches
        during_a_save = sum(time > times[-1] - SAVE_S for time in times)
        if len(times) > interval + during_a_save:
            yield f"incarnation {number} redid {len(times)} batches, but {interval} lie between two checkpoints"


def changed_parameters(evidence: Evidence) -> Iterator[str]:
    """No suggestion is lost or made twice, and each attempt of a simulation has the one of its simulation."""
    if not evidence.plan.is_steered:
        return
    suggested, expected = evidence.suggested, set(range(evidence.plan.num_simulations))
    if set(suggested) != expected:
        yield f"the table of parameters is not that of all simulations: {some(set(suggested) ^ expected)}"
    if len(set(suggested.values())) < len(suggested):
        yield "several simulations have the same parameters"
    if others := {simulation for simulation, value in evidence.given if suggested.get(simulation) != value}:
        yield f"simulations had other parameters in one of their attempts: {some(others)}"


def wrong_weights(evidence: Evidence) -> Iterator[str]:
    """The model that is exported has learned the surviving timeline, as one process would without any kill (G6)."""
    found, expected = evidence.weights, evidence.expected_weights
    if set(found) != set(expected):
        yield f"the exported model has {sorted(found)} instead of {sorted(expected)}"
    for name in found.keys() & expected.keys():
        if not np.allclose(found[name], expected[name], rtol=1e-9, atol=1e-12):
            error = np.abs(found[name] - expected[name]).max()
            yield f"{name} of the exported model is off by up to {error:.2g}"


def some(values: set[Any] | set[int] | set[Key]) -> str:
    """The first of them, for a message."""
    first = ", ".join(map(str, sorted(values)[:NAMED]))
    return first if len(values) <= NAMED else f"{first}, …"
