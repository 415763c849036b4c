"""Which mpirun started a rank, and which it should have been."""

import sys
from pathlib import Path

import pytest

from stream_server.server.ranks.communicator import alone, mismatch

MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "9", "HYDI_CONTROL_FD": "7"}
OPEN_MPI = {"PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
SRUN = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "library"),
    [
        (MPICH, "MPICH 5.0.2"),
        (OPEN_MPI, "Open MPI v5.0.11"),
        (SRUN, "MPICH 5.0.2"),
        (SRUN, "Open MPI v5.0.11"),
        # A rank that an outer mpirun of the other kind has started runs mpirun itself.
        (MPICH | OPEN_MPI, "MPICH 5.0.2"),
        (MPICH | OPEN_MPI, "Open MPI v5.0.11"),
    ],
)
def test_an_mpirun_of_the_same_mpi_is_the_right_one(environment: dict[str, str], library: str) -> None:
    assert mismatch(environment, library) == ""


@pytest.mark.parametrize(
    ("environment", "started_by", "library"),
    [(MPICH, "MPICH", "Open MPI v5.0.11"), (OPEN_MPI, "Open MPI", "MPICH 5.0.2"), (OPEN_MPI, "Open MPI", "Intel MPI")],
)
def test_an_mpirun_of_another_mpi_is_named_with_the_one_to_use(
    environment: dict[str, str], started_by: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    said = f"this rank was started by the mpirun of {started_by}, but the MPI here is {library}: start it with "
    assert mismatch(environment, library) == f"{said}the mpirun of {library}"
    (tmp_path / "mpirun").touch()
    assert mismatch(environment, library) == f"{said}{tmp_path}/mpirun"


@pytest.mark.parametrize("environment", [MPICH, OPEN_MPI, SRUN])
def test_a_rank_that_finds_itself_alone_among_several_is_told(environment: dict[str, str]) -> None:
    assert "this rank is one of 2, but finds no other" in alone(environment, 1, "MPICH 5.0.2")
    assert alone(environment, 2, "MPICH 5.0.2") == ""


@pytest.mark.parametrize("environment", [{}, MPICH | {"PMI_SIZE": "1"}, OPEN_MPI | {"PMI_SIZE": "1"}])
def test_one_rank_that_was_started_as_one_is_not_alone(environment: dict[str, str]) -> None:
    assert alone(environment, 1, "MPICH 5.0.2") == ""
