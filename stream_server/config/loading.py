"""Loads a study.json: its keys are checked, with every mistake told at once, and then the rules between them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stream_server.config.invalid_keys import problems_of
from stream_server.config.problems import Problem, config_error
from stream_server.config.rules import find_problems
from stream_server.config.study import StudyConfig
from stream_server.config.text import override, read_json, unusable_values

NO_TRAINING = "stream_server.server.user.no_training:NoTraining"
# What is kept of a study that writes files in the place of the training it describes.
TRAINING_KEYS = ("batch_size", "nonfinite")
VALIDATION_KEYS = ("simulations",)
CHECKPOINT_KEYS = ("every_batches", "every_s", "keep", "dir")


def load(path: str | Path, overrides: Sequence[str] = ()) -> StudyConfig:
    """The study of a study.json, resolved and checked, with `overrides` such as "training.batch_size=32" applied.

    Raises:
        ConfigError: lists every key that is wrong, or if none is, every rule that is broken, each with its path, what
            was found and what to write instead.
    """
    file = Path(os.path.abspath(path))
    return load_plain(read_json(file), file.parent, overrides, source=path)


def load_plain(
    raw: dict[str, Any], folder: Path, overrides: Sequence[str] = (), *, source: str | Path = "the study"
) -> StudyConfig:
    """The study in an object as a study.json in `folder` holds it, which is changed; `source` is what errors name.

    Raises:
        ConfigError: see `load`.
    """
    problems = override(raw, overrides)
    study_dir = raw.get("study_dir", ".")
    if isinstance(study_dir, str):
        raw["study_dir"] = os.path.abspath(folder / study_dir)
    unusable = list(unusable_values(raw))
    if unusable:
        raise config_error(source, [*problems, *unusable])
    try:
        config = StudyConfig.model_validate(raw)
    except ValidationError as error:
        problems += _in_order([*problems_of(error, raw)])
        raise config_error(source, problems) from error
    problems += _in_order([*find_problems(config)])
    if problems:
        raise config_error(source, problems)
    return without_training(config) if config.offline.write_files else config


def _in_order(problems: list[Problem]) -> list[Problem]:
    sections = {name: position for position, name in enumerate(StudyConfig.model_fields)}
    return sorted(problems, key=lambda problem: sections.get(problem.path.partition(".")[0], len(sections)))


def without_training(config: StudyConfig) -> StudyConfig:
    """The same ensemble and samples, each recorded once as it comes; what only a training needs is left out."""
    study = config.resolved()
    study["server"]["class"] = NO_TRAINING
    study["buffer"] = {"policy": "fifo", "capacity": config.buffer.capacity}
    for section, keys in (
        ("training", TRAINING_KEYS),
        ("validation", VALIDATION_KEYS),
        ("checkpoint", CHECKPOINT_KEYS),
    ):
        study[section] = {key: study[section][key] for key in keys}
    study["checkpoint"]["record"] = True
    for section in ("load", "normalization", "samples"):
        del study[section]
    return StudyConfig.model_validate(study)
