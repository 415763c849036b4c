"""The models of trajectories of the guide in whole studies: rollouts are those of each simulation by itself."""

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stream_server import client_api
from stream_server.studies.run import Run as FinishedRun
from tests.docs.blocks import files_by_section
from tests.study.training.test_rollouts import forecast
from tests.support.runs import Run, run_here, run_study

MESHES = "A mesh for each simulation"
WINDOWS = "The next field from several: a transformer on windows"
NUM_HELD_OUT = 3
SMALL: dict[str, Any] = {
    "study.simulations": 4,
    "launcher.max_running": 2,
    "buffer.capacity": 400,
    "buffer.watermark": 10,
    "training.draws_per_sample": 1,
    "validation.simulations": NUM_HELD_OUT,
}
RANKS = [1, pytest.param(2, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)]

Array = NDArray[Any]
Step = Callable[[list[Array]], Array]


class Recording:
    """A simulation that keeps what it is to send."""

    def __init__(self, parameters: dict[str, float]) -> None:
        self.parameters = parameters
        self.statics: dict[str, Array] = {}
        self.steps: list[Array] = []

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *error: object) -> None: ...

    def send_static(self, **fields: Array) -> None:
        self.statics = fields

    def send(self, step: int, u: Array) -> bool:
        self.steps.append(u.astype(np.float32))
        return True


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run, list[str]], Iterator[Recording]]:
    """`recorded(run, words)`: what the program sends of each held-out simulation, run again with these arguments."""

    def recorded(run: Run, words: list[str]) -> Iterator[Recording]:
        program = (run.output_dir.parent / "simulation.py").read_text()
        with (run.output_dir / "parameters.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if int(row.pop("simulation")) < NUM_HELD_OUT]
        for row in rows:
            recording = Recording({name: float(value) for name, value in row.items()})
            monkeypatch.setattr(client_api, "connect", lambda it=recording: it)
            monkeypatch.setattr(
                sys, "argv", ["simulation.py", *(word.format(**recording.parameters) for word in words)]
            )
            exec(compile(program, "simulation.py", "exec"), {"__name__": "__main__"})
            yield recording

    return recorded


def done(heading: str, folder: Path, num_ranks: int, settings: dict[str, Any]) -> Run:
    """The study of a section of the guide, on a small scale."""
    for name, code in files_by_section()[heading].items():
        (folder / name).write_text(code)
    study, output_dir, settings = folder / "study.json", folder / "run", SMALL | settings
    if num_ranks == 1:
        run = run_here(study, output_dir, settings=settings)
    else:
        run = run_study(study, output_dir, num_ranks=num_ranks, settings=settings)
    assert run.exit_code == 0, run.output
    assert run.report["balanced"]
    assert not any("no rollout" in warning for warning in run.report["warnings"])
    return run


def assert_rolled_out(run: Run, errors: list[list[float]]) -> None:
    found = run.report["rollout"]
    assert found["num_trajectories"] == [NUM_HELD_OUT] * len(errors[0])
    assert found["mse"]["u"] == pytest.approx(np.mean(errors, axis=0), rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("num_ranks", RANKS)
def test_a_graph_network_forecasts_on_the_mesh_of_each_simulation(
    num_ranks: int, tmp_path: Path, recorded: Callable[..., Iterator[Recording]]
) -> None:
    run = done(MESHES, tmp_path, num_ranks, {})
    model: Any = FinishedRun(run.output_dir).server().model
    errors, sizes = [], set()
    for simulation in recorded(run, []):
        nodes, edges = torch.tensor(simulation.statics["nodes"]).float(), torch.tensor(simulation.statics["edges"])
        sizes.add(len(nodes))

        def step(known: list[Array], nodes: Any = nodes, edges: Any = edges) -> Array:
            with torch.no_grad():
                return model(nodes, edges, torch.tensor(known[-1])).numpy()  # type: ignore[no-any-return]

        errors.append(forecast(step, np.array(simulation.steps), num_given=1))
    assert len(sizes) > 1
    assert_rolled_out(run, errors)


@pytest.mark.full
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_transformer_forecasts_from_windows(
    num_ranks: int, tmp_path: Path, recorded: Callable[..., Iterator[Recording]]
) -> None:
    words = ["--viscosity", "{viscosity}", "--seed", "7"]
    run = done(WINDOWS, tmp_path, num_ranks, {"simulation.command": ["python", "simulation.py", *words]})
    model: Any = FinishedRun(run.output_dir).server().model.eval()

    def step(known: list[Array]) -> Array:
        with torch.no_grad():
            return model(torch.tensor(np.array(known))[None])[0].numpy()  # type: ignore[no-any-return]

    errors = [forecast(step, np.array(it.steps), num_given=4) for it in recorded(run, words)]
    assert_rolled_out(run, errors)
