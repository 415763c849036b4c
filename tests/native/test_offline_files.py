"""Ensembles of codes in C and Fortran, and of parallel ones, that are written to files and trained from later."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

from tests.native.building import STRICT, Installation
from tests.support.runs import Run, run_study

pytestmark = pytest.mark.slow

CODES = Path(__file__).parent / "offline"
NUM_SIMULATIONS = 4
LABELS = list(range(5, 125, 10))
SAMPLE = {
    "pressure": ((3, 5, 2), np.dtype("<f4")),
    "velocity": ((2, 7), np.dtype("<f8")),
    "cells": ((4,), np.dtype("<i4")),
    "energy": ((), np.dtype("<f8")),
}
WHOLE = slice(None)
# The part of each field that each rank writes, step by step.
ALONE: list[dict[str, Any]] = [dict.fromkeys(SAMPLE, ())]
THREE: list[dict[str, Any]] = [
    {"pressure": (WHOLE, slice(0, 3)), "velocity": (WHOLE, slice(0, 4)), "cells": slice(0, 1), "energy": ()},
    {"pressure": (WHOLE, slice(3, 5)), "velocity": (WHOLE, slice(4, 6))},
    {"velocity": (WHOLE, slice(6, 7)), "cells": slice(1, 4)},
]

Samples = dict[str, npt.NDArray[Any]]


def from_raw(folder: Path, simulation: int, parts: list[dict[str, Any]]) -> Samples:
    """The samples of a simulation, put together from the files that its ranks wrote themselves."""
    found = {name: np.empty((len(LABELS), *shape), dtype) for name, (shape, dtype) in SAMPLE.items()}
    for rank, places in enumerate(parts):
        with (folder / f"{simulation}.{rank}.raw").open("rb") as file:
            for step in range(len(LABELS)):
                for name, place in places.items():
                    sample = found[name][step, ...]
                    dtype, shape = sample.dtype, sample[place].shape
                    data = file.read(dtype.itemsize * int(np.prod(shape)))
                    sample[place] = np.frombuffer(data, dtype).reshape(shape)
            assert not file.read(1)
    return found


def bits(samples: Mapping[str, npt.NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (array.dtype.str, array.shape, np.asarray(array).tobytes()) for name, array in samples.items()}


def assert_written(run: Run, raw: Path, parts: list[dict[str, Any]]) -> None:
    """Every file has bit for bit what the simulation wrote by itself."""
    assert run.exit_code == 0, run.output
    assert run.report["balanced"]
    for simulation in range(NUM_SIMULATIONS):
        with h5py.File(run.output_dir / "samples" / f"simulation-{simulation:06d}.h5") as file:
            assert file.attrs["finished"]
            assert file["time_step"][:].tolist() == LABELS
            written = {name: dataset[()] for name, dataset in file["fields"].items()}
        expected = from_raw(raw, simulation, parts)
        assert len(np.unique(expected["velocity"])) > 100
        assert bits(written) == {name: bits(expected)[name] for name in sorted(SAMPLE)}


def write_files(program: Path, raw: Path, output_dir: Path, **options: Any) -> Run:
    raw.mkdir()
    settings = {"simulation.command": [str(program), str(raw)], "offline.write_files": True}
    options["settings"] = settings | options.pop("settings", {})
    return run_study(CODES / "study.json", output_dir, **options)


@pytest.mark.full
def test_a_code_in_fortran_has_in_its_files_and_is_trained_from_what_it_wrote_itself(
    installation: Installation, tmp_path: Path
) -> None:
    sources = installation.fortran_source, CODES / "fields.f90"
    installation.build(tmp_path / "fields", *sources, compiler="gfortran", options=("-Wall", "-Wextra"))
    run = write_files(tmp_path / "fields", tmp_path / "raw", tmp_path / "run")
    assert_written(run, tmp_path / "raw", ALONE)
    trained = run_study(
        CODES / "study.json", tmp_path / "trained", mpi=None, arguments=["--replay", str(tmp_path / "run")]
    )
    assert trained.exit_code == 0, trained.output
    assert trained.account["trained"] == 3 * len(LABELS)
    given = np.load(tmp_path / "trained" / "samples-0.npz")
    expected = [from_raw(tmp_path / "raw", simulation, ALONE) for simulation in range(NUM_SIMULATIONS)]
    assert bits(given) == bits(
        {
            name: expected[int(simulation)][field][LABELS.index(int(label))]
            for name in given
            for simulation, label, field in [name.split(".")]
        }
    )
    assert len(given) == len(SAMPLE) * NUM_SIMULATIONS * len(LABELS)


@pytest.mark.full
@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.full), 3])
def test_a_code_in_c_has_in_its_files_what_its_ranks_wrote_themselves(
    installation: Installation, tmp_path: Path, num_ranks: int
) -> None:
    compiler, flags = ("mpicc.mpich", ["-DWITH_MPI"]) if num_ranks > 1 else ("gcc", [])
    options = (*STRICT, *flags, "-lstream_client", "-lm")
    installation.build(tmp_path / "fields", CODES / "fields.c", compiler=compiler, options=options)
    settings: dict[str, Any] = {"simulation.ranks": num_ranks}
    if num_ranks > 1:
        settings["simulation.job.mpirun"] = ["mpirun.mpich"]
    run = write_files(tmp_path / "fields", tmp_path / "raw", tmp_path / "run", num_ranks=2, settings=settings)
    assert_written(run, tmp_path / "raw", THREE if num_ranks > 1 else ALONE)
