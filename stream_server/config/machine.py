"""The sections that say where and how the processes run and talk: server, launcher, client, network."""

from typing import Annotated, Literal

from pydantic import Field

from stream_server.config.job import Job
from stream_server.config.section import Section
from stream_server.config.values import Bytes, ClassReference, Count, Positive

Port = Annotated[int, Field(ge=1, le=65535)]


class Server(Section):
    """`server`: the user's class and the job it runs in."""

    class_: ClassReference = Field(
        alias="class",
        description="The class that trains: FILE.py:Class or package.module:Class.",
        examples=["server.py:HeatServer"],
    )
    ranks: Count = Field(default=1, description="MPI ranks when stream-launcher starts the server.")
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
