"""The sections of study.json and their keys, each with its type, its default and what it means."""

from typing import Annotated, Any, Literal

from pydantic import Field

from stream_server.config.parameters import Bounds, Sampler
from stream_server.config.samples import MAX_FIELDS, SampleField, TimeSteps
from stream_server.config.values import (
    Bytes,
    Capacity,
    ClassReference,
    Command,
    Count,
    FilePath,
    Moment,
    MpirunWords,
    Name,
    Paths,
    Positive,
    Section,
    StudyName,
    Texts,
    Walltime,
    filled_in,
)

Port = Annotated[int, Field(ge=1, le=65535)]
Moments = Annotated[tuple[Moment, ...], Field(strict=False)]


class Study(Section):
    """`study`: the ensemble and the samples it produces."""

    name: StudyName = filled_in("Name of the study; the name of its folder.")
    output_dir: FilePath = filled_in("Where results go; runs/<name>.")
    simulations: Count = Field(description="Number of training simulations.", examples=[100])
    time_steps: TimeSteps | None = Field(
        default=None, description="Time steps of a simulation: their count, {first, last, every}, or null: unknown."
    )
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="Seed of parameters, buffers and weights.")
    fields: Annotated[dict[Name, SampleField], Field(min_length=1, max_length=MAX_FIELDS)] = Field(
        description="What one sample holds.", examples=[{"temperature": [100, 100]}]
    )


class Parameters(Section):
    """`parameters`: what differs from one simulation to the next."""

    bounds: dict[Name, Bounds] | None = Field(
        default=None, description='Range of each parameter, [low, high] or [low, high, "log"].'
    )
    file: FilePath | None = Field(default=None, description="CSV file: a header of names, one row per simulation.")
    sampler: Sampler = Field(
        default="uniform", description="How points are chosen within the bounds, or FILE.py:Class."
    )


class Job(Section):
    """`server.job` and `simulation.job`."""

    nodes: Count | None = Field(default=None, description="Number of nodes.")
    cores_per_rank: Count = Field(default=1, description="Cores of one rank.")
    gpus_per_rank: Annotated[int, Field(ge=0)] = Field(default=0, description="GPUs of one rank.")
    memory: Bytes | None = Field(default=None, description="Memory of a node.")
    walltime: Walltime | None = Field(default=None, description="Time limit, HH:MM:SS.")
    queue: str | None = Field(default=None, description="Queue or partition.")
    account: str | None = Field(default=None, description="Account or project that is charged.")
    options: dict[str, Any] = Field(default_factory=dict, description="Further options of the scheduler.")
    setup: Texts = Field(default=(), description="Shell lines that run before the job.")
    environment: dict[str, str] = Field(default_factory=dict, description="Environment variables.")
    mpirun: MpirunWords | None = Field(
        default=None, description="How an MPI program is started, with {ranks}; null: mpirun, wherever it is."
    )


class Simulation(Section):
    """`simulation`: how one simulation is run, and what happens when it fails."""

    command: Command | None = Field(
        default=None, description="Program and arguments with {placeholders}; null: simulations attach by themselves."
    )
    ranks: Count = Field(default=1, description="MPI ranks of one simulation.")
    templates: Paths = Field(default=(), description="Text files rendered into each attempt's folder.")
    timeout_s: Positive = Field(default=600.0, description="Longest time without progress.")
    retries: Annotated[int, Field(ge=0)] = Field(default=2, description="Attempts after the first.")
    on_failure: Literal["give_up", "redraw", "stop"] = Field(
        default="give_up", description="What follows the last failed attempt."
    )
    max_failed: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1, description="Share of simulations that may fail before the study stops."
    )
    per_job: Count = Field(default=1, description="Simulations that share one job.")
    keep_folders: Literal["all", "failed"] = Field(default="all", description="Which attempts' folders stay.")
    job: Job = Field(default_factory=Job, description="What the job of a simulation asks for.")

    @property
    def uses_mpirun(self) -> bool:
        """Its jobs are started by mpirun."""
        return self.command is not None and (self.ranks > 1 or self.per_job > 1)


