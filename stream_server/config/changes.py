"""The changes that a run may have in its study.json when it continues an earlier run.

Why: docs/decisions/0099-changes-at-a-restart.md
"""

import os
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatch
from typing import Any, NamedTuple

from pydantic import ValidationError

from stream_server.config.problems import Problem, config_error, shown
from stream_server.config.study import StudyConfig
from stream_server.errors import ConfigError


class Permission(StrEnum):
    """Whether a restart may change a key: freely, so that it is told and kept with the run, or not at all."""

    FREE = "free"
    TOLD = "told"
    REFUSED = "refused"


class Rule(NamedTuple):
    """The rule for keys that match one of `patterns`: whether a restart may change them, and the reason or consequence.

    Of those that are told, a change may be one that the rule does not `allow`, by the values before and now, for which
    `refusal` is the reason. What `is_compared` is free, and told by what the server makes of it.
    """

    permission: Permission
    reason: str
    patterns: tuple[str, ...]
    allow: Callable[[Any, Any], bool] = lambda before, now: True
    refusal: str = ""
    is_compared: bool = False

    def refuses(self, before: Any, now: Any) -> bool:
        return self.permission is Permission.REFUSED or not self.allow(before, now)


def _rule(permission: Permission, reason: str, *patterns: str, **further: Any) -> Rule:
    return Rule(permission, reason, patterns, **further)


def _keeps_weights(before: Any, now: Any) -> bool:
    return {before, now} <= {"32-true", "bf16-mixed", "16-mixed"}


def _is_bounded(before: Any, now: Any) -> bool:
    return now is not None


FREE, TOLD, REFUSED = Permission
RULES = (
    _rule(FREE, "where the run lies, and who sees it", "study_dir", "study.output_dir", "study.share_with"),
    _rule(FREE, "what is logged and shown", "study.units*", "metrics.*", "training.log_every_batches"),
    _rule(TOLD, "those that have begun stay", "study.simulations", "study.rounds.number"),
    _rule(REFUSED, "the rounds that have ended are of that size", "study.rounds*"),
    _rule(REFUSED, "checkpoints, record and simulations that run have that name", "study.name"),
    _rule(REFUSED, "weights and simulations that there are were drawn by it", "study.seed", "study.data_seed"),
    _rule(REFUSED, "the samples that have come are numbered by them", "study.time_steps*"),
    _rule(REFUSED, "the samples that are in the buffer have that form", "study.fields*", "samples*"),
    _rule(FREE, "how long something is waited for", "parameters.sampler.timeout_s", "server.stall_s"),
    _rule(
        REFUSED,
        "simulations that have begun got their parameters by it",
        *("parameters.bounds*", "parameters.file", "parameters.sampler*"),
    ),
    _rule(REFUSED, "the samples that have come are of that program", "simulation.command", "simulation.templates"),
    _rule(
        REFUSED,
        "simulations that run, or wait to be tried again, were begun so",
        *("simulation.ranks", "simulation.on_failure", "simulation.per_job", "simulation.per_worker"),
    ),
    _rule(
        FREE,
        "how simulations are watched and tried again",
        *("simulation.timeout_s", "simulation.retries", "simulation.max_failed", "simulation.keep_folders"),
    ),
    _rule(REFUSED, "what is saved is the state of that class, whose file may change", "server.class"),
    _rule(
        FREE,
        "where and how the processes run",
        *("simulation.job.*", "server.backend", "server.ranks*", "server.job.*", "launcher.*", "client.*", "network.*"),
    ),
    _rule(TOLD, "a buffer that holds more takes nothing in until there is room", "buffer.capacity"),
    _rule(TOLD, "from now on", "buffer.watermark", "normalization.every_batches"),
    _rule(REFUSED, "what the buffer holds is the state of that policy", "buffer.policy", "buffer.args*"),
    _rule(REFUSED, "the samples that are in the buffer count down from it", "buffer.pseudo_epochs"),
    _rule(REFUSED, "the steps of simulations that run go to the ranks by it", "buffer.routing"),
    _rule(TOLD, "batches that were drawn before stay as they are", "training.batch_size"),
    _rule(
        TOLD,
        "it bounds the draws of samples to come",
        "training.draws_per_sample",
        allow=_is_bounded,
        refusal="without a bound nobody knows how far the run is",
    ),
    _rule(
        TOLD,
        "from this update on",
        *("training.accumulate", "training.clip_norm", "training.clip_value"),
        *("training.matmul_precision", "training.uneven", "training.max_nonfinite"),
        "training.sharding.mixed_precision",
    ),
    _rule(TOLD, "counted from the beginning", "training.max_batches", "training.max_s", "training.early_stop*"),
    _rule(
        TOLD,
        "weights and optimizer stay in the format that they have",
        "training.precision",
        allow=_keeps_weights,
        refusal="weights and optimizer would need another format than they were saved in",
    ),
    _rule(
        FREE,
        "what they make is compared with what was saved",
        *("training.optimizer*", "training.lr_scheduler*"),
        is_compared=True,
    ),
    _rule(REFUSED, "the weights that were saved are those of that model", "training.model*"),
    _rule(REFUSED, "what was saved is the state of that class", "training.callbacks"),
    _rule(REFUSED, "earlier losses, the best of which counts, are measured by it", "training.criterion*"),
    _rule(REFUSED, "the samples that it holds are saved as it took them", "training.train_dataloader*"),
    _rule(REFUSED, "learning-rate schedules have counted by it", "training.lr_clock"),
    _rule(REFUSED, "the samples that have come were judged by it", "training.nonfinite"),
    _rule(
        FREE,
        "the last bits at most",
        *("training.device", "training.compile", "training.deterministic", "training.prefetch"),
        "training.sharding*",
    ),
    _rule(REFUSED, "all other simulations are trained on", "validation.simulations"),
    _rule(
        FREE,
        "what is shown and kept of a validation, and how it is computed",
        *("validation.batch_size", "validation.at_start", "validation.pictures", "validation.save_before"),
        "validation.rollout*",
    ),
    _rule(
        TOLD,
        "losses from now on are not of the same samples",
        *("validation.val_dataloader*", "validation.sets*", "validation.max_batches"),
    ),
    _rule(
        TOLD,
        "counted from the beginning",
        *("validation.every_batches", "validation.every_s", "validation.at", "validation.after_batches"),
    ),
    _rule(FREE, "when, where and what is saved", "checkpoint.*"),
    _rule(FREE, "whether what is made now or what was saved wins", "load.hyperparameters"),
    _rule(REFUSED, "the run goes on with what it has learned since it began with that", "load*"),
    _rule(REFUSED, "the statistics that there are were kept so", "normalization.*"),
    _rule(REFUSED, "samples that have come were trained or written by it", "offline.*"),
    _rule(TOLD, "as the server class takes it", "user*"),
)
"""The first rule with a pattern that a key matches holds for it."""


