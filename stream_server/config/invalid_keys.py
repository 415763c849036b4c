"""Mistakes in the keys of study.json: pydantic's errors in words, misspelt and unknown keys among them."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stream_server.config.problems import MAX_PROBLEMS, WRONG, Problem, nearest, one_of, shown
from stream_server.config.study import StudyConfig, models_in
from stream_server.wording import counted

Keys = tuple[int | str, ...]

LIMITS = {"ge": "{:g} or more", "gt": "more than {:g}", "le": "{:g} or less", "lt": "less than {:g}"}
QUOTED = re.compile(r"'([^']+)'")

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


def problems_of(error: ValidationError, raw: dict[str, Any]) -> Iterator[Problem]:
    """One problem for each mistake that pydantic found, but no more than can be told; `raw` is what was validated."""
    # A default that follows from an invalid key is no mistake of the user's.
    own = (it for it in error.errors(include_url=False) if it["type"] != "default_factory_not_called")
    errors = list(islice(own, MAX_PROBLEMS + 1))
    sections = {_keys_of(raw, detail)[:1] for detail in errors}
    for detail in errors:
        if (detail.get("ctx", {}).get("needs"),) in sections:
            continue
        keys = _keys_of(raw, detail)
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
        found, instead = _found_and_instead(detail, keys)
        yield Problem(path or "study.json", found, instead)


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
    return tuple(keys)


def _found_and_instead(detail: ErrorDetails, keys: Keys) -> tuple[str, str]:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == WRONG:
        return context["found"], context["instead"]
    if kind == "extra_forbidden":
        return _unknown_key(keys)
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
    if kind == "literal_error":
        choices = QUOTED.findall(detail["msg"])
        meant = nearest(value, choices) if isinstance(value, str) else None
        return f"{shown(value)} is not {one_of(choices)}", f"Write {shown(meant)}" if meant else "Write one of these"
    return f"{shown(value)}: {detail['msg']}", _example(keys)


def _unknown_key(keys: Keys) -> tuple[str, str]:
    above, key = keys[:-1], str(keys[-1])
    known = [name for model in models_at(above) for name in _names(model)]
    if meant := nearest(key, known):
        return "unknown key", f"Write {shown(meant)}"
    elsewhere = [
        f"{name}.{key}"
        for name, field in StudyConfig.model_fields.items()
        if (name,) != above and any(key in _names(model) for model in models_in(field.annotation))
    ]
    if elsewhere:
        return "unknown key", f"Write it as {' or '.join(elsewhere)}"
    return "unknown key", f"Leave it out; keys known here are {', '.join(known)}"


def _example(keys: Keys) -> str:
    for model in models_at(keys[:-1]):
        field = field_of(model, keys[-1])
        if field is not None and field.examples:
            description = (field.description or "").partition(". ")[0].rstrip(".").replace("`", "")
            return f"Write {shown(keys[-1])}: {shown(field.examples[0])} ({description[:1].lower()}{description[1:]})"
    return "See docs/reference/study.md"


def models_at(keys: Keys) -> list[type[BaseModel]]:
    """The models of the section at `keys`: one for each kind of it."""
    models: list[type[BaseModel]] = [StudyConfig]
    for key in keys:
        fields = [field_of(model, key) for model in models]
        models = [model for field in fields if field is not None for model in models_in(field.annotation)] or models
    return models


def field_of(model: type[BaseModel], key: int | str) -> FieldInfo | None:
    """The field of a model that study.json calls `key`, None if there is none."""
    return next((field for name, field in model.model_fields.items() if (field.alias or name) == key), None)


def _names(model: type[BaseModel]) -> Iterator[str]:
    yield from (field.alias or name for name, field in model.model_fields.items())
