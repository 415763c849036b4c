"""Rules for the processes of a study: jobs, workers, what schedulers are asked for, ports."""

from collections.abc import Iterator

from stream_server.config.placeholders import EXPECTED_LR_STEPS, PLACEHOLDER
from stream_server.config.problems import Problem, shown
from stream_server.config.study import StudyConfig

OF_JOBS = (
    *("simulation.job.nodes", "simulation.job.walltime", "simulation.job.partition", "simulation.job.account"),
    *("simulation.job.setup", "launcher.max_queued"),
)

OF_SCHEDULERS = ("simulation.job.options", "simulation.job.gpus_per_rank", "simulation.job.memory", *OF_JOBS)

OF_SERVER_JOBS = (
    *("server.job.cores_per_rank", "server.job.gpus_per_rank", "server.job.memory", "server.job.nodes"),
    *("server.job.walltime", "server.job.partition", "server.job.account", "server.job.setup", "server.job.options"),
    "server.job.mpirun",
)


def _jobs_and_workers_have_room(config: StudyConfig) -> Iterator[Problem]:
    simulation, max_running, per_job = config.simulation, config.launcher.max_running, config.simulation.per_job
    if max_running < per_job:
        yield Problem(
            "launcher.max_running",
            f"{max_running}, fewer than the {per_job} of simulation.per_job, which run at the same time",
            f"Write {per_job} or more; a multiple of {per_job} leaves no room unused",
        )
    if config.buffer.routing == "simulations" and config.window is None and per_job > 1:
        yield Problem(
            "simulation.per_job",
            f'{per_job} with the routing "simulations" could wait for ever: a simulation that is done keeps its '
            "place as long as the others of its job run, and these wait for a rank that has none",
            'Leave it out, or write "steps" in buffer.routing',
        )
    if simulation.per_worker == 1:
        return
    key, text = "simulation.per_worker", shown(simulation.per_worker)
    if simulation.templates:
        yield Problem(
            key, f"{text}, but simulation.templates are filled in for one simulation", "Leave one of them out"
        )
    if per_job > 1:
        yield Problem(key, f"{text}, beside simulation.per_job = {per_job}", "Leave one of them out")
    yield from workers_on_ranks(config, config.server.ranks.min)


def workers_on_ranks(config: StudyConfig, num_ranks: int) -> Iterator[Problem]:
    """The problem of workers whose lists have simulations of several ranks."""
    is_by_choice = config.buffer.routing == "simulations" and config.window is None
    if is_by_choice and config.simulation.per_worker != 1 and num_ranks > 1:
        yield Problem(
            "simulation.per_worker",
            f'{shown(config.simulation.per_worker)} with the routing "simulations" on {num_ranks} ranks could wait for '
            "ever: while a full rank holds a worker back, another rank waits for a simulation that the worker has yet "
            "to come to",
            'Train on 1 rank, leave it out, or write "steps" in buffer.routing',
        )


def _ports_are_a_range(config: StudyConfig) -> Iterator[Problem]:
    low, high = config.network.ports or (1, 1)
    if low > high:
        yield Problem("network.ports", f"low ({low}) is above high ({high})", f"Write [{high}, {low}]")


def _placeholders_of_the_scheduler_are_known(config: StudyConfig) -> Iterator[Problem]:
    scheduler = config.training.lr_scheduler
    for name, value in ({} if scheduler is None else scheduler.args).items():
        path = f"training.lr_scheduler.args.{name}"
        if not isinstance(value, str) or not PLACEHOLDER.fullmatch(value):
            continue
        if value != EXPECTED_LR_STEPS:
            yield Problem(path, f"{shown(value)} is not known", f"Write {shown(EXPECTED_LR_STEPS)}")
        elif config.study.time_steps is None or (
            config.training.lr_clock == "updates"
            and not (config.buffer.has_known_draws or config.training.draws_per_sample)
        ):
            found = f"{value} is not known in advance"
            yield Problem(path, found, "Write a number, study.time_steps or training.draws_per_sample")


def _a_job_has_a_number_of_ranks(config: StudyConfig) -> Iterator[Problem]:
    ranks, backend = config.server.ranks, config.server.backend
    if backend != "local" and ranks.min != ranks.max:
        yield Problem(
            "server.ranks",
            f"{ranks}, but a job is submitted for one number of ranks (server.backend is {shown(backend)})",
            f"Write {ranks.max}. When the study is started again, another number may stand here",
        )


JOB_CHECKS = (
    _jobs_and_workers_have_room,
    _ports_are_a_range,
    _placeholders_of_the_scheduler_are_known,
    _a_job_has_a_number_of_ranks,
)
