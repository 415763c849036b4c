"""Settings of the training that contradict each other, or need what the study does not have."""

from collections.abc import Callable, Iterator
from functools import partial

from stream_server.config.problems import Problem, nearest, one_of, shown
from stream_server.config.study import StudyConfig, value_of

FRACTIONS = (
    "training.log_every_batches",
    "validation.every_batches",
    "validation.at",
    "checkpoint.every_batches",
    "checkpoint.keep_every",
    "checkpoint.keep_at",
)


def _one_kind_of_clipping(config: StudyConfig) -> Iterator[Problem]:
    if config.training.clip_norm is not None and config.training.clip_value is not None:
        yield Problem(
            path="training.clip_value",
            found="both training.clip_norm and training.clip_value are given",
            instead="Remove one of the two",
        )


def _sharding_needs_every_rank(config: StudyConfig) -> Iterator[Problem]:
    if config.training.strategy != "ddp" and config.training.uneven != "stop":
        yield Problem(
            path="training.uneven",
            found=f"{shown(config.training.uneven)} does not go with the strategy {shown(config.training.strategy)}, "
            "for which every rank must have a batch",
            instead='Write "uneven": "stop", or "strategy": "ddp"',
        )


def _something_is_validated(config: StudyConfig) -> Iterator[Problem]:
    stop = config.training.early_stop
    never = config.validation.every_batches is None and config.validation.every_s is None and not config.validation.at
    if stop is not None and stop.monitor.startswith("val/") and never:
        yield Problem(
            path="training.early_stop",
            found=f"{shown(stop.monitor)} would be seen only at the end, for no validation takes place before",
            instead="Write validation.every_batches, validation.every_s or validation.at",
        )


def _fractions_are_of_a_known_length(path: str, config: StudyConfig) -> Iterator[Problem]:
    value = value_of(config, path)
    moments = value if isinstance(value, tuple) else (value,)
    fraction = next((moment for moment in moments if isinstance(moment, float)), None)
    if fraction is None:
        return
    found = f"{fraction:g} is a fraction of the run, but the number of its batches is not known in advance"
    if config.study.time_steps is None:
        yield Problem(path=path, found=found, instead="Write a number of batches, or study.time_steps")
    elif config.buffer.policy == "reservoir" and config.training.draws_per_sample is None:
        yield Problem(path=path, found=found, instead="Write a number of batches, or training.draws_per_sample")


def _normalized_fields_exist(config: StudyConfig) -> Iterator[Problem]:
    for name in config.normalization.fields:
        if name not in config.study.fields:
            meant = nearest(name, config.study.fields)
            yield Problem(
                path="normalization.fields",
                found=f"{shown(name)} is no field of the study",
                instead=f"Write {shown(meant)}" if meant else f"Write {one_of(config.study.fields)}",
            )


TRAINING_CHECKS: tuple[Callable[[StudyConfig], Iterator[Problem]], ...] = (
    _one_kind_of_clipping,
    _sharding_needs_every_rank,
    _something_is_validated,
    *(partial(_fractions_are_of_a_known_length, path) for path in FRACTIONS),
    _normalized_fields_exist,
)
