"""Many schedules, one after the other."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.simulated.drawing import drawn
from tests.simulated.end import End
from tests.simulated.judge import violations
from tests.simulated.plan import Plan
from tests.simulated.world import run


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One schedule; `number` is its place in the campaign."""

    number: int
    end: End
    violations: Sequence[str]


@dataclass(kw_only=True, slots=True)
class Tally:
    """What a campaign has seen so far. `happened` counts faults by kind; `failed` are the schedules with violations."""

    num_schedules: int = 0
    num_restarts: int = 0
    num_attempts: int = 0
    num_messages: int = 0
    num_switches: int = 0
    virtual_s: float = 0.0
    policies: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        end = outcome.end
        self.num_schedules += 1
        self.policies[end.plan.policy] += 1
        self.num_restarts += max(0, len(end.epochs) - 1)
        self.num_attempts += end.num_attempts
        self.num_messages += end.num_messages
        self.num_switches += end.num_switches
        self.virtual_s += end.virtual_s
        self.happened += end.happened
        if outcome.violations:
            self.failed.append(outcome)

    @property
    def faults(self) -> dict[str, int]:
        """What befell the studies, by kind; that simulations send some steps twice is no fault of the machine's."""
        return {what: num for what, num in sorted(self.happened.items()) if what != "duplicate"}

    def cases(self) -> dict[str, int]:
        """The figures, by name."""
        return {
            "schedules": self.num_schedules,
            **dict(sorted(self.happened.items())),
            "restarts of the server": self.num_restarts,
            "attempts of simulations": self.num_attempts,
            "messages": self.num_messages,
            "switches of threads": self.num_switches,
            "virtual hours": round(self.virtual_s / 3600),
        }


def judged(plan: Plan, number: int = 0) -> Outcome:
    """Run a schedule and judge it."""
    end = run(plan)
    return Outcome(number=number, end=end, violations=violations(end))


def plans(seed: int, num: int, first: int = 0) -> Iterable[tuple[int, Plan]]:
    """The schedules of a campaign, from number `first` on."""
    return ((number, drawn(seed, number)) for number in range(first, first + num))


def campaign(
    numbered: Iterable[tuple[int, Plan]],
    tally: Tally,
    *,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    stop_at_first: bool = False,
) -> None:
    """Run these schedules and count them in `tally`, which is up to date at any moment."""
    for number, plan in numbered:
        outcome = judged(plan, number)
        tally.add(outcome)
        on_outcome(outcome)
        if stop_at_first and outcome.violations:
            return
