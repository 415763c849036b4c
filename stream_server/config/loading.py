"""Reads, resolves and checks a study.json."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stream_server.config.checks import find_problems
from stream_server.config.drafting import draft
from stream_server.config.filling import filled
from stream_server.config.models import StudyConfig
from stream_server.config.problems import Problem, config_error
from stream_server.config.reading import override, read_json, unusable_values
from stream_server.config.wording import problems_of


def load(path: str | Path, overrides: Sequence[str] = ()) -> StudyConfig:
    """The study of a study.json, resolved and checked, with `overrides` such as "training.batch_size=32" applied.

    Raises:
        ConfigError: lists every problem, each with its path, what was found and what to write instead.
    """
    file = Path(os.path.abspath(path))
    raw = read_json(file)
    problems = override(raw, overrides)
    unusable = list(unusable_values(raw))
    if unusable:
        raise config_error(path, [*problems, *unusable])
    study_dir = raw.get("study_dir", ".")
    if isinstance(study_dir, str):
        raw["study_dir"] = os.path.abspath(file.parent / study_dir)
    config, found = _check(filled(raw))
    if problems or found:
        raise config_error(path, problems + _in_order(found))
    return config


def _check(raw: dict[str, Any]) -> tuple[StudyConfig, list[Problem]]:
    try:
        config = StudyConfig.model_validate(raw)
    except ValidationError as error:
        bad = {detail["loc"] for detail in error.errors(include_url=False)}
        drafted = draft(StudyConfig, raw, bad)
        return drafted, [*problems_of(error, raw), *find_problems(drafted, is_draft=True)]
    return config, list(find_problems(config))


def _in_order(problems: list[Problem]) -> list[Problem]:
    sections = {name: position for position, name in enumerate(StudyConfig.model_fields)}
    return sorted(problems, key=lambda problem: sections.get(problem.path.partition(".")[0], len(sections)))
