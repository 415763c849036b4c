"""What `stream-server --check` prints: what a study would do and take, without starting anything."""

import resource

from stream_server.config import StudyConfig
from stream_server.launcher.descriptors import OWN
from stream_server.launcher.mpirun import shown
from stream_server.server.cores import expected_cores
from stream_server.server.memory_need import MemoryNeed, free_on_node, limit_of_node
from stream_server.server.plan import Plan, make_plan
from stream_server.server.stream_server import NUMPY_DTYPES
from stream_server.server.user_class import load_server_class


def describe(config: StudyConfig) -> str:
    """Totals, sizes per server rank, the command line of the simulations, and connections against the limit.

    Raises:
        ConfigError: the server class cannot train in this precision here.
    """
    # Every class on every machine knows the others: to ask it, its file is imported, and torch with it.
    if config.training.precision not in NUMPY_DTYPES:
        load_server_class(config).check_precision(config.training.precision)
    plan = make_plan(config)
    return "\n".join(f"{name:<14}{text}" for name, text in _lines(config, plan))


def _lines(config: StudyConfig, plan: Plan) -> list[tuple[str, str]]:
    num_simulations = config.study.simulations + config.validation.simulations
    steps = config.study.time_steps
    size = plan.sample_bytes
    samples = "unknown number of" if steps is None else f"{num_simulations * steps.num:,}"
    total = "" if steps is None else f", {_bytes(num_simulations * steps.num * size)} in all"
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    fits = limit == resource.RLIM_INFINITY or plan.connections + OWN <= limit
    cores = expected_cores(config)
    verdict = "fits" if fits else "does NOT fit: raise it with `ulimit -n`"
    return [
        ("study", f"{config.study.name} -> {config.output_dir}"),
        ("simulations", f"{config.study.simulations} for training, {config.validation.simulations} for validation"),
        ("samples", f"{samples} samples of {_bytes(size)}{total}"),
        ("command", shown(config)),
        ("at once", f"{plan.max_clients} simulations at most"),
        ("server class", config.server.class_),
        (
            "buffer",
            f"{config.buffer.policy}: {plan.capacity:,} samples per rank, watermark {plan.watermark:,}; with what is "
            f"under way {plan.num_slots:,} slots, {_bytes(plan.buffer_bytes)} per rank",
        ),
        ("memory", f"{MemoryNeed.of(config, plan, config.server.ranks)} per rank; {_node()}"),
        ("credit", f"{plan.credit} steps of a simulation under way to each rank"),
        ("batch size", f"{config.training.batch_size} per rank"),
        ("cores", "; ".join(filter(None, (str(cores), cores.warning)))),
        ("connections", f"{plan.connections} per rank; ulimit -Hn is {limit}: {verdict}"),
    ]


def _node() -> str:
    limit, free = limit_of_node(), free_on_node()
    if limit is None or free is None:
        return "what this node has is not known"
    return f"this node has {_bytes(limit.num_bytes)} ({limit.source}), of which {_bytes(free.num_bytes)} are free now"


def _bytes(num: int) -> str:
    size = float(num)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
