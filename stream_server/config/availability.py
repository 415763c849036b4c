"""Keys that are known, but whose feature this version does not have."""

from collections.abc import Callable, Iterator
from functools import partial

from pydantic import BaseModel

from stream_server.config.defaults import default_of, value_of
from stream_server.config.job import Job
from stream_server.config.learning import Checkpoint
from stream_server.config.models import StudyConfig
from stream_server.config.problems import Problem, one_of, shown

NOT_AVAILABLE = (
    *(f"checkpoint.{key}" for key in Checkpoint.model_fields),
    *(f"server.job.{key}" for key in Job.model_fields if key != "environment"),
    *(f"simulation.job.{key}" for key in Job.model_fields if key != "environment"),
    "simulation.ranks",
    "simulation.per_job",
    "client.if_server_away",
    "client.wait_s",
    "launcher.scheduler",
    "launcher.restarts",
    "training.early_stop",
    "training.strategy",
    "training.compile",
)
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")


def _has_its_default(path: str, config: StudyConfig) -> Iterator[Problem]:
    value, default = value_of(config, path), default_of(path)
    if value != default:
        plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        yield Problem(
            path=path,
            found=f"{shown(plain)} is not available in this version",
            instead=f"Leave it out; {shown(default)} is what this version does"
            if default not in (None, (), {})
            else "Leave it out",
        )


def _precision_is_available(config: StudyConfig) -> Iterator[Problem]:
    if config.training.precision not in PRECISIONS:
        yield Problem(
            path="training.precision",
            found=f"{shown(config.training.precision)} is not available in this version",
            instead=f"Write {one_of(PRECISIONS)}",
        )


AVAILABILITY_CHECKS: tuple[Callable[[StudyConfig], Iterator[Problem]], ...] = (
    *(partial(_has_its_default, path) for path in NOT_AVAILABLE),
    _precision_is_available,
)
