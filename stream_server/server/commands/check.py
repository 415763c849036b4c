"""The output of `stream-server --check`: what a study would do and take, without starting anything."""

import resource
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from stream_server.config import StudyConfig, check_ranks, differences
from stream_server.config.problems import shown as shown_value
from stream_server.errors import ConfigError
from stream_server.launcher.backends.allocation import ServerSize
from stream_server.launcher.backends.mpirun import missing_program, shown
from stream_server.launcher.backends.registry import check_backends
from stream_server.machine import network, run_folder
from stream_server.machine.descriptors import FOR_CONNECTIONS, STRANGERS, beyond_limit, verdict
from stream_server.machine.screen import size_shown
from stream_server.samplers.generator import check_class
from stream_server.server.checkpoint.continuation import saved_settings
from stream_server.server.metrics.writers import writer_makers
from stream_server.server.model.warm_start import find_source
from stream_server.server.ranks.communicator import SoloRanks, environment_rank
from stream_server.server.replay.share import ReplayShare
from stream_server.server.replay.simulation_file import load_h5py
from stream_server.server.run.build import allowed_failures, make_policy, scarcity
from stream_server.server.run.cores import expected_cores
from stream_server.server.run.output import OutputFolder
from stream_server.server.run.plan import MemoryNeed, RankPlan, free_on_node, limit_of_node, make_plan, memory_problem
from stream_server.server.simulations.design import DesignWarnings, ParameterDesign
from stream_server.server.steering.suggester import Suggester, check_learning
from stream_server.server.user.components import load_server_class
from stream_server.server.user.framework import framework_of
from stream_server.wording import counted


def describe(config: StudyConfig, replay: Path | None = None) -> str:
    """The facts of a study as lines of text.

    Raises:
        ConfigError: see `facts_of`.
    """
    return "\n".join(f"{name:<13} {text}" for name, text in facts_of(config, replay))


def facts_of(config: StudyConfig, replay: Path | None = None) -> list[tuple[str, str]]:
    """Totals, sizes per server rank, the command line of the simulations, and connections against the limit, by name.

    With a `replay`, what there is to train from.

    Raises:
        ConfigError: what is replayed does not fit, h5py is missing, the server class lacks a method or cannot
            train in this precision here, or a class that study.json names is not there or does not take its arguments.
        UserCodeError: the file of a class raised while it was imported, or the class of the sampler when it was asked.
    """
    warnings = _warnings_of_design(config)
    if config.buffer.has_own_policy:
        make_policy(config, 0)
    writer_makers(config.metrics.wanted, config.study_dir)
    if config.offline.write_files:
        load_h5py()
    framework_of(load_server_class(config)).check_precision(config.training.precision, config.training.device)
    lines = [*_lines(config, make_plan(config)), *(("", f"WARNING: {warning}") for warning in warnings)]
    return lines if replay is None else [*lines, *_lines_of_replay(config, replay)]


def _warnings_of_design(config: StudyConfig) -> list[str]:
    """Warnings of a start about the parameters; a sampler class of the user is asked for them, unless it learns."""
    sampler, design = config.parameters.sampler, ParameterDesign(config)
    if not design.is_suggested:
        return design.warnings
    if check_class(sampler.class_, sampler.args, config.study_dir):
        check_learning(config, learns=True)
        return []
    warnings = DesignWarnings(config, design.names)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        suggester = stack.enter_context(Suggester(config, folder, parameters_csv=folder / "parameters.csv"))
        warnings.note((suggestion.simulation, suggestion.values) for suggestion in suggester.suggestions)
        return [*warnings.texts, *suggester.warnings]


def _lines_of_replay(config: StudyConfig, folder: Path) -> list[tuple[str, str]]:
    with ExitStack() as stack:
        share = ReplayShare(config, SoloRanks(), folder, ParameterDesign(config).names, stack)
        simulations, [num_samples] = share.counts.simulations, share.samples_of_ranks
    epochs = f" in {config.offline.epochs} epochs" if config.offline.epochs > 1 else ""
    source = (
        f"{counted(len(simulations), 'simulation')} in {folder}, {counted(num_samples, 'sample')} to train on{epochs}"
    )
    return [("replay", source), *(("", warning) for warning in share.warnings)]


def require_start(config: StudyConfig, replay: Path | None = None, *, fresh: bool = False) -> list[str]:
    """Refuse a study, or a `replay`, that would be refused when stream-launcher starts it here.

    Gives what that start would say of the keys that it changes in an earlier run.

    Raises:
        ConfigError: it cannot run on this many ranks, or go on with the run in its folder unless it starts over, its
            ranks need more memory or open files than this node gives, there is no such group or model to begin with, a
            program is missing, or the scheduler would not take the jobs.
        DamagedCheckpoint: the model to begin with is not as it was saved.
    """
    size, is_here = ServerSize.of(config), config.server.backend == "local"
    check_ranks(config, size.num_ranks)
    told = _require_folder(config, fresh=fresh)
    if is_here:
        problem = memory_problem(config, size.num_ranks, size.num_on_node)
        if problem := problem or beyond_limit(make_plan(config).connections + STRANGERS, FOR_CONNECTIONS):
            raise ConfigError(problem)
    if replay is None:
        check_backends(config)
    return told


