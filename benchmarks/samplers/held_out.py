"""The error of an exported model along held-out trajectories, computed without the server.

The solver of the study makes the trajectories, and the exported weights are applied to their own forecasts.
"""

import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from stream_server.config import StudyConfig, load
from stream_server.user_code import load_class

SEED = 20_000
AT_ONCE = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """Trajectories with the shape (n, steps, fields, …), and their parameters with the shape (n, P)."""

    parameters: NDArray[np.float64]
    states: NDArray[np.float32]


def held_out(config: StudyConfig, num: int, folder: Path) -> HeldOut:
    """So many trajectories of a study, from evenly distributed parameters; they are kept in a file in `folder`."""
    path = folder / f"held-out-{num}.npz"
    parameters = drawn(config, num)
    if path.exists():
        with np.load(path) as kept:
            if np.array_equal(kept["parameters"], parameters):
                return HeldOut(parameters=parameters, states=kept["states"])
    parts = [parameters[first : first + AT_ONCE] for first in range(0, num, AT_ONCE)]
    states = np.concatenate([trajectories(config, it) for it in parts])
    np.savez(path, parameters=parameters, states=states)
    return HeldOut(parameters=parameters, states=states)


def drawn(config: StudyConfig, num: int) -> NDArray[np.float64]:
    """Parameters with the shape (num, P), evenly distributed in the bounds of a study."""
    random, bounds = np.random.default_rng(SEED), config.parameters.bounds or {}
    unit = random.random((num, len(bounds)))
    low, high = np.array([[it.low, it.high] for it in bounds.values()]).T
    is_log = np.array([it.log for it in bounds.values()])
    values: NDArray[np.float64] = low + (high - low) * unit
    values[:, is_log] = low[is_log] * (high[is_log] / low[is_log]) ** unit[:, is_log]
    return values


def solver_of(config: StudyConfig) -> Path:
    """The program of the simulations, which has a function `solve`."""
    assert config.simulation.command is not None
    return Path(config.simulation.command[-1])


def trajectories(config: StudyConfig, parameters: NDArray[np.float64]) -> NDArray[np.float32]:
    """The trajectories of a study's solver for parameters of shape (n, P), of shape (n, steps, fields, …)."""
    solve = runpy.run_path(str(solver_of(config)))["solve"]
    by_name = dict(zip(config.parameters.bounds or {}, parameters.T, strict=True))
    steps = [np.stack([fields[name] for name in config.study.fields], axis=1) for fields in solve(by_name)]
    return np.stack(steps, axis=1).astype(np.float32)


def exported_model(folder: Path) -> torch.nn.Module:
    """The model that a study has written, with its weights."""
    config = load(folder / "study.json")
    assert config.training.model is not None
    make = load_class(config.training.model.class_, config.study_dir, kind="training.model.class")
    model: torch.nn.Module = make(**config.training.model.args)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def squared_errors(model: torch.nn.Module, held_out: HeldOut) -> NDArray[np.float64]:
    """The mean squared error of each forecast step, over fields and nodes: shape (n, steps - 1).

    The model is given the first state. Forecasts that are not finite have an infinite error.
    """
    found = []
    for first in range(0, len(held_out.states), AT_ONCE):
        states = torch.from_numpy(held_out.states[first : first + AT_ONCE])
        parameters = torch.from_numpy(held_out.parameters[first : first + AT_ONCE]).float()
        forecast, errors = states[:, 0], []
        with torch.inference_mode():
            for truth in states[:, 1:].unbind(1):
                forecast = model(forecast, parameters)
                errors.append((forecast.double() - truth).square().flatten(1).mean(1))
        found.append(torch.stack(errors, dim=1).numpy())
    mse = np.concatenate(found)
    return np.where(np.isfinite(mse), mse, np.inf)
