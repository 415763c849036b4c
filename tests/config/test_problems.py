"""Mistakes that can be seen in one place of study.json."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_server.config import load
from stream_server.config.problems import MAX_SHOWN_CHARACTERS, shown
from stream_server.errors import ConfigError
from tests.support.examples import examples
from tests.support.studies import SMALLEST, StudyFolder

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(node: Any, here: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [here, *(path for key, value in items for path in paths(value, (*here, key)))]


def test_three_mistakes_are_reported_together_with_path_and_what_to_write(folder: StudyFolder) -> None:
    problems = folder.problems({"bufer": {}, "training.batch_size": 0, "simulation.command": "heat {intial}"})
    assert problems == [
        'simulation.command: "heat {intial}" is one text; nothing passes through a shell. '
        'Write a list: ["heat", "{intial}"].',
        "training.batch_size: 0 is out of range. Write 1 or more.",
        'bufer: unknown key. Write "buffer".',
    ]


RULES = {
    "simulation.command": ["heat", "{initial}", "{rigth}"],
    "buffer": {"capacity": 10, "watermark": 10},
    "training.clip_norm": 1.0,
    "training.clip_value": 1.0,
}


def test_all_rules_that_are_broken_are_told_together(folder: StudyFolder) -> None:
    assert [problem.partition(":")[0] for problem in folder.problems(RULES)] == [
        "simulation.command[2]",
        "buffer.capacity",
        "buffer.capacity",
        "training.clip_value",
    ]


def test_rules_are_looked_at_once_the_keys_are_valid(folder: StudyFolder) -> None:
    wrong = {"parameters.bounds.initial": [500, 100], "buffer.polcy": "fifo"}
    assert [problem.partition(":")[0] for problem in folder.problems(RULES | wrong)] == [
        "parameters.bounds.initial",
        "buffer.polcy",
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"buffer.polcy": "fifo"}, 'buffer.polcy: unknown key. Write "policy".'),
        ({"buffer.batch_size": 3}, "Write it as training.batch_size or validation.batch_size."),
        ({"network.xyz": 3}, "Leave it out; keys known here are interface, ports, security."),
        (
            {"training.callbacks": [{"class": "nets.py:Note"}, {"class": "nets.py:Note", "arg": {}}]},
            'training.callbacks[1].arg: unknown key. Write "args".',
        ),
        (
            {"metrics.writers": [{"class": "tensorboard", "arg": {}}]},
            'metrics.writers[0].arg: unknown key. Write "args".',
        ),
        ({"training.callbacks": [{"class": "nets.py:Note", "xyz": 3}]}, "keys known here are class, args."),
        ({"training.callbacks": [{}]}, "training.callbacks[0].class: missing."),
        ({"training.callbacks": [3]}, "training.callbacks[0]: 3 is not an object {…}."),
        ({"training.batch_size": ...}, 'training.batch_size: missing. Write "batch_size": 10'),
        ({"buffer": ...}, 'buffer: missing. Write "buffer": {"capacity": 2500}'),
        ({"training.batch_size": "10"}, '"10" is not a whole number. Write a whole number without quotes.'),
        ({"training.batch_size": 10.0}, "10.0 is not a whole number."),
        ({"training.batch_size": True}, "true is not a whole number."),
        ({"training.compile": "true"}, '"true" is not true or false. Write true or false without quotes.'),
        ({"training.max_s": "1h"}, '"1h" is not a number.'),
        ({"training.max_s": 0}, "0 is out of range. Write more than 0."),
        ({"training.draws_per_sample": 0.5}, "0.5 is out of range. Write 1 or more."),
        ({"simulation.max_failed": 1.5}, "1.5 is neither a share of the simulations nor a number of them."),
        ({"simulation.max_failed": -1}, "-1 is neither a share of the simulations nor a number of them."),
        ({"simulation.max_failed": True}, "true is neither a share of the simulations nor a number of them."),
        ({"buffer.policy": "resevoir"}, '"resevoir" is not a policy. Write "reservoir", or FILE.py:Class.'),
        ({"buffer.policy": 1}, 'policy: 1 is not a policy. Write "reservoir", "uniform", "firo" or "fifo", or'),
        ({"buffer.capacity": "4G"}, '"4G" is not a size. Write a number of samples, or a size such as "4GiB".'),
        ({"buffer.capacity": "1kB"}, "buffer.capacity: 1kB holds not one sample. Write a larger size."),
        ({"client.window": "64"}, '"64" is not a size.'),
        ({"simulation.command": "python heat.py"}, 'Write a list: ["python", "heat.py"].'),
        ({"simulation.command": []}, "the list is empty. Write a program and its arguments, or leave the key out."),
        ({"simulation.command": ["heat", 3]}, 'simulation.command[1]: 3 is not text in quotes.'),
        ({"validation.every_batches": 0}, "validation.every_batches: 0 is neither a number of batches nor a fraction"),
        ({"checkpoint.keep_at": [1, 1.5]}, "checkpoint.keep_at[1]: 1.5 is neither a number of batches nor a fraction"),
        ({"study.fields": {}}, "study.fields: {} has 0 elements. Write at least 1."),
        ({"study.fields.temperature": [100, -1]}, "temperature[1]: -1 is no extent. Write a whole number of 1 or more"),
        ({"study.fields.temperature": [3.0]}, "temperature[0]: 3.0 is no extent. Write a whole number of 1 or more"),
        ({"study.fields.temperature": [1] * 9}, "has 9 elements. Write at most 8."),
        ({"study.fields": {"u": {"shape": [1], "dtype": "flt"}}}, 'study.fields.u.dtype: "flt" is not a NumPy type.'),
        ({"study.fields": {"u": {"shape": [1], "dtype": "O"}}}, '"O" is not a numeric type'),
        ({"study.fields": {"a b": [1]}}, 'study.fields.a b: "a b" is not a name'),
        ({"study.fields": {"u": {"dtype": "int8"}}}, "study.fields.u.shape: missing. Write"),
        ({"study.name": "a/b"}, '"a/b" cannot name a folder.'),
        ({"study.seed": -1}, "-1 is out of range. Write 0 or more."),
        ({"study.time_steps": 0}, "study.time_steps: 0 is not a number of time steps. Write 1 or more, "),
        ({"study.time_steps": "10"}, 'study.time_steps: "10" is not a number of time steps.'),
        ({"study.time_steps": {"first": 5, "last": 1}}, "last (1) is before first (5)."),
        ({"study.time_steps": {"last": 100, "every": 3}}, 'Write "last": 99 or 102.'),
        ({"parameters.bounds.left": [5, 1]}, "low (5) must be less than high (1). Write [1, 5]."),
        ({"parameters.bounds.left": [0, 1, "log"]}, "low (0) must be positive on a logarithmic scale."),
        ({"parameters.bounds.left": [1, 2, "lin"]}, '"lin" in [1, 2, "lin"] is not a scale.'),
        ({"parameters.bounds.left": [1, "2"]}, '"2" in [1, "2"] is not a finite number.'),
        ({"parameters.bounds.left": 3}, 'left: 3 is not a range. Write [low, high], [low, high, "log"], '),
        ({"parameters.bounds.left": [0, 2**53, "integer"]}, "beyond the whole numbers that there are"),
        ({"parameters.bounds.left": [0, 2.5, "integer"]}, "has limits that are no whole numbers. Write [0, 2, …]."),
        ({"parameters.bounds.left": [1, 9, "log", "log"]}, '"log" in [1, 9, "log", "log"] is not a scale.'),
        ({"parameters.bounds.left": ["a", "b", "a"]}, '"a" is twice in ["a", "b", "a"]. Write each category once.'),
        ({"parameters.bounds.left": ["a"]}, '["a"] is not a range.'),
        ({"parameters.bounds.left": {"range": [0, 1]}}, '{"range": [0, 1]} is no vector. Write {"range": [low, high]'),
        ({"parameters.bounds.left": {"range": [0, 1], "size": 0}}, "the size 0 is not a number from 1 to 10000."),
        ({"parameters.bounds.left": {"range": [1, 0], "size": 3}}, "low (1) must be less than high (0)."),
        ({"parameters.bounds": {"a": {"range": [0, 1], "size": 2}, "a_1": [0, 1]}}, "the name a_1 is there twice"),
        ({"parameters.sampler": "sobel"}, '"sobel" is not a sampler. Write "sobol", or FILE.py:Class.'),
        ({"server.class": "server.py"}, '"server.py" names no class. Write "FILE.py:Class"'),
        ({"server.class": ""}, '"" names no class.'),
        ({"study.output_dir": ""}, '"" is not a path.'),
        ({"study.fields.temperature": 100}, "study.fields.temperature: 100 is not a shape. Write a list"),
        ({"study.seed": 2**64}, "study.seed: the number does not fit 64 bits. Write a smaller one."),
        ({"user.a": -(2**64)}, "user.a: the number does not fit 64 bits. Write a larger one."),
        ({"study.name": "\ud800"}, "study.name: '\\ud800' is not valid text."),
        ({"user.a": json.loads("[" * 40 + "]" * 40)}, "levels deep. Write something flatter."),
        ({"study_dir": 3}, "study_dir: 3 is not a path."),
        ({"network.ports": [0, 70000]}, "network.ports[0]: 0 is out of range."),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_says_what_was_found_and_what_to_write(
    folder: StudyFolder, changes: dict[str, Any], problem: str
) -> None:
    assert problem in "\n".join(folder.problems(changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"buffer.policy": "resevoir", "buffer.capactiy": 10, "buffer.watermark": "x"},
            ["buffer.policy: ", 'buffer.capactiy: unknown key. Write "capacity".', 'buffer.watermark: "x" is not'],
        ),
        ({"buffer.policy": "fiffo", "buffer.pseudo_epochs": 2}, ["buffer.policy: "]),
        ({"buffer.policy": 3, "buffer.capactiy": 10}, ["buffer.policy: ", "buffer.capactiy: unknown key."]),
        (
            {"server.ranks": {"min": 3, "max": 2, "mix": 1}},
            ["server.ranks.mix: unknown key."],
        ),
        (
            {"study.time_steps": {"first": 5, "last": 1, "evry": 1}},
            ["study.time_steps.evry: unknown key."],
        ),
        ({"study.time_steps": {"first": "a", "last": 1}}, ["study.time_steps.first: "]),
        (
            {"study.fields": {"u": {"shape": [1, {"max": 2}], "dtype": "flt", "optinal": True}}},
            ["study.fields.u.shape: ", "study.fields.u.dtype: ", "study.fields.u.optinal: unknown key."],
        ),
        (
            {"samples": {"window": {"length": 0}}, "buffer.policy": "x", "buffer.capactiy": 1},
            ["samples.window.length: ", "buffer.policy: ", "buffer.capactiy: "],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_no_mistake_hides_another_one_of_its_section(
    folder: StudyFolder, changes: dict[str, Any], told: list[str]
) -> None:
    problems = folder.problems(changes)
    assert len(problems) == len(told), problems
    for beginning in told:
        assert any(problem.strip().startswith(beginning) for problem in problems), problems


@pytest.mark.parametrize("value", ["ten", 0, 1.5, [1], True, -0.5])
def test_a_mistake_in_a_number_of_batches_or_fraction_of_the_run_is_told_once(folder: StudyFolder, value: Any) -> None:
    assert folder.problem({"training.log_every_batches": value}).startswith("training.log_every_batches: ")


@given(data=st.data())
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_wrong_the_error_is_a_config_error(folder: StudyFolder, data: st.DataObject) -> None:
    study: Any = copy.deepcopy(
        SMALLEST | {"training": {"batch_size": 10, "early_stop": {"patience": 1, "mode": "min"}}}
    )
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from([path for path in paths(study) if path]))
        node = study
        for parent in parents:
            node = node[parent]
        node[last] = data.draw(ANY_JSON)
    load_or_refuse(folder.write("study.json", json.dumps(study)))


def load_or_refuse(file: Path) -> None:
    try:
        load(file)
    except ConfigError as error:
        assert " problem" in str(error)  # noqa: PT017


def test_a_long_value_is_shown_in_part() -> None:
    assert shown("x" * (MAX_SHOWN_CHARACTERS - 2)) == '"' + "x" * (MAX_SHOWN_CHARACTERS - 2) + '"'
    cut = shown("x" * (MAX_SHOWN_CHARACTERS - 1))
    assert len(cut) == MAX_SHOWN_CHARACTERS
    assert cut.endswith("x…")
