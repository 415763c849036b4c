"""The environment of a simulation: ours, without what would make it believe that it is an MPI rank of ours.

Why: docs/decisions/0001-launcher-is-no-mpi-process.md
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from stream_server.config import StudyConfig
from stream_server.launcher.backends.registry import schedulers
from stream_server.machine.cgroups import within_quota

# Those of schedulers are in their classes (`CommandScheduler.rank_variables`).
RANK_PREFIXES = (
    *("OMPI_", "PMIX_", "PRTE_", "PMI_", "PMI2_", "HYDRA_", "HYDI_", "MPI_LOCAL", "MPIEXEC_", "MPIRUN_", "MV2_COMM_"),
    *("PALS_", "ALPS_APP_", "JSM_NAMESPACE_"),
)
# By the last three of them, the launcher knows the processes of the server.
RANK_VARIABLES = frozenset(
    ("GFORTRAN_UNBUFFERED_PRECONNECTED", "STREAM_SERVER_JOB", "STREAM_IPC_FOLDER", "STREAM_NEXT")
)
# A batch script with --export has these; srun would take from its own environment no more than they name.
OF_SRUN = ("SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV")
# How many threads the libraries of a simulation start: OpenMP (torch too), OpenBLAS, MKL, BLIS, Accelerate and numba.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# Threads that spin while they wait take the cores of those that they wait for, where there are not enough.
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
# Open MPI reads these two before it asks who it is; without them a simulation's own mpirun refuses to run as root.
KEPT = frozenset({"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"})


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without rank variables.

    A process below an MPI rank that inherits them and calls MPI_Init hangs, or joins the server's own job.
    """
    prefixes = (*RANK_PREFIXES, *(it for scheduler in schedulers() for it in scheduler.rank_variables))
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT or not (name in RANK_VARIABLES or name.startswith(prefixes))
    }


def with_virtual_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` as if the virtual environment that runs us was activated, so that `python` has our client."""
    scripts = str(Path(sys.executable).parent)
    path = environment.get("PATH", os.defpath)
    if sys.prefix == sys.base_prefix or scripts in path.split(os.pathsep):
        return dict(environment)
    return {**environment, "PATH": scripts + os.pathsep + path}


def num_threads_of(environment: Mapping[str, str]) -> int | None:
    """The number in OMP_NUM_THREADS, for the outermost level; None where there is none."""
    outermost = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(outermost) or None if outermost.isascii() and outermost.isdigit() else None


def with_threads(environment: Mapping[str, str], cores_per_rank: int) -> dict[str, str]:
    """`environment` with as many threads as a rank has cores, for all libraries of which it says nothing.

    Without that each of them takes all cores of the machine, in each simulation. OMP_NUM_THREADS stands for the others,
    as it does for most of them.
    """
    num_threads = str(num_threads_of(environment) or cores_per_rank)
    return {**dict.fromkeys(THREAD_VARIABLES, num_threads), **environment}


def simulation_environment(config: StudyConfig, shell: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every simulation of a study, without what tells it which one it is.

    `shell` is the environment that the launcher has or will have, by default that of this process.
    """
    simulation = config.simulation
    job = simulation.job
    inherited = with_virtual_environment(scrubbed(os.environ if shell is None else shell))
    environment = with_threads({**inherited, **job.environment}, job.cores_per_rank)
    num_threads = num_threads_of(environment) or 1
    num_taken = config.launcher.max_running * simulation.ranks * num_threads
    # A rank of the server computes here too.
    is_crowded = num_threads > 1 and num_taken >= within_quota(len(os.sched_getaffinity(0)))
    return {**PASSIVE, **environment} if is_crowded else environment


def server_environment(config: StudyConfig) -> dict[str, str]:
    """The variables of the server that are not the launcher's.

    In an allocation of Slurm its mpirun starts a step on each node, which would keep all cores from the simulations.
    """
    shared = {"SLURM_OVERLAP": "1"} if config.launcher.backend == "slurm-steps" else {}
    return {**shared, **config.server.job.environment}


def mpirun_environment(config: StudyConfig | None, temporary: str | None) -> dict[str, str]:
    """The environment of the mpirun of a server on this node, of any study or of this one.

    What a killed mpirun leaves behind is in `temporary`, unless that is None, for ranks on nodes that do not have it.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in OF_SRUN}
    own = {} if config is None else server_environment(config)
    return {**inherited, **({} if temporary is None else {"TMPDIR": temporary}), **own}


def release_cores() -> None:
    """Give this process the cores of the process that has started rank 0, its parent.

    Open MPI's mpirun binds each rank to a core, and what a rank starts inherits that: all simulations would share the
    core of rank 0. What has started rank 0 is part of mpirun and not bound; between the two is the parent that sees how
    the rank ends.
    """
    try:
        above = os.getppid()
        for _ in range(2):
            above = int(Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
            cores = os.sched_getaffinity(above)
            if cores > os.sched_getaffinity(0):
                os.sched_setaffinity(0, cores)
    except (AttributeError, OSError, ValueError):
        return
