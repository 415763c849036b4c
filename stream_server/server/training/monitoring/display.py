"""The display on the terminal while a study runs. Rank 0 only."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stream_server.machine.screen import escaped
from stream_server.machine.terminal import size_of, terminal_of_stderr
from stream_server.messages.simulation_phase import QUEUED, TERMINAL, SimulationPhase
from stream_server.server.training.monitoring.run_bottleneck import MUCH
from stream_server.server.training.monitoring.trends import Mark, Trend, Trends
from stream_server.server.user.callbacks import Callback

LIVE_INTERVAL_S = 0.25
PLAIN_INTERVAL_S = 5.0
# In a file, a line comes whenever a study has become so much older.
PLAIN_GROWTH = 0.25
MAX_PLAIN_INTERVAL_S = 600.0
NUM_PHASES_SHOWN = 4
LEAST_SHARE = 0.01
SPARKS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 32
LOGARITHMIC = 20.0
KEY_WIDTH = len("simulations")
# Bars are short in a terminal that is narrower than WIDE, and left out where it is narrower than NARROW.
WIDE, BAR_WIDTH = 100, 24
NARROW, SHORT_BAR_WIDTH = 60, 10
DEGRADED = "the last checkpoint failed; the one before is good, and another will be tried"

WAIT = "wait_for_data"
LITTLE_WAITING = 0.05
LITTLE_ROOM = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class DisplayedStatus:
    """The progress of the study at one moment; `phases_s` are those of rank 0.

    `simulations` counts by state, with the states waiting, queued, running, finished and given_up among them.
    `fraction` of the run is done, None when its length is not known. `trained` counts a sample once, however often it
    is drawn. Training begins when the `population` has reached the `watermark`; a buffer takes `room` more samples now,
    also in the place of others. `is_degraded`: the last checkpoint failed. `awaited` is what must come from outside for
    the study to go on, "" if nothing must. A study that `writes_files` trains on nothing.
    """

    simulations: Mapping[str, int]
    samples: int
    expected_samples: int | None = None
    population: int = 0
    capacity: int = 0
    room: int = 0
    watermark: int = 1
    batches: int = 0
    trained: int = 0
    loss: float | None = None
    validation_loss: float | None = None
    fraction: float | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    is_degraded: bool = False
    awaited: str = ""
    restarts: int = 0
    warnings: Sequence[str] = ()
    writes_files: bool = False

    @property
    def failed(self) -> int:
        return self.simulations.get(SimulationPhase.GIVEN_UP, 0) + self.simulations.get(SimulationPhase.INVALID, 0)

    def mark(self, now: float) -> Mark:
        """The counts, at this moment."""
        waited_s = self.phases_s.get(WAIT, 0.0)
        return Mark(now, self.batches, self.samples, trained=self.trained, waited_s=waited_s)

    @property
    def troubles(self) -> tuple[object, ...]:
        """Changes of these print a line at once."""
        return self.failed, self.is_degraded, self.awaited, len(self.warnings)


class Display:
    """Shows the status of the study: as a live panel on a terminal, otherwise as a line now and then.

    Main thread only; it has no thread of its own, so it is as fresh as the last call of `update`, which the
    loop makes after every batch and every idle round. Too frequent calls cost one reading of the clock.

    By default it writes to standard error, and takes that of the mpirun above for a terminal if it is one.
    Once the study `is_leaving`, the panel stays as it is, and lines follow: mpirun and the launcher write below it, and
    the next panel would be drawn over that.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        name: str = "",
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._terminal = terminal_of_stderr() if console is None else None
        self._console = console or console_on(self._terminal)
        self._clock = clock
        self._name = name
        self._is_leaving = is_leaving
        self._live: Live | None = None
        # A dumb terminal cannot go back to lines that it has shown.
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._interval_s = LIVE_INTERVAL_S if self._is_live else PLAIN_INTERVAL_S
        self._next_s = float("-inf")
        self._began_s = clock()
        self._line_s = float("-inf")
        self._troubles: tuple[object, ...] = ()
        self._trends = Trends()

    def __enter__(self) -> Self:
        self._load_what_rich_needs()
        if self._is_live:
            self._follow_size()
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.make_way()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, status: Callable[[], DisplayedStatus]) -> None:
        """Show the status, which is asked for only when it is time for a new one."""
        now = self._clock()
        self.make_way()
        if now < self._next_s:
            return
        self._next_s = now + self._interval_s
        current = status()
        trend = self._trends.note(
            current.mark(now), fraction=current.fraction, loss=current.loss, is_held_up=bool(current.awaited)
        )
        if self._live is not None:
            self._follow_size()
            drawn = panel(self._name, current, trend, self._console.width)
            # The cursor stays in a line of its own, where the `^C` and the words of other processes begin.
            self._live.update(Group(drawn, ""), refresh=True)
        elif now >= self._line_s or current.troubles != self._troubles:
            growing_s = PLAIN_GROWTH * (now - self._began_s)
            self._line_s = now + min(max(growing_s, PLAIN_INTERVAL_S), MAX_PLAIN_INTERVAL_S)
            self._troubles = current.troubles
            self._print(line(current, trend))

    def finish(self, status: Callable[[], DisplayedStatus]) -> None:
        """Show on a terminal what a training has come to; it stays there while the study ends."""
        if self._live is not None:
            self._next_s = float("-inf")
            self.update(status)

    def make_way(self) -> None:
        """If the study is leaving, go on with lines below what stands on the screen.

        Else rich would erase as many lines above the cursor as the panel has, also before a line that is printed.
        """
        if self._live is None or not self._is_leaving():
            return
        live, self._live = self._live, None
        self._interval_s = PLAIN_INTERVAL_S
        self._next_s = self._clock() + self._interval_s
        num_lines = len(self._console.render_lines(live.renderable, pad=False))
        self._console.file.write("\n" * min(num_lines, self._console.height))
        live.update("")
        live.stop()

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _follow_size(self) -> None:
        """Take the size that the window of the terminal has now."""
        if self._terminal is not None and (size := size_of(self._terminal)):
            self._console.size = ConsoleDimensions(*size)

    def _load_what_rich_needs(self) -> None:
        """Render once to a buffer: rich imports modules when it prints, and later no file descriptor may be left."""
        status = DisplayedStatus(
            simulations={"running": 1}, samples=1, expected_samples=2, loss=0.5, fraction=0.5, capacity=1
        )
        with self._console.capture():
            self._console.print(panel(self._name, status, Trend(losses=(0.5,))))
            self._print(line(status, Trend()))


