"""Rules for the processes of a study: jobs, workers, what schedulers are asked for, ports."""

import re
from collections.abc import Iterator

from stream_server.config.job_sections import JobSettings
from stream_server.config.placeholders import EXPECTED_LR_STEPS, PLACEHOLDER
from stream_server.config.problems import Problem, shown
from stream_server.config.study import StudyConfig
from stream_server.wording import counted

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

OPTIONS = {
    "slurm": re.compile(r"[a-z][a-z0-9-]+"),
    "pbs": re.compile(r"[A-Za-z]"),
    "lsf": re.compile(r"[A-Za-z]+"),
    "flux": re.compile(r"[a-z][a-z0-9-]+"),
    "oar": re.compile(r"[a-z][a-z-]+"),
}
"""How the names of the options of a job look, by the scheduler."""

NO_OPTION = {
    "slurm": ("this is no long option of Slurm", 'Write its name without dashes, such as "qos"'),
    "pbs": ("this is no option of qsub", 'Write its letter without a dash, such as "W"'),
    "lsf": ("this is no option of bsub", 'Write its name without a dash, such as "app"'),
    "flux": ("this is no long option of flux submit", 'Write its name without dashes, such as "setattr"'),
    "oar": ("this is no long option of oarsub", 'Write its name without dashes, such as "property"'),
}

OWN_OPTIONS = {
    "slurm": frozenset(
        {
            *("array", "chdir", "clusters", "error", "export", "export-file", "get-user-env", "input", "job-name"),
            *("no-requeue", "open-mode", "output", "overlap", "parsable", "quiet", "requeue", "test-only", "wait"),
            "wrap",
        }
    ),
    "pbs": frozenset("CINJSVXefhjkortvz"),
    "lsf": frozenset(
        {
            *("I", "IS", "ISp", "ISs", "Ip", "Is", "J", "Jd", "K", "L", "cwd", "e", "env", "eo", "i", "is", "o"),
            *("oo", "pack", "r", "rn", "tty"),
        }
    ),
    "flux": frozenset({"cc", "bcc", "cwd", "dry-run", "env", "error", "input", "job-name", "output", "wait", "watch"}),
    "oar": frozenset(
        {
            *("array", "array-param-file", "connect", "directory", "hold", "interactive", "name", "reservation"),
            *("resubmit", "scanscript", "stderr", "stdout"),
        }
    ),
}
"""Options that the launcher itself sets, or with which it could not follow the job any more."""

# Of the job of a simulation; that of the server has the same keys.
INSTEAD = {
    "slurm": {
        "account": "simulation.job.account",
        "cpus-per-task": "simulation.job.cores_per_rank",
        "gpus-per-task": "simulation.job.gpus_per_rank",
        "mem-per-cpu": "simulation.job.memory",
        "nodes": "simulation.job.nodes",
        "ntasks": "simulation.ranks",
        "partition": "simulation.job.partition",
        "time": "simulation.job.walltime",
    },
    "pbs": {"A": "simulation.job.account", "q": "simulation.job.partition"},
    "lsf": {
        "P": "simulation.job.account",
        "W": "simulation.job.walltime",
        "gpu": "simulation.job.gpus_per_rank",
        "n": "simulation.ranks",
        "q": "simulation.job.partition",
    },
    "flux": {
        "bank": "simulation.job.account",
        "cores-per-task": "simulation.job.cores_per_rank",
        "gpus-per-task": "simulation.job.gpus_per_rank",
        "nodes": "simulation.job.nodes",
        "ntasks": "simulation.ranks",
        "queue": "simulation.job.partition",
        "time-limit": "simulation.job.walltime",
    },
    "oar": {
        "project": "simulation.job.account",
        "queue": "simulation.job.partition",
        "resource": "simulation.job.nodes",
    },
}


def _a_job_has_room(config: StudyConfig) -> Iterator[Problem]:
    max_running, per_job = config.launcher.max_running, config.simulation.per_job
    if max_running < per_job:
        yield Problem(
            "launcher.max_running",
            f"{max_running}, fewer than the {per_job} of simulation.per_job, which run at the same time",
            f"Write {per_job} or more; a multiple of {per_job} leaves no room unused",
        )


