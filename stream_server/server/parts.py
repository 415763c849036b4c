"""Makes the parts of one rank out of study.json: the translation from the words of the user to those of the parts."""

import math
from typing import TYPE_CHECKING

import numpy as np

from stream_server.buffers import Fifo, Firo, Policy, Reservoir, Slots
from stream_server.client_api.messages import FieldSpec, Routing, TimeSteps
from stream_server.config import StudyConfig
from stream_server.server.plan import Plan

if TYPE_CHECKING:
    from stream_server.server.restore import RankRestore

BUFFER_STREAM = 2
NOISE_STREAM = 3


def make_policy(config: StudyConfig, rank: int) -> Policy:
    """The buffer's policy, with a random stream of its own on every rank."""
    settings = config.buffer
    seed = (config.study.seed, BUFFER_STREAM, rank)
    match settings.policy:
        case "fifo":
            return Fifo(capacity=settings.capacity)
        case "firo":
            return Firo(
                capacity=settings.capacity,
                watermark=settings.watermark,
                pseudo_epochs=settings.pseudo_epochs,
                seed=seed,
            )
        case "reservoir":
            return Reservoir(
                capacity=settings.capacity,
                watermark=settings.watermark,
                draws_per_sample=config.training.draws_per_sample,
                seed=seed,
            )


def make_slots(config: StudyConfig, plan: Plan, restored: "RankRestore | None" = None) -> Slots:
    """The rows in which samples wait, with room for all that is `restored`."""
    num_slots = plan.num_slots
    if restored is not None:
        num_slots = restored.num_slots(capacity=plan.capacity, planned=num_slots)
    return Slots({name: spec.shape for name, spec in config.study.fields.items()}, num_slots)


def field_specs(config: StudyConfig) -> tuple[FieldSpec, ...]:
    """The fields of a sample as they are told to clients."""
    return tuple(
        FieldSpec(
            name=name,
            shape=spec.shape,
            dtype=np.dtype(spec.dtype).newbyteorder("<").str if spec.dtype else "",
            optional=spec.optional,
        )
        for name, spec in config.study.fields.items()
    )


def time_steps(config: StudyConfig) -> TimeSteps:
    """The time steps of a simulation as they are told to clients."""
    steps = config.study.time_steps
    return TimeSteps(num=None) if steps is None else TimeSteps(num=steps.num, first=steps.first, every=steps.every)


def routing(config: StudyConfig) -> Routing:
    """Which rank gets which step."""
    return Routing.STEPS if config.buffer.routing == "steps" else Routing.SIMULATIONS


def num_redraws(config: StudyConfig) -> int:
    """How many simulations can be redrawn before the study stops for too many failures."""
    if config.simulation.on_failure != "redraw":
        return 0
    num_planned = config.study.simulations + config.validation.simulations
    return math.floor(config.simulation.max_failed * num_planned) + 1
