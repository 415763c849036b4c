"""The sections that say how the network learns: buffer, training, validation, checkpoint."""

from typing import Annotated, Literal

from pydantic import Field

from stream_server.config.section import Section, filled_in
from stream_server.config.values import Capacity, Count, FilePath, Positive


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
    strategy: str = Field(default="ddp", description="How the ranks share the model.")
    accumulate: Count = Field(default=1, description="Batches per optimizer step.")
    clip_norm: Positive | None = Field(default=None, description="Largest norm of the gradient; null: no limit.")
    compile: bool = Field(default=False, description="Whether the model is compiled.")
    log_every_batches: Count = Field(default=10, description="Batches between two records of the metrics.")
    uneven: Literal["drain", "stop"] = Field(
        default="drain", description="What happens when a rank runs out of data first."
    )
    nonfinite: Literal["reject", "keep", "stop"] = Field(
        default="reject", description="What happens to NaN and infinity."
    )


class Validation(Section):
    """`validation`: simulations held out, and when they are looked at."""

    simulations: Annotated[int, Field(ge=0)] = Field(default=0, description="Extra simulations, started first.")
    every_batches: Count | None = Field(
        default=None, description="Batches between two validations; null: only at the end."
    )
    batch_size: Count = filled_in("Samples of a validation batch; training.batch_size.")


class Checkpoint(Section):
    """`checkpoint`: what is saved, and when."""

    every_batches: Count | None = Field(
        default=None, description="Batches between two checkpoints; null: by time only."
    )
    every_s: Positive = Field(default=300.0, description="Seconds between two checkpoints.")
    keep: Annotated[int, Field(ge=2)] = Field(default=2, description="Newest checkpoints that stay.")
    keep_best: Annotated[int, Field(ge=0)] = Field(default=1, description="Best checkpoints that stay.")
    dir: FilePath | None = Field(default=None, description="Where checkpoints go; null: the output folder.")
    record: bool = Field(default=False, description="Whether the samples are recorded for a replay.")
    allow_pickle: bool = Field(default=False, description="Whether a user's state may be any Python object.")