def console_on(terminal: Path | None) -> Console:
    """Standard error, which is read at this terminal, if at any; an mpirun may be between."""
    console = Console(stderr=True, force_terminal=True if terminal else None)
    if terminal is not None and (size := size_of(terminal)):
        console.size = ConsoleDimensions(*size)
    return console


class ProgressDisplay(Callback):
    """Keeps a display fresh while a study trains."""

    def __init__(self, display: Display, status: Callable[[], DisplayedStatus]) -> None:
        self._display = display
        self._status = status

    def on_round(self, server: Any) -> None:
        self._display.update(self._status)

    def on_train_end(self, server: Any) -> None:
        self._display.finish(self._status)


def panel(name: str, status: DisplayedStatus, trend: Trend, width: int = WIDE) -> Table:
    """The live panel for a console of this width; what does not fit into a line goes on in the next."""
    bar_width = BAR_WIDTH if width >= WIDE else SHORT_BAR_WIDTH if width >= NARROW else 0
    table = Table(title=escape(escaped(name)) or None, show_header=False, box=None, title_justify="left")
    table.add_column(style="bold", no_wrap=True, min_width=KEY_WIDTH)
    if bar_width:
        table.add_column(no_wrap=True, width=bar_width)
    table.add_column(overflow="fold")
    for key, bar, text in _rows(status, trend, bar_width):
        table.add_row(key, *([bar] if bar_width else []), text)
    lines = Table(show_header=False, box=None)
    lines.add_column(style="bold", no_wrap=True, min_width=KEY_WIDTH)
    lines.add_column(overflow="fold")
    for key, text in _sentences(status, trend):
        lines.add_row(key, Text(escaped(text)))
    both = Table.grid()
    both.add_row(table)
    both.add_row(lines)
    return both


