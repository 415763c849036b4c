"""The trends of a study: rates over the last seconds, losses so far, the time that is left."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

RATE_WINDOW_S = 10.0
NUM_LOSSES = 256

# The time that is left is told after so long, so many batches, and if two estimates differ by this factor at most.
PACE_S = 10.0
PACE_BATCHES = 20
PACE_FACTOR = 1.5
NUM_MARKS = 256

Value = TypeVar("Value")


class Mark(NamedTuple):
    """Some counts at one moment."""

    now: float
    batches: int
    samples: int
    draws: int = 0
    trained: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """The trend of the last seconds. `waiting` is the share of time in which there was no data.

    Each use of a sample is a draw; `trained_per_s` counts the first use alone.
    `left_s` is None unless it can be told.
    """

    batches_per_s: float = 0.0
    samples_per_s: float = 0.0
    draws_per_s: float = 0.0
    trained_per_s: float = 0.0
    waiting: float | None = None
    left_s: float | None = None
    losses: Sequence[float] = ()


class Trends:
    """Rates over the last seconds, the losses so far, and the time that is left."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self._losses: list[float] = []
        self._pace = Pace()

    def note(self, mark: Mark, *, fraction: float | None, loss: float | None = None, is_held_up: bool = False) -> Trend:
        """Take the counts at a moment into account.

        Args:
            mark: the moment and the counts.
            fraction: how much of the run is done, if that is known.
            loss: that of the last batch.
            is_held_up: the study waits for something from outside, so that nobody knows how long it takes.
        """
        self._marks.append(mark)
        while len(self._marks) > 2 and self._marks[1].now < mark.now - RATE_WINDOW_S:
            self._marks.popleft()
        if loss is not None:
            self._losses = thinned([*self._losses, loss], NUM_LOSSES)
        if fraction is not None:
            self._pace.note(mark.now, fraction, mark.batches)
        first = self._marks[0]
        seconds = mark.now - first.now
        if seconds <= 0:
            return Trend(losses=self._losses)
        return Trend(
            batches_per_s=(mark.batches - first.batches) / seconds,
            samples_per_s=(mark.samples - first.samples) / seconds,
            draws_per_s=(mark.draws - first.draws) / seconds,
            trained_per_s=(mark.trained - first.trained) / seconds,
            waiting=min(1.0, (mark.waited_s - first.waited_s) / seconds),
            left_s=None if is_held_up else self._pace.left_s,
            losses=self._losses,
        )


class Pace:
    """Tells the time that is left from how fast the fraction that is done has grown since this start began to train.

    Earlier starts do not count, nor does the wait for the first data. Nothing is told before there are enough batches,
    or while the last half of the time went at another pace than the whole.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = []
        self._first_fraction: float | None = None
        self._first_batch = 0
        self._batches = 0

    @property
    def left_s(self) -> float | None:
        """Seconds until all is done, None if that cannot be told."""
        if not self._marks or self._batches - self._first_batch < PACE_BATCHES:
            return None
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        if last_s - first_s < PACE_S:
            return None
        middle_s, middle = next(mark for mark in self._marks if mark[0] >= (first_s + last_s) / 2)
        if middle_s >= last_s or middle >= last or first >= middle:
            return None
        whole, recent = (last - first) / (last_s - first_s), (last - middle) / (last_s - middle_s)
        if max(whole, recent) > PACE_FACTOR * min(whole, recent):
            return None
        return (1.0 - last) / recent

    def note(self, now: float, fraction: float, batches: int) -> None:
        """So much is done at this moment."""
        if self._first_fraction is None:
            self._first_fraction, self._first_batch = fraction, batches
        if self._marks or fraction > self._first_fraction:
            self._marks = thinned([*self._marks, (now, fraction)], NUM_MARKS)
            self._batches = batches


def thinned(values: list[Value], most: int) -> list[Value]:
    """The values, or every second one and the last if there are more than `most`."""
    return values if len(values) <= most else [*values[:-1:2], values[-1]]