class Server(Section):
    """`server`: the user's class and the job it runs in."""

    class_: ClassReference = Field(
        alias="class",
        description="The class that trains: FILE.py:Class or package.module:Class.",
        examples=["server.py:HeatServer"],
    )
    ranks: Count = Field(default=1, description="MPI ranks when stream-launcher starts the server.")
    stall_s: Positive = Field(
        default=1800.0, description="Longest time for which the ranks may go without meeting, whatever they do."
    )
    job: Job = Field(default_factory=Job, description="What the job of the server asks for.")


class Launcher(Section):
    """`launcher`: how many simulations run, and on what."""

    scheduler: Literal["local", "slurm", "pbs", "lsf", "flux"] = Field(default="local", description="Where jobs run.")
    max_running: Count = Field(default=1, description="Simulations that run at the same time.")
    restarts: Annotated[int, Field(ge=0)] = Field(default=3, description="Restarts of the server without progress.")


class Client(Section):
    """`client`: how simulations talk to the server."""

    window: Bytes = Field(
        default=64 * 2**20, description="Bytes a simulation rank may have under way to one server rank."
    )
    if_server_away: Literal["wait", "continue", "stop"] = Field(
        default="wait", description="What a simulation does while the server is away."
    )
    wait_s: Positive = Field(default=600.0, description="How long it waits then.")
    max_attached: Annotated[int, Field(ge=0)] = Field(
        default=4, description="Simulations started by hand that may be connected at the same time."
    )


class Network(Section):
    """`network`: sockets."""

    interface: str | None = Field(default=None, description="Network interface or address; null finds it.")
    ports: Annotated[tuple[Port, Port], Field(strict=False)] | None = Field(
        default=None, description="Range of TCP ports, [low, high]; null takes any."
    )
    security: Literal["curve", "none"] = Field(default="curve", description="Encryption and keys of TCP connections.")


class Buffer(Section):
    """`buffer`: where samples wait, per server rank."""

    policy: Literal["reservoir", "firo", "fifo"] = Field(
        default="reservoir", description="Which samples are drawn and kept."
    )
    capacity: Capacity = Field(description="Samples of a rank, or a size in bytes such as 4GiB.", examples=[2500])
    watermark: Count = filled_in("Samples that must wait before training starts; a fifth of the capacity.")
    pseudo_epochs: Count = Field(default=1, description="Draws of each sample (firo).")
    routing: Literal["steps", "simulations"] = Field(
        default="steps", description="What is dealt to the server ranks: time steps or whole simulations."
    )


class EarlyStop(Section):
    """`training.early_stop`: end when a value stops improving."""

    monitor: str = Field(default="val/loss", description="The logged value that is watched.")
    patience: Count = Field(default=10, description="Validations without improvement.")
    min_delta: Annotated[float, Field(ge=0)] = Field(default=0.0, description="Smallest change that counts.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")


class Training(Section):
    """`training`: batches and steps."""

    batch_size: Count = Field(description="Samples of a batch, per rank.", examples=[10])
    draws_per_sample: Annotated[float, Field(ge=1)] | None = Field(
        default=None, description="Bound on how often a sample is drawn on average (reservoir); null: no bound."
    )
    max_batches: Count | None = Field(default=None, description="End after so many batches; null: no limit.")
    max_s: Positive | None = Field(default=None, description="End after so many seconds; null: no limit.")
    early_stop: EarlyStop | None = Field(default=None, description="End when a value stops improving; null: never.")
    precision: Literal["32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true"] = Field(
        default="32-true", description="Arithmetic of the model, in Lightning's words."
    )
    strategy: Literal["ddp", "fsdp"] = Field(default="ddp", description="How the ranks share the model.")
    accumulate: Count = Field(default=1, description="Batches per optimizer step.")
    clip_norm: Positive | None = Field(default=None, description="Largest norm of the gradient; null: no limit.")
    clip_value: Positive | None = Field(
        default=None, description="Largest absolute value of an element of the gradient; null: no limit."
    )
    max_nonfinite: Count = Field(
        default=10,
        description="Updates that may be skipped in a row, as the gradient was not finite; one more ends the study.",
    )
    lr_clock: Literal["updates", "samples"] = filled_in(
        "What steps the lr_scheduler: every update, or every batch's worth of new samples; "
        "updates where their number is known in advance."
    )
    compile: bool = Field(default=False, description="Whether the model is compiled.")
    matmul_precision: Literal["highest", "high", "medium"] = Field(
        default="highest", description="Precision of 32-bit matrix products, in torch's words."
    )
    deterministic: bool = Field(default=False, description="Whether torch must use deterministic algorithms.")
    log_every_batches: Moment = Field(
        default=10, description="Batches between two records of the metrics, or a fraction of the run."
    )
    uneven: Literal["drain", "stop"] = Field(
        default="drain", description="What happens when a rank runs out of data first."
    )
    nonfinite: Literal["reject", "keep", "stop"] = Field(
        default="reject", description="What happens to NaN and infinity."
    )


