"""The sections of study.json on the processes of a study: simulations, server, launcher, clients, network."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from stream_server.built_in import BACKENDS
from stream_server.config.problems import shown, wrong
from stream_server.config.values import (
    Bytes,
    ClassReference,
    Count,
    NameOrClass,
    Natural,
    Paths,
    Positive,
    Section,
    Text,
    Texts,
    Walltime,
    Words,
    one_of_these,
)


def _as_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


MostFailed = Annotated[
    Natural | Annotated[float, Field(ge=0, lt=1)],
    BeforeValidator(_as_number),
    one_of_these(
        "neither a share of the simulations nor a number of them",
        "Write a share below 1, such as 0.1, or a whole number, such as 3",
    ),
]
Port = Annotated[int, Field(ge=1, le=65535)]
# Steps run within the allocation of the launcher, beside which the server is started anyway.
SERVER_BACKENDS = tuple(name for name in BACKENDS if name != "slurm-steps")


class JobSettings(Section):
    """`simulation.job` and `server.job`: the settings of one job, of a simulation or of the server."""

    cores_per_rank: Count = Field(default=1, description="Cores of one rank, and so its threads.")
    gpus_per_rank: Natural = Field(default=0, description="GPUs of one rank.")
    memory: Bytes | None = Field(
        default=None, description='Memory of one rank, such as `"4GiB"`; `null`: what the site gives a core.'
    )
    nodes: Count | None = Field(
        default=None, description="Nodes of the job; `null`: as many as the scheduler takes for its ranks."
    )
    walltime: Walltime | None = Field(
        default=None, description='Longest time of the job, `"HH:MM:SS"`; `null`: that of the partition.'
    )
    partition: Text | None = Field(default=None, description="Partition or queue; `null`: the site's default.")
    account: Text | None = Field(default=None, description="Account that pays; `null`: the user's default.")
    setup: Texts = Field(
        default=(), description='Lines of bash, such as `"module load gcc"`, that the job runs first in a login shell.'
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description='Further long options of `sbatch` or `srun`, by name: `{"qos": "low", "exclusive": true}`; '
        "likewise those of `qsub`, `bsub`, `flux submit` and `oarsub` (docs/guide/clusters.md#other-schedulers). "
        "Whatever a backend of your own reads.",
    )
    environment: dict[str, str] = Field(default_factory=dict, description="Environment variables, text to text.")
    mpirun: Words | None = Field(
        default=None,
        description="How the ranks are started, as a list in which `{ranks}` stands for their number; without it, `-n "
        "RANKS` is added. `null`: `mpirun`.",
    )


class SimulationSettings(Section):
    """`simulation`: how one simulation is run, and what happens when it fails."""

    command: Words | None = Field(
        default=None,
        description="Program and arguments as a list, with `{placeholders}`; never passes through a shell. `null`: "
        "nothing is started, simulations attach by themselves.",
    )
    ranks: Count = Field(default=1, description="MPI ranks of one simulation; more than one are started by mpirun.")
    templates: Paths = Field(default=(), description="UTF-8 text files, rendered into each attempt's folder.")
    timeout_s: Positive = Field(
        default=600.0,
        description="Longest time without progress before an attempt is killed; does not run while the simulation is "
        "queued or held back by the server.",
    )
    retries: Natural = Field(default=2, description="Attempts after the first.")
    on_failure: Literal["give_up", "redraw", "stop"] = Field(
        default="give_up",
        description='After the last attempt: `"give_up"`; `"redraw"`: also start another with new parameters and a '
        'new id; `"stop"` the study.',
    )
    max_failed: MostFailed = Field(
        default=0.1,
        description="Simulations that may fail before the study stops: a share below 1, or a number from 1 on.",
    )
    per_job: Count = Field(default=1, description="Simulations that share one job.")
    per_worker: Count | Literal["many"] = Field(
        default=1,
        description='Simulations, at most, that one process computes one after another; `"many"`: 100 '
        "(docs/guide/clients.md#workers).",
    )
    keep_folders: Literal["all", "failed"] = Field(default="all", description="Which attempts' folders stay.")
    job: JobSettings = Field(default_factory=JobSettings, description="Settings of the job of a simulation.")

    @property
    def uses_mpirun(self) -> bool:
        """Its jobs are started by mpirun."""
        is_wanted = self.ranks > 1 or self.per_job > 1 or self.job.mpirun is not None
        return self.command is not None and is_wanted


class RankRange(Section):
    """`server.ranks`: the smallest and the largest number of MPI ranks of the server, as a number if they are one."""

    min: Count = Field(default=1, description="With fewer the study is not started.")
    max: Count = Field(description="More are not started.")

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min > self.max:
            raise wrong(f"min ({self.min}) is above max ({self.max})", f'Write "min": {self.max} or less')
        return self

    def __str__(self) -> str:
        return str(self.max) if self.min == self.max else f"{self.min} to {self.max}"


def _from_ranks(value: Any) -> Any:
    if isinstance(value, dict | RankRange):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong(f"{shown(value)} is not a number of ranks", 'Write 1 or more, or {"min": 1, "max": 8}')
    return {"min": value, "max": value}


RanksOrRange = Annotated[RankRange, BeforeValidator(_from_ranks, json_schema_input_type=Count | RankRange)]


class Server(Section):
    """`server`: the user's class and the job it runs in."""

    class_: ClassReference = Field(
        alias="class",
        description='The StreamServer or TorchServer that trains: `"FILE.py:Class"` or `"package.module:Class"`.',
        examples=["server.py:HeatServer"],
    )
    ranks: RanksOrRange = Field(
        default=RankRange(max=1),
        description='Ranks when `stream-launcher` starts the server: a number, or `{"min": 1, "max": 8}` for as many '
        "as there is room for; `mpirun -n` wins. Default: `1`.",
    )
    backend: Annotated[str, NameOrClass("backend of the server", SERVER_BACKENDS, "backends")] = Field(
        default="local",
        description='What runs the server when `stream-launcher` starts it: `"local"`, mpirun beside it; `"slurm"`, '
        '`"pbs"`, `"lsf"`, `"flux"`, `"oar"` or `"FILE.py:Class"` (docs/guide/backends.md): a job '
        "(docs/guide/clusters.md#the-server-as-a-job).",
    )
    stall_s: Positive = Field(
        default=1800.0,
        description="Longest time for which the ranks may go without meeting (a control round, a sum, a broadcast): "
        "past it one of them says where all are, and aborts the job.",
    )
    job: JobSettings = Field(default_factory=JobSettings, description="Settings of the job of the server.")


