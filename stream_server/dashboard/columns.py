"""The columns of every chart of the page, from what is known of a run. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from stream_server.analysis.reading import Line, is_validation_loss, names_in
from stream_server.analysis.run_status import balance_rows
from stream_server.analysis.validations import RenderedSample, relative_error
from stream_server.dashboard.changes import Columns
from stream_server.dashboard.snapshot import RunSnapshot
from stream_server.launcher.journal.history import CANCELLED, ENDED, FAILED, INTERRUPTED, RUNNING
from stream_server.messages.simulation_phase import QUEUED, SimulationPhase

AXES = {"batch": "batch", "sample": "samples trained", "wall_s": "training time (s)"}
MAX_POINTS = 2000
ATTEMPT_COLOURS = {
    RUNNING: "#0072B2",
    ENDED: "#009E73",
    FAILED: "#D55E00",
    CANCELLED: "#E69F00",
    INTERRUPTED: "#7F7F7F",
}
SIMULATION_COLOURS = {
    SimulationPhase.WAITING: "#BBBBBB",
    QUEUED: "#56B4E9",
    SimulationPhase.RUNNING: "#0072B2",
    SimulationPhase.FINISHED: "#009E73",
    SimulationPhase.GIVEN_UP: "#D55E00",
    SimulationPhase.INVALID: "#CC79A7",
    SimulationPhase.STOPPED_EARLY: "#F0E442",
    SimulationPhase.STOPPED: "#E69F00",
    "failed": "#D55E00",
    "interrupted": "#7F7F7F",
    "ended": "#8FD0B8",
}
OTHER_COLOUR = "#000000"
PALE = "#DDDDDD"

Curves = dict[str, Columns]


def losses(run: RunSnapshot, axis: str) -> Curves:
    """The loss of the training and of each validation set, by name."""
    names = [name for name in names_in(list(run.records)) if name == "train/loss" or is_validation_loss(name)]
    return {name: _logged(run.records, axis, name) for name in names}


def is_validation(name: str) -> bool:
    """Whether a curve is one of a validation set, of which there are few points."""
    return name.startswith("val/")


def rates(run: RunSnapshot) -> Curves:
    """Samples per second over the time of the training: drawn for batches, of these new ones, and received."""
    curves = {
        "trained, with repeats": _logged(run.records, "wall_s", "speed/samples_per_s"),
        "trained for the first time": _new_samples_per_s(run.records),
        "received": _logged(run.records, "wall_s", "speed/received_per_s"),
    }
    return {name: columns for name, columns in curves.items() if columns["x"]}


def running(run: RunSnapshot) -> Curves:
    """How many simulations run at once, over the time of the training."""
    columns = _logged(run.records, "wall_s", "simulations/running")
    return {"running": columns} if columns["x"] else {}


def buffers(run: RunSnapshot) -> Curves:
    """Samples in the buffer of a rank, those of them that were never drawn, and how old the samples are."""
    names = {
        "in the buffer": "buffer/population",
        "never drawn": "buffer/unseen",
        "mean age": "buffer/age/mean",
        "greatest age": "buffer/age/max",
    }
    curves = {shown: _logged(run.records, "wall_s", name) for shown, name in names.items()}
    return {name: columns for name, columns in curves.items() if columns["x"]}


def rollouts(run: RunSnapshot) -> Curves:
    """By field the squared error of the forecasts in the newest validation, by lead time, as far as it is finite."""
    recorded = None if run.validation is None else run.validation.rollouts
    if recorded is None:
        return {}
    curves: Curves = {}
    for name in recorded.mse:
        points = zip(recorded.lead_times.tolist(), recorded.by_lead_time(name).tolist(), strict=True)
        finite = [(lead, error) for lead, error in points if math.isfinite(error)]
        curves[name] = {"x": [lead for lead, _ in finite], "y": [error for _, error in finite]}
    return curves


def timeline(run: RunSnapshot) -> Columns:
    """One bar for each attempt of which the time is known, in seconds since the first one began."""
    shown = [it for it in run.attempts if it.started_s is not None]
    began_s = min((it.started_s for it in shown if it.started_s is not None), default=0.0)
    now_s = run.at_s - began_s
    return {
        "simulation": [it.simulation for it in shown],
        "attempt": [it.attempt for it in shown],
        "left": [round((it.started_s or 0.0) - began_s, 2) for it in shown],
        "right": [round(now_s if it.ended_s is None else it.ended_s - began_s, 2) for it in shown],
        "state": [it.state for it in shown],
        "colour": [ATTEMPT_COLOURS.get(it.state, OTHER_COLOUR) for it in shown],
        "reason": [it.reason for it in shown],
    }


def phases(run: RunSnapshot) -> Columns:
    """The parts of the time of each rank that its phases took at its newest log point, side by side."""
    names = phase_names(run)
    rows: list[tuple[int, str, float, float, str]] = []
    for rank, line in run.ranks.items():
        left = 0.0
        for position, name in enumerate(names):
            share = line.get(f"time/{name}", 0.0)
            if share > 0:
                rows.append((rank, _words(name), left, left + share, _phase_colour(position)))
                left += share
    keys = ("rank", "phase", "left", "right", "colour")
    columns = zip(*rows, strict=True) if rows else ([] for _ in keys)
    return {key: list(values) for key, values in zip(keys, columns, strict=True)}


def phase_names(run: RunSnapshot) -> list[str]:
    """The phases that any rank logged, in an order that stays."""
    return [name.removeprefix("time/") for name in names_in(list(run.ranks.values())) if name.startswith("time/")]


def phase_legend(run: RunSnapshot) -> dict[str, str]:
    """The colours of the phases by their names."""
    return {_words(name): _phase_colour(position) for position, name in enumerate(phase_names(run))}


def parameter_names(run: RunSnapshot) -> list[str]:
    """The parameters by which the simulations can be placed; their ids, too, so that there are always two."""
    known = run.simulations[0].parameters if run.simulations else {}
    return [*known, "id"]


def errors(run: RunSnapshot) -> dict[int, float]:
    """The error of the model on each held-out simulation in the newest validation, as far as it is a number."""
    found = {} if run.validation is None else run.validation.by_simulation()
    return {simulation: error for simulation, error in found.items() if math.isfinite(error)}


def parameter_points(run: RunSnapshot, x: str, y: str, palette: Sequence[str] = ()) -> Columns:
    """One point for each simulation, at two of its parameters, coloured by its state, or with a palette by its error.

    Simulations that are trained on have no error and are pale.
    """
    known = errors(run)
    colours = [SIMULATION_COLOURS.get(it.state, OTHER_COLOUR) for it in run.simulations]
    if palette:
        by_error = dict(zip(known, log_colours(list(known.values()), palette), strict=True))
        colours = [by_error.get(it.simulation, PALE) for it in run.simulations]

    def place(name: str) -> list[float]:
        return [it.simulation if name == "id" else it.parameters.get(name, math.nan) for it in run.simulations]

    return {
        "simulation": [it.simulation for it in run.simulations],
        "x": place(x),
        "y": place(y),
        "state": [_words(it.state) for it in run.simulations],
        "colour": colours,
        "error": [known.get(it.simulation, math.nan) for it in run.simulations],
        "received": [it.received or 0 for it in run.simulations],
        "attempts": [it.attempts for it in run.simulations],
    }


def log_colours(values: Sequence[float], palette: Sequence[str]) -> list[str]:
    """The place of each value between the smallest and the largest, on a logarithmic scale, as a colour."""
    low, high = log_range(values)
    scale = (len(palette) - 1) / math.log(high / low)
    return [palette[round(scale * math.log(min(max(value, low), high) / low))] for value in values]


def log_range(values: Sequence[float]) -> tuple[float, float]:
    """The smallest positive value and the largest one, apart from each other."""
    positive = [value for value in values if value > 0]
    low, high = (min(positive), max(positive)) if positive else (1.0, 1.0)
    return (low, high) if high > low else (low / 2, high * 2)


def sample_name(sample: RenderedSample) -> str:
    """The simulation and the time step of a held-out sample."""
    return f"simulation {sample.simulation}, time step {sample.time_step}"


def single_values(samples: Iterable[RenderedSample], name: str) -> list[tuple[str, str]]:
    """Truth and prediction of each held-out sample of which this is one value, as the rows of a table."""
    rows = []
    for sample in samples:
        truth, prediction = sample.shown[name]
        error = relative_error(truth, prediction)
        off = "" if error is None else f", off by {error:.2%}"
        rows.append((sample_name(sample), f"truth {truth.item():.4g}, prediction {prediction.item():.4g}{off}"))
    return rows


def account_rows(run: RunSnapshot) -> list[tuple[str, str]]:
    """The closing account of a run that has ended: where every expected sample has gone."""
    samples = run.status.report.get("samples")
    if not isinstance(samples, dict):
        return []
    used = ("trained", "recorded", "skipped", "withdrawn", "untrained")
    names = ("expected", "accepted", "rejected", "never_produced", *used)
    rows = [(_words(name), f"{_total(samples[name]):,}") for name in names if name in samples]
    if isinstance(windows := samples.get("windows"), dict):
        rows += [(f"windows {_words(name)}", f"{num:,}") for name, num in windows.items()]
    rows += balance_rows(run.status.report)
    return [*rows, *(("", str(text)) for text in run.status.report.get("unbalanced", ()))]


def stride_for(num: int) -> int:
    """The smallest power of two that leaves at most `MAX_POINTS`: it changes seldom while a curve grows."""
    return 2 ** max(0, math.ceil(math.log2(num / MAX_POINTS))) if num > MAX_POINTS else 1


def _logged(records: Sequence[Line], axis: str, name: str) -> Columns:
    return _curve(records, name, axis, lambda line: line[name])


def _curve(records: Sequence[Line], name: str, axis: str, value: Callable[[Line], float]) -> Columns:
    points = [line for line in records if name in line]
    points = points[:: stride_for(len(points))]
    return {"x": [line[axis] for line in points], "y": [value(line) for line in points]}


def _new_samples_per_s(records: Sequence[Line]) -> Columns:
    points = [line for line in records if "speed/samples_per_s" in line]
    points = points[:: stride_for(len(points))]
    pairs = [(a, b) for a, b in pairwise(points) if b["wall_s"] > a["wall_s"]]
    return {
        "x": [b["wall_s"] for _, b in pairs],
        "y": [(b["sample"] - a["sample"]) / (b["wall_s"] - a["wall_s"]) for a, b in pairs],
    }


def _phase_colour(position: int) -> str:
    return PHASE_COLOURS[position % len(PHASE_COLOURS)]


def _total(count: Any) -> int:
    return sum(count.values()) if isinstance(count, dict) else int(count)


def _words(name: str) -> str:
    return name.replace("_", " ")


# Tableau's twenty: a step has up to thirteen phases.
PHASE_COLOURS = (
    *("#1f77b4", "#aec7e8", "#ff7f0e", "#ffbb78", "#2ca02c", "#98df8a", "#d62728", "#ff9896", "#9467bd", "#c5b0d5"),
    *("#8c564b", "#c49c94", "#e377c2", "#f7b6d2", "#7f7f7f", "#c7c7c7", "#bcbd22", "#dbdb8d", "#17becf", "#9edae5"),
)
