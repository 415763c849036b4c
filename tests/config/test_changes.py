"""The settings that may differ between two runs of the same study, one of which continues the other."""

import json
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from stream_server.config import StudyConfig, check_continuation, load
from stream_server.config.changes import RULES, Permission, differences, rule_of
from stream_server.config.study import model_in
from stream_server.errors import ConfigError
from tests.docs.change_table import PAGE, page_with_table
from tests.support.studies import Changes, StudyFolder

NETWORK = {"class": "server.py:OtherServer", "args": {"lr": 0.1}}
TOLD: list[Changes] = [
    {"study.simulations": 200},
    {"buffer.capacity": 2501},
    {"buffer.watermark": 501},
    {"training.batch_size": 11},
    {"training.precision": "bf16-mixed"},
    {"training.accumulate": 2},
    {"training.clip_norm": 1.0},
    {"training.clip_value": 1.0},
    {"training.matmul_precision": "high"},
    {"training.uneven": "stop"},
    {"training.max_batches": 10},
    {"training.max_s": 10.0},
    {"training.early_stop": {"monitor": "train/loss"}},
    {"training.max_nonfinite": 3},
    {"validation.every_batches": 10},
    {"validation.every_s": 10.0},
    {"validation.at": [10]},
    {"validation.after_batches": 5, "validation.every_batches": 10},
    {"validation.max_batches": 2},
    {"validation.sets": {"far": {"every_batches": 10}}},
    {"validation.val_dataloader": NETWORK},
    {"normalization.every_batches": 3},
    {"user": {"lr": 0.1}},
]
ALLOWED: list[Changes] = [
    *TOLD,
    {"study.output_dir": "elsewhere"},
    {"simulation.timeout_s": 7.0},
    {"simulation.retries": 9},
    {"simulation.max_failed": 0.9},
    {"simulation.keep_folders": "failed"},
    {"simulation.job.environment": {"A": "b"}},
    {"server.ranks": 3},
    {"server.job.environment": {"A": "b"}},
    {"launcher.max_running": 2},
    {"launcher.restarts": 9},
    {"client.window": "1MiB"},
    {"client.max_attached": 9},
    {"client.wait_s": 9.0},
    {"training.log_every_batches": 3},
    {"training.prefetch": 2},
    {"training.sharding": {"kind": "full", "min_parameters": 1000}},
    {"training.compile": True},
    {"training.deterministic": True},
    {"training.device": "cpu"},
    {"load.hyperparameters": "saved"},
    {"validation.batch_size": 3},
    {"validation.at_start": 2},
    {"validation.save_before": True},
    {"checkpoint.every_batches": 3},
    {"checkpoint.every_s": 3.0},
    {"checkpoint.keep": 3},
    {"checkpoint.keep_every": 100},
    {"checkpoint.keep_at": [7]},
    {"checkpoint.exclude": ["backbone.*"]},
    {"checkpoint.keep_best": 3},
    {"checkpoint.monitor": "val/error"},
    {"checkpoint.mode": "max"},
    {"checkpoint.dir": "elsewhere"},
    {"checkpoint.allow_pickle": True},
    {"network.interface": "lo"},
    {"network.ports": [5000, 6000]},
    {"network.security": "none"},
]
REFUSED: list[Changes] = [
    {"samples": {"window": {"length": 5}}, "buffer.routing": "simulations"},
    {"study.name": "cold"},
    {"study.seed": 7},
    {"study.data_seed": 7},
    {"study.time_steps": 50},
    {"study.rounds": {"simulations": 25, "number": 4}},
    {"study.fields.temperature": [50, 50]},
    {"study.fields.pressure": [1]},
    {"parameters.bounds.initial": [100, 501]},
    {"parameters.sampler": "halton"},
    {"simulation.command": ["python", "heat.py"]},
    {"simulation.on_failure": "redraw"},
    {"simulation.ranks": 2},
    {"simulation.per_job": 2, "launcher.max_running": 2},
    {"simulation.per_worker": "many", "simulation.command": ["python", "heat.py"]},
    {"server.class": "server.py:OtherServer"},
    {"buffer.policy": "fifo"},
    {"buffer.policy": "policies:Newest", "buffer.args": {"num": 3}},
    {"buffer.policy": "firo", "buffer.pseudo_epochs": 2},
    {"buffer.routing": "simulations", "client.max_attached": 8},
    {"training.model": NETWORK, "training.optimizer": NETWORK},
    {"training.callbacks": [NETWORK]},
    {"training.criterion": NETWORK},
    {"training.train_dataloader": NETWORK},
    {"training.precision": "64-true"},
    {"training.lr_clock": "updates"},
    {"training.nonfinite": "keep"},
    {"validation.simulations": 3},
    {"load": {"checkpoint": "other"}},
    {"normalization.fields": ["temperature"]},
    {"normalization.parameters": True},
    {"normalization.per": "value"},
    {"normalization.freeze_after": 1000},
    {"offline.write_files": True},
    {"offline.epochs": 2},
    {"offline.shuffle": False},
]


