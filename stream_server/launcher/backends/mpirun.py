"""Command lines of mpirun, which starts servers, simulations of several ranks and several simulations in one job.

Why: docs/decisions/0055-several-in-one-job.md
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from stream_server.config import StudyConfig
from stream_server.config.placeholders import PLACEHOLDER, RANKS
from stream_server.errors import ConfigError
from stream_server.launcher.backends import ranks_here
from stream_server.launcher.backends.backend import IDENTITY, LOG_FILE, JobSpec
from stream_server.launcher.backends.environment import simulation_environment
from stream_server.machine.interpreter import python_command

NAME = "mpirun"
EXAMPLE = '["/opt/mpi/bin/mpirun", "-n", "{ranks}"]'
RANKS_FILE = "ranks.exit"
STARTER = re.compile(r"mpi(run|exec)\S*|orterun|prterun")
# Programs whose first argument is a script, unless it is an option.
INTERPRETER = re.compile(r"python[\d.]*|bash|sh|julia|Rscript|octave")
LOOK_S = 20.0
# By these Hydra learns of other nodes, or of something that the user wants of it.
OF_OTHER_NODES = ("HYDRA_", "SLURM_JOB", "PBS_", "LSB_", "PE_HOSTFILE", "COBALT_", "LOADL_")
# Open MPI binds the ranks of each mpirun to the same first cores, and refuses to start more ranks than there are cores.
OPEN_MPI_OPTIONS = ("--bind-to", "none", "--oversubscribe")

# One rank of one simulation among several: $0 is the folder, then come the values of IDENTITY and the command.
# A rank that ends by itself leaves its exit code. One that mpirun kills leaves none, for the shell is killed with it.
SEGMENT = (
    f'cd "$0" || exit; exec >>{LOG_FILE} 2>&1; '
    f'for name in {" ".join(IDENTITY)}; do export "$name=$1"; shift; done; '
    f'"$@"; code=$?; echo $code >>{RANKS_FILE}; exit $code'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mpirun:
    """Starts programs on `ranks` ranks each; `words` come before the first of them."""

    words: tuple[str, ...]
    ranks: int

    @classmethod
    def of(cls, config: StudyConfig) -> Self | None:
        """Make the one for the simulations of a study; None when each is a program of its own.

        Raises:
            ConfigError: there is no such program on the PATH of the simulations.
        """
        if not _is_used(config):
            return None
        program, simulation = require(config), config.simulation
        _, *others = simulation.job.mpirun or (program, *_options(program, config))
        return cls(words=(program, *_with_ranks(others, simulation.ranks)), ranks=simulation.ranks)

    def line(self, *programs: Sequence[str]) -> tuple[str, ...]:
        """Run the programs in one job; their ranks share MPI_COMM_WORLD, and MPI_APPNUM counts the programs."""
        first, *others = programs
        line = [*self.words, *first]
        for program in others:
            line += [":", "-n", str(self.ranks), *program]
        return tuple(line)

    def job(self, specs: Sequence[JobSpec]) -> JobSpec:
        """One job of these. It runs in the folder of the first, where mpirun's own words go into the log."""
        first, *others = specs
        if not others:
            return replace(first, command=self.line(first.command), ranks=self.ranks)
        marks = frozenset().union(*(spec.marks for spec in specs))
        ranks = len(specs) * self.ranks
        return replace(first, command=self.line(*map(_segment, specs)), marks=marks, ranks=ranks)


def require(config: StudyConfig) -> str:
    """The program that starts the simulations, "" when each is a program of its own.

    Where `simulation.job.setup` changes the PATH, it need not be here.

    Raises:
        ConfigError: there is no such program on the PATH of the simulations.
    """
    simulation = config.simulation
    if not _is_used(config):
        return ""
    name = simulation.job.mpirun[0] if simulation.job.mpirun else NAME
    if simulation.job.setup:
        return name
    program = shutil.which(name, path=simulation_environment(config).get("PATH", os.defpath))
    if program is None:
        raise ConfigError(_not_found(name, is_named=simulation.job.mpirun is not None))
    # Jobs run in folders of their own, where a relative entry of PATH leads elsewhere.
    return os.path.abspath(program)