class Validation(Section):
    """`validation`: simulations held out, and when they are looked at."""

    simulations: Annotated[int, Field(ge=0)] = Field(default=0, description="Extra simulations, started first.")
    every_batches: Moment | None = Field(
        default=None, description="Batches between two validations, or a fraction of the run; null: not by batches."
    )
    every_s: Positive | None = Field(default=None, description="Seconds between two validations; null: not by time.")
    at: Moments = Field(default=(), description="Further batches, or fractions of the run, to validate after.")
    batch_size: Count = filled_in("Samples of a validation batch; training.batch_size.")
    save_before: bool = Field(default=False, description="Whether a checkpoint is committed before each validation.")


class Checkpoint(Section):
    """`checkpoint`: what is saved, and when."""

    every_batches: Moment | None = Field(
        default=None, description="Batches between two checkpoints, or a fraction of the run; null: by time only."
    )
    every_s: Positive = Field(default=300.0, description="Seconds between two checkpoints.")
    keep: Annotated[int, Field(ge=2)] = Field(default=2, description="Newest checkpoints that stay.")
    keep_best: Annotated[int, Field(ge=0)] = Field(default=1, description="Best models that stay, of those validated.")
    monitor: str = Field(default="val/loss", description="The value of a validation that says which models are best.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")
    keep_every: Moment | None = Field(
        default=None, description="Batches between two checkpoints that stay for ever, or a fraction of the run."
    )
    keep_at: Moments = Field(
        default=(), description="Further batches, or fractions of the run, after which one stays for ever."
    )
    exclude: Texts = Field(
        default=(), description="Patterns of the names of frozen parameters that the server class loads itself."
    )
    dir: FilePath | None = Field(default=None, description="Where checkpoints go; null: the output folder.")
    record: bool = Field(default=False, description="Whether the samples are recorded for a replay.")
    allow_pickle: bool = Field(default=False, description="Whether a user's state may be any Python object.")


class Load(Section):
    """`load`: the trained state that a fresh study starts from."""

    checkpoint: FilePath = Field(
        description="The output folder of a study, one of its checkpoints, or a .safetensors file of a model.",
        examples=["../other/runs/other"],
    )
    what: Literal["model", "model+optimizer", "all"] = Field(
        default="model", description="What is taken; all: also schedulers, normalisation and the user's state."
    )
    strict: bool = Field(default=True, description="Whether the names of model and file must be the same.")


class Normalization(Section):
    """`normalization`: running means and variances of what is received."""

    fields: Annotated[tuple[Name, ...], Field(strict=False)] = Field(
        default=(), description="Fields whose mean and variance are kept."
    )
    parameters: bool = Field(default=False, description="Whether those of the parameters are kept.")
    per: Literal["field", "value"] = Field(
        default="field", description="One mean for a whole field, or one for each of its values."
    )
    every_batches: Count = Field(
        default=10, description="Batches after which the ranks bring their statistics together."
    )
    freeze_after: Count | None = Field(
        default=None, description="Samples after which they stay as they are; null: they never freeze by themselves."
    )
