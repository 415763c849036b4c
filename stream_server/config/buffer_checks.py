"""Whether the buffer can hold what must wait in it, and whether its gate can open."""

from collections.abc import Iterator

from stream_server.config.models import StudyConfig
from stream_server.config.problems import Problem
from stream_server.config.rank_checks import watermark_problems


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
    yield from watermark_problems(config, num_ranks=1)


BUFFER_CHECKS = (_capacity_covers_the_watermark, _capacity_covers_a_batch, _watermark_is_reachable)
