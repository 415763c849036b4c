"""What a person sees while a study runs. Rank 0 only."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from stream_server.server.training.callbacks import Callback

LIVE_INTERVAL_S = 0.25
PLAIN_INTERVAL_S = 5.0
RATE_WINDOW_S = 10.0
NUM_PHASES_SHOWN = 4
DEGRADED = "the last checkpoint failed; the one before is good, and another will be tried"


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """How far the study has come, at one moment; `phases_s` are those of rank 0.

    `simulations` counts by state, with the states waiting, running, finished and given_up among them. `fraction` of the
    run is done after `elapsed_s` seconds of training, None when its length is not known. `is_degraded`: the last
    checkpoint failed. `awaited` is what must come from outside for the study to go on, "" if nothing must.
    """

    simulations: Mapping[str, int]
    samples: int
    expected_samples: int | None = None
    population: int = 0
    capacity: int = 0
    batches: int = 0
    loss: float | None = None
    validation_loss: float | None = None
    fraction: float | None = None
    elapsed_s: float = 0.0
    phases_s: Mapping[str, float] = field(default_factory=dict)
    is_degraded: bool = False
    awaited: str = ""

    @property
    def failed(self) -> int:
        return self.simulations.get("given_up", 0) + self.simulations.get("invalid", 0)

    @property
    def left_s(self) -> float | None:
        """Seconds of training that are still to come if it goes on at the pace it had so far."""
        return self.elapsed_s * (1.0 / self.fraction - 1.0) if self.fraction else None


class Display:
    """Shows the status of the study on the console: live on a terminal, otherwise as a line now and then.

    Main thread only; it has no thread of its own, so it is as fresh as the last call of `update`, which the
    loop makes after every batch and every idle round. Too frequent calls cost one reading of the clock.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic, *, name: str = ""
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._name = name
        self._live: Live | None = None
        self._interval_s = LIVE_INTERVAL_S if self._console.is_terminal else PLAIN_INTERVAL_S
        self._next = float("-inf")
        self._rate = Rate()

    def __enter__(self) -> Self:
        self._load_what_rich_needs()
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, status: Callable[[], Status]) -> None:
        """Show the status, which is asked for only when it is time for a new one."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._interval_s
        current = status()
        self._rate.note(now, current.batches)
        if self._live is not None:
            self._live.update(_panel(self._name, current, self._rate.per_second), refresh=True)
        else:
            self._console.print(_line(current, self._rate.per_second), soft_wrap=True, highlight=False, markup=False)

    def _load_what_rich_needs(self) -> None:
        """Render once for nobody: rich imports modules when it prints, and later no file descriptor may be left."""
        status = Status(simulations={}, samples=0, loss=0.5, fraction=0.5)
        with self._console.capture():
            self._console.print(_panel(self._name, status, 0.5))
            self._console.print(_line(status, 0.5), soft_wrap=True, highlight=False, markup=False)


class ProgressDisplay(Callback):
    """Keeps a display fresh while a study trains."""

    def __init__(self, display: Display, status: Callable[[], Status]) -> None:
        self._display = display
        self._status = status

    def on_round(self, server: Any) -> None:
        self._display.update(self._status)


class Rate:
    """Batches per second over the last seconds."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()

    @property
    def per_second(self) -> float:
        if len(self._notes) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._notes[0], self._notes[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def note(self, now: float, batches: int) -> None:
        self._notes.append((now, batches))
        while len(self._notes) > 2 and self._notes[1][0] < now - RATE_WINDOW_S:
            self._notes.popleft()


def _panel(name: str, status: Status, rate: float) -> Table:
    table = Table(title=name or None, show_header=False, box=None, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, text in _status_rows(status, rate):
        table.add_row(key, text)
    return table


def _status_rows(status: Status, rate: float) -> list[tuple[str, str]]:
    losses = [("loss", status.loss), ("validation", status.validation_loss)]
    shown = [f"{name} {number(loss)}" for name, loss in losses if loss is not None]
    return [
        ("simulations", _simulations(status)),
        ("samples", f"{_samples(status)} received"),
        ("buffer", _buffer(status)),
        ("training", ", ".join([f"{status.batches:,} batches", f"{rate:,.1f}/s", *shown])),
        *([("run", _done(status))] if status.fraction is not None else []),
        ("time", shares(status.phases_s, NUM_PHASES_SHOWN) or "-"),
        *([("waits for", status.awaited)] if status.awaited else []),
        *([("degraded", DEGRADED)] if status.is_degraded else []),
    ]


def _line(status: Status, rate: float) -> str:
    loss = "" if status.loss is None else f" | loss {number(status.loss)}"
    validation = "" if status.validation_loss is None else f" | validation {number(status.validation_loss)}"
    done = "" if status.fraction is None else f" | {_done(status)}"
    return (
        f"simulations {_simulations(status)} | samples {_samples(status)} | buffer {_buffer(status)} | "
        f"batches {status.batches} ({rate:.1f}/s){loss}{validation}{done} | {shares(status.phases_s, NUM_PHASES_SHOWN)}"
        f"{f' | WAITS FOR {status.awaited}' if status.awaited else ''}"
        f"{f' | DEGRADED: {DEGRADED}' if status.is_degraded else ''}"
    ).rstrip(" |")


def _simulations(status: Status) -> str:
    of = status.simulations
    counts = f"{of.get('waiting', 0)} waiting, {of.get('running', 0)} running, {of.get('finished', 0)} done"
    return f"{counts}, {status.failed} failed"


def _samples(status: Status) -> str:
    return f"{status.samples:,}" + ("" if status.expected_samples is None else f"/{status.expected_samples:,}")


def _buffer(status: Status) -> str:
    fill = f" ({status.population / status.capacity:.0%})" if status.capacity else ""
    return f"{status.population:,}/{status.capacity:,}{fill}"


def _done(status: Status) -> str:
    assert status.fraction is not None
    left = "" if status.left_s is None else f", about {timedelta(seconds=round(status.left_s))} left"
    return f"{status.fraction:.0%} done{left}"


def number(value: float | None) -> str:
    """A loss as people read it."""
    return "-" if value is None else f"{value:.4g}"


def shares(seconds: Mapping[str, float], num: int) -> str:
    """The `num` longest phases, each with its part of the whole."""
    total = sum(seconds.values())
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:num]
    return ", ".join(f"{name.replace('_', ' ')} {s / total:.0%}" for name, s in largest if total > 0 and s > 0)
