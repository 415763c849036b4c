"""A job of Slurm: its options, and the two scripts that lead to the command. Pure.

What slurmctld stores, and others may see, is the first script: it names the second one, in the job's own folder, which
nobody else may read and which has the environment in it.
"""

import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from stream_server.config.sections import SimulationJobSettings
from stream_server.launcher.backends.backend import EXIT_FILE, LOG_FILE, JobSpec

JOB_FILE = "job.sh"
PER_NODE = re.compile(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*")
EACH_NODE = re.compile(r"(\d+)(?:\(x(\d+)\))?")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]+")
MIB = 2**20
# What the node, or Slurm on it, says better than the shell in which the launcher was started.
OF_THE_NODE = (
    *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR"),
)
USER = ("HOME", "LOGNAME", "SHELL", "USER")
# Slurm says what of its own environment a step gets: all.
NOT_KEPT = ("SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV", "SLURM_JWT")

SETUP = """\
{line}
code=$?
if [ $code != 0 ]; then
    printf '%s\\n' {told}" $code" >&2
    echo $code >{exit_file}
    exit $code
fi
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationSize:
    """What an allocation has: the cores of each node, and the memory of each core, if Slurm gives out memory."""

    cores: tuple[int, ...]
    bytes_per_core: float | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """The allocation that a batch script sees; None if its variables do not tell."""
        told = environment.get("SLURM_JOB_CPUS_PER_NODE", "")
        if not PER_NODE.fullmatch(told):
            return None
        cores = [int(num) for num, times in EACH_NODE.findall(told) for _ in range(int(times or 1))]
        of_core, of_node = environment.get("SLURM_MEM_PER_CPU", ""), environment.get("SLURM_MEM_PER_NODE", "")
        bytes_per_core = None
        if of_core.isdecimal() and int(of_core):
            bytes_per_core = float(of_core) * MIB
        elif of_node.isdecimal() and int(of_node):
            bytes_per_core = float(of_node) * MIB / max(cores)
        return cls(cores=tuple(cores), bytes_per_core=bytes_per_core)

    def problem(self, job: SimulationJobSettings, ranks: int) -> str:
        """Why steps of so many ranks can never run here, "" if they can."""
        there = f"the allocation has {sum(self.cores)} on {len(self.cores)} nodes"
        if job.cores_per_rank > max(self.cores):
            return f"simulation.job.cores_per_rank: {job.cores_per_rank} cores are on no node: {there}"
        if ranks * job.cores_per_rank > sum(self.cores):
            return (
                f"simulation.ranks: {ranks} ranks of {job.cores_per_rank} cores (simulation.job.cores_per_rank) need "
                f"{ranks * job.cores_per_rank} cores, and {there}"
            )
        if job.memory is None or self.bytes_per_core is None:
            return ""
        of_node = self.bytes_per_core * max(self.cores)
        if job.memory > of_node:
            return (
                f"simulation.job.memory: {job.memory / MIB:,.0f} MiB are more than the {of_node / MIB:,.0f} MiB that "
                "the allocation has on a node (`#SBATCH --mem` of the batch script)"
            )
        return ""


def job_name(study: str, folder: Path, token: str) -> str:
    """The name of the job that runs in this folder, such as heat-12-attempt-0-1f0c…; `token` makes it the only one."""
    words = [study, *folder.parts[-2:], token]
    return "-".join(UNUSUAL.sub("_", word) for word in words)


def resource_options(job: SimulationJobSettings, ranks: int) -> list[str]:
    """The options of sbatch and srun for what `ranks` ranks take."""
    options = [f"--ntasks={ranks}", f"--cpus-per-task={job.cores_per_rank}"]
    if job.gpus_per_rank:
        options.append(f"--gpus-per-task={job.gpus_per_rank}")
    if job.memory is not None:
        options.append(f"--mem-per-cpu={math.ceil(job.memory / job.cores_per_rank / MIB)}M")
    for name, value in job.options.items():
        options += [] if value is False else [f"--{name}" if value is True else f"--{name}={value}"]
    return options


def job_options(job: SimulationJobSettings, ranks: int) -> list[str]:
    """The options of sbatch for a job of `ranks` ranks, without name and place."""
    asked = {"nodes": job.nodes, "time": job.walltime, "partition": job.partition, "account": job.account}
    wanted = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    # A job that Slurm starts again by itself would meet its own traces in the folder.
    return [*resource_options(job, ranks), *wanted, "--no-requeue", "--export=NIL"]


def placing_options(name: str, folder: Path) -> list[str]:
    """The options of sbatch for the name and the folder of a job."""
    return [f"--job-name={name}", f"--chdir={folder}", f"--output={LOG_FILE}", "--open-mode=append"]


def first_script(folder: Path, *, has_setup: bool) -> str:
    """The script that Slurm gets: it empties the environment but for what is Slurm's, and runs the second one.

    The lines of `setup` need a login shell, in which `module` is known.
    """
    options = "-l" if has_setup else "--noprofile --norc"
    script = shlex.quote(str(folder / JOB_FILE))
    return f"""\
#!/bin/bash
kept=()
for name in "${{!SLURM_@}}" {" ".join((*OF_THE_NODE, *USER))}; do
    case $name in {"|".join(NOT_KEPT)}) continue ;; esac
    [ -z "${{!name+is set}}" ] || kept+=("$name=${{!name}}")
done
exec /usr/bin/env -i "${{kept[@]}}" /bin/bash {options} {script}
"""


def second_script(spec: JobSpec, setup: Sequence[str], own: Collection[str]) -> str:
    """The script in the job's folder: environment, `setup`, command. `own` are variables that the study itself sets."""
    lines = [f"cd {shlex.quote(str(spec.folder))} || exit", *_exports(spec.environment, own)]
    for line in setup:
        told = shlex.quote(f"simulation.job.setup: `{line}` ended with exit code")
        lines.append(SETUP.format(line=line, told=told, exit_file=EXIT_FILE))
    return "\n".join([*lines, f"exec {shlex.join(spec.shell_command)}", ""])


def _exports(environment: Mapping[str, str], own: Collection[str]) -> list[str]:
    """Those of variables that a shell can set; a job has Slurm's own variables, not those of the launcher's."""
    return [
        f"export {name}={shlex.quote(value)}"
        for name, value in environment.items()
        if NAME.fullmatch(name) and (name in own or not (name.startswith("SLURM_") or name in OF_THE_NODE))
    ]