def resolved(config: StudyConfig) -> dict[str, Any]:
    """As the output folder has it."""
    plain: dict[str, Any] = json.loads(json.dumps(config.resolved()))
    return plain


@pytest.fixture(autouse=True)
def other_class(folder: StudyFolder) -> None:
    folder.write("server.py", "class HeatServer: ...\n\nclass OtherServer: ...\n")


def test_a_study_that_did_not_change_can_be_continued(folder: StudyFolder) -> None:
    check_continuation(resolved(folder.load()), folder.load())


@pytest.mark.parametrize(
    ("policy", "absent"),
    [
        ("reservoir", ["args", "pseudo_epochs"]),
        ("firo", ["args"]),
        ("fifo", ["args", "pseudo_epochs", "watermark"]),
        ("policies:Newest", ["pseudo_epochs"]),
    ],
)
def test_a_run_goes_on_that_began_without_a_key_which_has_its_default(
    folder: StudyFolder, policy: str, absent: list[str]
) -> None:
    """Older versions wrote the keys that the policy of the buffer uses."""
    config = folder.load({"buffer.policy": policy})
    before = resolved(config)
    for key in absent:
        del before["buffer"][key]
    check_continuation(before, config)


def test_a_run_does_not_go_on_that_began_without_a_key_which_has_another_value(folder: StudyFolder) -> None:
    before = resolved(folder.load({"buffer.policy": "policies:Newest"}))
    del before["buffer"]["pseudo_epochs"]
    with pytest.raises(ConfigError, match=r"buffer\.pseudo_epochs: 2, but the run began with 1"):
        check_continuation(before, folder.load({"buffer.policy": "policies:Newest", "buffer.pseudo_epochs": 2}))


@pytest.mark.parametrize("changes", ALLOWED, ids=str)
def test_what_does_not_matter_may_change_there_and_back(folder: StudyFolder, changes: Changes) -> None:
    before, after = folder.load(), folder.load(changes)
    assert before != after
    check_continuation(resolved(before), after)
    check_continuation(resolved(after), before)


def test_the_order_of_the_parameters_may_not_change(folder: StudyFolder) -> None:
    """They would have each other's names in the samples that there are."""
    bounds = resolved(folder.load())["parameters"]["bounds"]
    before, after = folder.load(), folder.load({"parameters.bounds": dict(reversed(bounds.items()))})
    with pytest.raises(ConfigError) as caught:
        check_continuation(resolved(before), after)
    told = f"in the order {', '.join(reversed(bounds))}, but the run began with {', '.join(bounds)}. Write them in that"
    assert f"parameters.bounds: {told}" in str(caught.value)


