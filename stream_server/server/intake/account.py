"""The closing account of all samples that the study expected. Pure arithmetic on plain values.

    expected = accepted + rejected + never produced
    accepted = trained + skipped + dropped + withdrawn + untrained

Where samples are windows, the first line counts time steps, and the second one windows that were made:

    expected windows = made + impossible (a step is missing or rejected) + late (a step came after they were given up)
    made = trained + skipped + dropped + withdrawn + untrained

The samples of held-out validation simulations are counted apart, since none of them is trained.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from stream_server.messages.simulation_phase import SimulationPhase

UNEVEN_STOP = "uneven"
UNKNOWN = "unknown"
LONGEST_REASON = 120
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowCounts:
    """The windows of one simulation in one rank's ledger.

    `of_accepted` are those whose steps are all accepted. Of these `late` were given up before their last step came.
    `of_settled` are those whose steps are accepted or rejected.
    """

    of_accepted: int = 0
    of_settled: int = 0
    late: int = 0

    @property
    def made(self) -> int:
        """Windows that entered the stream, or are going to."""
        return self.of_accepted - self.late

    def __add__(self, other: "WindowCounts") -> "WindowCounts":
        return WindowCounts(
            of_accepted=self.of_accepted + other.of_accepted,
            of_settled=self.of_settled + other.of_settled,
            late=self.late + other.late,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """The counts of one simulation in one rank's ledger: steps accepted, and rejected by reason.

    `windows` is None where each step is a sample.
    """

    accepted: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    windows: WindowCounts | None = None

    @property
    def num_samples(self) -> int:
        """The samples that the accepted steps make."""
        return self.accepted if self.windows is None else self.windows.made


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAccount:
    """The counts of one rank; all but `intake` are of training simulations alone.

    `refused` counts messages by reason, `duplicates` steps. Of its accepted samples, `drawn` were drawn at least once,
    `dropped` of these were left out by a loader of the user's, `withdrawn` went before they were drawn, and `left` were
    still waiting: a source of samples knows none of these but `withdrawn`.
    """

    intake: Mapping[int, Received]
    duplicates: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    drawn: int = 0
    dropped: int = 0
    withdrawn: int = 0
    left: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedCounts:
    """The use that training made of the drawn samples of all ranks: samples, not draws.

    `untrained_reason` says why the others were not trained, if the study ended before time.
    """

    trained: int
    skipped: int = 0
    added: int = 0
    untrained_reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationEnd:
    """The end of one simulation.

    `num_steps` is how many steps the study wanted of it, None if that was never known; `num_sent` how many a finished
    simulation said that it has sent, None when that is all of them.
    """

    state: str
    num_steps: int | None
    num_sent: int | None = None
    reason: str = ""
    held_out: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """The account of the whole study; `problems` are sentences, one for each thing that does not add up.

    `rejected` counts by reason, `rejected_of` the same time steps by simulation. `windows` is None where each time step
    is a sample.
    """

    expected: int
    accepted: int
    duplicates: int
    refused: Mapping[str, int]
    rejected: Mapping[str, int]
    rejected_of: Mapping[int, int]
    never_produced: Mapping[str, int]
    trained: int
    skipped: int
    dropped: int
    added: int
    withdrawn: int
    untrained_reasons: Mapping[str, int]
    held_out: Mapping[str, int]
    problems: Sequence[str]
    windows: Mapping[str, int] | None = None

    @property
    def num_rejected(self) -> int:
        return sum(self.rejected.values())

    @property
    def arrived(self) -> int:
        """Time steps of training simulations that came."""
        return self.accepted + self.num_rejected

    @property
    def untrained(self) -> int:
        return sum(self.untrained_reasons.values())

    @property
    def balanced(self) -> bool:
        return not self.problems

    def to_report(self, use: str = "trained") -> dict[str, Any]:
        """The `samples` of report.json; `use` is what was done with those that were drawn."""
        report = {use if it.name == "trained" else it.name: getattr(self, it.name) for it in fields(self)}
        del report["problems"]
        rejected_of = {str(simulation): num for simulation, num in self.rejected_of.items()}
        return report | {"rejected_of": rejected_of, "untrained": self.untrained}


def close_account(
    ranks: Sequence[RankAccount],
    simulations: Mapping[int, SimulationEnd],
    learned: TrainedCounts,
    *,
    complete: bool,
    num_samples_of: Callable[[int], int] = int,
) -> Account:
    """Close the account from what each rank, the roster and the training say.

    `complete` says that the study came to its normal end, after which every simulation has ended and nothing is left
    untrained, unless the study chose `uneven: "stop"`. `num_samples_of` says how many samples so many steps of a
    simulation make, if none of these is missing.
    """
    totals = [_sum_up(i, end, ranks) for i, end in simulations.items()]
    training = [entry for entry in totals if not entry.end.held_out]
    held_out = [entry for entry in totals if entry.end.held_out]
    rejected: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for entry in training:
        rejected.update(entry.rejected)
    for account in ranks:
        refused.update(account.refused)
    dropped = sum(account.dropped for account in ranks)
    untrained = sum(account.drawn + account.left for account in ranks) - learned.trained - learned.skipped - dropped
    return Account(
        expected=sum(entry.expected for entry in training),
        accepted=sum(entry.accepted for entry in training),
        duplicates=sum(account.duplicates for account in ranks),
        refused=dict(sorted(refused.items())),
        rejected=dict(sorted(rejected.items())),
        rejected_of={entry.simulation: num for entry in training if (num := entry.rejected.total())},
        never_produced={entry.label: entry.missing for entry in training if entry.missing > 0},
        trained=learned.trained,
        skipped=learned.skipped,
        dropped=dropped,
        added=learned.added,
        withdrawn=sum(account.withdrawn for account in ranks),
        untrained_reasons={learned.untrained_reason or UNKNOWN: untrained} if untrained else {},
        held_out={
            "expected": sum(entry.expected for entry in held_out),
            "accepted": sum(entry.accepted for entry in held_out),
            "rejected": sum(entry.rejected.total() for entry in held_out),
            "never_produced": sum(entry.missing for entry in held_out),
        },
        windows=_count_windows(training, num_samples_of),
        problems=[
            *_problems_of_simulations(totals, ranks, complete),
            *_problems_of_ranks(ranks, simulations),
            *_problems_of_training(ranks, learned, untrained, complete),
        ],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Totals:
    """One simulation, summed over the ranks; `missing` are the steps that it never produced."""

    simulation: int
    end: SimulationEnd
    accepted: int
    rejected: Counter[str]
    windows: WindowCounts | None

    @property
    def arrived(self) -> int:
        return self.accepted + self.rejected.total()

    @property
    def expected(self) -> int:
        return self.arrived if self.end.num_steps is None else self.end.num_steps

    @property
    def missing(self) -> int:
        return self.expected - self.arrived

    @property
    def label(self) -> str:
        # Only a simulation that ended by itself is finished although steps are missing.
        state = "ended early" if self.end.state == SimulationPhase.FINISHED else self.end.state.replace("_", " ")
        reason = self.end.reason.strip().partition("\n")[0]
        if len(reason) > LONGEST_REASON:
            reason = f"{reason[: LONGEST_REASON - 1].rstrip()}…"
        return f"simulation {self.simulation}: {state}" + (f" ({reason})" if reason else "")


def _sum_up(simulation: int, end: SimulationEnd, ranks: Sequence[RankAccount]) -> _Totals:
    intakes = [account.intake[simulation] for account in ranks if simulation in account.intake]
    rejected: Counter[str] = Counter()
    for intake in intakes:
        rejected.update(intake.rejected)
    windows = [intake.windows for intake in intakes if intake.windows is not None]
    return _Totals(
        simulation=simulation,
        end=end,
        accepted=sum(i.accepted for i in intakes),
        rejected=rejected,
        windows=sum(windows, WindowCounts()) if windows else None,
    )


def _count_windows(totals: Sequence[_Totals], num_samples_of: Callable[[int], int]) -> dict[str, int] | None:
    """The windows of all training simulations; None if nothing was received, or samples are no windows."""
    if all(entry.windows is None for entry in totals):
        return None
    known = [(entry, entry.windows or WindowCounts()) for entry in totals]
    expected = sum(
        windows.of_settled if entry.end.num_steps is None else num_samples_of(entry.end.num_steps)
        for entry, windows in known
    )
    made, late = (sum(getattr(windows, name) for _, windows in known) for name in ("made", "late"))
    return {"expected": expected, "made": made, "impossible": expected - made - late, "late": late}


def _problems_of_simulations(totals: Sequence[_Totals], ranks: Sequence[RankAccount], complete: bool) -> Iterator[str]:
    strangers = sorted({i for account in ranks for i in account.intake} - {entry.simulation for entry in totals})
    if strangers:
        named = ", ".join(map(str, strangers[:MOST_NAMED])) + (", …" if len(strangers) > MOST_NAMED else "")
        yield f"{len(strangers)} simulations have samples on server ranks, but rank 0 does not know them: {named}"
    for entry in totals:
        name, arrived = f"simulation {entry.simulation}", entry.arrived
        if entry.missing < 0:
            yield f"{name} has {entry.end.num_steps} steps, but {arrived} were accepted or rejected"
        if entry.end.state == SimulationPhase.FINISHED:
            num_sent = entry.end.num_steps if entry.end.num_sent is None else entry.end.num_sent
            if num_sent is None:
                yield f"{name} is finished, but its number of steps is unknown"
            elif arrived < num_sent:
                yield f"{name} is finished, but only {arrived} of its {num_sent} steps came"
        elif complete and entry.end.state in (SimulationPhase.WAITING, SimulationPhase.RUNNING):
            yield f"{name} is {entry.end.state} although the study has ended"


def _problems_of_ranks(ranks: Sequence[RankAccount], simulations: Mapping[int, SimulationEnd]) -> Iterator[str]:
    for rank, account in enumerate(ranks):
        accepted = sum(
            intake.num_samples
            for i, intake in account.intake.items()
            if i not in simulations or not simulations[i].held_out
        )
        settled = account.drawn + account.withdrawn + account.left
        if accepted != settled:
            yield (
                f"rank {rank} accepted {accepted} samples, but {settled} are accounted for: {account.drawn} drawn, "
                f"{account.withdrawn} withdrawn, {account.left} left in the buffer"
            )


def _problems_of_training(
    ranks: Sequence[RankAccount], learned: TrainedCounts, untrained: int, complete: bool
) -> Iterator[str]:
    drawn = sum(account.drawn for account in ranks)
    settled = learned.trained + learned.skipped + sum(account.dropped for account in ranks)
    if settled > drawn:
        yield f"{settled} samples were trained, skipped or dropped, but the ranks drew only {drawn}"
    if untrained > 0 and complete and learned.untrained_reason != UNEVEN_STOP:
        yield f"{untrained} accepted samples were not trained although the study came to its normal end"
    elif untrained > 0 and not learned.untrained_reason:
        yield f"{untrained} accepted samples were not trained, and nothing says why"
