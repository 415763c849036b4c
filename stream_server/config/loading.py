"""Loads a study.json: read, resolved and checked, with every mistake told at once."""

import os
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from stream_server.config.invalid_keys import Keys, errors_of, field_of, is_known, keys_of, models_at, problems_of
from stream_server.config.offline import without_training
from stream_server.config.problems import Problem, config_error
from stream_server.config.rules import find_problems
from stream_server.config.study import StudyConfig
from stream_server.config.text import override, read_json, unusable_values

MAX_ROUNDS = 10
FIELDS: Keys = ("study", "fields")
ENTRIES: dict[Keys, Any] = {FIELDS: [1], ("parameters", "bounds"): [0, 1]}
"""Objects whose keys the user chooses, and a valid value for each of them."""


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
    study_dir = raw.get("study_dir", ".")
    if isinstance(study_dir, str):
        raw["study_dir"] = os.path.abspath(folder / study_dir)
    unusable = list(unusable_values(raw))
    if unusable:
        raise config_error(source, [*problems, *unusable])
    try:
        config = StudyConfig.model_validate(raw)
    except ValidationError as error:
        problems += _in_order([*problems_of(errors_of(error), raw), *_further_problems(raw, error)])
        raise config_error(source, problems) from error
    problems += _in_order([*find_problems(config)])
    if problems:
        raise config_error(source, problems)
    return without_training(config) if config.offline.write_files else config


def _in_order(problems: list[Problem]) -> list[Problem]:
    sections = {name: position for position, name in enumerate(StudyConfig.model_fields)}
    return sorted(problems, key=lambda problem: sections.get(problem.path.partition(".")[0], len(sections)))


def _further_problems(raw: dict[str, Any], error: ValidationError) -> Iterator[Problem]:
    """The problems that were hidden by others, and those that checks find in what is valid in an invalid study.

    Each invalid key is replaced by its default or an example, and each unknown one removed, until the study is valid.
    Then these keys are taken away from it, so that a check that needs one of them is left out.
    """
    raw, invalid, unknown = deepcopy(raw), set[Keys](), set[Keys]()
    for _ in range(MAX_ROUNDS):
        this_round = list[Keys]()
        for detail, keys in [(detail, keys_of(raw, detail)) for detail in errors_of(error)]:
            if any(keys[: len(it)] == it for it in this_round):
                continue
            replaced = _replace(raw, keys, invalid)
            this_round.append(replaced)
            (unknown if detail["type"] == "extra_forbidden" and not is_known(replaced) else invalid).add(replaced)
        try:
            config = StudyConfig.model_validate(raw)
        except ValidationError as another:
            error = another
            yield from problems_of([it for it in errors_of(error) if _was_hidden(it, keys_of(raw, it), invalid)], raw)
        else:
            # Defaults are shared by all studies of this process.
            config = config.model_copy(deep=True)
            for keys in invalid | unknown:
                _take_away(config, keys)
            yield from find_problems(config, is_partial=True)
            return


def _was_hidden(detail: ErrorDetails, keys: Keys, replaced: set[Keys]) -> bool:
    """Whether an error is the user's, and does not come of what was replaced within, above or beside it."""
    if any(keys[: len(it)] == it or it[: len(keys)] == keys for it in replaced):
        return False
    # Which keys there are depends on the policy.
    return detail["type"] != "extra_forbidden" or not is_known(keys) or (*keys[:-1], "policy") not in replaced


def _replace(raw: dict[str, Any], keys: Keys, invalid: set[Keys]) -> Keys:
    """Replace the value at `keys` by its default or an example, or, if that was `invalid` before, what is above it.

    Returns:
        The keys of what was replaced.
    """
    if keys[:2] in ENTRIES and len(keys) > 2 and keys[:3] not in invalid:
        entries, valid = raw[str(keys[0])][keys[1]], ENTRIES[keys[:2]]
        entry, key = entries[keys[2]], keys[3] if len(keys) > 3 else "shape"
        if keys[:2] == FIELDS and isinstance(entry, dict) and (*keys[:3], key) not in invalid:
            # Its other keys are checked, too.
            entry.pop(key, None)
            entry.setdefault("shape", valid)
            return (*keys[:3], key)
        entries[keys[2]] = valid
        return keys[:3]
    node: Any = raw
    for depth, key in enumerate(keys):
        below = node.get(key)
        if depth + 1 == len(keys) or not isinstance(below, dict):
            keys = keys[: depth + 1]
            break
        node = below
    fields = [field for model in models_at(keys[:-1]) if (field := field_of(model, keys[-1]))]
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