def _require_folder(config: StudyConfig, *, fresh: bool) -> list[str]:
    folder, group = OutputFolder(config.output_dir), config.study.share_with
    if group is not None:
        run_folder.number_of_group(group)
    if not fresh:
        saved = saved_settings(config, folder)
        if (before := folder.check_start(config, resume=False, saved=saved)) is not None:
            is_told = bool(before) and not folder.is_finished(config.resolved())
            found = [it for it in differences(before, config) if is_told and it.is_told]
            return [f"{it.path} {shown_value(it.before)} → {shown_value(it.now)}; {it.rule.reason}" for it in found]
    if config.load.checkpoint is not None:
        find_source(Path(config.load.checkpoint))
    return []


def _lines(config: StudyConfig, plan: RankPlan) -> list[tuple[str, str]]:
    num_simulations = config.study.simulations + config.validation.simulations
    steps = config.study.time_steps
    size, buffer = plan.sample_bytes, config.buffer
    num_samples = config.samples_per_simulation
    samples = "unknown number of" if num_samples is None else f"{num_simulations * num_samples:,}"
    total = "" if steps is None else f", {size_shown(num_simulations * steps.num * size)} in all"
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    cores, server = expected_cores(config), ServerSize.of(config)
    interface = config.network.interface
    hard = None if limit == resource.RLIM_INFINITY else limit
    return [
        ("study", f"{config.study.name} -> {config.output_dir}"),
        ("simulations", f"{config.study.simulations} for training, {config.validation.simulations} for validation"),
        ("samples", f"{samples} {_of_steps(config)} of {size_shown(size)}{total}"),
        ("command", shown(config)),
        *([("", f"NOT HERE: {missing}")] if (missing := missing_program(config)) else []),
        ("at once", _at_once(config)),
        ("failures", allowed_failures(config)),
        ("server class", config.server.class_),
        *([("ranks", f"{server.num_ranks}{_why_so_many(server)}")] if config.server.backend == "local" else []),
        *((key, str(component)) for key, component in config.training.components.items()),
        *([] if (loader := config.validation.val_dataloader) is None else [("val_dataloader", str(loader))]),
        (
            "buffer",
            f"{buffer.policy}: {counted(buffer.capacity, 'sample')} per rank, watermark {buffer.watermark:,}; with "
            f"what is under way {counted(plan.num_slots, 'slot')}, {size_shown(plan.buffer_bytes)} per rank",
        ),
        ("memory", f"{MemoryNeed.of(config, plan, server.num_ranks)} per rank; {_node()}"),
        ("credit", f"{counted(plan.credit, 'step')} of a simulation under way to each rank"),
        *([("windows", text)] if (text := scarcity(config, server.num_ranks)) else []),
        ("batch size", f"{config.training.batch_size} per rank"),
        ("server", _job_of_server(config))
        if config.server.backend != "local"
        else ("cores", "; ".join(filter(None, (str(cores), cores.warning)))),
        *([] if interface is None else [("network", network.description_of(interface))]),
        (
            "connections",
            f"{plan.connections} per rank, and {STRANGERS} of strangers; ulimit -Hn is "
            f"{'unlimited' if hard is None else hard}: {verdict(plan.connections, hard)}",
        ),
    ]


def _why_so_many(server: ServerSize) -> str:
    if environment_rank() is not None:
        return ", as mpirun starts them"
    return f": {server.why}" if server.why else ", as server.ranks says; under `mpirun -n NUM`, --check plans for NUM"


def _job_of_server(config: StudyConfig) -> str:
    server, job = config.server, config.server.job
    nodes = "" if job.nodes is None else f" on {counted(job.nodes, 'node')}"
    ranks, cores = counted(server.ranks.max, "rank"), counted(job.cores_per_rank, "core")
    return f"a job of {server.backend}: {ranks} of {cores}{nodes}"


def _of_steps(config: StudyConfig) -> str:
    window = config.window
    if window is None:
        return "samples"
    return (
        f"windows, each of {counted(window.length, 'time step')} with a spacing of {window.spacing}, from every "
        f"{'' if window.stride == 1 else f'{window.stride}. '}time step on; time steps"
    )


def _at_once(config: StudyConfig) -> str:
    attached = f"{config.client.max_attached} that attach by themselves (client.max_attached)"
    if config.simulation.command is None:
        return f"at most {attached}"
    return f"at most {config.launcher.max_running} that the launcher starts (launcher.max_running), and {attached}"


def _node() -> str:
    limit, free = limit_of_node(), free_on_node()
    if limit is None or free is None:
        return "what this node has is not known"
    available = f"of which {size_shown(free.num_bytes)} are free now"
    return f"this node has {size_shown(limit.num_bytes)} ({limit.source}), {available}"