def test_rollouts_may_be_asked_for_later(folder: StudyFolder) -> None:
    windows: Changes = {
        "samples": {"window": {"length": 5}},
        "buffer.routing": "simulations",
        "validation.simulations": 1,
    }
    before, after = folder.load(windows), folder.load({**windows, "validation.rollout": {"horizon": 3}})
    check_continuation(resolved(before), after)
    check_continuation(resolved(after), before)


@pytest.mark.parametrize("changes", REFUSED, ids=str)
def test_what_matters_may_not_change(folder: StudyFolder, changes: Changes) -> None:
    before, after = folder.load(), folder.load(changes)
    for was, now in ((before, after), (after, before)):
        with pytest.raises(ConfigError, match="--fresh starts it over, and keeps the old folder") as caught:
            check_continuation(resolved(was), now)
        assert next(iter(changes)) in str(caught.value)


def test_every_key_is_tried(folder: StudyFolder) -> None:
    """Whoever adds a key decides whether it may change, and puts it into one of the lists."""

    def leaves(node: Any, path: str = "") -> list[str]:
        if isinstance(node, dict) and node and path not in ("study.fields", "parameters.bounds"):
            return [leaf for key, value in node.items() for leaf in leaves(value, f"{path}.{key}".lstrip("."))]
        return [path]

    tried = [key for changes in (*ALLOWED, *REFUSED) for key in changes]
    untried = [
        path
        for path in leaves(resolved(folder.load()))
        if not any(key == path or key.startswith(f"{path}.") or path.startswith(f"{key}.") for key in tried)
    ]
    assert [path for path in untried if rule_of(path).permission is Permission.REFUSED] == [
        "parameters.file",
        "simulation.templates",
    ]


def test_the_limit_of_a_sampler_may_change(folder: StudyFolder) -> None:
    folder.write("sampler.py", "class Mine: ...\n")
    sampler = {"class": "sampler.py:Mine", "args": {"rate": 2}}
    before, after = (
        folder.load({"parameters.sampler": {**sampler, "timeout_s": timeout_s}}) for timeout_s in (60.0, 90.0)
    )
    assert before != after
    check_continuation(resolved(before), after)


def test_what_optimizer_and_schedule_are_made_with_may_change(folder: StudyFolder) -> None:
    """tests/server/training/torch/test_hyperparameters.py shows what comes of it."""

    def adam(lr: float, **keys: Any) -> StudyConfig:
        optimizer = {"class": "torch.optim:Adam", "args": {"lr": lr}}
        return folder.load({"training.model": NETWORK, "training.optimizer": optimizer, **keys})

    step = {"class": "torch.optim.lr_scheduler:StepLR", "args": {"step_size": 3}}
    changed = [adam(0.1), adam(0.2), adam(0.2, **{"training.lr_scheduler": step})]
    for before, after in product(changed, changed):
        check_continuation(resolved(before), after)


def test_the_folder_of_a_study_may_be_moved(folder: StudyFolder, tmp_path: Path) -> None:
    changes: Changes = {
        "study.name": "heat",
        "parameters": {"file": "design.csv"},
        "simulation.templates": ["case.in"],
        "training.callbacks": [{"class": "server.py:OtherServer"}],
        "load": {"checkpoint": "other"},
        "checkpoint.exclude": ["backbone.*"],
    }
    names = "simulation,initial,left,right\n"
    rows = "".join(f"{number},1,1,1\n" for number in range(200))
    folder.write("design.csv", names + rows)
    folder.write("case.in", "")
    before = resolved(folder.load(changes))
    shutil.copytree(folder.path, tmp_path / "moved")
    check_continuation(before, load(tmp_path / "moved" / "study.json"))


