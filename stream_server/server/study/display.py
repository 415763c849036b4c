"""The display on the terminal while a study runs. Rank 0 only.

Why: docs/decisions/0080-console.md
"""

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, Self

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stream_server.machine.screen import escaped
from stream_server.machine.terminal import size_of, terminal_of_stderr
from stream_server.messages.simulation_phase import QUEUED, TERMINAL, SimulationPhase
from stream_server.server.study.status import Snapshot

PLAIN_INTERVAL_S = 5.0
# In a file, a line comes whenever a study has become so much older.
PLAIN_GROWTH = 0.25
MAX_PLAIN_INTERVAL_S = 600.0
NUM_PHASES_SHOWN = 4
LEAST_SHARE = 0.01
# There are no bars in a terminal that is narrower than NARROW.
NARROW, BAR_WIDTH = 60, 16
DEGRADED = "the last checkpoint failed; the one before is good, and another will be tried"
# The share of the time from which on something holds a study up.
MUCH = 0.3
LITTLE_WAITING = 0.05
LITTLE_ROOM = 0.05


class Row(NamedTuple):
    """A line of the panel, or a part of a plain line; the bar is full at `total`, and there is none without."""

    key: str
    text: str
    done: float = 0.0
    total: float | None = None


class Display:
    """Shows the status of the study: as a live panel on a terminal, otherwise as a line now and then.

    Main thread only; it has no thread of its own, so it is as fresh as the last call of `show`.

    By default it writes to standard error, and takes that of the mpirun above for a terminal if it is one.
    Once the study `is_leaving`, the panel stays as it is, and lines follow: mpirun and the launcher write below it, and
    the next panel would be drawn over that.
    """

    def __init__(
        self, console: Console | None = None, *, name: str = "", is_leaving: Callable[[], bool] = lambda: False
    ) -> None:
        self._terminal = terminal_of_stderr() if console is None else None
        self._console = console or console_on(self._terminal)
        self._name = name
        self._is_leaving = is_leaving
        self._live: Live | None = None
        self._began_s = math.inf
        self._shown_s = -math.inf
        self._troubles: tuple[object, ...] = ()

    def __enter__(self) -> Self:
        # Rich imports modules when it draws, and later no file descriptor may be left.
        with self._console.capture():
            self._console.print(_table(self._name, [Row("", "≈", 1.0, 2.0)], self._console.width))
        # A dumb terminal cannot go back to lines that it has shown.
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._follow_size()
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.make_way()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot on a terminal; elsewhere if it is time for a line, or there is trouble."""
        self.make_way()
        now = snapshot.training.at_s
        self._began_s = min(self._began_s, now)
        if self._live is not None:
            self._shown_s = now
            self._follow_size()
            # The cursor stays in a line of its own, where the `^C` and the words of other processes begin.
            self._live.update(Group(panel(self._name, snapshot, self._console.width), ""), refresh=True)
            return
        troubles = _failed(snapshot), snapshot.training.is_degraded, snapshot.awaited, len(snapshot.warnings)
        interval_s = min(max(PLAIN_GROWTH * (now - self._began_s), PLAIN_INTERVAL_S), MAX_PLAIN_INTERVAL_S)
        if now >= self._shown_s + (interval_s if troubles == self._troubles else PLAIN_INTERVAL_S):
            self._shown_s, self._troubles = now, troubles
            self._console.print(line(snapshot), soft_wrap=True, highlight=False, markup=False)

    def make_way(self) -> None:
        """If the study is leaving, go on with lines below what stands on the screen.

        Else rich would erase as many lines above the cursor as the panel has, also before a line that is printed.
        """
        if self._live is None or not self._is_leaving():
            return
        live, self._live = self._live, None
        num_lines = len(self._console.render_lines(live.renderable, pad=False))
        self._console.file.write("\n" * min(num_lines, self._console.height))
        live.update("")
        live.stop()

    def _follow_size(self) -> None:
        if self._terminal is not None and (size := size_of(self._terminal)):
            self._console.size = ConsoleDimensions(*size)


def console_on(terminal: Path | None) -> Console:
    """Standard error, which is read at this terminal, if at any; an mpirun may be between."""
    console = Console(stderr=True, force_terminal=True if terminal else None)
    if terminal is not None and (size := size_of(terminal)):
        console.size = ConsoleDimensions(*size)
    return console


def panel(name: str, snapshot: Snapshot, width: int) -> Table:
    """The live panel for a console of this width; what does not fit into a line goes on in the next."""
    phases = Row("time", shares(snapshot.phases_s, NUM_PHASES_SHOWN) or "-")
    num, restarts = len(snapshot.warnings), snapshot.restarts
    more = [
        *([Row("restarts", f"{restarts:,} of the server")] if restarts else []),
        *([Row("warnings", f"{num}, the last: {snapshot.warnings[-1]}")] if num else []),
    ]
    return _table(name, [*_rows(snapshot), phases, *more], width)


def line(snapshot: Snapshot) -> str:
    return escaped(" | ".join(f"{row.key} {row.text}" for row in _rows(snapshot)))


def _table(name: str, rows: list[Row], width: int) -> Table:
    table = Table(title=escape(escaped(name)) or None, show_header=False, box=None, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        cell: RenderableType = Text(escaped(row.text))
        if row.total and width >= NARROW:
            bar = ProgressBar(total=row.total, completed=min(row.done, row.total), width=BAR_WIDTH)
            beside = Table.grid(padding=(0, 2))
            beside.add_row(bar, cell)
            cell = beside
        table.add_row(row.key, cell)
    return table


def _rows(snapshot: Snapshot) -> list[Row]:
    training, simulations = snapshot.training, snapshot.simulations
    fraction, left_s = training.fraction, round(training.left_s or 0.0)
    left = f", about {timedelta(seconds=left_s)} left" if left_s and not snapshot.awaited else ""
    done = "" if fraction is None else f", {fraction:.0%} done{left}"
    expected = "" if snapshot.expected is None else f"/{snapshot.expected:,}"
    samples = f"{snapshot.received:,}{expected}, {snapshot.received_per_s:,.1f}/s"
    batches = f"{training.batches:,}, {training.batches_per_s:,.1f}/s{done}"
    losses = {"loss": snapshot.loss, "validation": snapshot.validation_loss}
    ended = sum(num for state, num in simulations.items() if state in TERMINAL)
    ended_rounds, num_rounds = training.rounds or (0, 0)
    rows = [
        Row("rounds", f"{ended_rounds:,} of {num_rounds:,} ended" if num_rounds else "", ended_rounds, num_rounds),
        Row("simulations", _simulations(snapshot), ended, sum(simulations.values())),
        Row("samples", samples + (done if snapshot.writes_files else ""), snapshot.received, snapshot.expected),
        Row("batches", "" if snapshot.writes_files else batches, fraction or 0.0, None if fraction is None else 1.0),
        Row("buffer", _buffer(snapshot), training.population, training.capacity),
        *(Row(key, number(loss)) for key, loss in losses.items() if loss is not None),
        Row("bottleneck", bottleneck(snapshot)),
        Row("WAITS FOR", snapshot.awaited),
        Row("DEGRADED", DEGRADED if training.is_degraded else ""),
    ]
    return [row for row in rows if row.text]


def bottleneck(snapshot: Snapshot) -> str:
    """The bottleneck of the study, in words; "" if there is nothing to tell yet."""
    if snapshot.writes_files:
        return ""
    training, waiting, watermark = snapshot.training, snapshot.waiting, snapshot.watermark
    if not training.batches and snapshot.received and training.population < watermark != 1:
        first = "" if training.population else "; the held-out simulations come first"
        return f"training begins when each rank has {watermark:,} samples (buffer.watermark){first}"
    # What comes is no measure: held-out steps are not trained, and a window is a sample of many time steps.
    if waiting is None or not snapshot.trained_per_s:
        return ""
    running, queued = (snapshot.simulations.get(state, 0) for state in (SimulationPhase.RUNNING, QUEUED))
    # Between two short simulations of a worker none runs, and the others of its list count as queued.
    comes = running or (queued and snapshot.received_per_s)
    if waiting >= MUCH and queued and not comes:
        return f"training waits for data: no simulation runs, {queued:,} in the queue"
    if waiting >= MUCH and comes:
        possible = "much more" if waiting > 0.99 else rate(snapshot.trained_per_s / (1.0 - waiting))
        bring = {0: "simulations bring", 1: "1 simulation at a time brings"}.get(
            running, f"{running} simulations at a time bring"
        )
        return (
            f"training waits for data: {bring} {rate(snapshot.trained_per_s)} new samples/s, "
            f"training could take {possible}"
        )
    if waiting <= LITTLE_WAITING and running and snapshot.room <= LITTLE_ROOM * training.capacity > 0:
        return (
            "simulations wait for training: the buffer is full, and training takes "
            f"{rate(snapshot.trained_per_s)} new samples/s"
        )
    return ""


def _failed(snapshot: Snapshot) -> int:
    return sum(snapshot.simulations.get(state, 0) for state in (SimulationPhase.GIVEN_UP, SimulationPhase.INVALID))


def _simulations(snapshot: Snapshot) -> str:
    of = snapshot.simulations
    queued = f"{of[QUEUED]:,} queued, " if of.get(QUEUED) else ""
    counts = f"{of.get(SimulationPhase.WAITING, 0):,} waiting, {queued}{of.get(SimulationPhase.RUNNING, 0):,} running"
    return f"{counts}, {of.get(SimulationPhase.FINISHED, 0):,} done, {_failed(snapshot):,} failed"


def _buffer(snapshot: Snapshot) -> str:
    population, capacity = snapshot.training.population, snapshot.training.capacity
    if population > capacity > 0:
        # A restart on fewer ranks deals those of the others, too.
        return f"{population:,}/{capacity:,} (full; {population - capacity:,} more from before the restart)"
    return f"{population:,}/{capacity:,}" + (f" ({population / capacity:.0%})" if capacity else "")


def number(value: float | None) -> str:
    """A loss as people read it."""
    return "-" if value is None else f"{value:.4g}"


def rate(per_s: float) -> str:
    """A rate as people read it: two digits below 10, so that a slow one is not 0."""
    return f"{per_s:,.0f}" if per_s >= 9.95 else f"{per_s:.2g}"


def shares(seconds: Mapping[str, float], num: int | None = None) -> str:
    """The `num` longest phases, or all, each with its part of the whole; those below `LEAST_SHARE` are left out."""
    total = sum(seconds.values())
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:num]
    shown = [(name, s / total) for name, s in largest if s > 0 and s >= LEAST_SHARE * total]
    return ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in shown)
