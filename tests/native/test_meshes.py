"""Studies of a code in Fortran each of whose simulations has a mesh of its own."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.config import load
from stream_server.server.simulations.design import ParameterDesign
from tests.native.conformance import build
from tests.native.meshes.server import mesh_of
from tests.support.killing import killed_at
from tests.support.runs import Run, run_here

HERE = Path(__file__).parent / "meshes"
EXPECTED = Counter((simulation, step) for simulation in range(1, 10) for step in range(9))


def trained_in(run: Run) -> Counter[tuple[int, int]]:
    files = run.output_dir.glob("samples-*.txt")
    return Counter(tuple(map(int, line)) for file in files for line in np.loadtxt(file, int, ndmin=2).tolist())


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("client_ranks", [1, pytest.param(3, marks=pytest.mark.full)])
def test_each_simulation_of_a_study_that_is_killed_has_its_own_mesh_and_a_replay_too(
    tmp_path: Path, client_ranks: int
) -> None:
    """On two ranks, then on one; the server compares each value of each sample, held-out ones too."""
    folder = Path(shutil.copytree(HERE, tmp_path / "meshes"))
    program = build.fortran(build.client_archive(tmp_path / "client"), "mesh", folder / "mesh.f90")
    shutil.copy(program, folder / "mesh")
    study, run = folder / "study.json", tmp_path / "run"
    sizes = [int(ParameterDesign(load(study)).parameters(simulation)["size"]) for simulation in range(10)]
    assert {min(sizes), max(sizes)} == {0, 8}
    settings: dict[str, Any] = {"checkpoint.every_batches": 2}
    if client_ranks > 1:
        settings |= {"simulation.ranks": client_ranks, "launcher.max_running": 1}
    killed_at("checkpoint.renamed=kill@3", study, run, num_ranks=2, settings=settings)
    done = run_here(study, run, settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"]
    assert done.account["trained"] == len(EXPECTED)
    assert set(trained_in(done)) == set(EXPECTED)
    replays = [run_here(study, tmp_path / name, arguments=["--replay", str(run)]) for name in ("replay", "again")]
    for replayed in replays:
        assert replayed.exit_code == 0, replayed.output
        assert trained_in(replayed) == EXPECTED
    one, other = (dict(np.load(it.output_dir / "end.npz")) for it in replays)
    assert one["weight"].tobytes() == other["weight"].tobytes()
    design = ParameterDesign(load(study))
    rows = [mesh_of(*design.parameters(simulation).values())[0] for simulation in range(1, 10)]
    np.testing.assert_allclose(one["mean"], np.concatenate(rows).mean(axis=0), rtol=1e-12)