def test_both_values_are_told_and_the_reason(folder: StudyFolder) -> None:
    before = folder.load({"buffer.policy": "policies:Newest", "buffer.args": {"rate": 0.5, "layers": [1, 2]}})
    after = folder.load(
        {"buffer.policy": "policies:Newest", "buffer.args": {"rate": 0.1, "momentum": 0.9}, "study.seed": 7}
    )
    with pytest.raises(ConfigError) as caught:
        check_continuation(resolved(before), after)
    first, *problems, last = str(caught.value).splitlines()
    assert first == "study.json, beside the run that it would continue, has 4 problems:"
    of_policy = "what the buffer holds is the state of that policy"
    assert sorted(line.strip() for line in problems) == [
        f"buffer.args.layers: missing, but the run began with [1, 2]. Write [1, 2], or start afresh: {of_policy}.",
        f"buffer.args.momentum: 0.9, but the run began without this key. Remove it, or start afresh: {of_policy}.",
        f"buffer.args.rate: 0.1, but the run began with 0.5. Write 0.5, or start afresh: {of_policy}.",
        "study.seed: 7, but the run began with 0. Write 0, or start afresh: weights and simulations that there are "
        "were drawn by it.",
    ]
    assert last == (
        "--fresh starts it over, and keeps the old folder under another name; another study.output_dir leaves it as it "
        "is; load.checkpoint, with that folder, begins with the model in it"
    )


@pytest.mark.parametrize("changes", TOLD, ids=str)
def test_what_changes_the_training_is_told_and_nothing_else(folder: StudyFolder, changes: Changes) -> None:
    before, after = folder.load(), folder.load(changes)
    told = {it.path for it in differences(resolved(before), after) if it.is_told}
    assert told == {path if path != "user" else "user.lr" for path in changes} or "validation.sets" in str(changes)
    assert not differences(resolved(after), after)


def test_of_a_free_change_that_the_server_compares_others_are_told_too(folder: StudyFolder) -> None:
    """A finished study, or a server that is taken over, has no server that would."""
    adam = {"class": "torch.optim:Adam", "args": {"lr": 0.1}}
    before = folder.load({"training.model": NETWORK, "training.optimizer": adam})
    now = {"training.model": NETWORK, "training.optimizer": {**adam, "args": {"lr": 0.2}}}
    after = folder.load({**now, "training.prefetch": 2, "training.batch_size": 11})
    found = differences(resolved(before), after)
    of_training = [it.path for it in found if it.is_of_training]
    assert sorted(of_training) == ["training.batch_size", "training.optimizer.args.lr"]
    assert [it.path for it in found if it.is_told] == ["training.batch_size"]


def test_each_rule_has_a_reason_and_what_is_refused_its_own(folder: StudyFolder) -> None:
    assert all(rule.reason for rule in RULES)
    with pytest.raises(ConfigError, match="or start afresh: weights and optimizer would need another format"):
        check_continuation(resolved(folder.load()), folder.load({"training.precision": "64-true"}))
    bounded = folder.load({"training.draws_per_sample": 2.0, "training.lr_clock": "samples"})
    with pytest.raises(ConfigError, match="or start afresh: without a bound nobody knows"):
        check_continuation(resolved(bounded), folder.load({"training.lr_clock": "samples"}))


@pytest.mark.parametrize(
    ("before", "now", "is_refused"),
    [
        ({"training.precision": "32-true"}, {"training.precision": "16-mixed"}, False),
        ({"training.precision": "32-true"}, {"training.precision": "64-true"}, True),
        ({"training.precision": "bf16-mixed"}, {"training.precision": "bf16-true"}, True),
        ({"training.draws_per_sample": 2.0}, {"training.draws_per_sample": 3.5}, False),
        ({}, {"training.draws_per_sample": 3.5, "training.lr_clock": "samples"}, False),
        ({"training.draws_per_sample": 2.0, "training.lr_clock": "samples"}, {}, True),
        ({}, {"training.draws_per_sample": 3.5}, True),
    ],
)
def test_some_keys_may_change_to_some_values(
    folder: StudyFolder, before: Changes, now: Changes, is_refused: bool
) -> None:
    was, config = resolved(folder.load(before)), folder.load(now)
    if is_refused:
        with pytest.raises(ConfigError, match=r"training\.(precision|draws_per_sample|lr_clock)"):
            check_continuation(was, config)
    else:
        check_continuation(was, config)


