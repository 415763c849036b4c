"""The translation of study.json into the objects of a rank: buffer policy, slots, fields, time steps and routing."""

from functools import partial

import numpy as np

from stream_server.buffers import Buffer, Policy, Slots, WindowBuffer, WindowShape, policy_class
from stream_server.config import StudyConfig
from stream_server.config.sections import POLICIES_WITHOUT, BufferSettings
from stream_server.config.study import default_of
from stream_server.errors import ConfigError, UserCodeError
from stream_server.launcher.schedule.retry_policy import most_failed
from stream_server.messages.client import FieldSpec, Routing, TimeSteps
from stream_server.user_code import arguments_for, call_user
from stream_server.wording import counted

BUFFER_STREAM = 2
NOISE_STREAM = 3


def make_policy(config: StudyConfig, rank: int) -> Policy:
    """The buffer's policy, with a random stream of its own on every rank.

    Raises:
        ConfigError: `buffer.policy` names no policy, or one that does not take what study.json gives it.
        UserCodeError: the user's policy raised.
    """
    settings, training = config.buffer, config.training
    factory = policy_class(settings.policy, config.study_dir)
    offered = {
        "capacity": settings.capacity,
        "watermark": settings.watermark,
        "pseudo_epochs": settings.pseudo_epochs,
        "draws_per_sample": training.draws_per_sample,
        "seed": (config.study.data_seed, BUFFER_STREAM, rank),
    }
    given = arguments_for(factory, settings.args, offered, kind="buffer.args")
    plain = BufferSettings(capacity=settings.capacity)
    for key in POLICIES_WITHOUT:
        name = key.rpartition(".")[2]
        if name not in given and offered[name] not in (default_of(key), getattr(plain, name, None)):
            raise ConfigError(
                f"{key}: {offered[name]} would be ignored, for {factory.__name__} takes no {name}: leave it out"
            )
    policy: Policy = call_user(settings.policy, partial(factory, **given))
    if training.draws_per_sample is not None and policy.draws_per_sample is None:
        raise UserCodeError(f"{factory.__name__}.draws_per_sample must not be None where study.json gives it")
    return policy


def make_slots(config: StudyConfig, num_slots: int) -> Slots:
    """The rows in which samples wait."""
    step, static = (
        {name: spec.shape for name, spec in fields.items()}
        for fields in (config.study.step_fields, config.study.static_fields)
    )
    return Slots(step, num_slots, static, ragged=ragged_fields(config))


def ragged_fields(config: StudyConfig) -> tuple[str, ...]:
    """The fields whose first extent differs, from step to step or from simulation to simulation."""
    return tuple(name for name, spec in config.study.fields.items() if spec.ragged)


def window_shape(config: StudyConfig) -> WindowShape | None:
    """The windows that are the samples; None where each time step is one."""
    window, steps = config.window, time_steps(config)
    if window is None:
        return None
    return WindowShape(
        length=window.length,
        spacing=window.spacing,
        stride=window.stride,
        first=steps.first,
        every=steps.every,
        num_steps=steps.num,
    )


def make_buffer(
    config: StudyConfig,
    policy: Policy,
    num_slots: int,
    *,
    spare: int = 0,
    most_kept: int = 0,
) -> Buffer:
    """A buffer of what this study has for samples; `spare` and `most_kept` are those of the plan."""
    slots, shape = make_slots(config, num_slots), window_shape(config)
    if shape is None:
        return Buffer(policy, slots, spare=spare)
    return WindowBuffer(policy, slots, shape=shape, most_kept=most_kept, spare=spare)


def field_specs(config: StudyConfig) -> tuple[FieldSpec, ...]:
    """The fields of a sample, as clients are given them."""
    return tuple(
        FieldSpec(
            name=name,
            shape=spec.shape,
            dtype=np.dtype(spec.dtype).newbyteorder("<").str if spec.dtype else "",
            optional=spec.optional,
            per=spec.per,
            ragged=spec.ragged,
        )
        for name, spec in config.study.fields.items()
    )


def time_steps(config: StudyConfig) -> TimeSteps:
    """The time steps of a simulation, as clients are given them."""
    steps = config.study.time_steps
    return TimeSteps(num=None) if steps is None else TimeSteps(num=steps.num, first=steps.first, every=steps.every)


def routing(config: StudyConfig) -> Routing:
    """The rule by which steps are sent to ranks."""
    return Routing(config.buffer.routing)


def scarcity(config: StudyConfig, num_ranks: int) -> str:
    """A reason why ranks may wait for each other where each window is made on one rank; "" if there is none."""
    at_once = config.max_simulations_at_once
    if config.window is None or at_once >= num_ranks:
        return ""
    return (
        f"{counted(at_once, 'simulation')} at once for {num_ranks} ranks: each sends its time steps to one rank, since "
        "samples are windows, and the others wait for data. Raise launcher.max_running, or train on fewer ranks"
    )


def num_redraws(config: StudyConfig) -> int:
    """The number of simulations that can be redrawn before the study stops for too many failures."""
    if config.simulation.on_failure != "redraw":
        return 0
    return most_failed(config.simulation.max_failed, _num_planned(config)) + 1


def allowed_failures(config: StudyConfig) -> str:
    """Number of simulations that may fail, and what in study.json says so, for people."""
    simulation, num_planned = config.simulation, _num_planned(config)
    if simulation.on_failure == "stop":
        return "the first simulation that fails for good ends the study (simulation.on_failure is stop)"
    num, limit = most_failed(simulation.max_failed, num_planned), simulation.max_failed
    kind = "a share of them" if limit < 1 else "a number of them"
    return (
        f"{num} of {counted(num_planned, 'simulation')} may fail for good (simulation.max_failed is {limit:g}, {kind})"
    )


def _num_planned(config: StudyConfig) -> int:
    return config.study.simulations + config.validation.simulations
