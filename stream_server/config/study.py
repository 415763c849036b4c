"""The whole study.json: as one immutable object, as keys looked up by their path, and as a JSON schema."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import (
    BaseModel,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic.json_schema import GenerateJsonSchema

from stream_server.config.job_sections import Client, Launcher, Network, Server, SimulationSettings
from stream_server.config.samples import SampleSettings, WindowSettings
from stream_server.config.sections import BufferSettings, Offline, Parameters, StudySettings
from stream_server.config.training_sections import (
    Checkpoint,
    Load,
    MetricsSettings,
    NormalizationSettings,
    TrainingSettings,
    ValidationSettings,
)
from stream_server.config.values import FilePath, Section, paths_relative_to, size_in_bytes, study_dir

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class StudyConfig(Section):
    """A study, with every default resolved and every path absolute.

    Attributes are the keys of study.json (`config.buffer.capacity`), but for `config.server.class_`.
    """

    study_dir: FilePath = Field(
        default_factory=study_dir,
        description="Where relative paths start; written into the resolved study.json. Default: folder of study.json.",
    )
    study: StudySettings = Field(
        description="The ensemble and the samples it produces.",
        examples=[{"simulations": 100, "fields": {"temperature": [100, 100]}}],
    )
    samples: SampleSettings | None = Field(
        default=None,
        description='How samples are made of time steps: `{"window": {"length": 5}}`; `null`: each time step is a '
        "sample.",
    )
    parameters: Parameters = Field(
        description="The parameters that differ between simulations.", examples=[{"bounds": {"initial": [100, 500]}}]
    )
    simulation: SimulationSettings = Field(default_factory=SimulationSettings, description="How one simulation is run.")
    server: Server = Field(description="The class that trains.", examples=[{"class": "server.py:HeatServer"}])
    launcher: Launcher = Field(default_factory=Launcher, description="How many simulations run.")
    client: Client = Field(default_factory=Client, description="How simulations talk to the server.")
    buffer: BufferSettings = Field(description="The sample buffer.", examples=[{"capacity": 2500}])
    training: TrainingSettings = Field(description="Batches and steps.", examples=[{"batch_size": 10}])
    validation: ValidationSettings = Field(
        default_factory=dict,
        validate_default=True,
        description="Simulations held out.",
    )
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="The checkpoints: contents and schedule.")
    offline: Offline = Field(default_factory=Offline, description="Files of samples, written or trained from.")
    metrics: MetricsSettings = Field(default_factory=MetricsSettings, description="The writers of metrics.")
    load: Load = Field(
        default_factory=Load,
        description="The trained state that a fresh study starts from; a continued one ignores all but "
        "`hyperparameters`.",
    )
    normalization: NormalizationSettings = Field(
        default_factory=NormalizationSettings, description="Running statistics of the samples."
    )
    network: Network = Field(default_factory=Network, description="Sockets.")
    user: dict[str, Any] = Field(
        default_factory=dict, description='Anything: the server class reads it as `self.config.user["lr"]`.'
    )

    @model_validator(mode="wrap")
    @classmethod
    def _resolve_paths(cls, raw: Any, handler: ModelWrapValidatorHandler["StudyConfig"]) -> "StudyConfig":
        folder = raw.get("study_dir") if isinstance(raw, dict) else None
        with paths_relative_to(Path(folder) if isinstance(folder, str | Path) else study_dir()):
            return handler(raw)

    @field_validator("load", mode="before")
    @classmethod
    def _fill_in_load(cls, raw: Any) -> Any:
        return {} if raw is None else raw

    @field_validator("buffer", mode="before")
    @classmethod
    def _fill_in_buffer(cls, raw: Any, info: ValidationInfo) -> Any:
        """Windows are made of whole simulations; a capacity in bytes becomes a number of samples."""
        study, samples = info.data.get("study"), info.data.get("samples")
        if not isinstance(raw, dict):
            return raw
        if samples is not None:
            raw = {"routing": "simulations", **raw}
        capacity = raw.get("capacity")
        if study is None or not isinstance(capacity, str):
            return raw
        num_steps = 1 if samples is None else samples.window.length
        num = (size_in_bytes(capacity) or 0) // (
            num_steps * sum(field.num_bytes for field in study.step_fields.values())
        )
        return {**raw, "capacity": num or capacity}

    @field_validator("training", mode="before")
    @classmethod
    def _choose_lr_clock(cls, raw: Any, info: ValidationInfo) -> Any:
        """Schedules follow the updates if the number of updates is known in advance."""
        study, buffer = info.data.get("study"), info.data.get("buffer")
        if not isinstance(raw, dict) or study is None or buffer is None:
            return raw
        is_bounded = buffer.has_known_draws or raw.get("draws_per_sample") is not None
        return {"lr_clock": "updates" if study.time_steps is not None and is_bounded else "samples", **raw}

    @field_validator("validation", mode="before")
    @classmethod
    def _fill_in_validation(cls, raw: Any, info: ValidationInfo) -> Any:
        study, samples, training = (info.data.get(section) for section in ("study", "samples", "training"))
        if not isinstance(raw, dict):
            return raw
        if training is not None:
            raw = {"batch_size": training.batch_size, **raw}
        if study is not None and isinstance(rollout := raw.get("rollout"), dict):
            # Without windows another rule refuses the section.
            input_steps = 1 if samples is None else samples.window.length - 1
            filled_in = {"fields": tuple(study.step_fields), "input_steps": input_steps}
            raw = {**raw, "rollout": {**filled_in, **rollout}}
        return raw

    @property
    def output_dir(self) -> Path:
        """The folder for results: `study.output_dir`, absolute."""
        return self.study.output_dir

    @property
    def max_simulations_at_once(self) -> int:
        """Most simulations that can be connected at the same time: started ones and attached ones."""
        started = self.launcher.max_running if self.simulation.command is not None else 0
        return started + self.client.max_attached

    @property
    def window(self) -> WindowSettings | None:
        """The steps of a sample; None where each time step is one."""
        return None if self.samples is None else self.samples.window

    @property
    def samples_per_simulation(self) -> int | None:
        """Number of samples of a simulation that sends all its time steps; None if their number is not known."""
        steps = self.study.time_steps
        return None if steps is None else self.num_samples_of(steps.num)

    def num_released(self, rounds: int) -> int | None:
        """Number of simulations that may begin once so many rounds have ended; None: all of them."""
        settings = self.study.rounds
        return None if settings is None else self.validation.simulations + settings.simulations * (rounds + 1)

    def num_samples_of(self, num_steps: int) -> int:
        """Number of samples that so many time steps of one simulation make, none of which is missing."""
        return num_steps if self.window is None else self.window.num_in(num_steps)

    def resolved(self) -> dict[str, Any]:
        """The study as plain JSON; a file with this content loads to an equal object from any folder."""
        resolved = self.model_dump(mode="json", by_alias=True)
        if self.study.data_seed == self.study.seed:
            # So that another seed in that file is one of the data, too.
            del resolved["study"]["data_seed"]
        return resolved


def value_of(config: StudyConfig, path: str) -> Any:
    """The value at `path`, such as "launcher.max_running"."""
    node: Any = config
    for key in path.split("."):
        node = getattr(node, key)
    return node


def default_of(path: str) -> Any:
    """The default of the key at `path`."""
    *parents, key = path.split(".")
    field = field_of(model_at(parents), key)
    assert field is not None
    return field.get_default(call_default_factory=True, validated_data={})


def model_at(keys: Sequence[int | str]) -> type[BaseModel]:
    """The model of the section at `keys`, or of the innermost one around it."""
    model: type[BaseModel] = StudyConfig
    for key in keys:
        field = field_of(model, key)
        model = (field and model_in(field.annotation)) or model
    return model


def field_of(model: type[BaseModel], key: int | str) -> FieldInfo | None:
    """The field of a model that study.json calls `key`, None if there is none."""
    return next((field for name, field in model.model_fields.items() if (field.alias or name) == key), None)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of an annotation such as `SimulationSettings` or `EarlyStop | None`, None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for argument in get_args(annotation) if (model := model_in(argument))), None)


class _JsonSchema(GenerateJsonSchema):
    """Without a title for each key."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """The JSON schema that `stream-server --schema` prints; configs/study.schema.json holds it."""
    schema = StudyConfig.model_json_schema(by_alias=True, schema_generator=_JsonSchema)
    schema["properties"] = {
        "$schema": {"type": "string", "description": "Path of this schema, for editors."},
        **schema["properties"],
    }
    return {"$schema": DIALECT, **schema, "title": "study.json of Stream Server"}