def test_a_change_that_no_checkpoint_has_may_be_taken_back(folder: StudyFolder) -> None:
    """A start that changed it has died before it saved; what is refused is so from the start on."""
    died = folder.load({"training.draws_per_sample": 8.0, "training.lr_clock": "samples"})
    now = folder.load({"training.lr_clock": "samples"})
    with pytest.raises(ConfigError, match=r"training\.draws_per_sample: missing"):
        check_continuation(resolved(died), now)
    check_continuation(resolved(died), now, resolved(now))
    check_continuation(resolved(died), now, {})
    with pytest.raises(ConfigError, match=r"training\.draws_per_sample: missing"):
        check_continuation(resolved(now), now, resolved(died))
    with pytest.raises(ConfigError, match=r"study\.seed"):
        check_continuation(resolved(folder.load({"study.seed": 7})), now, resolved(now))


def keys_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{path}.{field.alias or name}".lstrip(".")
        inner = None if "tuple[" in str(field.annotation) else model_in(field.annotation)
        yield from [key] if inner is None or "dict[" in str(field.annotation) else keys_of(inner, key)


KEYS = [*keys_of(StudyConfig)]


def test_every_key_of_study_json_has_a_rule() -> None:
    assert len(KEYS) > 120
    patterns = {pattern for rule in RULES for pattern in rule.patterns}
    assert [key for key in KEYS if rule_of(key) not in RULES] == []
    # A section whose keys all follow one rule; another one names each of its keys.
    assert sorted(pattern for pattern in patterns if pattern.endswith(".*")) == [
        *("checkpoint.*", "client.*", "launcher.*", "metrics.*", "network.*", "normalization.*", "offline.*"),
        *("server.job.*", "simulation.job.*"),
    ]


def test_every_rule_has_a_key_and_a_reason_where_it_refuses() -> None:
    used = {rule_of(key) for key in KEYS}
    assert [rule.patterns for rule in RULES if rule not in used] == []
    assert [rule.patterns for rule in RULES if rule.permission is not Permission.TOLD and not rule.reason] == []


def test_a_program_may_be_built_after_a_run_began(folder: StudyFolder) -> None:
    changes: Changes = {"simulation.command": ["build/solver", "--in", "case.txt"]}
    before = resolved(folder.load(changes))
    folder.write("build/solver", "")
    folder.write("case.txt", "")
    now = folder.load(changes)
    assert before["simulation"]["command"] != resolved(now)["simulation"]["command"]
    check_continuation(before, now)
    with pytest.raises(ConfigError, match=r"simulation\.command"):
        check_continuation(before, folder.load({"simulation.command": ["build/other", "--in", "case.txt"]}))


@pytest.mark.parametrize("before", [[], "heat", None, {"study": 3}])
def test_something_that_was_never_a_study_cannot_be_continued(folder: StudyFolder, before: Any) -> None:
    with pytest.raises(ConfigError):
        check_continuation(before, folder.load())


def test_a_run_in_rounds_goes_on_with_more_of_them_and_no_others(folder: StudyFolder) -> None:
    def in_rounds(simulations: int, number: int) -> StudyConfig:
        return folder.load({"study.simulations": ..., "study.rounds": {"simulations": simulations, "number": number}})

    before = resolved(in_rounds(25, 4))
    check_continuation(before, in_rounds(25, 6))
    with pytest.raises(ConfigError, match=r"study\.rounds\.simulations: 50, but the run began with 25"):
        check_continuation(before, in_rounds(50, 2))
    with pytest.raises(ConfigError, match=r"study\.rounds"):
        check_continuation(resolved(folder.load()), in_rounds(25, 4))


def test_the_page_on_restarts_has_the_rules() -> None:
    page = PAGE.read_text()
    assert page == page_with_table(page), "python -m tests.docs.change_table writes the table anew"
