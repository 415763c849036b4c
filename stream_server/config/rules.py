"""Rules between the keys of a study: no contradiction, room in the buffer, enough samples for every rank."""

import math
from collections.abc import Callable, Iterator
from functools import partial

from stream_server.config.job_rules import JOB_CHECKS, OF_JOBS, OF_SCHEDULERS, OF_SERVER_JOBS, workers_on_ranks
from stream_server.config.parameters import DesignFile, scalars_of
from stream_server.config.placeholders import BUILT_IN, COMMAND_CHECKS
from stream_server.config.problems import Problem, config_error, nearest, one_of, shown
from stream_server.config.sections import POLICIES_WITHOUT
from stream_server.config.study import StudyConfig, default_of, value_of
from stream_server.wording import counted

Check = Callable[[StudyConfig], Iterator[Problem]]

FRACTIONS = (
    "training.log_every_batches",
    "validation.every_batches",
    "validation.at",
    "checkpoint.every_batches",
    "checkpoint.keep_every",
    "checkpoint.keep_at",
)

IGNORED: tuple[tuple[str, Callable[[StudyConfig], bool], str], ...] = (
    ("parameters.sampler", lambda it: it.parameters.file is not None, "the parameters come from a file"),
    *(
        (
            f"parameters.sampler.{key}",
            lambda it: it.parameters.sampler.is_built_in,
            "a built-in sampler does not use it",
        )
        for key in ("args", "lookahead", "timeout_s", "fallback")
    ),
    (
        "parameters.sampler.lookahead",
        lambda it: it.study.rounds is not None,
        "the parameters of a round (study.rounds) are suggested together",
    ),
    ("checkpoint.every_rounds", lambda it: it.study.rounds is None, "there are no study.rounds"),
    *(
        (key, lambda it, without=without: it.buffer.policy in without, f"it is not for {' or '.join(without)}")
        for key, without in POLICIES_WITHOUT.items()
    ),
    ("buffer.args", lambda it: not it.buffer.has_own_policy, "only policies of your own take arguments"),
    ("validation.after_batches", lambda it: not it.validation.is_scheduled, "no validation takes place before the end"),
    ("client.wait_s", lambda it: it.client.if_server_away != "wait", 'client.if_server_away is not "wait"'),
    ("simulation.max_failed", lambda it: it.simulation.on_failure == "stop", "the first failure ends the study"),
    ("simulation.job.mpirun", lambda it: it.launcher.backend == "slurm-steps", "srun starts the ranks of a step"),
    ("simulation.per_job", lambda it: it.launcher.backend == "slurm-steps", "each simulation is a step of its own"),
    *((key, lambda it: it.server.backend == "local", 'server.backend is "local"') for key in OF_SERVER_JOBS),
    *((key, lambda it: it.launcher.backend == "local", 'launcher.backend is "local"') for key in OF_SCHEDULERS),
    *(
        (key, lambda it: it.launcher.backend == "slurm-steps", "steps run within the allocation of the launcher")
        for key in OF_JOBS
    ),
    *(
        (key, lambda it: it.simulation.command is None, "without simulation.command no simulation is started")
        for key in (
            *("simulation.ranks", "simulation.templates", "simulation.retries", "simulation.per_job"),
            *("simulation.per_worker",),
            *("simulation.keep_folders", "simulation.job.cores_per_rank", "simulation.job.environment"),
            *("simulation.job.mpirun", "launcher.max_running", "launcher.backend", *OF_SCHEDULERS),
        )
    ),
)
"""Keys that some studies ignore, when they do, and why."""


def find_problems(config: StudyConfig) -> Iterator[Problem]:
    """Run every check."""
    return (problem for check in CHECKS for problem in check(config))


def check_ranks(config: StudyConfig, num_ranks: int) -> None:
    """Check that the study can run on `num_ranks` server ranks.

    Raises:
        ConfigError: a rank could never reach its watermark, or some rank would have no simulation to hear from.
    """
    problems = [problem for check in CHECKS_OF_RANKS for problem in check(config, num_ranks)]
    if problems:
        raise config_error(f"the study on {counted(num_ranks, 'rank')}", problems)


def _nothing_is_ignored(config: StudyConfig) -> Iterator[Problem]:
    for key, is_ignored, reason in IGNORED:
        value = value_of(config, key)
        if value != default_of(key) and is_ignored(config):
            yield Problem(key, f"{shown(value)} would be ignored, since {reason}", "Leave it out")


def _parameters_have_one_source(config: StudyConfig) -> Iterator[Problem]:
    bounds, file = config.parameters.bounds, config.parameters.file
    if bounds is None and file is None:
        yield Problem(
            "parameters",
            "neither bounds nor file is given",
            'Write "bounds": {"initial": [100, 500]} or "file": "design.csv"',
        )
    if bounds is not None and file is not None:
        yield Problem("parameters", "both bounds and file are given", "Remove one of the two")