class Difference(NamedTuple):
    """A key that has another value than before, and the rule for it."""

    path: str
    before: Any
    now: Any
    rule: Rule

    @property
    def is_told(self) -> bool:
        return self.rule.permission is Permission.TOLD

    @property
    def is_of_training(self) -> bool:
        """Whether the training is another by it, beyond the last bits."""
        return self.is_told or self.rule.is_compared


def check_continuation(before: Mapping[str, Any], config: StudyConfig, saved: Mapping[str, Any] | None = None) -> None:
    """Check that `config` can continue a run whose resolved study.json is `before`.

    The keys that are told are those of the newest checkpoint, `saved` (empty: there is none), where that says them: a
    start that changed them and died before it saved has changed nothing.

    Raises:
        ConfigError: something that may not change has; both values are named, and the reason.
    """
    found = [it for it in differences(before, config) if not it.is_told]
    found += [it for it in differences(before if saved is None else saved, config) if it.is_told]
    problems = [_problem(it) for it in found if it.rule.refuses(it.before, it.now)]
    problems += _other_order(_completed(before), config.resolved())
    if problems:
        text = config_error("study.json, beside the run that it would continue,", problems)
        raise ConfigError(
            f"{text}\n--fresh starts it over, and keeps the old folder under another name; another study.output_dir "
            "leaves it as it is; load.checkpoint, with that folder, begins with the model in it"
        )


def differences(before: Mapping[str, Any], config: StudyConfig) -> list[Difference]:
    """The keys of `config` that differ from `before`, a resolved study.json."""
    earlier, later = _with_relative_paths(_completed(before)), _with_relative_paths(config.resolved())
    return [Difference(path, was, now, rule_of(path)) for path, was, now in _differing(earlier, later, "")]


def rule_of(path: str) -> Rule:
    """The rule for a key, such as "buffer.capacity"."""
    is_match = (rule for rule in RULES if any(fnmatch(path, pattern) for pattern in rule.patterns))
    return next(is_match, _rule(REFUSED, "no rule says what would follow"))


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


def _differing(before: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if before == now:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**before, **now}:
            yield from _differing(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
        return
    yield path, before, now


def _problem(difference: Difference) -> Problem:
    path, before, now, rule = difference
    if before is None:
        found, instead = f"{shown(now)}, but the run began without this key", "Remove it"
    else:
        value = "missing" if now is None else shown(now)
        found, instead = f"{value}, but the run began with {shown(before)}", f"Write {shown(before)}"
    return Problem(path, found, f"{instead}, or start afresh: {rule.refusal or rule.reason}")


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
