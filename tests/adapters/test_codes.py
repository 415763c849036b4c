"""The programs on docs/guide/codes.md: what each sends, with the code itself, is what the equation says."""

import pickle
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from tests.docs.blocks import ROOT, blocks, file_name
from tests.needs import need
from tests.support.launch import alone
from tests.support.timing import completed

PROGRAMS = {file_name(it): it.code for it in blocks("python") if it.page == "docs/guide/codes.md"}
DIFFUSIVITY = 0.13
LIMIT_S = 60.0
DEBIAN = "/usr/bin/python3"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
Sent = list[tuple[str, Any]]


def run(folder: Path, name: str, python: Sequence[str] = (sys.executable,), num_ranks: int = 1) -> list[Sent]:
    """What each rank of a program has sent."""
    (folder / name).write_text(PROGRAMS[name])
    words = ["-P", "-m", "tests.adapters.collecting", str(folder / name), str(folder / "sent")]
    environment = alone([]).environment | AS_ROOT | {"PYTHONPATH": str(client_alone(folder)), "HOME": str(folder)}
    done = completed([*python, *words, f"diffusivity={DIFFUSIVITY}"], environment, LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return [pickle.loads((folder / f"sent.{rank}").read_bytes()) for rank in range(num_ranks)]


def client_alone(folder: Path) -> Path:
    """A folder with the client, what it needs, and these tests, for a Python that has none of them."""
    path = folder / "client"
    path.mkdir()
    packages = Path(zmq.__file__).parents[1]
    for source in (ROOT / "stream_server", ROOT / "tests", *(packages / it for it in ("zmq", "pyzmq.libs", "msgspec"))):
        if source.exists():
            (path / source.name).symlink_to(source)
    return path


def whole(ranks: list[Sent], label: str, field: str = "u") -> np.ndarray:
    """A field of all ranks, each block of which is where its rank has declared it."""
    found: np.ndarray | None = None
    for sent in map(dict, ranks):
        shape, offset = sent.get(f"declared {field}", (sent[label][field].shape, (0,)))
        found = np.full(shape, np.nan) if found is None else found
        block = sent[label][field]
        found[offset[0] : offset[0] + len(block)] = block
    assert found is not None
    assert np.isfinite(found).all()
    return found


def labels(sent: Sent) -> list[str]:
    return [label for label, _ in sent if label.isdecimal()]


def assert_decays(steps: list[np.ndarray], start: np.ndarray) -> None:
    """A wave of the unit square becomes smaller as backward Euler says, but for the error of the mesh."""
    for number, u in enumerate(steps, 1):
        factor = (1 + 0.01 * DIFFUSIVITY * 2 * np.pi**2) ** -number
        np.testing.assert_allclose(u, factor * start, atol=4e-3)


def test_scikit_fem_sends_its_coefficients(tmp_path: Path) -> None:
    [sent] = run(tmp_path, "heat_skfem.py")
    from skfem import MeshTri

    x, y = MeshTri.init_tensor(*2 * [np.linspace(0, 1, 17)]).p
    assert labels(sent) == [str(step) for step in range(10)]
    assert_decays([dict(sent)[label]["u"] for label in labels(sent)], np.sin(np.pi * x) * np.sin(np.pi * y))


@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.full), 2])
def test_dolfinx_sends_the_parts_of_all_ranks(tmp_path: Path, num_ranks: int) -> None:
    need("dolfinx")
    ranks = run(tmp_path, "heat_dolfinx.py", parallel(num_ranks), num_ranks)
    x, y = whole(ranks, "static", "x").T
    assert len({*zip(x.round(6), y.round(6), strict=True)}) == 17 * 17
    assert labels(ranks[0]) == [str(step) for step in range(10)]
    assert_decays([whole(ranks, label) for label in labels(ranks[0])], np.sin(np.pi * x) * np.sin(np.pi * y))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_monitor_of_petsc_sends_the_vector(tmp_path: Path, num_ranks: int) -> None:
    need("dolfinx")
    ranks = run(tmp_path, "heat_petsc.py", parallel(num_ranks), num_ranks)
    matrix = DIFFUSIVITY * 65**2 * (np.eye(64, k=1) + np.eye(64, k=-1) - 2 * np.eye(64))
    expected = np.ones(64)
    assert labels(ranks[0]) == [str(step) for step in range(10)]
    for label in labels(ranks[0]):
        np.testing.assert_allclose(whole(ranks, label), expected, rtol=1e-3)
        expected = np.linalg.solve(np.eye(64) - 1e-3 * matrix, expected)


@pytest.mark.parametrize("name", ["heat_jax.py", *(["heat_warp.py"] if find_spec("warp") else [])])
def test_arrays_of_jax_and_warp_are_sent_as_they_are(tmp_path: Path, name: str) -> None:
    [sent] = run(tmp_path, name)
    x = 2 * np.pi * np.arange(32) / 32
    # A wave of the grid is an eigenvector of the stencil.
    factor = 1 - DIFFUSIVITY * 2 * (2 - 2 * np.cos(2 * np.pi / 32))
    assert labels(sent) == [str(step) for step in range(10)]
    for number, label in enumerate(labels(sent), 1):
        expected = factor**number * np.outer(np.sin(x), np.cos(x))
        np.testing.assert_allclose(dict(sent)[label]["u"], expected, atol=1e-5)


def test_each_program_of_the_page_has_a_test() -> None:
    assert {it for it in PROGRAMS if it and it not in Path(__file__).read_text()} == set()
    assert None not in PROGRAMS


def test_the_tests_in_the_table_are_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", (ROOT / "docs" / "guide" / "codes.md").read_text())
    assert [it for it in named if not (ROOT / it).exists()] == []
    assert len(named) > 10


def parallel(num_ranks: int) -> list[str]:
    oversubscribed = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n", str(num_ranks)]
    return [*(oversubscribed if num_ranks > 1 else []), DEBIAN]
