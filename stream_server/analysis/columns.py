"""The columns of every chart of a run, which pictures and the page in the browser only draw. Pure."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from stream_server.analysis.reading import Line, is_validation_loss, names_in
from stream_server.analysis.run_status import in_words
from stream_server.analysis.simulations import SimulationSummary
from stream_server.analysis.timeline import AttemptSpan
from stream_server.analysis.validations import RecordedValidation
from stream_server.launcher.journal.history import CANCELLED, ENDED, FAILED, INTERRUPTED, RUNNING
from stream_server.messages.simulation_phase import QUEUED, SimulationPhase

Columns = Mapping[str, Sequence[Any]]
Curves = dict[str, Columns]

# The palette of Okabe and Ito, which people with any kind of colour vision can tell apart, with grey in place of
# its yellow, in which a line on white is hardly seen.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
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
# Tableau's twenty: a step has up to thirteen phases.
PHASE_COLOURS = (
    *("#1f77b4", "#aec7e8", "#ff7f0e", "#ffbb78", "#2ca02c", "#98df8a", "#d62728", "#ff9896", "#9467bd", "#c5b0d5"),
    *("#8c564b", "#c49c94", "#e377c2", "#f7b6d2", "#7f7f7f", "#c7c7c7", "#bcbd22", "#dbdb8d", "#17becf", "#9edae5"),
)
OTHER_COLOUR = "#000000"
PALE = "#DDDDDD"


def losses(records: Sequence[Line], axis: str = "batch") -> Curves:
    """The loss of the training and of each validation set, by name."""
    names = [name for name in names_in(records) if name == "train/loss" or is_validation_loss(name)]
    return {name: _columns_of(records, axis, name) for name in names}


def rates(records: Sequence[Line]) -> Curves:
    """Samples per second over the time of the training: drawn for batches, of these new ones, and received."""
    curves = {
        "trained, with repeats": _columns_of(records, "wall_s", "speed/samples_per_s"),
        "trained for the first time": _new_samples_per_s(records),
        "received": _columns_of(records, "wall_s", "speed/received_per_s"),
    }
    return {name: columns for name, columns in curves.items() if columns["x"]}


def running_simulations(records: Sequence[Line]) -> Curves:
    """Number of simulations that run at once, over the time of the training."""
    return _over_time(records, {"running": "simulations/running"})


def buffers(records: Sequence[Line]) -> Curves:
    return _over_time(records, {"in the buffer": "buffer/population", "never drawn": "buffer/unseen"})


def ages(records: Sequence[Line]) -> Curves:
    """Number of samples that came after those in the buffer of a rank."""
    return _over_time(records, {"mean age": "buffer/age/mean", "greatest age": "buffer/age/max"})


def rollouts(validation: RecordedValidation | None) -> Curves:
    """By field the squared error of the forecasts in a validation, by lead time, as far as it is finite."""
    recorded = None if validation is None else validation.rollouts
    if recorded is None:
        return {}
    curves: Curves = {}
    for name in recorded.mse:
        points = zip(recorded.lead_times.tolist(), recorded.by_lead_time(name).tolist(), strict=True)
        finite = [(lead, error) for lead, error in points if math.isfinite(error)]
        curves[name] = {"x": [lead for lead, _ in finite], "y": [error for _, error in finite]}
    return curves


def thin(curves: Curves) -> Curves:
    """The same with MAX_POINTS at most in each curve; what is left of one stays mostly the same while it grows."""
    return {
        name: {key: values[:: _stride_for(len(values))] for key, values in columns.items()}
        for name, columns in curves.items()
    }


def timeline(attempts: Sequence[AttemptSpan], now_s: float) -> Columns:
    """One bar for each attempt with a known time, in seconds since the first one began."""
    shown = [attempt for attempt in attempts if attempt.started_s is not None]
    began_s = min((bar.started_s for bar in shown if bar.started_s is not None), default=0.0)
    return {
        "simulation": [bar.simulation for bar in shown],
        "attempt": [bar.attempt for bar in shown],
        "left": [round((bar.started_s or 0.0) - began_s, 2) for bar in shown],
        "right": [round((now_s if bar.ended_s is None else bar.ended_s) - began_s, 2) for bar in shown],
        "state": [bar.state for bar in shown],
        "colour": [ATTEMPT_COLOURS.get(bar.state, OTHER_COLOUR) for bar in shown],
        "reason": [bar.reason for bar in shown],
    }


def phases(ranks: Mapping[int, Line]) -> Columns:
    """The parts of the time of each rank that its phases took at its newest log point, side by side."""
    colours = phase_colours(ranks)
    bars: list[tuple[Any, ...]] = []
    for rank, line in ranks.items():
        left = 0.0
        for name, colour in colours.items():
            share = line.get(f"time/{name}", 0.0)
            if share > 0:
                bars.append((rank, in_words(name), left, left + share, colour))
                left += share
    names = ("rank", "phase", "left", "right", "colour")
    return {name: [bar[place] for bar in bars] for place, name in enumerate(names)}


def phase_colours(ranks: Mapping[int, Line]) -> dict[str, str]:
    """The colours of the phases that any rank logged, in an order that stays."""
    names = [name.removeprefix("time/") for name in names_in(ranks.values()) if name.startswith("time/")]
    return dict(zip(names, cycle(PHASE_COLOURS)))


def parameter_names(simulations: Sequence[SimulationSummary]) -> list[str]:
    """The parameters by which the simulations can be placed; their ids, too, so that there are always two."""
    return [*(simulations[0].parameters if simulations else {}), "id"]


def errors(validation: RecordedValidation | None) -> dict[int, float]:
    """The error of the model on each held-out simulation in a validation, as far as it is a number."""
    errors = {} if validation is None else validation.by_simulation()
    return {simulation: error for simulation, error in errors.items() if math.isfinite(error)}


def parameter_points(
    simulations: Sequence[SimulationSummary],
    errors: Mapping[int, float],
    x: str,
    y: str,
    palette: Sequence[str] = (),
) -> Columns:
    """One point for each simulation, at two of its parameters, coloured by its state, or with a palette by its error.

    Simulations that are trained on have no error and are pale.
    """
    colours = [SIMULATION_COLOURS.get(each.state, OTHER_COLOUR) for each in simulations]
    if palette:
        by_error = dict(zip(errors, log_colours(list(errors.values()), palette), strict=True))
        colours = [by_error.get(each.simulation, PALE) for each in simulations]

    def place(name: str) -> list[float]:
        return [each.simulation if name == "id" else each.parameters.get(name, math.nan) for each in simulations]

    return {
        "simulation": [each.simulation for each in simulations],
        "x": place(x),
        "y": place(y),
        "state": [in_words(each.state) for each in simulations],
        "colour": colours,
        "error": [errors.get(each.simulation, math.nan) for each in simulations],
        "received": [each.received or 0 for each in simulations],
        "attempts": [each.attempts for each in simulations],
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


def _stride_for(num: int) -> int:
    """The smallest power of two that leaves at most `MAX_POINTS`: it changes seldom while a curve grows."""
    return 2 ** max(0, math.ceil(math.log2(num / MAX_POINTS))) if num else 1


def _over_time(records: Sequence[Line], names: Mapping[str, str]) -> Curves:
    curves = {shown: _columns_of(records, "wall_s", name) for shown, name in names.items()}
    return {name: columns for name, columns in curves.items() if columns["x"]}


def _columns_of(records: Sequence[Line], axis: str, name: str) -> Columns:
    points = [line for line in records if name in line]
    return {"x": [line[axis] for line in points], "y": [line[name] for line in points]}


def _new_samples_per_s(records: Sequence[Line]) -> Columns:
    points = [line for line in records if "speed/samples_per_s" in line]
    pairs = [(a, b) for a, b in pairwise(points) if b["wall_s"] > a["wall_s"]]
    return {
        "x": [b["wall_s"] for _, b in pairs],
        "y": [(b["sample"] - a["sample"]) / (b["wall_s"] - a["wall_s"]) for a, b in pairs],
    }