def program(name: str) -> str:
    """The program of our own environment, or else the one on PATH.

    Raises:
        ConfigError: there is none.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} was found neither beside {sys.executable} nor on PATH; install it or correct PATH")
    return found


def server_ranks(ranks: int, words: Sequence[str] | None = None, *, is_job: bool = False) -> list[str]:
    """The words before the command of a server that start its ranks: those of `server.job.mpirun`, or the usual ones.

    Those of MPICH are started here without its mpirun, unless this `is_job`, or that may go to other nodes.

    Raises:
        ConfigError: mpirun is missing, or cannot be run.
    """
    if words is None:
        if ranks == 1:
            return []
        mpirun = program(NAME)
        may_go_elsewhere = is_job or any(name.startswith(OF_OTHER_NODES) for name in os.environ)
        if not may_go_elsewhere and b"HYDRA" in _version_of(mpirun, os.environ):
            return python_command("-m", ranks_here.__name__, str(ranks))
        return [mpirun, "-n", str(ranks)]
    return _with_ranks(words, ranks)


def _with_ranks(words: Sequence[str], ranks: int) -> list[str]:
    words = words if any(RANKS in word for word in words) else [*words, "-n", RANKS]
    return [word.replace(RANKS, str(ranks)) for word in words]


def shown(config: StudyConfig) -> str:
    """The command line of the simulations, for people to read.

    Raises:
        ConfigError: mpirun is missing.
    """
    command, per_job = config.simulation.command, config.simulation.per_job
    if command is None:
        return "none: simulations attach by themselves"
    mpirun = Mpirun.of(config)
    line = shlex.join(command if mpirun is None else mpirun.line(command))
    return f"{line} : … ({per_job} simulations in one job)" if per_job > 1 else line


def missing_program(config: StudyConfig) -> str:
    """The error message if this machine has no such program as `simulation.command` begins with; "" if it has.

    Nor may the script be missing that an interpreter is given. What depends on the simulation is not looked for.
    """
    command, study_dir, job = config.simulation.command, config.study_dir, config.simulation.job
    # Then the program may be in a place that the set-up names, or in a container that another program opens.
    if job.setup or (job.mpirun is not None and not STARTER.fullmatch(os.path.basename(job.mpirun[0]))):
        return ""
    program = command[0].replace("{study_dir}", str(study_dir)) if command else ""
    if not program or PLACEHOLDER.search(program):
        return ""
    # As jobs find it: a file of the study, or else one on the PATH; jobs run in folders of their own.
    place = str(study_dir / program) if "/" in program or (study_dir / program).is_file() else program
    path = simulation_environment(config).get("PATH", os.defpath)
    if shutil.which(place, path=path) is not None:
        return _missing_script(config)
    if config.simulation.templates and not os.path.isabs(program):
        # A rendered template may be the program.
        return ""
    if os.path.isfile(place):
        return f"simulation.command: {place} cannot be executed; `chmod +x` makes it a program"
    if "/" in place:
        return f"simulation.command: there is no program {place}"
    return f"simulation.command: {program!r} is neither on the PATH of the simulations nor in the folder of the study"


def _missing_script(config: StudyConfig) -> str:
    """The error message if an interpreter is given a script that is not there.

    Files of the study are absolute in the command. Others could only come with the templates, for an attempt begins in
    a folder of its own.
    """
    interpreter, *words = config.simulation.command or ("",)
    script = words[0] if words and INTERPRETER.fullmatch(os.path.basename(interpreter)) else ""
    if not script or script.startswith("-") or PLACEHOLDER.search(script) or config.simulation.templates:
        return ""
    place = str(config.study_dir / script)
    return "" if os.path.exists(place) else f"simulation.command: there is no file {place} for {interpreter} to run"


def _is_used(config: StudyConfig) -> bool:
    # srun starts the ranks of a step.
    return config.simulation.uses_mpirun and config.launcher.backend != "slurm-steps"


def _not_found(program: str, *, is_named: bool) -> str:
    if is_named:
        return f"simulation.job.mpirun: {program!r} was not found on the PATH of the simulations"
    return (
        "mpirun was not found on the PATH of the simulations, which simulation.ranks and simulation.per_job need: "
        f"put it there (simulation.job.environment may set PATH), or write simulation.job.mpirun, such as {EXAMPLE}"
    )


def _segment(spec: JobSpec) -> list[str]:
    identity = [spec.environment[name] for name in IDENTITY]
    return ["/bin/sh", "-c", SEGMENT, str(spec.folder), *identity, *spec.command]


def is_open_mpi(program: str, environment: Mapping[str, str]) -> bool:
    """Whether this mpirun is the one of Open MPI.

    Raises:
        ConfigError: it cannot be run.
    """
    told = _version_of(program, environment)
    return any(name in told for name in (b"Open MPI", b"OpenRTE"))


def _version_of(program: str, environment: Mapping[str, str]) -> bytes:
    try:
        return subprocess.run(
            [program, "--version"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOOK_S
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{program} cannot be run: {error}") from error


def _options(program: str, config: StudyConfig) -> tuple[str, ...]:
    """Options that keep several of them on one node from getting into each other's way."""
    if config.simulation.job.setup:
        return ()
    try:
        if not is_open_mpi(program, simulation_environment(config)):
            return ()
    except ConfigError as error:
        raise ConfigError(f"{error}. Write simulation.job.mpirun, such as {EXAMPLE}") from error
    return OPEN_MPI_OPTIONS + (("--allow-run-as-root",) if os.geteuid() == 0 else ())
