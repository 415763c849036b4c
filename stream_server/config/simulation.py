"""The section `simulation`: how one simulation is run, and what happens when it fails."""

from typing import Annotated, Literal

from pydantic import Field

from stream_server.config.job import Job
from stream_server.config.section import Section
from stream_server.config.values import Command, Count, Paths, Positive


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