def _rounds_go_with_the_rest(config: StudyConfig) -> Iterator[Problem]:
    if config.study.rounds is None:
        return
    one_by_one = "its simulations are released one by one, so that none would share it"
    for key, goes, why in (
        ("simulation.on_failure", ("give_up", "stop"), "a redraw would belong to none"),
        ("simulation.per_job", (1,), one_by_one),
        ("simulation.per_worker", (1,), one_by_one),
        ("training.uneven", ("drain",), "the study would end with the first one"),
        ("training.train_dataloader", (None,), "it may hold samples back, so that none would end"),
        ("offline.write_files", (False,), "nothing is trained, so that none could teach the next one"),
    ):
        if (value := value_of(config, key)) not in goes:
            found = f"{shown(value)} does not go with study.rounds: {why}"
            yield Problem(key, found, f"Write {shown(goes[0])}, or leave study.rounds out")


def _numbers_of_vectors_have_names_of_their_own(config: StudyConfig) -> Iterator[Problem]:
    known: dict[str, str] = {}
    for name, limits in (config.parameters.bounds or {}).items():
        for number in scalars_of({name: limits}):
            if number in known:
                yield Problem(
                    f"parameters.bounds.{name}",
                    f"the name {number} is there twice, of {known[number]} and of {name}",
                    f"Choose another name than {name}",
                )
                break
            known[number] = name


def _design_file_is_sound(config: StudyConfig) -> Iterator[Problem]:
    if config.parameters.file is None:
        return
    path = "parameters.file"
    try:
        design = DesignFile.read(config.parameters.file)
    except ValueError as error:
        yield Problem(path, str(error), "Name a CSV file: a header of names, one row of numbers per simulation")
        return
    for name in sorted(set(design.names) & set(BUILT_IN)):
        yield Problem(path, f"{{{name}}} already stands for something else", "Rename the column")
    training, validation = config.study.simulations, config.validation.simulations
    needed = training + validation
    if len(design.rows) < needed:
        yield Problem(
            path,
            f"it has {counted(len(design.rows), 'row')} for {training} + {validation} simulations",
            "Add rows, or write fewer simulations (study.simulations, validation.simulations)",
        )
    elif len(design.rows) == needed and config.simulation.on_failure == "redraw":
        yield Problem(
            "simulation.on_failure",
            f'"redraw" would have no row to take: {config.parameters.file.name} has {needed}, all in use',
            'Add rows to the file, or write "give_up"',
        )


def _somebody_can_send(config: StudyConfig) -> Iterator[Problem]:
    if config.simulation.command is None and config.client.max_attached == 0:
        yield Problem(
            "client.max_attached",
            "0, and there is no simulation.command: nobody could send anything",
            "Write simulation.command, or 1 or more here",
        )


def _output_is_below_the_study(config: StudyConfig) -> Iterator[Problem]:
    if config.study_dir.is_relative_to(config.study.output_dir):
        yield Problem(
            "study.output_dir",
            f"{config.study.output_dir} holds the study's own folder, which --fresh would rename",
            f"Write a folder for results only, such as {shown('runs/' + config.study.name)}",
        )


def _windows_can_be_made(config: StudyConfig) -> Iterator[Problem]:
    buffer, window, steps = config.buffer, config.window, config.study.time_steps
    if window is None:
        if buffer.routing == "simulations" and buffer.has_known_draws:
            yield Problem(
                "buffer.routing",
                f'"simulations" is for the reservoir; ranks of a {buffer.policy} could run out of samples',
                'Write "steps", or write "policy": "reservoir"',
            )
        return
    if buffer.routing == "steps":
        yield Problem(
            "buffer.routing",
            '"steps" deals the time steps of a simulation to all ranks, but windows are made of those on one rank',
            'Leave it out, or write "simulations"',
        )
    if steps is not None and not window.num_in(steps.num):
        yield Problem(
            "samples.window",
            f"{window.length} steps with a spacing of {window.spacing} reach over {window.span + 1} time steps, but a "
            f"simulation has {steps.num}",
            "Write a smaller length or spacing, or more study.time_steps",
        )
    if config.offline.epochs > 1:
        yield Problem(
            "offline.epochs",
            f"{config.offline.epochs} passes over the files, but windows are made in one",
            "Leave it out, and write training.draws_per_sample or buffer.pseudo_epochs",
        )


