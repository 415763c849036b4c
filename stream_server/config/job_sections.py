"""The sections of study.json on the processes of a study: simulations, server, launcher, clients, network."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

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
)


def _check_most_failed(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if is_number and (value < 1 or value == int(value)):
        return value
    raise wrong(
        f"{shown(value)} is neither a share of the simulations nor a number of them",
        "Write a share below 1, such as 0.1, or a whole number, such as 3",
    )


MostFailed = Annotated[
    int | float,
    BeforeValidator(_check_most_failed),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "number", "minimum": 0, "exclusiveMaximum": 1}]}
    ),
]
Port = Annotated[int, Field(ge=1, le=65535)]
# Steps run within the allocation of the launcher, beside which the server is started anyway.
SERVER_BACKENDS = tuple(name for name in BACKENDS if name != "slurm-steps")


class JobSettings(Section):
    """`simulation.job` and `server.job`: the settings of the job of a simulation, and of that of the server."""

    cores_per_rank: Count = Field(default=1, description="Cores of one rank.")
    gpus_per_rank: Natural = Field(default=0, description="GPUs of one rank, if a scheduler runs the job.")
    memory: Bytes | None = Field(
        default=None, description="Memory of one rank, if a scheduler runs the job; null: what the site gives."
    )
    nodes: Count | None = Field(default=None, description="Nodes of the job; null: as many as the scheduler takes.")
    walltime: Walltime | None = Field(
        default=None, description="Longest time of the job, HH:MM:SS; null: that of the partition."
    )
    partition: Text | None = Field(default=None, description="Partition or queue; null: the site's default.")
    account: Text | None = Field(default=None, description="Account that pays; null: the user's default.")
    setup: Texts = Field(default=(), description="Lines of bash that each job runs first, such as `module load gcc`.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Further options of the submitting command by name, or what a backend of your own reads.",
    )
    environment: dict[str, str] = Field(default_factory=dict, description="Environment variables.")
    mpirun: Words | None = Field(
        default=None,
        description="How an MPI program is started, with {ranks}; null: mpirun, if there are several ranks.",
    )


class SimulationSettings(Section):
    """`simulation`: how one simulation is run, and what happens when it fails."""

    command: Words | None = Field(
        default=None, description="Program and arguments with {placeholders}; null: simulations attach by themselves."
    )
    ranks: Count = Field(default=1, description="MPI ranks of one simulation.")
    templates: Paths = Field(default=(), description="Text files rendered into each attempt's folder.")
    timeout_s: Positive = Field(default=600.0, description="Longest time without progress.")
    retries: Natural = Field(default=2, description="Attempts after the first.")
    on_failure: Literal["give_up", "redraw", "stop"] = Field(
        default="give_up", description="Action after the last failed attempt."
    )
    max_failed: MostFailed = Field(
        default=0.1,
        description="Simulations that may fail before the study stops: a share below 1, or a number from 1 on.",
    )
    per_job: Count = Field(default=1, description="Simulations that share one job.")
    per_worker: Count | Literal["many"] = Field(
        default=1, description="Simulations, at most, that one process computes, one after another."
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

    min: Count = Field(default=1, description="With fewer, the study is not started.")
    max: Count = Field(description="More are not started, whatever the allocation has room for.")

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
        description="The class that trains: FILE.py:Class or package.module:Class.",
        examples=["server.py:HeatServer"],
    )
    ranks: RanksOrRange = Field(
        default=RankRange(max=1),
        description="MPI ranks when stream-launcher starts the server, or {min, max}: as many as there is room for.",
    )
    backend: Annotated[str, NameOrClass("backend of the server", SERVER_BACKENDS, "backends")] = Field(
        default="local",
        description="Backend for the server when stream-launcher starts it: local runs it beside stream-launcher, "
        "a scheduler or FILE.py:Class as a job.",
    )
    stall_s: Positive = Field(
        default=1800.0, description="Longest time for which the ranks may go without meeting, whatever they do."
    )
    job: JobSettings = Field(default_factory=JobSettings, description="Settings of the job of the server.")


class Launcher(Section):
    """`launcher`: how many simulations run, and how often the server is started again."""

    backend: Annotated[str, NameOrClass("backend", tuple(BACKENDS), "backends")] = Field(
        default="local", description="Backend for the jobs of the simulations, or FILE.py:Class."
    )
    max_running: Count = Field(default=1, description="Simulations that run at the same time, or wait in a queue.")
    max_queued: Count | None = Field(
        default=None, description="Jobs that wait in the scheduler's queue at the same time; null: all of them."
    )
    restarts: Natural = Field(default=3, description="Restarts of the server without progress.")


class Client(Section):
    """`client`: how simulations talk to the server."""

    window: Bytes = Field(
        default=64 * 2**20, description="Bytes a simulation rank may have under way to one server rank."
    )
    if_server_away: Literal["wait", "continue", "stop"] = Field(
        default="wait", description="Behaviour of a simulation while the server is away."
    )
    wait_s: Positive = Field(default=600.0, description="How long it waits then.")
    max_attached: Natural = Field(
        default=4, description="Simulations started by hand that may be connected at the same time."
    )


class Network(Section):
    """`network`: sockets."""

    interface: str | None = Field(
        default=None, description="Name, address or subnet of the network interface that others reach; null finds it."
    )
    ports: Annotated[tuple[Port, Port], Field(strict=False)] | None = Field(
        default=None, description="Range of TCP ports, [low, high]; null takes any."
    )
    security: Literal["curve", "none"] = Field(default="curve", description="Encryption and keys of TCP connections.")
