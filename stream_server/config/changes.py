"""The changes that a run may have in its study.json when it continues an earlier run."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from stream_server.config.problems import Problem, config_error, shown
from stream_server.config.study import StudyConfig
from stream_server.errors import ConfigError

# They change how long or on what a study runs, and neither what it learns from nor what it learns.
MAY_CHANGE = (
    "study_dir",
    "study.output_dir",
    "study.share_with",
    "study.simulations",
    "study.units*",
    "simulation.timeout_s",
    "simulation.retries",
    "simulation.max_failed",
    "simulation.keep_folders",
    "simulation.job.*",
    "server.ranks*",
    "server.stall_s",
    "server.job.*",
    "launcher.*",
    "client.*",
    "training.max_batches",
    "training.max_s",
    "training.early_stop*",
    "training.log_every_batches",
    "validation.pictures",
    "validation.save_before",
    "metrics.*",
    "checkpoint.*",
    "network.*",
)
ABSENT = "nothing"


def check_continuation(before: Mapping[str, Any], config: StudyConfig) -> None:
    """Check that `config` can continue a run whose resolved study.json is `before`.

    Raises:
        ConfigError: something that matters has changed; both values are named.
    """
    problems = [*_changes(before, config.resolved(), "")]
    if problems:
        text = config_error("study.json, beside the run that it would continue,", problems)
        raise ConfigError(f"{text}\n--fresh starts it over, and keeps the old folder under another name")


def _changes(before: Any, now: Any, path: str) -> Iterator[Problem]:
    if before == now or any(fnmatch(path, pattern) for pattern in MAY_CHANGE):
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**before, **now}:
            yield from _changes(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
        return
    was, found = (ABSENT if value is None else shown(value) for value in (before, now))
    yield Problem(path, f"{found}, but the run began with {was}", f"Write {was}, or start afresh")