def _a_place_is_free_when_a_simulation_ends(config: StudyConfig) -> Iterator[Problem]:
    per_job = config.simulation.per_job
    if config.buffer.routing == "simulations" and config.window is None and per_job > 1:
        yield Problem(
            "simulation.per_job",
            f'{per_job} with the routing "simulations" could wait for ever: a simulation that is done keeps its '
            "place as long as the others of its job run, and these wait for a rank that has none",
            'Leave it out, or write "steps" in buffer.routing',
        )


def _a_worker_takes_its_simulations_in_turn(config: StudyConfig) -> Iterator[Problem]:
    simulation, key = config.simulation, "simulation.per_worker"
    if simulation.per_worker == 1:
        return
    text = shown(simulation.per_worker)
    if simulation.templates:
        yield Problem(
            key, f"{text}, but simulation.templates are filled in for one simulation", "Leave one of them out"
        )
    if simulation.per_job > 1:
        yield Problem(key, f"{text}, beside simulation.per_job = {simulation.per_job}", "Leave one of them out")
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
            and config.buffer.policy not in ("fifo", "firo")
            and config.training.draws_per_sample is None
        ):
            found = f"{value} is not known in advance"
            yield Problem(path, found, "Write a number, study.time_steps or training.draws_per_sample")


def _options_are_left_to_the_study(config: StudyConfig) -> Iterator[Problem]:
    backend = config.launcher.backend
    yield from _options_of_job("simulation", config.simulation.job, "slurm" if backend == "slurm-steps" else backend)
    yield from _options_of_job("server", config.server.job, config.server.backend)


def _options_of_job(section: str, job: JobSettings, scheduler: str) -> Iterator[Problem]:
    for name, value in job.options.items() if scheduler in OPTIONS else ():
        path = f"{section}.job.options.{name}"
        if name in INSTEAD[scheduler]:
            key = INSTEAD[scheduler][name].replace("simulation", section)
            yield Problem(path, "there is a key for this", f"Write {key}")
        elif name in OWN_OPTIONS[scheduler]:
            yield Problem(path, "the launcher sets this itself, or could not follow the job any more", "Leave it out")
        elif not OPTIONS[scheduler].fullmatch(name):
            yield Problem(path, *NO_OPTION[scheduler])
        elif not isinstance(value, str | int | float):
            yield Problem(path, f"{shown(value)} is no value of an option", "Write a text, a number or true")


def _a_job_has_a_number_of_ranks(config: StudyConfig) -> Iterator[Problem]:
    ranks, backend = config.server.ranks, config.server.backend
    if backend != "local" and ranks.min != ranks.max:
        yield Problem(
            "server.ranks",
            f"{ranks}, but a job is submitted for one number of ranks (server.backend is {shown(backend)})",
            f"Write {ranks.max}. When the study is started again, another number may stand here",
        )


def _each_node_has_a_rank(config: StudyConfig) -> Iterator[Problem]:
    simulation, server = config.simulation, config.server
    for section, backend, job, ranks in (
        ("simulation", config.launcher.backend, simulation.job, simulation.ranks * simulation.per_job),
        ("server", server.backend, server.job, server.ranks.max),
    ):
        if backend in OPTIONS and (job.nodes or 1) > ranks:
            found = f"{job.nodes}, more than the {counted(ranks, 'rank')} of the job, and each node needs one"
            yield Problem(f"{section}.job.nodes", found, f"Write {ranks} or less, or more in {section}.ranks")


JOB_CHECKS = (
    _each_node_has_a_rank,
    _a_job_has_room,
    _a_place_is_free_when_a_simulation_ends,
    _a_worker_takes_its_simulations_in_turn,
    _ports_are_a_range,
    _placeholders_of_the_scheduler_are_known,
    _options_are_left_to_the_study,
    _a_job_has_a_number_of_ranks,
)
