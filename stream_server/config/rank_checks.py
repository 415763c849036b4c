"""What can be checked only once the number of server ranks is known."""

from collections.abc import Iterator

from stream_server.config.models import StudyConfig
from stream_server.config.problems import Problem, config_error


def check_ranks(config: StudyConfig, num_ranks: int) -> None:
    """Check that the study can run on `num_ranks` server ranks.

    Raises:
        ConfigError: a rank could never reach its watermark, or some rank would have no simulation to hear from.
    """
    problems = [*watermark_problems(config, num_ranks), *_routing_problems(config, num_ranks)]
    if problems:
        raise config_error(f"the study on {num_ranks} ranks", problems)


def watermark_problems(config: StudyConfig, num_ranks: int) -> Iterator[Problem]:
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
            f" ({config.study.simulations} simulations of {steps.num} time steps{ranks})",
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
