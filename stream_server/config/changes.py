"""The changes that a run may have in its study.json when it continues an earlier run."""

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from pydantic import ValidationError

from stream_server.config.problems import Problem, config_error, shown
from stream_server.config.study import StudyConfig
from stream_server.errors import ConfigError

# They change how long or on what a study runs, or what is told of it, and neither what it learns from nor what it
# learns, but for the last bits.
MAY_CHANGE = (
    "study_dir",
    "study.output_dir",
    "study.share_with",
    "study.simulations",
    "study.rounds.number",
    "study.units*",
    "parameters.sampler.timeout_s",
    "simulation.timeout_s",
    "simulation.retries",
    "simulation.max_failed",
    "simulation.keep_folders",
    "simulation.job.*",
    "server.backend",
    "server.ranks*",
    "server.stall_s",
    "server.job.*",
    "launcher.*",
    "client.*",
    "training.max_batches",
    "training.max_s",
    "training.early_stop*",
    "training.max_nonfinite",
    "training.device",
    "training.compile",
    "training.deterministic",
    "training.log_every_batches",
    "training.prefetch",
    "validation.every_batches",
    "validation.every_s",
    "validation.at",
    "validation.at_start",
    "validation.after_batches",
    "validation.batch_size",
    "validation.max_batches",
    "validation.pictures",
    "validation.save_before",
    "validation.rollout*",
    "validation.sets*",
    "metrics.*",
    "checkpoint.*",
    "network.*",
)


def check_continuation(before: Mapping[str, Any], config: StudyConfig) -> None:
    """Check that `config` can continue a run whose resolved study.json is `before`.

    Raises:
        ConfigError: something that matters has changed; both values are named.
    """
    before, resolved = _completed(before), config.resolved()
    problems = [*_changes(_with_relative_paths(before), _with_relative_paths(resolved), "")]
    problems += _other_order(before, resolved)
    if problems:
        text = config_error("study.json, beside the run that it would continue,", problems)
        raise ConfigError(
            f"{text}\n--fresh starts it over, and keeps the old folder under another name; another study.output_dir "
            "leaves it as it is; load.checkpoint, with that folder, begins with the model in it"
        )


def _completed(before: Mapping[str, Any]) -> Mapping[str, Any]:
    """`before` with the defaults of the keys that an older version did not write, if it is a study at all."""
    try:
        return StudyConfig.model_validate(before).resolved()
    except ValidationError:
        return before


def _other_order(before: Any, now: Any) -> Iterator[Problem]:
    """The parameters of a sample stand in the order of their bounds."""
    earlier, order = map(_parameters_of, (before, now))
    if order != earlier and set(order) == set(earlier):
        found = f"in the order {', '.join(order)}, but the run began with {', '.join(earlier)}"
        yield Problem("parameters.bounds", found, "Write them in that order, or start afresh")


def _parameters_of(resolved: Any) -> list[str]:
    match resolved:
        case {"parameters": {"bounds": Mapping() as bounds}}:
            return [*bounds]
    return []


def _changes(before: Any, now: Any, path: str) -> Iterator[Problem]:
    if before == now or any(fnmatch(path, pattern) for pattern in MAY_CHANGE):
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**before, **now}:
            yield from _changes(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
        return
    if before is None:
        yield Problem(path, f"{shown(now)}, but the run began without this key", "Remove it, or start afresh")
        return
    found = "missing" if now is None else shown(now)
    yield Problem(path, f"{found}, but the run began with {shown(before)}", f"Write {shown(before)}, or start afresh")


def _with_relative_paths(resolved: Any) -> Any:
    """The same study with the files in its folder relative to it: the folder may have been moved.

    A word of `simulation.command` becomes absolute only if the file is there when study.json is loaded. A program may
    have been built since the run began.
    """
    match resolved:
        case {"study_dir": str(study_dir)}:
            return _relative(resolved, study_dir)
    return resolved


def _relative(node: Any, study_dir: str) -> Any:
    match node:
        case str() if ".study-parts.pickle:" in node:
            # Its name has that of the output folder, and it holds the classes of the newest start.
            return f"NAME.study-parts.pickle:{node.rpartition(':')[2]}"
        case Mapping():
            return {key: _relative(value, study_dir) for key, value in node.items()}
        case list() | tuple():
            return [_relative(value, study_dir) for value in node]
        case str() if os.path.isabs(node) or os.sep in node:
            path = os.path.normpath(os.path.join(study_dir, node))
            return os.path.relpath(path, study_dir) if path.startswith(study_dir + os.sep) else node
    return node
