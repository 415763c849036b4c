"""Loads a study.json: read, resolved and checked, with every mistake told at once."""

import os
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stream_server.config.checks import find_problems
from stream_server.config.offline import without_training
from stream_server.config.problems import WRONG, Problem, config_error, counted, nearest, one_of, shown
from stream_server.config.reading import override, read_json, unusable_values
from stream_server.config.study import StudyConfig, models_in

Keys = tuple[int | str, ...]

MAX_ROUNDS = 10
LIMITS = {"ge": "{:g} or more", "gt": "more than {:g}", "le": "{:g} or less", "lt": "less than {:g}"}
QUOTED = re.compile(r"'([^']+)'")
ENTRIES: dict[Keys, Any] = {("study", "fields"): [1], ("parameters", "bounds"): [0, 1]}
"""Objects whose keys the user chooses, and a valid value for each of them."""

# Where pydantic speaks of Python's types, study.json has JSON's.
KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "list_type": "a list […]",
    "tuple_type": "a list […]",
    "dict_type": "an object {…}",
    "model_type": "an object {…}",
    "model_attributes_type": "an object {…}",
    "finite_number": "a finite number",
}


def load(path: str | Path, overrides: Sequence[str] = ()) -> StudyConfig:
    """The study of a study.json, resolved and checked, with `overrides` such as "training.batch_size=32" applied.

    Raises:
        ConfigError: lists every problem, each with its path, what was found and what to write instead.
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
    unusable = list(unusable_values(raw))
    if unusable:
        raise config_error(source, [*problems, *unusable])
    study_dir = raw.get("study_dir", ".")
    if isinstance(study_dir, str):
        raw["study_dir"] = os.path.abspath(folder / study_dir)
    try:
        config = StudyConfig.model_validate(raw)
    except ValidationError as error:
        problems += _in_order([*_problems_of(error, raw), *_further_problems(raw, error)])
        raise config_error(source, problems) from error
    problems += _in_order([*find_problems(config)])
    if problems:
        raise config_error(source, problems)
    return without_training(config) if config.offline.write_files else config


def _in_order(problems: list[Problem]) -> list[Problem]:
    sections = {name: position for position, name in enumerate(StudyConfig.model_fields)}
    return sorted(problems, key=lambda problem: sections.get(problem.path.partition(".")[0], len(sections)))


def _further_problems(raw: dict[str, Any], error: ValidationError) -> Iterator[Problem]:
    """The problems that checks find in what is valid in an invalid study.

    Each invalid key is replaced by its default or an example, until the study is valid. Then these keys are taken away
    from it, so that a check that needs one of them is left out.
    """
    raw, invalid = deepcopy(raw), set[Keys]()
    for _ in range(MAX_ROUNDS):
        found = [_keys_of(raw, detail) for detail in _errors(error)]
        invalid |= {_replace(raw, keys, invalid) for keys in found}
        try:
            config = StudyConfig.model_validate(raw)
        except ValidationError as another:
            error = another
        else:
            for keys in invalid:
                _take_away(config, keys)
            yield from find_problems(config, is_partial=True)
            return


def _replace(raw: dict[str, Any], keys: Keys, invalid: set[Keys]) -> Keys:
    """Replace the value at `keys` by its default or an example, or, if that was `invalid` before, what is above it.

    Returns:
        The keys of what was replaced.
    """
    if keys[:2] in ENTRIES and len(keys) > 2 and keys[:3] not in invalid:
        raw[str(keys[0])][keys[1]][keys[2]] = ENTRIES[keys[:2]]
        return keys[:3]
    node: Any = raw
    for depth, key in enumerate(keys):
        below = node.get(key)
        if depth + 1 == len(keys) or not isinstance(below, dict):
            keys = keys[: depth + 1]
            break
        node = below
    fields = [field for model in _models_at(keys[:-1]) if (field := _field(model, keys[-1]))]
    if keys in invalid and len(keys) > 1 and not any(field.examples for field in fields):
        return _replace(raw, keys[:-1], invalid)
    node.pop(keys[-1], None)
    if fields and fields[0].is_required() and fields[0].examples:
        node[keys[-1]] = deepcopy(fields[0].examples[0])
    return keys


def _take_away(config: StudyConfig, keys: Keys) -> None:
    """Remove a key from the study, and the defaults of its section that may follow from it."""
    node: Any = config
    for key in keys[:-1]:
        node = node.get(key) if isinstance(node, dict) else getattr(node, _attribute(key), None)
    if isinstance(node, BaseModel):
        node.__dict__.pop(_attribute(keys[-1]), None)
        for name, field in type(node).model_fields.items():
            if field.default_factory is not None and name not in node.model_fields_set:
                node.__dict__.pop(name, None)


def _attribute(key: int | str) -> str:
    return "class_" if key == "class" else str(key)


def _problems_of(error: ValidationError, raw: dict[str, Any]) -> Iterator[Problem]:
    """One problem for each error of pydantic; `raw` is what was validated."""
    sections = {detail["loc"][0] for detail in _errors(error)}
    for detail in _errors(error):
        if detail.get("ctx", {}).get("needs") in sections:
            continue
        keys = _keys_of(raw, detail)
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
        found, instead = _found_and_instead(detail, keys, raw)
        yield Problem(path or "study.json", found, instead)


def _errors(error: ValidationError) -> list[ErrorDetails]:
    """The errors but for those of defaults that follow from an invalid key."""
    return [it for it in error.errors(include_url=False) if it["type"] != "default_factory_not_called"]


def _keys_of(raw: Any, detail: ErrorDetails) -> Keys:
    """The keys as the user wrote them: without the parts of a location that only the models have."""
    keys: list[int | str] = []
    location = detail["loc"]
    for position, part in enumerate(location, start=1):
        is_last = position == len(location)
        if isinstance(raw, dict) and (part in raw or (is_last and detail["type"] == "missing")):
            raw = raw.get(part)
        elif isinstance(raw, list) and isinstance(part, int) and part < len(raw):
            raw = raw[part]
        else:
            continue
        keys.append(part)
    if detail["type"] == "union_tag_invalid":
        keys.append("policy")
    return tuple(keys)


def _found_and_instead(detail: ErrorDetails, keys: Keys, raw: dict[str, Any]) -> tuple[str, str]:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == WRONG:
        return context["found"], context["instead"]
    if kind == "extra_forbidden":
        return _unknown_key(keys, raw)
    if kind == "missing":
        return "missing", _example(keys)
    if kind in KINDS:
        quotes = " without quotes" if isinstance(value, str) else ""
        return f"{shown(value)} is not {KINDS[kind]}", f"Write {KINDS[kind]}{quotes}"
    if kind in ("too_short", "too_long"):
        limit = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        return f"{shown(value)} has {counted(context['actual_length'], 'element')}", f"Write {limit}"
    for bound, allowed in LIMITS.items():
        if bound in context:
            return f"{shown(value)} is out of range", f"Write {allowed.format(context[bound])}"
    if kind in ("literal_error", "union_tag_invalid"):
        choices = QUOTED.findall(context.get("expected_tags", detail["msg"]).replace(", 'own'", ""))
        value = value["policy"] if kind == "union_tag_invalid" else value
        meant = nearest(value, choices) if isinstance(value, str) else None
        return f"{shown(value)} is not {one_of(choices)}", f"Write {shown(meant)}" if meant else "Write one of these"
    return f"{shown(value)}: {detail['msg']}", _example(keys)


def _policies(model: Any) -> tuple[str, ...]:
    """The policy of a kind of buffer; a class of the user's has no name to offer."""
    return get_args(model.model_fields["policy"].annotation)


