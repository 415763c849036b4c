"""The whole of study.json as one immutable object."""

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from stream_server.config.filling import filled
from stream_server.config.learning import Buffer, Checkpoint, Training, Validation
from stream_server.config.machine import Client, Launcher, Network, Server
from stream_server.config.parameters import Parameters
from stream_server.config.samples import Study
from stream_server.config.section import Section, filled_in
from stream_server.config.simulation import Simulation
from stream_server.config.values import FilePath


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
