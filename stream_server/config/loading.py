"""Loads a study.json: its keys are checked, with every mistake told at once, and then the rules between them."""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from stream_server.config.problems import MAX_PROBLEMS, WRONG, Problem, config_error, nearest, one_of, printable, shown
from stream_server.config.rules import find_problems
from stream_server.config.study import StudyConfig, field_of, model_at, model_in
from stream_server.config.values import MAX_INTEGER
from stream_server.errors import ConfigError
from stream_server.storage.disk import MAX_TEXT_BYTES, read_file
from stream_server.storage.typed import shortened
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

MAX_DEPTH = 32
TEXT_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*')

NO_TRAINING = "stream_server.server.user.no_training:NoTraining"
# What is kept of a study that writes files in the place of the training it describes.
KEPT = {
    "training": ("batch_size", "nonfinite"),
    "validation": ("simulations",),
    "checkpoint": ("every_batches", "every_s", "keep", "dir"),
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
    known = [*_names(model_at(above))]
    if meant := nearest(key, known):
        return "unknown key", f"Write {shown(meant)}"
    elsewhere = [
        f"{name}.{key}"
        for name, field in StudyConfig.model_fields.items()
        if (name,) != above and (model := model_in(field.annotation)) and key in _names(model)
    ]
    if elsewhere:
        return "unknown key", f"Write it as {' or '.join(elsewhere)}"
    return "unknown key", f"Leave it out; keys known here are {', '.join(known)}"


def _example(keys: Keys) -> str:
    field = field_of(model_at(keys[:-1]), keys[-1])
    if field is None or not field.examples:
        return "See docs/reference/study.md"
    description = (field.description or "").partition(". ")[0].rstrip(".").replace("`", "")
    return f"Write {shown(keys[-1])}: {shown(field.examples[0])} ({description[:1].lower()}{description[1:]})"


def _names(model: type[BaseModel]) -> Iterator[str]:
    yield from (field.alias or name for name, field in model.model_fields.items())


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, in which `//` starts a comment.

    Raises:
        ConfigError: the file cannot be read, or is no JSON object; says the line and the column.
    """
    try:
        text = read_file(file, max_bytes=MAX_TEXT_BYTES).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {file}: write the path of a study.json after --config") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{file} is a folder: write {file / 'study.json'}") from error
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        found = f"byte 0x{error.object[error.start]:02x} in line {line} is not UTF-8"
        raise ConfigError(f"{file}: {found}; save the file with the encoding UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return _parse(file, TEXT_OR_COMMENT.sub(lambda match: match[1] or "", text))


def _parse(file: Path, text: str) -> dict[str, Any]:
    repeated: list[Problem] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = Counter(key for key, _ in pairs)
        repeated.extend(
            Problem(shortened(key), "the key is written twice in one object", "Remove one of the two")
            for key, num in keys.items()
            if num > 1
        )
        return dict(pairs)

    try:
        raw = json.loads(text, object_pairs_hook=unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise config_error(file, [_syntax_problem(text, error)]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not a study: {error}") from error
    if repeated:
        raise config_error(file, repeated)
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} must hold one object {{…}}, but holds {shown(raw)}")
    raw.pop("$schema", None)
    return raw


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON: write a finite number")


def _syntax_problem(text: str, error: json.JSONDecodeError) -> Problem:
    line = text.splitlines()[error.lineno - 1].strip() if error.lineno <= len(text.splitlines()) else ""
    before = text[: error.pos].rstrip()
    at = text[error.pos : error.pos + 1]
    if (before.endswith(",") and at in "}]") or (at == "," and text[error.pos + 1 :].lstrip()[:1] in ("}", "]")):
        instead = "Remove the comma before the closing bracket"
    elif at == "'":
        instead = "Write \" instead of '"
    elif error.msg.startswith("Expecting ',' delimiter"):
        instead = "Write a comma or a closing bracket before this place" if at else "Write the missing closing bracket"
    elif not at:
        instead = "The text ends here; write what is missing"
    else:
        instead = "Write JSON; // starts a comment"
    shown_line = f" in `{shortened(line)}`" if line else ""
    return Problem(f"line {error.lineno}, column {error.colno}", f"{error.msg}{shown_line}", instead)


def unusable_values(node: Any, path: str = "", depth: int = 0) -> Iterator[Problem]:
    """Numbers beyond 64 bits, text that no file or message can hold, endless nesting: JSON allows all of them."""
    match node:
        case dict() | list() if depth > MAX_DEPTH:
            found = f"brackets within brackets more than {MAX_DEPTH} levels deep"
            yield Problem(printable(path), found, "Write something flatter")
        case dict():
            for key, value in node.items():
                yield from unusable_values(key, path)
                yield from unusable_values(value, f"{path}.{key}" if path else key, depth + 1)
        case list():
            for position, value in enumerate(node):
                yield from unusable_values(value, f"{path}[{position}]", depth + 1)
        case str() if node != printable(node) or "\0" in node:
            yield Problem(printable(path), f"{node!a} is not valid text", "Remove what no font can show")
        case int() | float() if abs(node) > (MAX_INTEGER if isinstance(node, int) else sys.float_info.max):
            instead = f"Write a {'smaller' if node > 0 else 'larger'} one"
            yield Problem(printable(path), "the number does not fit 64 bits", instead)


def override(raw: dict[str, Any], assignments: Sequence[str]) -> list[Problem]:
    """Apply `a.b=VALUE`, VALUE being JSON or else text, to `raw`; returns what could not be applied."""
    problems = (_set(raw, assignment) for assignment in assignments)
    return [problem for problem in problems if problem is not None]


def _set(raw: dict[str, Any], assignment: str) -> Problem | None:
    key, equals, text = assignment.partition("=")
    *parents, last = key.strip().split(".")
    if not equals or not all([*parents, last]):
        return Problem(f"--set {assignment}", "not of the form KEY=VALUE", "Write it like training.batch_size=32")
    node = raw
    for depth, parent in enumerate(parents, start=1):
        below = node.setdefault(parent, {})
        if not isinstance(below, dict):
            return Problem(
                f"--set {assignment}",
                f"{'.'.join(parents[:depth])} is {shown(below)}, which has no keys",
                f"Set {'.'.join(parents[:depth])} as a whole",
            )
        node = below
    node[last] = _value(text)
    return None


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


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
    for section, keys in KEPT.items():
        study[section] = {key: study[section][key] for key in keys}
    study["checkpoint"]["record"] = True
    for section in ("load", "normalization", "samples"):
        del study[section]
    return StudyConfig.model_validate(study)
