"""The sections of study.json on the training: steps, validation, checkpoints, metrics, normalisation."""

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from stream_server.built_in import WRITERS
from stream_server.config.problems import wrong
from stream_server.config.values import (
    ClassReference,
    Count,
    FilePath,
    Moment,
    Name,
    NamedClass,
    NameOrClass,
    Natural,
    Positive,
    Section,
    Texts,
    filled_in,
)

Moments = Annotated[tuple[Moment, ...], Field(strict=False)]


M = TypeVar("M", "EarlyStop", "Checkpoint")

_LARGER_IS_BETTER = frozenset(
    ["acc", "accuracy", "auc", "auroc", "dice", "f1", "iou", "nse", "precision", "psnr", "r2", "recall", "ssim"]
)
_SMALLER_IS_BETTER = frozenset({"error", "loss", "rollout"})


def _check_mode(section: M) -> M:
    """Refuse to leave out the mode of a value that is known to be better when larger."""
    words = set(re.split(r"[^a-z0-9]+", section.monitor.lower()))
    is_known = words & _LARGER_IS_BETTER and not words & _SMALLER_IS_BETTER
    if is_known and "mode" not in section.model_fields_set:
        raise wrong(f"{section.monitor} is usually better when larger", 'Write "mode": "max", or "min" if it is not')
    return section


class EarlyStop(Section):
    """`training.early_stop`: end when a value stops improving."""

    monitor: str = Field(default="val/loss", description="The logged value that is watched.")
    patience: Count = Field(default=10, description="Validations without improvement.")
    min_delta: Annotated[float, Field(ge=0)] = Field(default=0.0, description="Smallest change that counts.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")

    _check_mode = model_validator(mode="after")(_check_mode)


class Component(Section):
    """A class, or other callable, and the arguments that it is called with."""

    class_: ClassReference = Field(
        alias="class", description='`"FILE.py:Class"` or `"package.module:Class"`.', examples=["torch.optim:AdamW"]
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Its arguments by name.")

    def __str__(self) -> str:
        return f"{self.class_}({', '.join(f'{name}={value!r}' for name, value in self.args.items())})"


class Sharding(Section):
    """`training.sharding`: the model is spread over the ranks, so that it may be larger than the memory of one."""

    kind: Literal["full"] = Field(
        description='`"full"`: parameters, gradients and optimizer state; each unit of the model is gathered when it '
        "is computed (docs/guide/training.md#models-larger-than-one-rank)."
    )
    blocks: Texts = Field(
        default=(),
        description="Names of the classes of modules that are units, such as `Block`. Without `min_parameters` and "
        "this, each child of the model is one.",
    )
    min_parameters: Count | None = Field(
        default=None,
        description="Numbers in the parameters of a module, without those of inner units, from which on it is a unit.",
    )
    mixed_precision: Literal["bf16"] | None = Field(
        default=None,
        description='`"bf16"`: units are gathered and computed in bfloat16, and gradients added up in 32 bits.',
    )
    offload: Literal["cpu"] | None = Field(
        default=None, description='`"cpu"`: parameters and optimizer state are in the memory of the host of a GPU.'
    )


class TrainingSettings(Section):
    """`training`: batches and steps."""

    batch_size: Count = Field(description="Samples of a batch of one rank.", examples=[10])
    prefetch: Natural = Field(
        default=0,
        description="Batches that are formed ahead, on a thread of their own beside the step, also those of a loader "
        "of yours (docs/guide/training.md#batches-formed-ahead).",
    )
    model: Component | None = Field(
        default=None, description="The model that is trained; `null`: `prepare_training_attributes` makes it."
    )
    optimizer: Component | None = Field(
        default=None, description="The optimizer of `training.model`, called with its parameters first."
    )
    lr_scheduler: Component | None = Field(
        default=None, description="The scheduler of `training.optimizer`, called with it first; `null`: none."
    )
    criterion: Component | None = Field(
        default=None,
        description="The loss of outputs and targets, `self.criterion`, with which a `TorchServer` needs no "
        "`training_step`; `null`: none.",
    )
    train_dataloader: Component | None = Field(
        default=None,
        description="The loader that makes the batches, called with `train_dataset` first; `null`: "
        "`train_dataloader` of the server class.",
    )
    callbacks: Annotated[tuple[Component, ...], Field(strict=False)] = Field(
        default=(), description="Callbacks in addition to those of `configure_callbacks`."
    )
    draws_per_sample: Annotated[float, Field(ge=1)] | None = Field(
        default=None,
        description="Bound on the average number of draws of a sample, 1 or more (reservoir and uniform only); "
        "`null`: as many as the simulations leave time for.",
    )
    max_batches: Count | None = Field(default=None, description="Stop after this many batches; `null`: no limit.")
    max_s: Positive | None = Field(default=None, description="Stop after this many seconds; `null`: no limit.")
    early_stop: EarlyStop | None = Field(default=None, description="Stop when a value stops improving; `null`: never.")
    device: Literal["auto", "cpu"] = Field(
        default="auto", description='`"auto"`: a GPU where torch finds one, and else the CPU; `"cpu"`: never a GPU.'
    )
    precision: Literal["32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true"] = Field(
        default="32-true",
        description='Number format of the weights and of the arithmetic; `"16-mixed"` and `"16-true"` on a GPU only.',
    )
    accumulate: Count = Field(default=1, description="Batches per optimizer step.")
    clip_norm: Positive | None = Field(default=None, description="Largest norm of the gradient; `null`: no limit.")
    clip_value: Positive | None = Field(
        default=None, description="Largest absolute value of an element of the gradient; `null`: no limit."
    )
    max_nonfinite: Count = Field(
        default=10,
        description="Updates that may be skipped in a row, as the gradient was not finite or reached no parameter of "
        "the optimizer; one more ends the study.",
    )
    lr_clock: Literal["updates", "samples"] = filled_in(
        'What the `lr_scheduler` follows: `"updates"`, or `"samples"`, which counts new ones alone. Default: '
        '`"updates"` where their number is known in advance, else `"samples"`.'
    )
    compile: bool = Field(default=False, description="Whether the model is compiled.")
    sharding: Sharding | None = Field(
        default=None, description="Whether and how the model is spread over the ranks; `null`: each rank has all of it."
    )
    matmul_precision: Literal["highest", "high", "medium"] = Field(
        default="highest", description="Precision of 32-bit matrix products, in torch's words."
    )
    deterministic: bool = Field(default=False, description="Whether torch must use deterministic algorithms.")
    log_every_batches: Moment | None = Field(
        default=None,
        description="Batches between two records of the metrics, or a fraction of the run. Default: 10, and in a fast "
        "training so many tens that there are at most 4 records a second.",
    )
    uneven: Literal["drain", "stop"] = Field(
        default="drain", description='When a rank runs out of data first: the others `"drain"` theirs, or all `"stop"`.'
    )
    nonfinite: Literal["reject", "keep", "stop"] = Field(
        default="reject",
        description='Samples with NaN or infinity: `"reject"` (and count), `"keep"`, or `"stop"` the study.',
    )

    @property
    def is_log_paced(self) -> bool:
        """Whether the seconds between two records count, too: not where the end of the training follows from them."""
        by_records = self.early_stop is not None and not self.early_stop.monitor.startswith("val/")
        return self.log_every_batches is None and not by_records

    @property
    def components(self) -> dict[str, Component]:
        """The classes that are named, by their keys."""
        keys = ("model", "optimizer", "lr_scheduler", "criterion", "train_dataloader")
        named: dict[str, Component | None] = {key: getattr(self, key) for key in keys}
        callbacks = {f"callbacks[{position}]": callback for position, callback in enumerate(self.callbacks)}
        return {key: component for key, component in (named | callbacks).items() if component is not None}


class RolloutSettings(Section):
    """`validation.rollout`: the model applied to its own forecasts, along whole held-out trajectories."""

    fields: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] = filled_in(
        "Fields that the model forecasts; the others, such as a forcing, are given as the simulation sent them. "
        "Default: all of `study.fields`."
    )
    input_steps: Count = filled_in(
        "Steps of a window that are known; the model forecasts the other ones, all at once. Default: "
        "`samples.window.length` − 1."
    )
    horizon: Count | None = Field(
        default=None, description="How many steps are forecast of each simulation; `null`: all to its end."
    )