def _rows(status: DisplayedStatus, trend: Trend, bar_width: int) -> list[tuple[str, ProgressBar | str, str]]:
    """The lines with a bar: the name of each, its bar, and the numbers."""

    def bar(done: float, total: float | None) -> ProgressBar | str:
        return ProgressBar(total=total, completed=min(done, total), width=bar_width) if total else ""

    ended = sum(num for state, num in status.simulations.items() if state in TERMINAL)
    done = "" if status.fraction is None else f", {_done(status, trend)}"
    rows = [
        ("simulations", bar(ended, sum(status.simulations.values())), _simulations(status)),
        (
            "samples",
            bar(status.samples, status.expected_samples),
            f"{_samples(status)}, {trend.samples_per_s:,.1f}/s{done if status.writes_files else ''}",
        ),
        ("buffer", bar(status.population, status.capacity), _buffer(status)),
    ]
    if not status.writes_files:
        batches = f"{status.batches:,}, {trend.batches_per_s:,.1f}/s{done}"
        rows.insert(2, ("batches", bar(status.fraction or 0.0, None if status.fraction is None else 1.0), batches))
    if losses := _losses(status):
        rows.append(("loss", sparkline(trend.losses, bar_width), losses))
    return rows


def sparkline(values: Sequence[float], width: int = SPARKLINE_WIDTH) -> str:
    """The course of the values as a line of small bars: the mean of as many pieces as there is room for.

    Values that fall or grow by more than a factor of `LOGARITHMIC` are shown by their logarithms.
    """
    finite = [value for value in values if value - value == 0]
    num = min(width, len(finite))
    bounds = [round(place * len(finite) / num) for place in range(num + 1)] if num else []
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(bounds)]
    if not means:
        return ""
    if min(means) > 0 and max(means) > LOGARITHMIC * min(means):
        means = [math.log(mean) for mean in means]
    low, high = min(means), max(means)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((mean - low) * scale)] for mean in means)


def _sentences(status: DisplayedStatus, trend: Trend) -> list[tuple[str, str]]:
    return [
        ("time", shares(status.phases_s, NUM_PHASES_SHOWN) or "-"),
        *([("bottleneck", told)] if (told := bottleneck(status, trend)) else []),
        *([("restarts", f"{status.restarts:,} of the server")] if status.restarts else []),
        *([("waits for", status.awaited)] if status.awaited else []),
        *([("degraded", DEGRADED)] if status.is_degraded else []),
        *([("warnings", f"{len(status.warnings)}, the last: {status.warnings[-1]}")] if status.warnings else []),
    ]


