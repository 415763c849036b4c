"""What a job asks of a scheduler; the same keys for the server and for a simulation."""

from typing import Annotated, Any

from pydantic import Field

from stream_server.config.section import Section
from stream_server.config.values import Bytes, Count, Texts, Walltime


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
    mpirun: Texts | None = Field(default=None, description="How an MPI program is started; null finds it.")
