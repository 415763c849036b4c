"""The sections of study.json and their keys, each with its type, its default and what it means."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, GetJsonSchemaHandler, Tag, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from stream_server.built_in import BACKENDS, WRITERS
from stream_server.config.parameters import Bounds, SamplerSettings
from stream_server.config.problems import shown, wrong
from stream_server.config.samples import MAX_FIELDS, CountOrTimeSteps, ShapeOrField
from stream_server.config.values import (
    CLASS_REFERENCE,
    Bytes,
    Capacity,
    ClassReference,
    Count,
    FilePath,
    Moment,
    Name,
    NameOrClass,
    Natural,
    Paths,
    Positive,
    Section,
    StudyName,
    Text,
    Texts,
    Walltime,
    Words,
    study_dir,
)

Port = Annotated[int, Field(ge=1, le=65535)]
Moments = Annotated[tuple[Moment, ...], Field(strict=False)]

WATERMARK_PART = 5


def filled_in(description: str) -> Any:
    """A key whose default follows from other sections; `StudyConfig` fills it in."""
    return Field(default_factory=lambda: None, description=description)


class StudySettings(Section):
    """`study`: the ensemble and the samples it produces."""

    name: StudyName = Field(
        default_factory=lambda: study_dir().name or "study", description="Name of the study; the name of its folder."
    )
    output_dir: FilePath = Field(
        default_factory=lambda keys: Path("runs", keys.get("name", "study")),
        validate_default=True,
        description="Folder for results; runs/<name>.",
    )
    share_with: str | None = Field(
        default=None,
        min_length=1,
        description="Group of this system's users that may read the folder for results; null: nobody else may.",
    )
    simulations: Count = Field(description="Number of training simulations.", examples=[100])
    time_steps: CountOrTimeSteps = Field(
        default=None, description="Time steps of a simulation: their count, {first, last, every}, or null: unknown."
    )
    seed: Natural = Field(default=0, description="Seed of parameters, buffers and weights.")
    fields: Annotated[dict[Name, ShapeOrField], Field(min_length=1, max_length=MAX_FIELDS)] = Field(
        description="The fields of one sample.", examples=[{"temperature": [100, 100]}]
    )
    units: dict[str, str] = Field(
        default_factory=dict,
        description="Units of fields, parameters and whatever render names, for pictures.",
        examples=[{"temperature": "K"}],
    )


class Parameters(Section):
    """`parameters`: the inputs that differ between simulations."""

    bounds: dict[Name, Bounds] | None = Field(
        default=None, description='Range of each parameter, [low, high] or [low, high, "log"].'
    )
    file: FilePath | None = Field(default=None, description="CSV file: a header of names, one row per simulation.")
    sampler: SamplerSettings = Field(
        default_factory=lambda: SamplerSettings.model_validate("uniform"),
        description="How points are chosen within the bounds, or FILE.py:Class.",
    )


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
        description="Further options of the submitting command by name, or what a launcher.backend of your own reads.",
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
    max_failed: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1, description="Share of simulations that may fail before the study stops."
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
    backend: Literal["local", "slurm", "pbs", "lsf", "flux"] = Field(
        default="local",
        description="Backend for the server when stream-launcher starts it: local runs it beside stream-launcher, "
        "a scheduler as a job.",
    )
    stall_s: Positive = Field(
        default=1800.0, description="Longest time for which the ranks may go without meeting, whatever they do."
    )
    job: JobSettings = Field(default_factory=JobSettings, description="Settings of the job of the server.")


class Launcher(Section):
    """`launcher`: how many simulations run, and how often the server is started again."""

    backend: Annotated[str, NameOrClass("backend", tuple(BACKENDS))] = Field(
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


class BufferSection(Section):
    """`buffer`: the sample buffer of each server rank; the keys that every policy has."""

    capacity: Capacity = Field(description="Samples of a rank, or a size in bytes such as 4GiB.", examples=[2500])
    routing: Literal["steps", "simulations"] = Field(
        default="steps", description="Unit that is dealt to the server ranks: time steps or whole simulations."
    )

    @property
    def has_own_policy(self) -> bool:
        """Whether the policy is a class of the user's."""
        return isinstance(self, OwnBuffer)