class ValidationSetSettings(Section):
    """`validation.sets.NAME`: one of the sets that `val_dataloader` names."""

    every_batches: Count | None = Field(
        default=None, description="Batches between two validations of this set; `null`: those of `validation`."
    )
    max_batches: Count | None = Field(
        default=None, description="Most batches of this set in a validation; `null`: `validation.max_batches`."
    )


class ValidationSettings(Section):
    """`validation`: simulations held out, and when they are looked at."""

    simulations: Natural = Field(
        default=0, description="Simulations held out of training, extra to `study.simulations` and started first."
    )
    every_batches: Moment | None = Field(
        default=None, description="Batches between two validations, or a fraction of the run; one more at the end."
    )
    every_s: Positive | None = Field(default=None, description="Seconds between two validations; `null`: not by time.")
    at: Moments = Field(default=(), description="Further batches, or fractions of the run, to validate after.")
    after_batches: Natural = Field(default=0, description="Batches before which no validation is due.")
    at_start: Natural = Field(
        default=0, description="Batches of each set, on each rank, that are tried before the training and not counted."
    )
    val_dataloader: Component | None = Field(
        default=None,
        description="The validation set; `null`: `val_dataloader` of the server class, or what is held out.",
    )
    batch_size: Count = filled_in("Samples of a validation batch. Default: `training.batch_size`.")
    max_batches: Count | None = Field(
        default=None,
        description="Each set has the samples of so many batches at most, on all ranks together: always the same; "
        "`null`: all.",
    )
    sets: dict[str, ValidationSetSettings] = Field(
        default_factory=dict, description="What is different for a set, by its name in `val_dataloader`."
    )
    pictures: Natural = Field(
        default=4,
        description="Samples whose predictions are kept beside the truth at each validation (docs/guide/pictures.md); "
        "0: nothing is predicted.",
    )
    save_before: bool = Field(default=False, description="Whether a checkpoint is committed before each validation.")
    rollout: RolloutSettings | None = Field(
        default=None, description="Forecasts along whole held-out simulations; `{}` takes the defaults; `null`: none."
    )

    @property
    def is_scheduled(self) -> bool:
        """Whether a validation takes place before the end."""
        every = (self.every_batches, self.every_s, *(it.every_batches for it in self.sets.values()))
        return bool(self.at) or any(it is not None for it in every)


