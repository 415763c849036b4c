"""The page as one browser shows it: its choices, and what is brought up to date every second.

Why: docs/decisions/0083-page-by-bokeh.md
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models.ui import UIElement
from bokeh.models.widgets import Button, MultiChoice, RadioButtonGroup, Select, Spinner
from bokeh.palettes import Viridis256

from stream_server.analysis import columns
from stream_server.analysis.columns import COLOURS, Columns
from stream_server.analysis.follow import newest_log, server_logs
from stream_server.analysis.reading import needs_log_scale
from stream_server.analysis.run_status import RunStatus, account_rows, in_words
from stream_server.analysis.simulations import MOST_PARAMETERS
from stream_server.dashboard import texts
from stream_server.dashboard.charts import (
    NARROW,
    CurveStyle,
    LineChart,
    ParameterSpace,
    bring_up_to_date,
    chart,
    rank_phases,
    timeline,
)
from stream_server.dashboard.predictions import PredictionCharts, sample_name, single_values
from stream_server.dashboard.texts import div, say
from stream_server.dashboard.watch import RunSnapshot, Watch, note_problems
from stream_server.machine.log_end import log_end
from stream_server.machine.run_folder import STUDY_FILE
from stream_server.machine.screen import in_one_line
from stream_server.wording import counted

UPDATE_MS = 1000
LOG_BYTES = 20_000
MAX_COMPARED = 8
MAX_CURVES = 20
BY_STATE = "state"
BY_ERROR = "error"
# By itself, and as somebody wants it.
SCALES = ("auto", "log", "linear")
COLOURINGS: tuple[Any, ...] = (BY_STATE, BY_ERROR)
DASHES = ("solid", "dashed", "dotted", "dashdot")
OF_SIMULATION = "a simulation"


class Page:
    """The page of one browser. Its methods run in the loop of the server."""

    def __init__(self, document: Document, watch: Watch) -> None:
        self._document = document
        self._watch = watch
        self._order: bool | None = None
        self._is_updating = False
        self._names: dict[str, Path] = {}
        self._damages: list[str] = []
        self._make_choices()
        self._make_charts()

    def open(self) -> None:
        """Put everything into the document, and keep it up to date until the browser leaves."""
        self._document.title = f"Stream Study: {self._watch.folder.resolve().name}"
        self._document.add_root(self._layout())
        self._document.add_periodic_callback(self.update, UPDATE_MS)
        self._document.on_session_destroyed(lambda _: self._watch.choose(self, frozenset()))
        self.update()

    def update(self) -> None:
        """Show what is known now; sends only what has changed."""
        if self._is_updating:
            # A choice of the page's own: it has just been taken into account.
            return
        self._is_updating = True
        # The browser lays out the page once for all changes that come in one message.
        self._document.hold("collect")
        try:
            # Otherwise Bokeh looks for all models of the page after each of the changes.
            with self._document.models.freeze():
                self._show()
        finally:
            self._document.unhold()
            self._is_updating = False

    def _show(self) -> None:
        self._update_runs(self._watch.runs())
        run = self._names.get(self._run.value)
        compared = [self._names[name] for name in self._compared.value if name in self._names]
        chosen = [run, *(path for path in compared if path != run)] if run else []
        self._watch.choose(self, frozenset(chosen))
        known = {path: snapshot for path in chosen if (snapshot := self._watch.snapshot(path)) is not None}
        self._damages.clear()
        with note_problems(self._damages):
            self._show_curves(known, chosen)
        if run is not None and run in known:
            with note_problems(self._damages):
                self._show_run(known[run])
            problems = dict.fromkeys([*known[run].problems, *self._damages])
            say(self._problems, texts.messages(problems, known[run].answer))

    def _make_choices(self) -> None:
        self._title = div(name="title")
        axes: list[Any] = [*columns.AXES.items()]
        logs: list[Any] = [OF_SIMULATION]
        self._hint = div(name="hint", visible=False)
        self._run = Select(name="run", title="run", options=[], width=300)
        self._compared = MultiChoice(
            name="compared", title="compared with", options=[], width=420, max_items=MAX_COMPARED - 1
        )
        self._axis = Select(title="losses over", options=axes, value="batch", width=150)
        self._scale = RadioButtonGroup(labels=list(SCALES), active=0, width=170, margin=(24, 5, 5, 5))
        self._x = Select(title="x", options=[], width=140)
        self._y = Select(title="y", options=[], width=140)
        self._colour = Select(name="colour", title="coloured by", options=list(COLOURINGS), value=BY_STATE, width=140)
        self._sample = Select(name="sample", title="held-out sample", options=[], width=260)
        self._shown = Select(name="shown", title="shown", options=[], width=180)
        self._log = Select(name="log", title="log of", options=logs, width=220)
        self._simulation = Spinner(name="simulation", title="simulation", low=0, step=1, value=0, width=110)
        self._stop = Button(label="Stop …", button_type="danger", width=90, margin=(24, 5, 5, 5))
        self._finish = Button(label="Finish …", button_type="warning", width=90, margin=(24, 5, 5, 5))
        self._question = div(name="question", margin=(28, 5, 5, 5), visible=False)
        self._yes = Button(label="Yes", button_type="danger", width=60, margin=(24, 5, 5, 5), visible=False)
        self._no = Button(label="No", width=60, margin=(24, 5, 5, 5), visible=False)
        for control in (
            self._run,
            self._compared,
            self._axis,
            self._x,
            self._y,
            self._log,
            self._simulation,
            self._colour,
            self._sample,
            self._shown,
        ):
            control.on_change("value", self._choice_changed)
        self._scale.on_change("active", self._choice_changed)
        self._stop.on_click(lambda: self._ask(finish=False))
        self._finish.on_click(lambda: self._ask(finish=True))
        self._yes.on_click(self._confirm)
        self._no.on_click(self._withdraw)

    def _make_charts(self) -> None:
        on_log = chart("Losses of training and validation", "batch", "loss", y_axis_type="log")
        on_linear = chart("Losses of training and validation", "batch", "loss")
        self._losses = LineChart(on_log, on_linear)
        self._rates = LineChart(chart("Samples per second", "training time (s)", "samples/s"))
        self._buffers = LineChart(chart("Buffer, mean over the ranks", "training time (s)", "samples"))
        self._running = LineChart(chart("Simulations at once", "training time (s)", "simulations"))
        forecasts = ("Forecasts of held-out simulations", "lead time (time steps)", "squared error")
        self._rollouts = LineChart(chart(*forecasts, y_axis_type="log"), chart(*forecasts))
        for each in (*self._rates.figures, *self._buffers.figures, *self._running.figures):
            each.y_range.start = 0
        self._timeline = timeline()
        self._phases = rank_phases()
        self._space = ParameterSpace()
        self._predictions = PredictionCharts()
        self._predictions_title = div(name="predictions")
        self._single_values = div(name="single_values", visible=False)
        self._no_curves = div(texts.NO_CURVES, name="no_curves", visible=False)
        self._status, self._problems = div(name="status"), div(name="problems")
        self._account, self._log_text = div(name="account"), div(name="log_text")
        self._phase_legend = div(name="phases")

    def _layout(self) -> UIElement:
        attempts = div(texts.legend(columns.ATTEMPT_COLOURS))
        states = {in_words(name): colour for name, colour in columns.SIMULATION_COLOURS.items()}
        self._state_legend = div(texts.legend(states))
        self._loss_panel = _wide(column(*self._losses.figures, row(self._axis, self._scale)))
        self._timeline_panel = _wide(column(self._timeline.figure, attempts))
        self._phase_panel = column(self._phases.figure, self._phase_legend, sizing_mode="stretch_width")
        self._space_panel = _wide(column(self._space.figure, _wrap(self._x, self._y), self._colour, self._state_legend))
        self._prediction_charts = _wrap(*self._predictions.figures)
        self._prediction_row = column(
            _wrap(self._predictions_title, self._sample, self._shown),
            self._prediction_charts,
            self._single_values,
            sizing_mode="stretch_width",
            visible=False,
        )
        orders = row(self._stop, self._finish, self._question, self._yes, self._no)
        self._charts = column(
            _wrap(
                column(div(texts.heading("Status")), self._status, width=NARROW),
                self._loss_panel,
                self._no_curves,
            ),
            _wrap(*self._rates.figures, *self._buffers.figures),
            _wrap(*self._rollouts.figures),
            _wrap(self._timeline_panel, *self._running.figures),
            self._phase_panel,
            self._prediction_row,
            _wrap(
                self._space_panel,
                _wide(column(div(texts.heading("Log")), row(self._log, self._simulation), self._log_text)),
                column(div(texts.heading("Closing account")), self._account, width=260),
            ),
            sizing_mode="stretch_width",
        )
        return column(
            self._title,
            _wrap(self._run, self._compared, orders),
            self._problems,
            self._hint,
            self._charts,
            sizing_mode="stretch_width",
            margin=(8, 16, 8, 16),
        )

    def _update_runs(self, runs: Mapping[Path, RunStatus] | None) -> None:
        num = "looking for runs" if runs is None else counted(len(runs), "run")
        below = "; ".join(filter(None, (f"{num}, {datetime.now():%H:%M:%S}", self._watch.unread_folders())))
        say(self._title, texts.title(self._watch.folder.resolve(), below))
        runs = runs or {}
        self._names = {_name(path, self._watch.folder): path for path in runs}
        options = [(name, f"{name}: {runs[path].state}") for name, path in self._names.items()]
        _set(self._run, options=options)
        _set(self._compared, options=[(name, texts.label(name)) for name in self._names])
        if self._run.value not in self._names and options:
            self._run.value = _name(first_shown(runs), self._watch.folder)
        has_none = not options
        _set(self._charts, visible=not has_none)
        _set(self._hint, visible=has_none and self._watch.runs() is not None)
        if has_none:
            say(self._hint, texts.no_run(self._watch.folder.resolve()))
        for control in (self._run, self._stop, self._finish):
            _set(control, visible=not has_none)
        _set(self._compared, visible=len(options) > 1)

    def _show_curves(self, known: Mapping[Path, RunSnapshot], chosen: list[Path]) -> None:
        axis = self._axis.value
        for each in self._losses.figures:
            _set(each.xaxis[0], axis_label=columns.AXES[axis])
        losses = self._curves(lambda run: columns.losses(run.records, axis), known, chosen)
        scale = SCALES[self._scale.active or 0]
        self._losses.show(losses, on_log=_needs_log_scale(losses) if scale == "auto" else scale == "log")
        _set(self._loss_panel, visible=bool(losses))
        _set(self._no_curves, visible=not losses)
        self._rates.show(self._curves(lambda run: columns.rates(run.records), known, chosen))
        self._buffers.show(
            self._curves(lambda run: columns.buffers(run.records) | columns.ages(run.records), known, chosen)
        )
        forecasts = self._curves(lambda run: columns.rollouts(run.validation), known, chosen)
        self._rollouts.show(forecasts, on_log=_needs_log_scale(forecasts))
        self._running.show(self._curves(lambda run: columns.running_simulations(run.records), known, chosen))

    def _curves(
        self, of: Callable[[RunSnapshot], columns.Curves], known: Mapping[Path, RunSnapshot], chosen: list[Path]
    ) -> dict[object, tuple[CurveStyle, Columns]]:
        """The curves of all runs that can have any: files may have any form."""
        curves: dict[Path, columns.Curves] = {}
        for path, run in known.items():
            with note_problems(self._damages):
                curves[path] = columns.thin(of(run))
        return _styles(curves, chosen, self._watch)

    def _show_run(self, run: RunSnapshot) -> None:
        say(self._status, texts.table(run.status.rows()))
        attempts, phases = columns.timeline(run.attempts, run.at_s), columns.phases(run.ranks)
        bring_up_to_date(self._timeline.source, attempts)
        bring_up_to_date(self._phases.source, phases)
        _set(self._timeline_panel, visible=bool(attempts["simulation"]))
        _set(self._phase_panel, visible=bool(phases["rank"]))
        _set(self._space_panel, visible=bool(run.simulations))
        say(
            self._phase_legend,
            texts.legend({in_words(name): colour for name, colour in columns.phase_colours(run.ranks).items()}),
        )
        self._show_space(run)
        self._show_predictions(run)
        self._show_log(run)
        account = account_rows(run.status.report)
        say(self._account, texts.table(account or [("", "comes when the run has ended")]))
        for button in (self._stop, self._finish):
            _set(button, disabled=not run.status.is_live)

    def _show_space(self, run: RunSnapshot) -> None:
        if not run.simulations:
            # Which parameters there are is not known yet.
            return
        names = columns.parameter_names(run.simulations)
        for choice, position in ((self._x, 0), (self._y, 1)):
            _set(choice, options=names)
            if choice.value not in names:
                choice.value = names[min(position, len(names) - 1)]
        errors = columns.errors(run.validation)
        _set(self._colour, visible=bool(errors))
        by_error = bool(errors) and self._colour.value == BY_ERROR
        self._space.show_scale(list(errors.values()) if by_error else [])
        _set(self._state_legend, visible=not by_error)
        palette = Viridis256 if by_error else ()
        x, y = self._x.value, self._y.value
        self._space.show(columns.parameter_points(run.simulations, errors, x, y, palette), x, y)

    def _show_predictions(self, run: RunSnapshot) -> None:
        """The truth of one held-out sample, the prediction of it in the newest validation, and their difference."""
        validation = run.validation
        samples = {} if validation is None else {sample_name(each): each for each in validation.samples if each.shown}
        _set(self._prediction_row, visible=bool(samples))
        if validation is None or not samples:
            return
        _set(self._sample, options=list(samples))
        if self._sample.value not in samples:
            self._sample.value = next(iter(samples))
        sample = samples[self._sample.value]
        _set(self._shown, options=list(sample.shown))
        if self._shown.value not in sample.shown:
            self._shown.value = next(iter(sample.shown))
        name = self._shown.value
        unit = validation.units.get(name, "")
        of_one_value = [each for each in samples.values() if name in each.shown and each.shown[name][0].size == 1]
        is_one_value = sample.shown[name][0].size == 1
        for part in (self._sample, self._prediction_charts):
            _set(part, visible=not is_one_value)
        _set(self._single_values, visible=is_one_value)
        if is_one_value:
            below = f"{name} ({unit})" if unit else name
            say(self._single_values, texts.table(single_values(of_one_value, name)))
        else:
            first = list(sample.parameters.items())[:MOST_PARAMETERS]
            below = ", ".join([f"{each} {value:.4g}" for each, value in first])
            self._predictions.show(*sample.shown[name], name=name, unit=unit)
        say(self._predictions_title, texts.heading(f"Prediction after batch {validation.batch:,}", below))

    def _show_log(self, run: RunSnapshot) -> None:
        logs = {path.stem: path for path in server_logs(run.status.run)}
        options = [*logs, OF_SIMULATION]
        _set(self._log, options=options)
        if self._log.value not in options:
            self._log.value = next((name for name in options if name.startswith("server")), options[0])
        of_simulation = self._log.value == OF_SIMULATION
        _set(self._simulation, visible=of_simulation)
        path = logs.get(self._log.value)
        if of_simulation and self._simulation.value is not None:
            path = newest_log(run.status.run, int(self._simulation.value))
        text = log_end(path, LOG_BYTES) if path else "it has no log"
        say(self._log_text, texts.log(text or "it is empty"))

    def _choice_changed(self, name: str, old: Any, new: Any) -> None:
        self.update()

    def _ask(self, *, finish: bool) -> None:
        self._order = finish
        what = "Start no simulation any more, train what comes, and end" if finish else "Save a checkpoint and leave"
        say(self._question, texts.question(what, self._run.value))
        self._question.visible = True
        self._yes.visible = self._no.visible = True

    def _confirm(self) -> None:
        path = self._names.get(self._run.value)
        if path is not None and self._order is not None:
            self._watch.stop(path, finish=self._order)
        self._withdraw()

    def _withdraw(self) -> None:
        self._order = None
        self._question.visible = self._yes.visible = self._no.visible = False


def _styles(
    curves: Mapping[Path, columns.Curves], chosen: list[Path], watch: Watch
) -> dict[object, tuple[CurveStyle, Columns]]:
    """Styles by curve: of one run a colour each, of several a colour for each run and a dash for each curve."""
    names = list(dict.fromkeys(name for of_run in curves.values() for name in of_run))[:MAX_CURVES]
    styled: dict[object, tuple[CurveStyle, Columns]] = {}
    for path, of_run in curves.items():
        for name in filter(of_run.__contains__, names):
            points, place = of_run[name], names.index(name)
            if len(chosen) == 1:
                label, colour, dash = name, COLOURS[place % len(COLOURS)], "solid"
            else:
                label = f"{_name(path, watch.folder)}: {name}"
                colour = COLOURS[chosen.index(path) % len(COLOURS)]
                dash = DASHES[place % len(DASHES)]
            style = CurveStyle(label=label, colour=colour, dash=dash, has_marks=name.startswith("val/"))
            styled[path, name] = (style, points)
    return styled


def _needs_log_scale(curves: Mapping[object, tuple[CurveStyle, Columns]]) -> bool:
    return needs_log_scale(value for _, points in curves.values() for value in points["y"])


def _name(path: Path, folder: Path) -> str:
    return in_one_line(path.resolve().name if path == folder else str(path.relative_to(folder)))


def _wide(layout: Any) -> Any:
    """Style: as wide as there is room, and no narrower than a chart can be."""
    layout.update(sizing_mode="stretch_width", min_width=NARROW)
    return layout


def _wrap(*parts: Any) -> UIElement:
    """Beside each other, or below each other in a window that is too narrow."""
    return row(*parts, sizing_mode="stretch_width", styles={"flex-wrap": "wrap"})


def _set(model: Any, **values: Any) -> None:
    """Change what differs: nothing else is sent."""
    for name, value in values.items():
        if getattr(model, name) != value:
            setattr(model, name, value)


def first_shown(runs: Mapping[Path, RunStatus]) -> Path:
    """The newest run, of the live ones if there are any."""

    def rank(run: Path) -> tuple[bool, float]:
        try:
            started_s = (run / STUDY_FILE).stat().st_mtime
        except OSError:
            started_s = 0.0
        return runs[run].is_live, started_s

    return max(runs, key=rank)
