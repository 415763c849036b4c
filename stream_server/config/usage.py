"""Settings that would be ignored: by the others of the study, or because this version lacks the feature."""

from collections.abc import Callable, Iterator
from functools import partial

from pydantic import BaseModel

from stream_server.config.problems import Problem, shown
from stream_server.config.sections import Job
from stream_server.config.study import StudyConfig, default_of, value_of

KEYS_OF_STARTED_SIMULATIONS = (
    "simulation.ranks",
    "simulation.templates",
    "simulation.retries",
    "simulation.per_job",
    "simulation.keep_folders",
    "simulation.job",
    "launcher.max_running",
)
NOT_AVAILABLE = (
    *(f"server.job.{key}" for key in Job.model_fields if key != "environment"),
    *(f"simulation.job.{key}" for key in Job.model_fields if key not in ("cores_per_rank", "environment", "mpirun")),
    "launcher.scheduler",
)


def _sampler_is_used(config: StudyConfig) -> Iterator[Problem]:
    if config.parameters.file is not None and config.parameters.sampler != "uniform":
        yield Problem(
            path="parameters.sampler",
            found=f"{shown(config.parameters.sampler)} would be ignored, for the parameters come from a file",
            instead="Leave it out",
        )


def _watermark_is_used(config: StudyConfig) -> Iterator[Problem]:
    if config.buffer.policy == "fifo" and config.buffer.watermark != 1:
        yield Problem(
            path="buffer.watermark",
            found=f"{config.buffer.watermark} would be ignored, for fifo hands out every sample as it comes",
            instead='Leave it out, or write "policy": "firo" or "reservoir"',
        )


def _pseudo_epochs_are_used(config: StudyConfig) -> Iterator[Problem]:
    if config.buffer.pseudo_epochs != 1 and config.buffer.policy != "firo":
        yield Problem(
            path="buffer.pseudo_epochs",
            found=f"{config.buffer.pseudo_epochs} would be ignored by {config.buffer.policy}",
            instead='Leave it out, or write "policy": "firo"',
        )


def _draws_per_sample_is_used(config: StudyConfig) -> Iterator[Problem]:
    ratio = config.training.draws_per_sample
    if ratio is not None and config.buffer.policy != "reservoir":
        yield Problem(
            path="training.draws_per_sample",
            found=f"{ratio:g} would be ignored by {config.buffer.policy}",
            instead='Leave it out, or write "policy": "reservoir"',
        )


def _waiting_time_is_used(config: StudyConfig) -> Iterator[Problem]:
    client = config.client
    if client.if_server_away != "wait" and client.wait_s != default_of("client.wait_s"):
        yield Problem(
            path="client.wait_s",
            found=f'it would be ignored, for with "if_server_away": {shown(client.if_server_away)} nobody waits',
            instead='Leave it out, or write "if_server_away": "wait"',
        )


def _max_failed_is_used(config: StudyConfig) -> Iterator[Problem]:
    if config.simulation.on_failure == "stop" and config.simulation.max_failed != default_of("simulation.max_failed"):
        yield Problem(
            path="simulation.max_failed",
            found='it would be ignored, for with "on_failure": "stop" the first failure ends the study',
            instead="Leave it out",
        )


def _mpirun_is_used(config: StudyConfig) -> Iterator[Problem]:
    if config.simulation.job.mpirun is not None and not config.simulation.uses_mpirun:
        yield Problem(
            path="simulation.job.mpirun",
            found="it would be ignored, for each simulation is one process of its own",
            instead="Leave it out, or write simulation.ranks or simulation.per_job",
        )


def _needs_command(path: str, config: StudyConfig) -> Iterator[Problem]:
    if config.simulation.command is None and value_of(config, path) != default_of(path):
        yield Problem(
            path=path,
            found="it would be ignored, for without simulation.command no simulation is started",
            instead="Leave it out, or write simulation.command",
        )


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


USAGE_CHECKS: tuple[Callable[[StudyConfig], Iterator[Problem]], ...] = (
    _sampler_is_used,
    _watermark_is_used,
    _pseudo_epochs_are_used,
    _draws_per_sample_is_used,
    _waiting_time_is_used,
    _max_failed_is_used,
    _mpirun_is_used,
    *(partial(_needs_command, path) for path in KEYS_OF_STARTED_SIMULATIONS),
    *(partial(_has_its_default, path) for path in NOT_AVAILABLE),
)
