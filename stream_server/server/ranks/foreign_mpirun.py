"""Whether the mpirun that started this rank belongs to the MPI that it loads. Pure."""

import sys
from collections.abc import Mapping
from pathlib import Path

# What only the mpirun of this implementation tells its ranks.
SIGNS = {"MPICH": "HYDI_CONTROL_FD", "Open MPI": "OMPI_COMM_WORLD_SIZE"}
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def told_sizes(environment: Mapping[str, str]) -> set[int]:
    """How many ranks there are, as far as those say who started this one."""
    return {int(environment[name]) for name in SIZES if environment.get(name, "").isdecimal()}


def mismatch(environment: Mapping[str, str], library: str) -> str:
    """Say which mpirun to use instead of the one that left this environment, "" if it is the right one.

    `library` is the MPI that is loaded, such as "MPICH 5.0.2". Under another's mpirun it stops at MPI_Init, or makes a
    world of its own for each rank.
    """
    own = "Open MPI" if library.startswith("Open MPI") else "MPICH"
    started_by = next((name for name, sign in SIGNS.items() if sign in environment), own)
    if SIGNS[own] in environment or started_by == own:
        return ""
    return f"this rank was started by the mpirun of {started_by}, but the MPI here is {library}: {_advice(library)}"


def alone(environment: Mapping[str, str], size: int, library: str) -> str:
    """Say what to do when a world of `size` ranks is not the one that was started, "" if it is."""
    told = told_sizes(environment)
    if size != 1 or not told or size in told:
        return ""
    return (
        f"this rank is one of {max(told)}, but finds no other: the program that started them does not belong to the "
        f"MPI here, {library}. S{_advice(library)[1:]}"
    )


def _advice(library: str) -> str:
    beside = Path(sys.executable).with_name("mpirun")
    return f"start it with {beside}" if beside.exists() else f"start it with the mpirun of {library}"
