"""The sections `study`, `parameters`, `buffer` and `offline` of study.json: each key with type, default and meaning."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from stream_server.built_in import POLICIES
from stream_server.config.parameters import Bounds, SamplerSettings, scalars_of
from stream_server.config.problems import wrong
from stream_server.config.samples import MAX_FIELDS, CountOrTimeSteps, SampleField, ShapeOrField
from stream_server.config.values import (
    Capacity,
    Count,
    FilePath,
    Name,
    NameOrClass,
    Natural,
    Section,
    StudyName,
    study_dir,
)

WATERMARK_PART = 5
POLICIES_WITHOUT = {
    "buffer.watermark": ("fifo",),
    "buffer.pseudo_epochs": ("reservoir", "uniform", "fifo"),
    "training.draws_per_sample": ("firo", "fifo"),
}
"""The built-in policies that do not take a setting; those without the last draw each sample a known number of times."""


class RoundSettings(Section):
    """`study.rounds`: an ensemble that is designed in rounds, each trained before the next one begins."""

    simulations: Count = Field(description="Training simulations of a round.", examples=[50])
    number: Count = Field(description="Number of rounds; a sampler may say earlier that it has enough.", examples=[8])


def _rounds_give_the_number(schema: dict[str, Any]) -> None:
    schema["required"].remove("simulations")


class StudySettings(Section):
    """`study`: the ensemble and the samples it produces."""

    model_config = ConfigDict(json_schema_extra=_rounds_give_the_number)

    name: StudyName = Field(
        default_factory=lambda: study_dir().name or "study",
        validate_default=True,
        description="Name of the study; no `/` in it. Default: name of the folder.",
    )
    output_dir: FilePath = Field(
        default_factory=lambda keys: Path("runs", keys.get("name", "study")),
        validate_default=True,
        description="Folder of the results. Default: `runs/<name>`.",
    )
    share_with: str | None = Field(
        default=None,
        min_length=1,
        description="Group of this system's users that may read the folder of the results (docs/guide/security.md); "
        "`null`: nobody else may.",
    )
    simulations: Count = Field(
        description="Number of training simulations; `rounds`, if given, have it already.", examples=[100]
    )
    rounds: RoundSettings | None = Field(
        default=None,
        description='The simulations come in rounds: `{"simulations": 50, "number": 8}` '
        "(docs/guide/steering.md#rounds); `null`: all at once.",
    )
    time_steps: CountOrTimeSteps = Field(
        default=None,
        description='Count n (labels 0 … n−1), `{"first": 0, "last": 990, "every": 10}`, or `null`: not known ahead.',
    )
    seed: Natural = Field(
        default=0, description="Seed of the weights and of noise, and by default of the data (`data_seed`); 0 or more."
    )
    data_seed: Natural = Field(
        default_factory=lambda keys: keys.get("seed", 0),
        description="Seed of the parameters, of `{seed}` of simulations, of what buffers draw, and of the order of "
        "a replay from files. Default: `study.seed`.",
    )
    fields: Annotated[dict[Name, ShapeOrField], Field(min_length=1, max_length=MAX_FIELDS)] = Field(
        description="What one sample holds: name → shape in C order, or an object. Up to 64 fields of up to 8 "
        "dimensions; `[]` is a scalar.",
        examples=[{"temperature": [100, 100]}],
    )
    units: dict[str, str] = Field(
        default_factory=dict,
        description='Units for pictures, by the name of a field, a parameter or what `render` gives: `{"temperature": '
        '"K"}`.',
        examples=[{"temperature": "K"}],
    )

    @model_validator(mode="before")
    @classmethod
    def _count_simulations(cls, raw: Any) -> Any:
        match raw:
            case {"rounds": {"simulations": int(of_round), "number": int(number)}}:
                return {"simulations": of_round * number, **raw}
        return raw

    @model_validator(mode="after")
    def _check_rounds(self) -> Self:
        rounds = self.rounds
        if rounds is not None and self.simulations != rounds.simulations * rounds.number:
            found = f"simulations ({self.simulations}) are not {rounds.number} rounds of {rounds.simulations}"
            raise wrong(found, "Leave simulations out")
        return self

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not self.step_fields:
            raise wrong(
                'all fields are "per": "simulation": a time step would have none',
                "Leave it out for the fields that are sent with each time step",
            )
        return self

    @property
    def step_fields(self) -> dict[str, SampleField]:
        """The fields that are sent with each time step."""
        return {name: field for name, field in self.fields.items() if not field.is_static}

    @property
    def static_fields(self) -> dict[str, SampleField]:
        """The fields that are sent once per simulation."""
        return {name: field for name, field in self.fields.items() if field.is_static}


class Parameters(Section):
    """`parameters`: the inputs that differ between simulations."""

    bounds: dict[Name, Bounds] | None = Field(
        default=None,
        description='Name → range: `[low, high]`, with `"log"` or `"integer"` behind it, names, or a vector.',
    )
    file: FilePath | None = Field(
        default=None,
        description="CSV file: a header of names, then one row per simulation id, the validation simulations first.",
    )
    sampler: SamplerSettings = Field(
        default_factory=lambda: SamplerSettings.model_validate("uniform"),
        description='`"uniform"`, `"lhs"` (Latin hypercube), `"halton"`, `"sobol"`, `"breed"` (where losses are high; '
        'docs/guide/steering.md has further ones), or `"FILE.py:Class"`; short for an object with `class` alone.',
    )

    @property
    def scalars(self) -> dict[str, Bounds]:
        """The range of each single number: a vector of `bounds` has as many as its size says."""
        return scalars_of(self.bounds or {})

    @property
    def whole(self) -> frozenset[str]:
        """The parameters that are whole numbers, such as the indices of categories."""
        return frozenset(name for name, limits in self.scalars.items() if limits.integer)


class BufferSettings(Section):
    """`buffer`: the sample buffer of each server rank."""

    capacity: Capacity = Field(
        description='Samples of a rank, or a size such as `"4GiB"` (fields without `dtype` count 8 bytes per value).',
        examples=[2500],
    )
    routing: Literal["steps", "simulations"] = Field(
        default="steps",
        description='`"steps"`: time steps are dealt to the ranks in turn; `"simulations"`: all steps of a simulation '
        'go to one rank. Default: `"steps"`; with `samples.window` `"simulations"`.',
    )
    policy: Annotated[str, NameOrClass("policy", tuple(POLICIES), "policies")] = Field(
        default="reservoir",
        description='`"reservoir"`: samples are drawn again and again until newer ones need the room, each at least '
        'once; `"uniform"`: likewise, but what is kept is spread evenly over all samples that ever came; `"firo"`: '
        'each sample `pseudo_epochs` times, in random order; `"fifo"`: each sample once, in order; `"FILE.py:Class"`: '
        "a policy of your own (docs/guide/extending.md#a-buffer-policy).",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of a policy of your own.")
    watermark: Count = Field(
        default_factory=lambda keys: (
            1
            if keys.get("policy") in POLICIES_WITHOUT["buffer.watermark"]
            else max(1, keys.get("capacity", 0) // WATERMARK_PART)
        ),
        description="Samples that must wait before training starts; not with fifo. Default: a fifth of `capacity`.",
    )
    pseudo_epochs: Count = Field(
        default=1, description="Draws of each sample; firo, and policies of your own that take it."
    )

    @property
    def has_own_policy(self) -> bool:
        """Whether the policy is a class of the user's."""
        return self.policy not in POLICIES

    @property
    def has_known_draws(self) -> bool:
        """Whether it follows from policy and `pseudo_epochs` how often each sample is drawn."""
        return self.policy in POLICIES_WITHOUT["training.draws_per_sample"]


class Offline(Section):
    """`offline`: the ensemble written to files, and a training from files."""

    write_files: bool = Field(
        default=False, description="Whether the samples are written to HDF5 files, and nothing is trained."
    )
    epochs: Count = Field(default=1, description="Passes over the files of a `--replay`.")
    shuffle: bool = Field(default=True, description="Whether each pass takes the samples in another random order.")
