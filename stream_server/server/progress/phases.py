"""The time that a thread spends in each phase of its work."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager


class Phases:
    """Seconds that one thread spent in each named phase.

    Phases nest, and every second belongs to the innermost one alone: an all-reduce inside a step does not
    count as step. One object belongs to one thread; the receiver thread has its own. Other threads may read
    `seconds` and `current`.

    The names in use are receive (the receiver thread's), prefetch (that of the batches formed ahead), wait_for_data,
    gather, transform, round, step, forward, backward, optimizer, all_reduce, validation, checkpoint and log.

    Attributes:
        measure: given a name, a `with` block of which the time counts as that.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._stack: list[str] = []
        self._since = 0.0
        # Looked up some ten times in each batch, without a call of Python's.
        self.measure: Callable[[str], AbstractContextManager[None]] = _MeasuredPhases(self).__getitem__

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per phase, without the part of the current one that is not over yet."""
        return dict(self._seconds)

    @property
    def current(self) -> str | None:
        """The innermost phase that is under way."""
        return self._stack[-1] if self._stack else None

    def add(self, name: str, seconds: float) -> None:
        """Count time that was measured elsewhere, outside every other phase."""
        self._seconds[name] += seconds

    def state_dict(self) -> dict[str, float]:
        return self.seconds

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Add the seconds that were saved."""
        for name, seconds in state.items():
            self._seconds[name] += seconds

    @staticmethod
    def redealt(states: Sequence[dict[str, float]], rank: int, dealing: object) -> dict[str, float]:
        """The seconds of a rank that saved them, since all ranks take about as long."""
        return states[rank % len(states)]


class _MeasuredPhases(dict[str, "_MeasuredPhase"]):
    """The phases by name, made when they are first asked for."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def __missing__(self, name: str) -> "_MeasuredPhase":
        return self.setdefault(name, _MeasuredPhase(self._phases, name))


class _MeasuredPhase(AbstractContextManager[None]):
    """A phase as a `with` block; a generator would take four times as long, some ten times in each batch."""

    __slots__ = ("_name", "_phases")

    def __init__(self, phases: Phases, name: str) -> None:
        self._name = name
        self._phases = phases

    def __enter__(self) -> None:
        phases = self._phases
        now, stack = phases._clock(), phases._stack
        if stack:
            phases._seconds[stack[-1]] += now - phases._since
        phases._since = now
        stack.append(self._name)

    def __exit__(self, *exc_info: object) -> None:
        phases = self._phases
        now = phases._clock()
        phases._seconds[phases._stack.pop()] += now - phases._since
        phases._since = now


def mean_over_ranks(per_rank: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds per phase that a rank spent on average; a phase that a rank never had counts as 0 there."""
    names = sorted({name for seconds in per_rank for name in seconds})
    return {name: sum(seconds.get(name, 0.0) for seconds in per_rank) / len(per_rank) for name in names}
