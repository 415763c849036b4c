"""The whole of study.json: as one immutable object, as keys found by their path, and as a JSON schema."""

from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field, model_validator

from stream_server.config.defaults import filled
from stream_server.config.sections import (
    Buffer,
    Checkpoint,
    Client,
    Launcher,
    Load,
    Network,
    Normalization,
    Parameters,
    Server,
    Simulation,
    Study,
    Training,
    Validation,
)
from stream_server.config.values import FilePath, Section, filled_in

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class StudyConfig(Section):
    """A study, with every default resolved and every path absolute.

    Attributes are the keys of study.json (`config.buffer.capacity`), but for `config.server.class_`.
    """

    study_dir: FilePath = filled_in("Folder that relative paths start from; that of study.json.")
    study: Study = Field(description="The ensemble and the samples it produces.")
    parameters: Parameters = Field(
        description="What differs from one simulation to the next.", examples=[{"bounds": {"initial": [100, 500]}}]
    )
    simulation: Simulation = Field(default_factory=Simulation, description="How one simulation is run.")
    server: Server = Field(description="The class that trains.", examples=[{"class": "server.py:HeatServer"}])
    launcher: Launcher = Field(default_factory=Launcher, description="How many simulations run, and on what.")
    client: Client = Field(default_factory=Client, description="How simulations talk to the server.")
    buffer: Buffer = Field(description="Where samples wait.", examples=[{"capacity": 2500}])
    training: Training = Field(description="Batches and steps.", examples=[{"batch_size": 10}])
    validation: Validation = Field(default_factory=Validation, description="Simulations held out.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="What is saved, and when.")
    load: Load | None = Field(default=None, description="What a fresh study starts from; null: from nothing.")
    normalization: Normalization = Field(
        default_factory=Normalization, description="Running statistics of the samples."
    )
    network: Network = Field(default_factory=Network, description="Sockets.")
    user: dict[str, Any] = Field(default_factory=dict, description="Anything; the server class reads config.user.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, raw: Any) -> Any:
        return filled(raw) if isinstance(raw, dict) else raw

    @property
    def output_dir(self) -> Path:
        """Where results go: `study.output_dir`, absolute."""
        return self.study.output_dir

    @property
    def max_simulations_at_once(self) -> int:
        """How many simulations can be connected at the same time: started ones and attached ones."""
        started = self.launcher.max_running if self.simulation.command is not None else 0
        return started + self.client.max_attached

    def resolved(self) -> dict[str, Any]:
        """The study as plain JSON; a file with this content loads to an equal object from any folder."""
        return self.model_dump(mode="json", by_alias=True)


def value_of(config: StudyConfig, path: str) -> Any:
    """The value at `path`, such as "launcher.max_running"."""
    node: Any = config
    for key in path.split("."):
        node = getattr(node, key)
    return node


def default_of(path: str) -> Any:
    """The default of the key at `path`."""
    *parents, key = path.split(".")
    model: type[BaseModel] = StudyConfig
    for parent in parents:
        inner = model_in(model.model_fields[parent].annotation)
        assert inner is not None
        model = inner
    return model.model_fields[key].get_default(call_default_factory=True)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of an annotation such as `Job`, `EarlyStop | None` or `dict[str, SampleField] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (model_in(argument) for argument in get_args(annotation))
    return next((model for model in inner if model is not None), None)


def json_schema() -> dict[str, Any]:
    """What `stream-server --schema` prints and configs/study.schema.json holds."""
    schema = _tidied(StudyConfig.model_json_schema(by_alias=True))
    schema["properties"] = {
        "$schema": {"type": "string", "description": "Path of this schema, for editors."},
        **schema["properties"],
    }
    return {"$schema": DIALECT, "title": "study.json of Stream Server", **schema}


def _tidied(node: Any) -> Any:
    """Without generated titles, and without a default of null where null is no value.

    A default that follows from other keys stands as None in the models, and in the key's description.
    """
    if isinstance(node, list):
        return [_tidied(item) for item in node]
    if not isinstance(node, dict):
        return node
    allows_null = {"type": "null"} in node.get("anyOf", [])
    return {
        key: _tidied(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and value is None and not allows_null)
    }
