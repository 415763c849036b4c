"""Settings that exclude each other, and settings that would be ignored."""

from collections.abc import Callable, Iterator
from functools import partial

from stream_server.config.defaults import default_of, value_of
from stream_server.config.models import StudyConfig
from stream_server.config.problems import Problem, shown

KEYS_OF_STARTED_SIMULATIONS = (
    "simulation.ranks",
    "simulation.templates",
    "simulation.retries",
    "simulation.per_job",
    "simulation.keep_folders",
    "simulation.job",
    "launcher.max_running",
)


def _parameters_have_one_source(config: StudyConfig) -> Iterator[Problem]:
    bounds, file = config.parameters.bounds, config.parameters.file
    if bounds is None and file is None:
        yield Problem(
            path="parameters",
            found="neither bounds nor file is given",
            instead='Write "bounds": {"initial": [100, 500]} or "file": "design.csv"',
        )
    if bounds is not None and file is not None:
        yield Problem(path="parameters", found="both bounds and file are given", instead="Remove one of the two")


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


def _routing_fits_the_policy(config: StudyConfig) -> Iterator[Problem]:
    if config.buffer.routing == "simulations" and config.buffer.policy != "reservoir":
        yield Problem(
            path="buffer.routing",
            found=f'"simulations" is for the reservoir; ranks of a {config.buffer.policy} could run out of samples',
            instead='Write "steps", or write "policy": "reservoir"',
        )


def _max_failed_is_used(config: StudyConfig) -> Iterator[Problem]:
    if config.simulation.on_failure == "stop" and config.simulation.max_failed != default_of("simulation.max_failed"):
        yield Problem(
            path="simulation.max_failed",
            found='it would be ignored, for with "on_failure": "stop" the first failure ends the study',
            instead="Leave it out",
        )


def _somebody_can_send(config: StudyConfig) -> Iterator[Problem]:
    if config.simulation.command is None and config.client.max_attached == 0:
        yield Problem(
            path="client.max_attached",
            found="0, and there is no simulation.command: nobody could send anything",
            instead="Write simulation.command, or 1 or more here",
        )


def _needs_command(path: str, config: StudyConfig) -> Iterator[Problem]:
    if config.simulation.command is None and value_of(config, path) != default_of(path):
        yield Problem(
            path=path,
            found="it would be ignored, for without simulation.command no simulation is started",
            instead="Leave it out, or write simulation.command",
        )


def _output_is_below_the_study(config: StudyConfig) -> Iterator[Problem]:
    if config.study_dir.is_relative_to(config.study.output_dir):
        yield Problem(
            path="study.output_dir",
            found=f"{config.study.output_dir} holds the study's own folder, which --fresh would rename",
            instead=f"Write a folder for results only, such as {shown('runs/' + config.study.name)}",
        )


def _ports_are_a_range(config: StudyConfig) -> Iterator[Problem]:
    low, high = config.network.ports or (1, 1)
    if low > high:
        yield Problem(
            path="network.ports", found=f"low ({low}) is above high ({high})", instead=f"Write [{high}, {low}]"
        )


USAGE_CHECKS: tuple[Callable[[StudyConfig], Iterator[Problem]], ...] = (
    _parameters_have_one_source,
    _sampler_is_used,
    _watermark_is_used,
    _pseudo_epochs_are_used,
    _draws_per_sample_is_used,
    _routing_fits_the_policy,
    _max_failed_is_used,
    _somebody_can_send,
    _output_is_below_the_study,
    _ports_are_a_range,
    *(partial(_needs_command, path) for path in KEYS_OF_STARTED_SIMULATIONS),
)
