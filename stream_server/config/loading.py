"""Loads a study.json: read, resolved and checked, with every mistake told at once."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from stream_server.config.checks import find_problems
from stream_server.config.defaults import filled
from stream_server.config.problems import Problem, config_error
from stream_server.config.reading import override, read_json, unusable_values
from stream_server.config.study import StudyConfig, model_in
from stream_server.config.wording import Location, problems_of

Model = TypeVar("Model", bound=BaseModel)


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
        drafted = _draft(StudyConfig, raw, bad)
        return drafted, [*problems_of(error, raw), *find_problems(drafted, is_draft=True)]
    return config, list(find_problems(config))


def _in_order(problems: list[Problem]) -> list[Problem]:
    sections = {name: position for position, name in enumerate(StudyConfig.model_fields)}
    return sorted(problems, key=lambda problem: sections.get(problem.path.partition(".")[0], len(sections)))


def _draft(model: type[Model], raw: dict[str, Any], bad: set[Location], here: Location = ()) -> Model:
    """Build `model` from the valid parts of `raw`, so that the checks find the other mistakes as well.

    Reading a part that is `bad` or missing raises AttributeError.

    Args:
        model: the model that refused `raw`.
        raw: what it refused.
        bad: the locations of the errors, as pydantic gives them.
        here: the location of `raw` itself.
    """
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        location = (*here, key)
        inner: type[Any] | None = model_in(field.annotation)
        if location in bad or (key not in raw and _has_no_default(field)):
            unknown.append(name)
        elif key not in raw:
            continue
        elif not _is_faulty(location, bad):
            values[name] = _valid(field, raw[key])
        elif inner is not None and field.annotation is inner:
            values[name] = _draft(inner, raw[key], bad, location)
        elif inner is not None and _is_object_of_entries(field.annotation):
            values[name] = _draft_entries(inner, raw[key], bad, location)
        else:
            unknown.append(name)
    drafted = model.model_construct(**values)
    for name in unknown:
        drafted.__dict__.pop(name, None)
    return drafted


def _draft_entries(model: type[Model], raw: dict[str, Any], bad: set[Location], here: Location) -> dict[str, Model]:
    """Every entry of an object whose keys are the user's own; of a faulty one nothing but the key is known."""
    return {
        key: model.model_construct() if _is_faulty((*here, key), bad) else model.model_validate(value)
        for key, value in raw.items()
    }


def _valid(field: FieldInfo, value: Any) -> Any:
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(kind).validate_python(value)


def _is_object_of_entries(annotation: Any) -> bool:
    return dict in (get_origin(annotation), *(get_origin(choice) for choice in get_args(annotation)))


def _is_faulty(location: Location, bad: set[Location]) -> bool:
    return any(error[: len(location)] == location for error in bad)


def _has_no_default(field: FieldInfo) -> bool:
    """Whether the key is required, or its value follows from other keys."""
    return field.is_required() or (
        field.default is None and field.default_factory is None and NoneType not in get_args(field.annotation)
    )