def _capacity_has_room(config: StudyConfig) -> Iterator[Problem]:
    has_watermark = config.buffer.policy not in POLICIES_WITHOUT["buffer.watermark"]
    for first, consequence in (
        *([("buffer.watermark", "ranks could wait for each other for ever")] if has_watermark else []),
        ("training.batch_size", "a batch might never be complete"),
    ):
        at_once = [] if config.simulation.command is None else ["launcher.max_running"]
        keys = [first, *at_once, "client.max_attached"]
        nums, capacity = [value_of(config, key) for key in keys], config.buffer.capacity
        if capacity < sum(nums):
            yield Problem(
                "buffer.capacity",
                f"must be at least {' + '.join(keys)} ({' + '.join(map(str, nums))}), but is {capacity}: {consequence}",
                f"Write {sum(nums)} or more, or make one of the others smaller",
            )


def _watermark_problems(config: StudyConfig, num_ranks: int) -> Iterator[Problem]:
    """The watermark of a rank that receives fewer samples than that in all."""
    steps = config.study.time_steps
    if steps is None or config.buffer.policy in POLICIES_WITHOUT["buffer.watermark"]:
        return
    per_simulation = config.num_samples_of(steps.num)
    if config.buffer.routing == "simulations":
        # Where this is none, `_routing_problems` says so.
        per_rank = max(1, config.study.simulations // num_ranks) * per_simulation
    else:
        per_rank = config.study.simulations * per_simulation // num_ranks
    if per_simulation and per_rank < config.buffer.watermark:
        unit = "time step" if config.window is None else "window"
        ranks = f" on {num_ranks} ranks" if num_ranks > 1 else ""
        instead = f"Write {per_rank} or less" if per_rank else "Run more simulations or fewer ranks"
        yield Problem(
            "buffer.watermark",
            f"{config.buffer.watermark} samples can never wait: the study sends {per_rank} to a rank in all"
            f" ({counted(config.study.simulations, 'simulation')} of {counted(per_simulation, unit)}{ranks})",
            f"{instead}; training starts at the watermark",
        )


def _routing_problems(config: StudyConfig, num_ranks: int) -> Iterator[Problem]:
    at_once = config.max_simulations_at_once
    if config.buffer.routing == "simulations" and at_once < num_ranks and config.window is None:
        yield Problem(
            "buffer.routing",
            f'"simulations" needs {num_ranks} simulations at once, one for each rank, but at most {at_once} run',
            f'Write "steps", or raise launcher.max_running to {num_ranks}',
        )
    if config.buffer.routing == "simulations" and config.study.simulations < num_ranks:
        yield Problem(
            "study.simulations",
            f'{config.study.simulations}, fewer than the {num_ranks} ranks, but with the routing "simulations" each '
            "needs one",
            f"Write {num_ranks} or more, or train on fewer ranks",
        )
    yield from workers_on_ranks(config, num_ranks)


def _a_model_has_an_optimizer(config: StudyConfig) -> Iterator[Problem]:
    training = config.training
    named = {"model": training.model, "optimizer": training.optimizer}
    for key, needed in (("model", "optimizer"), ("optimizer", "model"), ("lr_scheduler", "optimizer")):
        if training.components.get(key) is not None and named[needed] is None:
            yield Problem(
                f"training.{key}",
                f"there is no training.{needed}",
                f"Write training.{needed}, or make all of them in the server class",
            )


def _one_kind_of_clipping(config: StudyConfig) -> Iterator[Problem]:
    if config.training.clip_norm is not None and config.training.clip_value is not None:
        yield Problem(
            "training.clip_value", "both training.clip_norm and training.clip_value are given", "Remove one of the two"
        )


def _the_device_has_the_precision(config: StudyConfig) -> Iterator[Problem]:
    precision = config.training.precision
    if config.training.device == "cpu" and precision.startswith("16-"):
        yield Problem(
            "training.precision",
            f'"{precision}" needs a GPU, but training.device is "cpu"',
            f'Write "b{precision.replace("16", "f16")}" or "32-true", or leave training.device out',
        )


def _sharding_goes_with_the_rest(config: StudyConfig) -> Iterator[Problem]:
    training = config.training
    if training.sharding is None:
        return
    if training.compile:
        found = "true, but the units of a sharded model are gathered by hooks, at which the compiler of torch stops"
        yield Problem("training.compile", found, "Leave it out, or training.sharding")
    if training.sharding.mixed_precision is not None and training.precision != "32-true":
        found = f'"{training.sharding.mixed_precision}", but training.precision is "{training.precision}"'
        instead = 'Write "32-true" for training.precision, or leave it out'
        yield Problem("training.sharding.mixed_precision", found, instead)


def _something_is_validated(config: StudyConfig) -> Iterator[Problem]:
    stop = config.training.early_stop
    validation = config.validation
    if stop is not None and stop.monitor.startswith("val/") and not validation.is_scheduled:
        yield Problem(
            "training.early_stop",
            f"{shown(stop.monitor)} would be seen only at the end, for no validation takes place before",
            "Write validation.every_batches, validation.every_s or validation.at",
        )
    if early := [it for it in validation.at if isinstance(it, int) and it < validation.after_batches]:
        yield Problem("validation.at", f"{early[0]} is before validation.after_batches", "Write a later batch")
    if validation.after_batches and any(isinstance(it, float) for it in validation.at):
        found = "whether a fraction of the run is before validation.after_batches is not known in advance"
        yield Problem("validation.at", found, "Write numbers of batches, or leave validation.after_batches out")
    if validation.max_batches is not None and validation.simulations and config.samples_per_simulation is None:
        found = "which samples there will be is not known in advance"
        yield Problem("validation.max_batches", found, "Write study.time_steps, or leave it out")


def _fractions_are_of_a_known_length(config: StudyConfig) -> Iterator[Problem]:
    for path in FRACTIONS:
        value = value_of(config, path)
        moments = value if isinstance(value, tuple) else (value,)
        for fraction in [moment for moment in moments if isinstance(moment, float)][:1]:
            found = f"{fraction:g} is a fraction of the run, but the number of its batches is not known in advance"
            if config.study.time_steps is None:
                yield Problem(path, found, "Write a number of batches, or study.time_steps")
            elif not (config.buffer.has_known_draws or config.training.draws_per_sample):
                yield Problem(path, found, "Write a number of batches, or training.draws_per_sample")


def _rollouts_have_trajectories(config: StudyConfig) -> Iterator[Problem]:
    rollout, window, steps = config.validation.rollout, config.window, config.study.time_steps
    if rollout is None:
        return
    if window is None:
        found = "a model of single time steps forecasts nothing"
        yield Problem("validation.rollout", found, 'Write "samples": {"window": {"length": 2}}, or leave it out')
        return
    if not config.validation.simulations:
        yield Problem("validation.rollout", "no simulation is held out", "Write validation.simulations")
    if rollout.input_steps >= window.length:
        yield Problem(
            "validation.rollout.input_steps",
            f"{rollout.input_steps} leaves none of the {window.length} steps of a sample to be forecast",
            f"Write {window.length - 1} or less",
        )
    most = math.inf if steps is None else -(-steps.num // window.spacing) - rollout.input_steps
    if rollout.horizon is not None and rollout.horizon > most > 0:
        yield Problem(
            "validation.rollout.horizon",
            f"{rollout.horizon} steps, but after {counted(rollout.input_steps, 'input step')} a simulation has {most}",
            f"Write {most} or less, or leave it out",
        )


def _named_fields_exist(config: StudyConfig) -> Iterator[Problem]:
    rollout = config.validation.rollout
    named = {"normalization.fields": config.normalization.fields}
    for key, names in (named if rollout is None else named | {"validation.rollout.fields": rollout.fields}).items():
        for name in names:
            if name not in config.study.fields:
                meant = nearest(name, config.study.fields)
                yield Problem(
                    key,
                    f"{shown(name)} is not a field of the study",
                    f"Write {shown(meant)}" if meant else f"Write {one_of(config.study.fields)}",
                )
            elif key == "normalization.fields" and (config.study.fields[name].dtype or "").startswith("complex"):
                yield Problem(
                    key,
                    f"{shown(name)} is {config.study.fields[name].dtype}, and statistics are of real numbers",
                    "Leave it out, and scale it in the server class",
                )
            elif key == "validation.rollout.fields" and config.study.fields[name].is_static:
                yield Problem(
                    key,
                    f"{shown(name)} is sent once per simulation: there is nothing to forecast",
                    f"Write {one_of(config.study.step_fields)}",
                )


CHECKS: tuple[Check, ...] = (
    _parameters_have_one_source,
    _numbers_of_vectors_have_names_of_their_own,
    _rounds_go_with_the_rest,
    _somebody_can_send,
    *JOB_CHECKS,
    _output_is_below_the_study,
    _nothing_is_ignored,
    _a_model_has_an_optimizer,
    _one_kind_of_clipping,
    _the_device_has_the_precision,
    _sharding_goes_with_the_rest,
    _something_is_validated,
    _fractions_are_of_a_known_length,
    _named_fields_exist,
    *COMMAND_CHECKS,
    _design_file_is_sound,
    _windows_can_be_made,
    _rollouts_have_trajectories,
    _capacity_has_room,
    partial(_watermark_problems, num_ranks=1),
)

CHECKS_OF_RANKS: tuple[Callable[[StudyConfig, int], Iterator[Problem]], ...] = (
    _watermark_problems,
    _routing_problems,
)
"""What depends on the number of ranks: checked by `--check` for those that stream-launcher or mpirun start, and by all
of them when the study begins."""