def _unknown_key(keys: Keys, raw: dict[str, Any]) -> tuple[str, str]:
    *above, key = (str(part) for part in keys)
    section = raw
    for name in above:
        section = section[name]
    models = _models_at(tuple(above))
    known = list(dict.fromkeys(name for model in models for name in _names(model)))
    if key in known:
        others = [name for model in models if key in _names(model) for name in _policies(model)]
        found = f"{shown(section[key])} would be ignored by {section.get('policy', 'reservoir')}"
        return (
            found,
            f"Leave it out, or write {one_of(others) if others else 'FILE.py:Class'} in {'.'.join(above)}.policy",
        )
    if meant := nearest(key, known):
        return "unknown key", f"Write {shown(meant)}"
    elsewhere = [
        f"{name}.{key}"
        for name, field in StudyConfig.model_fields.items()
        if [name] != above and any(key in _names(model) for model in models_in(field.annotation))
    ]
    if elsewhere:
        return "unknown key", f"Write it as {' or '.join(elsewhere)}"
    return "unknown key", f"Leave it out; keys known here are {', '.join(known)}"


def _example(keys: Keys) -> str:
    for model in _models_at(keys[:-1]):
        field = _field(model, keys[-1])
        if field is not None and field.examples:
            description = (field.description or "").rstrip(".")
            return f"Write {shown(keys[-1])}: {shown(field.examples[0])} ({description[:1].lower()}{description[1:]})"
    return "See docs/reference/study.md"


def _models_at(keys: Keys) -> list[type[BaseModel]]:
    """The models of the section at `keys`: one for each kind of it."""
    models: list[type[BaseModel]] = [StudyConfig]
    for key in keys:
        fields = [_field(model, key) for model in models]
        models = [model for field in fields if field is not None for model in models_in(field.annotation)] or models
    return models


def _field(model: type[BaseModel], key: int | str) -> FieldInfo | None:
    return next((field for name, field in model.model_fields.items() if (field.alias or name) == key), None)


def _names(model: type[BaseModel]) -> Iterator[str]:
    yield from (field.alias or name for name, field in model.model_fields.items())
