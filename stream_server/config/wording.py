"""What pydantic found wrong, in the words of someone who wrote a study.json."""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stream_server.config.problems import WRONG, Problem, counted, nearest, one_of, shown
from stream_server.config.study import StudyConfig, model_in

Location = tuple[int | str, ...]

KEY_MARK = "[key]"
WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")
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
LIMITS = {
    "greater_than_equal": ("ge", "is less than {}", "Write {} or more"),
    "greater_than": ("gt", "is not greater than {}", "Write a number above {}"),
    "less_than_equal": ("le", "is greater than {}", "Write {} or less"),
    "less_than": ("lt", "is not less than {}", "Write a number below {}"),
}


def problems_of(error: ValidationError, raw: dict[str, Any]) -> Iterator[Problem]:
    """One problem per error of pydantic; `raw` is what was validated."""
    details = error.errors(include_url=False)
    faulty = {".".join(str(part) for part in detail["loc"][:2]) for detail in details}
    for detail in details:
        if detail.get("ctx", {}).get("needs") in faulty:
            continue
        found, instead = _found_and_instead(detail)
        yield Problem(path=path_in(raw, detail["loc"]), found=found, instead=instead)


def path_in(raw: Any, location: Location) -> str:
    """`study.fields.temperature[0]`: the location as the user wrote it, without what only our models have."""
    path = ""
    node = raw
    for part in location:
        if part == KEY_MARK or (isinstance(part, str) and isinstance(node, list | int | float)):
            continue
        if isinstance(part, int):
            path += f"[{part}]"
            node = node[part] if isinstance(node, list) and part < len(node) else None
        else:
            path += f".{part}" if path else part
            node = node.get(part) if isinstance(node, dict) else None
    return path or "study.json"


def _found_and_instead(detail: ErrorDetails) -> tuple[str, str]:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == WRONG:
        return context["found"], context["instead"]
    if kind == "extra_forbidden":
        return "unknown key", _instead_of_unknown(detail["loc"])
    if kind == "missing":
        return "missing", _write_key(detail["loc"])
    if kind == "literal_error":
        return _not_a_choice(value, detail["loc"])
    if kind in KINDS:
        return f"{shown(value)} is not {KINDS[kind]}", _write_kind(KINDS[kind], value)
    if kind in LIMITS:
        name, beyond, write = LIMITS[kind]
        limit = format(context[name], "g")
        return f"{shown(value)} {beyond.format(limit)}", write.format(limit)
    if kind in ("too_short", "too_long"):
        allowed = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        num = context["actual_length"]
        return f"{shown(value)} has {counted(num, 'element') if num else 'no elements'}", f"Write {allowed}"
    message = detail["msg"].rstrip(".")
    return f"{shown(value)}: {message[:1].lower()}{message[1:]}", _write_key(detail["loc"])


def _not_a_choice(value: Any, location: Location) -> tuple[str, str]:
    field = _field_at(location)
    choices = (
        [choice for choice in getattr(field.annotation, "__args__", ()) if isinstance(choice, str)] if field else []
    )
    meant = nearest(value, choices) if isinstance(value, str) else None
    if meant:
        return f"{shown(value)} is not known", f"Write {shown(meant)}; it can be {one_of(choices)}"
    return f"{shown(value)} is not known", f"Write {one_of(choices)}"


def _write_kind(kind: str, value: Any) -> str:
    if kind == "text in quotes" and isinstance(value, int | float) and not isinstance(value, bool):
        return f"Write {shown(str(value))}"
    if kind in ("a whole number", "a number") and isinstance(value, str) and WHOLE_NUMBER.fullmatch(value):
        return f"Write {int(value)} without quotes"
    if kind == "a whole number" and isinstance(value, float) and value.is_integer():
        return f"Write {int(value)}"
    if kind == "true or false" and str(value).lower() in ("true", "false"):
        return f"Write {str(value).lower()} without quotes"
    return f"Write {kind}"


def _write_key(location: Location) -> str:
    field = _field_at(location)
    if field is None or not field.examples:
        return "See docs/study.md"
    description = (field.description or "").rstrip(".")
    return f"Write {shown(location[-1])}: {shown(field.examples[0])} ({description[:1].lower()}{description[1:]})"


def _instead_of_unknown(location: Location) -> str:
    key = str(location[-1])
    known = list(_keys(_model_at(location[:-1])))
    meant = nearest(key, known)
    if meant:
        return f"Write {shown(meant)}"
    elsewhere = [
        f"{section}.{key}"
        for section, field in StudyConfig.model_fields.items()
        if key in _keys(model_in(field.annotation)) and (section,) != location[:-1]
    ]
    if elsewhere:
        return f"Write it as {' or '.join(elsewhere)}"
    return f"Leave it out; keys known here are {', '.join(known)}"


def _keys(model: type[BaseModel] | None) -> Iterator[str]:
    if model is not None:
        yield from (field.alias or name for name, field in model.model_fields.items())


def _model_at(location: Location) -> type[BaseModel] | None:
    model: type[BaseModel] | None = StudyConfig
    for part in location:
        field = _field_of(model, part)
        if field is not None:
            model = model_in(field.annotation)
    return model


def _field_at(location: Location) -> FieldInfo | None:
    return _field_of(_model_at(location[:-1]), location[-1]) if location else None


def _field_of(model: type[BaseModel] | None, key: int | str) -> FieldInfo | None:
    fields = model.model_fields if model is not None else {}
    return next((field for name, field in fields.items() if (field.alias or name) == key), None)