class Launcher(Section):
    """`launcher`: how many simulations run, and how often the server is started again."""

    backend: Annotated[str, NameOrClass("backend", tuple(BACKENDS), "backends")] = Field(
        default="local",
        description='What runs the jobs of the simulations: `"local"`, processes of this machine; `"slurm"`, jobs of '
        'Slurm; `"slurm-steps"`, steps of the launcher\'s allocation; `"pbs"`, `"lsf"`, `"flux"`, `"oar"`, '
        'jobs of these (docs/guide/clusters.md); or a class of your own, `"FILE.py:Class"` (docs/guide/backends.md).',
    )
    max_running: Count = Field(
        default=1, description="Simulations that run at the same time; those whose jobs wait in a queue count as well."
    )
    max_queued: Count | None = Field(
        default=None, description="Jobs that wait in the scheduler's queue at the same time; `null`: all that may run."
    )
    restarts: Natural = Field(default=3, description="Restarts of the server without progress in between.")


class Client(Section):
    """`client`: how simulations talk to the server."""

    window: Bytes = Field(
        default=64 * 2**20,
        description="How much one simulation rank may have under way to one server rank; and how much it keeps, for "
        'all server ranks together, of what is in no checkpoint yet. Default: `"64MiB"`.',
    )
    if_server_away: Literal["wait", "continue", "stop"] = Field(
        default="wait",
        description='While the server says nothing for more than a minute: `"wait"` for it, `"continue"` without it '
        'until it is back, or `"stop"`.',
    )
    wait_s: Positive = Field(
        default=600.0,
        description="How long a simulation waits for a word of the server, in all, before it ends with an error.",
    )
    max_attached: Natural = Field(
        default=4, description="Simulations started by hand that may be connected at the same time; 0 allows none."
    )


class Network(Section):
    """`network`: sockets."""

    interface: str | None = Field(
        default=None,
        description="Where simulations, ranks, operators and `stream-launcher` reach each other, torch's ranks too: "
        'the name of an interface (`"ib0"`), an address of the node, or a subnet in which every node has one address '
        '(`"10.1.0.0/16"`, `"fd00:1::/64"`); `null`: by the name of the node, which listens everywhere.',
    )
    ports: Annotated[tuple[Port, Port], Field(strict=False)] | None = Field(
        default=None, description="Range of TCP ports, `[low, high]`; `null`: any."
    )
    security: Literal["curve", "none"] = Field(
        default="curve",
        description='`"curve"`: TCP connections are encrypted and only the study\'s simulations get in; `"none"`.',
    )