def bottleneck(status: DisplayedStatus, trend: Trend) -> str:
    """The bottleneck of the study, in words; "" if there is nothing to tell yet."""
    if status.writes_files:
        return ""
    waiting, running = trend.waiting, status.simulations.get(SimulationPhase.RUNNING, 0)
    if not status.batches and status.samples and status.population < status.watermark != 1:
        first = "" if status.population else "; the held-out simulations come first"
        return f"training begins when each rank has {status.watermark:,} samples (buffer.watermark){first}"
    # What comes is no measure: held-out steps are not trained, and a window is a sample of many time steps.
    if waiting is None or not trend.trained_per_s:
        return ""
    queued = status.simulations.get(QUEUED, 0)
    # Between two short simulations of a worker none runs, and the others of its list count as queued.
    comes = running or (queued and trend.samples_per_s)
    if waiting >= MUCH and queued and not comes:
        return f"training waits for data: no simulation runs, {queued:,} in the queue"
    if waiting >= MUCH and comes:
        possible = "much more" if waiting > 0.99 else rate(trend.trained_per_s / (1.0 - waiting))
        simulations = {0: "simulations bring", 1: "1 simulation at a time brings"}.get(
            running, f"{running} simulations at a time bring"
        )
        return (
            f"training waits for data: {simulations} {rate(trend.trained_per_s)} new samples/s, "
            f"training could take {possible}"
        )
    if waiting <= LITTLE_WAITING and running and status.room <= LITTLE_ROOM * status.capacity > 0:
        return (
            "simulations wait for training: the buffer is full, and training takes "
            f"{rate(trend.trained_per_s)} new samples/s"
        )
    return ""


def line(status: DisplayedStatus, trend: Trend) -> str:
    """The status as one line of a file."""
    parts = [
        f"simulations {_simulations(status)}",
        f"samples {_samples(status)}",
        f"buffer {_buffer(status)}",
        "" if status.writes_files else f"batches {status.batches:,} ({trend.batches_per_s:.1f}/s)",
        *([f"loss {number(status.loss)}"] if status.loss is not None else []),
        *([f"validation {number(status.validation_loss)}"] if status.validation_loss is not None else []),
        *([_done(status, trend)] if status.fraction is not None else []),
        bottleneck(status, trend),
        f"WAITS FOR {status.awaited}" if status.awaited else "",
        f"DEGRADED: {DEGRADED}" if status.is_degraded else "",
    ]
    return escaped(" | ".join(filter(None, parts)))


def _simulations(status: DisplayedStatus) -> str:
    of = status.simulations
    queued = f"{of[QUEUED]:,} queued, " if of.get(QUEUED) else ""
    counts = f"{of.get(SimulationPhase.WAITING, 0):,} waiting, {queued}{of.get(SimulationPhase.RUNNING, 0):,} running"
    return f"{counts}, {of.get(SimulationPhase.FINISHED, 0):,} done, {status.failed:,} failed"


def _samples(status: DisplayedStatus) -> str:
    return f"{status.samples:,}" + ("" if status.expected_samples is None else f"/{status.expected_samples:,}")


def _buffer(status: DisplayedStatus) -> str:
    population, capacity = status.population, status.capacity
    if population > capacity > 0:
        # A restart on fewer ranks deals those of the others, too.
        return f"{population:,}/{capacity:,} (full; {population - capacity:,} more from before the restart)"
    return f"{population:,}/{capacity:,}" + (f" ({population / capacity:.0%})" if capacity else "")


def _losses(status: DisplayedStatus) -> str:
    validation = "" if status.validation_loss is None else f"validation {number(status.validation_loss)}"
    return ", ".join(filter(None, ["" if status.loss is None else number(status.loss), validation]))


def _done(status: DisplayedStatus, trend: Trend) -> str:
    assert status.fraction is not None
    seconds = round(trend.left_s or 0.0)
    left = f", about {timedelta(seconds=seconds)} left" if seconds else ""
    return f"{status.fraction:.0%} done{left}"


def number(value: float | None) -> str:
    """A loss as people read it."""
    return "-" if value is None else f"{value:.4g}"


def rate(per_s: float) -> str:
    """A rate as people read it: two digits of one that is below 10, so that a slow one is not 0."""
    return f"{per_s:,.0f}" if per_s >= 9.95 else f"{per_s:.2g}"


def shares(seconds: Mapping[str, float], num: int | None = None) -> str:
    """The `num` longest phases, or all, each with its part of the whole; those below `LEAST_SHARE` are left out."""
    total = sum(seconds.values())
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:num]
    shown = [(name, s / total) for name, s in largest if s > 0 and s >= LEAST_SHARE * total]
    return ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in shown)