class Checkpoint(Section):
    """`checkpoint`: the contents and the schedule of checkpoints."""

    every_batches: Moment | None = Field(
        default=None,
        description="A checkpoint at each multiple of so many batches, or of a fraction of the run; `null`: by time.",
    )
    every_s: Positive = Field(
        default=300.0, description="Seconds between two checkpoints; at most 60 before the first."
    )
    every_rounds: Count | None = Field(
        default=None, description="Rounds of `study.rounds` after which one is committed before the next; `null`: none."
    )
    keep: Annotated[int, Field(ge=2)] = Field(default=2, description="Newest checkpoints that stay, 2 or more.")
    keep_best: Natural = Field(default=1, description="Best models that stay, of those that were validated; 0: none.")
    monitor: str = Field(default="val/loss", description="The value of a validation that says which models are best.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")
    keep_every: Moment | None = Field(
        default=None, description="Batches between two checkpoints that stay for ever, or a fraction of the run."
    )
    keep_at: Moments = Field(
        default=(), description="Further batches, or fractions of the run, after which a checkpoint stays for ever."
    )
    exclude: Texts = Field(
        default=(),
        description="Patterns of the names of frozen parameters that the server class loads itself, such as "
        '`"backbone.*"`: they are not saved (`TorchServer`).',
    )
    dir: FilePath | None = Field(default=None, description="Folder of the checkpoints; `null`: in the output folder.")
    record: bool = Field(
        default=False, description="Whether the samples are recorded for a replay; a replay itself ignores it."
    )
    allow_pickle: bool = Field(default=False, description="Whether a user's state may be any Python object.")

    _check_mode = model_validator(mode="after")(_check_mode)


class MetricWriter(NamedClass):
    """One of `metrics.writers`: a built-in one, or a class of the user's with its arguments."""

    class_: Annotated[str, NameOrClass("writer", tuple(WRITERS), "writers")] = Field(
        alias="class", description='`"tensorboard"`, or `"FILE.py:Class"` (docs/guide/extending.md#a-metric-writer).'
    )


class MetricsSettings(Section):
    """`metrics`: the writers of the logged values, besides the JSON lines that are always written."""

    writers: Annotated[tuple[MetricWriter, ...], Field(strict=False)] = Field(
        default=tuple(map(MetricWriter.model_validate, WRITERS)),
        description="What takes all that is logged, beside the JSON lines: names, or objects with `class` and `args`. "
        'Default: `["tensorboard"]`.',
    )
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None,
        description="Loopback port of `/metrics` for Prometheus (docs/guide/operating.md#prometheus); `0`: a free "
        "one, which the log and `prometheus.json` name; `null`: no page.",
    )

    @property
    def wanted(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """`writers`, each as its name and its arguments."""
        return tuple((it.class_, it.args) for it in self.writers)


class Load(Section):
    """`load`: the trained state that a fresh study starts from, and what wins over it, also at a restart."""

    checkpoint: FilePath | None = Field(
        default=None,
        description="The output folder of a study, one of its checkpoints, or a `.safetensors` file of a model; "
        "`null`: the study begins with a new model.",
        examples=["../other/runs/other"],
    )
    what: Literal["model", "model+optimizer", "all"] = Field(
        default="model", description='Parts to load; `"all"`: also schedulers, normalisation and the user\'s state.'
    )
    strict: bool = Field(default=True, description="Whether the names in model and file must be the same.")
    hyperparameters: Literal["new", "saved"] = Field(
        default="new",
        description='What optimizers and schedulers are set to, also at a restart: `"new"`: what was changed since the '
        'state was saved wins; `"saved"`: all is as it was saved (docs/guide/restart.md#rates-and-schedules).',
    )

    @model_validator(mode="after")
    def _check_checkpoint(self) -> "Load":
        if self.checkpoint is None and (self.what, self.strict) != ("model", True):
            raise wrong("what and strict, but no checkpoint", "Write load.checkpoint, or leave both out")
        return self


class NormalizationSettings(Section):
    """`normalization`: running means and variances of what is received."""

    fields: Annotated[tuple[Name, ...], Field(strict=False)] = Field(
        default=(), description="Fields whose running mean and variance are kept."
    )
    parameters: bool = Field(default=False, description="Whether those of the parameters are kept.")
    per: Literal["field", "value"] = Field(
        default="field", description='One mean for a whole `"field"`, or one for each `"value"` of it.'
    )
    every_batches: Count = Field(
        default=10, description="Batches after which the ranks bring their statistics together."
    )
    freeze_after: Count | None = Field(
        default=None, description="Samples after which they stay as they are; `null`: never."
    )
