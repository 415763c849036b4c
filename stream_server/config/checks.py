"""What must hold between the keys of a study: no contradiction, room in the buffer, enough for every rank."""

from collections.abc import Callable, Iterator

from stream_server.config.files import FILE_CHECKS
from stream_server.config.placeholders import COMMAND_CHECKS
from stream_server.config.problems import Problem, config_error, counted, shown
from stream_server.config.study import StudyConfig
from stream_server.config.training_checks import TRAINING_CHECKS
from stream_server.config.usage import USAGE_CHECKS

Check = Callable[[StudyConfig], Iterator[Problem]]


def find_problems(config: StudyConfig, *, is_draft: bool = False) -> Iterator[Problem]:
    """Run every check; one that needs a part which a draft does not have is left out."""
    for check in CHECKS:
        try:
            yield from check(config)
        except AttributeError:
            if not is_draft:
                raise


def check_ranks(config: StudyConfig, num_ranks: int) -> None:
    """Check that the study can run on `num_ranks` server ranks.

    Raises:
        ConfigError: a rank could never reach its watermark, or some rank would have no simulation to hear from.
    """
    problems = [*_watermark_problems(config, num_ranks), *_routing_problems(config, num_ranks)]
    if problems:
        raise config_error(f"the study on {counted(num_ranks, 'rank')}", problems)


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


def _somebody_can_send(config: StudyConfig) -> Iterator[Problem]:
    if config.simulation.command is None and config.client.max_attached == 0:
        yield Problem(
            path="client.max_attached",
            found="0, and there is no simulation.command: nobody could send anything",
            instead="Write simulation.command, or 1 or more here",
        )


def _a_job_has_room(config: StudyConfig) -> Iterator[Problem]:
    max_running, per_job = config.launcher.max_running, config.simulation.per_job
    if max_running < per_job:
        yield Problem(
            path="launcher.max_running",
            found=f"{max_running}, fewer than the {per_job} of simulation.per_job, which run at the same time",
            instead=f"Write {per_job} or more; a multiple of {per_job} leaves no room unused",
        )


def _a_place_is_free_when_a_simulation_ends(config: StudyConfig) -> Iterator[Problem]:
    per_job = config.simulation.per_job
    if config.buffer.routing == "simulations" and per_job > 1:
        yield Problem(
            path="simulation.per_job",
            found=f'{per_job} with the routing "simulations" could wait for ever: a simulation that is done keeps its '
            "place as long as the others of its job run, and these wait for a rank that has none",
            instead='Leave it out, or write "steps" in buffer.routing',
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


def _routing_fits_the_policy(config: StudyConfig) -> Iterator[Problem]:
    if config.buffer.routing == "simulations" and config.buffer.policy != "reservoir":
        yield Problem(
            path="buffer.routing",
            found=f'"simulations" is for the reservoir; ranks of a {config.buffer.policy} could run out of samples',
            instead='Write "steps", or write "policy": "reservoir"',
        )


def _capacity_covers_the_watermark(config: StudyConfig) -> Iterator[Problem]:
    if config.buffer.policy != "fifo":
        yield from _too_small(
            config, "buffer.watermark", config.buffer.watermark, "ranks could wait for each other for ever"
        )


def _capacity_covers_a_batch(config: StudyConfig) -> Iterator[Problem]:
    yield from _too_small(config, "training.batch_size", config.training.batch_size, "a batch might never be complete")


def _too_small(config: StudyConfig, key: str, num_waiting: int, consequence: str) -> Iterator[Problem]:
    at_once = [str(num_waiting), str(config.client.max_attached)]
    keys = [key, "client.max_attached"]
    if config.simulation.command is not None:
        at_once.insert(1, str(config.launcher.max_running))
        keys.insert(1, "launcher.max_running")
    capacity = config.buffer.capacity
    needed = num_waiting + config.max_simulations_at_once
    if capacity < needed:
        yield Problem(
            path="buffer.capacity",
            found=f"must be at least {' + '.join(keys)} ({' + '.join(at_once)}), but is {capacity}: {consequence}",
            instead=f"Write {needed} or more, or make one of the others smaller",
        )


def _watermark_is_reachable(config: StudyConfig) -> Iterator[Problem]:
    yield from _watermark_problems(config, num_ranks=1)


def _watermark_problems(config: StudyConfig, num_ranks: int) -> Iterator[Problem]:
    """The watermark of a rank that receives fewer samples than that in all."""
    steps = config.study.time_steps
    if steps is None or config.buffer.policy == "fifo":
        return
    num_samples = config.study.simulations * steps.num
    if config.buffer.routing == "simulations":
        per_rank = config.study.simulations // num_ranks * steps.num
    else:
        per_rank = num_samples // num_ranks
    if per_rank < config.buffer.watermark:
        ranks = f" on {num_ranks} ranks" if num_ranks > 1 else ""
        instead = f"Write {per_rank} or less" if per_rank else "Run more simulations or fewer ranks"
        yield Problem(
            path="buffer.watermark",
            found=f"{config.buffer.watermark} samples can never wait: the study sends {per_rank} to a rank in all"
            f" ({counted(config.study.simulations, 'simulation')} of {counted(steps.num, 'time step')}{ranks})",
            instead=f"{instead}; training starts at the watermark",
        )


def _routing_problems(config: StudyConfig, num_ranks: int) -> Iterator[Problem]:
    at_once = config.max_simulations_at_once
    if config.buffer.routing == "simulations" and at_once < num_ranks:
        yield Problem(
            path="buffer.routing",
            found=f'"simulations" needs {num_ranks} simulations at once, one for each rank, but at most {at_once} run',
            instead=f'Write "steps", or raise launcher.max_running to {num_ranks}',
        )


CHECKS: tuple[Check, ...] = (
    _parameters_have_one_source,
    _somebody_can_send,
    _a_job_has_room,
    _a_place_is_free_when_a_simulation_ends,
    _output_is_below_the_study,
    _ports_are_a_range,
    *USAGE_CHECKS,
    *TRAINING_CHECKS,
    *COMMAND_CHECKS,
    *FILE_CHECKS,
    _routing_fits_the_policy,
    _capacity_covers_the_watermark,
    _capacity_covers_a_batch,
    _watermark_is_reachable,
)