Watermark = Annotated[
    Count,
    Field(
        default_factory=lambda keys: max(1, keys.get("capacity", 0) // WATERMARK_PART),
        description="Samples that must wait before training starts; a fifth of the capacity.",
    ),
]


class OwnBuffer(BufferSection):
    """`buffer` with a policy of the user's."""

    policy: ClassReference = Field(description="FILE.py:Class.")
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of the class.")
    watermark: Watermark
    pseudo_epochs: Count = Field(default=1, description="Draws of each sample, if the class takes them.")


class FifoBuffer(BufferSection):
    """`buffer` with the policy "fifo", which hands out every sample as it comes."""

    args: ClassVar[dict[str, Any]] = {}

    policy: Literal["fifo"] = Field(description="Each sample once, in order.")

    watermark: ClassVar[int] = 1
    pseudo_epochs: ClassVar[int] = 1


class FiroBuffer(BufferSection):
    """`buffer` with the policy "firo", which hands out samples in random order."""

    args: ClassVar[dict[str, Any]] = {}

    policy: Literal["firo"] = Field(description="Each sample pseudo_epochs times, in random order.")
    watermark: Watermark
    pseudo_epochs: Count = Field(default=1, description="Draws of each sample.")


class ReservoirBuffer(BufferSection):
    """`buffer` with the policy "reservoir", which hands out samples again until newer ones need the room."""

    args: ClassVar[dict[str, Any]] = {}

    policy: Literal["reservoir"] = Field(
        default="reservoir", description="Each sample at least once, and again until newer ones need the room."
    )
    watermark: Watermark

    pseudo_epochs: ClassVar[int] = 1


def _policy_of(buffer: Any) -> Any:
    policy = buffer.get("policy", "reservoir") if isinstance(buffer, dict) else getattr(buffer, "policy", "reservoir")
    return "own" if isinstance(policy, str) and CLASS_REFERENCE.fullmatch(policy) else policy


Buffer = Annotated[
    Annotated[ReservoirBuffer, Tag("reservoir")]
    | Annotated[FiroBuffer, Tag("firo")]
    | Annotated[FifoBuffer, Tag("fifo")]
    | Annotated[OwnBuffer, Tag("own")],
    Discriminator(_policy_of),
]


class EarlyStop(Section):
    """`training.early_stop`: end when a value stops improving."""

    monitor: str = Field(default="val/loss", description="The logged value that is watched.")
    patience: Count = Field(default=10, description="Validations without improvement.")
    min_delta: Annotated[float, Field(ge=0)] = Field(default=0.0, description="Smallest change that counts.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")


class Component(Section):
    """A class, or other callable, and the arguments that it is called with."""

    class_: ClassReference = Field(
        alias="class", description="FILE.py:Class or package.module:Class.", examples=["torch.optim:AdamW"]
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Its arguments by name.")

    def __str__(self) -> str:
        return f"{self.class_}({', '.join(f'{name}={value!r}' for name, value in self.args.items())})"


class TrainingSettings(Section):
    """`training`: batches and steps."""

    batch_size: Count = Field(description="Samples of a batch, per rank.", examples=[10])
    prefetch: Natural = Field(
        default=0,
        description="Batches that are formed ahead, on a thread of their own beside the step; 0: each before its step.",
    )
    model: Component | None = Field(
        default=None, description="The torch.nn.Module that is trained; null: the server class makes it."
    )
    optimizer: Component | None = Field(
        default=None, description="The optimizer of training.model, called with its parameters first."
    )
    lr_scheduler: Component | None = Field(
        default=None, description="The scheduler of training.optimizer, called with it first; null: none."
    )
    callbacks: Annotated[tuple[Component, ...], Field(strict=False)] = Field(
        default=(), description="Callbacks in addition to those of the server class."
    )
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
        "Clock of the lr_scheduler: every update, or every batch's worth of new samples; "
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
    uneven: Literal["drain", "stop"] = Field(default="drain", description="Action when a rank runs out of data first.")
    nonfinite: Literal["reject", "keep", "stop"] = Field(default="reject", description="Treatment of NaN and infinity.")

    @property
    def components(self) -> dict[str, Component]:
        """The classes that are named, by their keys."""
        named = {"model": self.model, "optimizer": self.optimizer, "lr_scheduler": self.lr_scheduler}
        callbacks = {f"callbacks[{position}]": callback for position, callback in enumerate(self.callbacks)}
        return {key: component for key, component in (named | callbacks).items() if component is not None}


class RolloutSettings(Section):
    """`validation.rollout`: the model applied to its own forecasts, along whole held-out trajectories."""

    fields: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] = filled_in(
        "Fields that the model forecasts; all. The others are given as the simulation sent them."
    )
    input_steps: Count = filled_in("Steps of a sample from which the others are forecast; samples.window.length - 1.")
    horizon: Count | None = Field(
        default=None, description="Steps that are forecast of each trajectory; null: all to its end."
    )


class ValidationSettings(Section):
    """`validation`: simulations held out, and when they are looked at."""

    simulations: Natural = Field(default=0, description="Extra simulations, started first.")
    every_batches: Moment | None = Field(
        default=None, description="Batches between two validations, or a fraction of the run; null: not by batches."
    )
    every_s: Positive | None = Field(default=None, description="Seconds between two validations; null: not by time.")
    at: Moments = Field(default=(), description="Further batches, or fractions of the run, to validate after.")
    batch_size: Count = filled_in("Samples of a validation batch; training.batch_size.")
    pictures: Natural = Field(
        default=4, description="Samples whose predictions are kept of a validation; 0: none, and nothing is predicted."
    )
    save_before: bool = Field(default=False, description="Whether a checkpoint is committed before each validation.")
    rollout: RolloutSettings | None = Field(
        default=None, description="How held-out trajectories are forecast from their first steps; null: they are not."
    )


class Checkpoint(Section):
    """`checkpoint`: the contents and the schedule of checkpoints."""

    every_batches: Moment | None = Field(
        default=None, description="Batches between two checkpoints, or a fraction of the run; null: by time only."
    )
    every_s: Positive = Field(default=300.0, description="Seconds between two checkpoints.")
    keep: Annotated[int, Field(ge=2)] = Field(default=2, description="Newest checkpoints that stay.")
    keep_best: Natural = Field(default=1, description="Best models that stay, of those validated.")
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
    dir: FilePath | None = Field(default=None, description="Folder for checkpoints; null: the output folder.")
    record: bool = Field(default=False, description="Whether the samples are recorded for a replay.")
    allow_pickle: bool = Field(default=False, description="Whether a user's state may be any Python object.")


class Offline(Section):
    """`offline`: the ensemble written to files, and a training from files."""

    write_files: bool = Field(
        default=False, description="Whether the samples are written to HDF5 files, and nothing is trained."
    )
    epochs: Count = Field(default=1, description="Passes over the files of a --replay.")
    shuffle: bool = Field(default=True, description="Whether each pass takes the samples in another random order.")


class MetricWriter(Section):
    """One of `metrics.writers`: a built-in one, or a class of the user's with its arguments."""

    class_: Annotated[str, NameOrClass("writer", tuple(WRITERS))] = Field(
        alias="class", description="Name, or FILE.py:Class."
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of the class.")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"class": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler.resolve_ref_schema(handler(core))]}


MetricWriters = Annotated[tuple[MetricWriter, ...], Field(strict=False)]


class MetricsSettings(Section):
    """`metrics`: the writers of the logged values, besides the JSON lines that are always written."""

    writers: MetricWriters = Field(
        default=tuple(map(MetricWriter.model_validate, WRITERS)),
        description="Writers of what all ranks have logged: csv, tensorboard or FILE.py:Class.",
    )
    rank_writers: MetricWriters = Field(default=(), description="Writers of what each rank has logged for itself.")
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None, description="Loopback port of the page /metrics for Prometheus; 0: a free one; null: no page."
    )

    @property
    def wanted(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """`writers`, each as its name and its arguments."""
        return tuple((it.class_, it.args) for it in self.writers)

    @property
    def wanted_of_ranks(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """`rank_writers`, each as its name and its arguments."""
        return tuple((it.class_, it.args) for it in self.rank_writers)


class Load(Section):
    """`load`: the trained state that a fresh study starts from."""

    checkpoint: FilePath = Field(
        description="The output folder of a study, one of its checkpoints, or a .safetensors file of a model.",
        examples=["../other/runs/other"],
    )
    what: Literal["model", "model+optimizer", "all"] = Field(
        default="model", description="Parts to load; all: also schedulers, normalisation and the user's state."
    )
    strict: bool = Field(default=True, description="Whether the names of model and file must be the same.")


class NormalizationSettings(Section):
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
