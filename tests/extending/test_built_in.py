"""Each built-in class of a plug point is registered once, and is what study.json offers under its name."""

import inspect
from pathlib import Path

import pytest

from stream_server.built_in import BACKENDS, GENERATORS, POLICIES, SAMPLERS, WRITERS, load_named
from stream_server.config import json_schema
from stream_server.config.sections import POLICIES_WITHOUT
from tests.support.studies import StudyFolder

REGISTRIES = {"buffer.policy": POLICIES, "launcher.backend": BACKENDS, "parameters.sampler": {**SAMPLERS, **GENERATORS}}
NAMES = [(key, name) for key, names in {**REGISTRIES, "metrics.writers": WRITERS}.items() for name in names]


@pytest.mark.parametrize(("key", "name"), NAMES)
def test_each_name_stands_for_a_class_or_function(key: str, name: str, tmp_path: Path) -> None:
    registry = {**REGISTRIES, "metrics.writers": WRITERS}[key]
    assert callable(load_named(name, registry, tmp_path, kind=key))


@pytest.mark.parametrize(("key", "name"), [it for it in NAMES if it[0] != "metrics.writers"])
def test_study_json_takes_each_name(folder: StudyFolder, key: str, name: str) -> None:
    folder.load({key: name})


def test_study_json_refuses_exactly_what_the_class_of_a_policy_does_not_take() -> None:
    taken = {
        name: inspect.signature(load_named(name, POLICIES, Path(), kind="buffer.policy")).parameters
        for name in POLICIES
    }
    assert {key: set(policies) for key, policies in POLICIES_WITHOUT.items()} == {
        key: {name for name in POLICIES if key.rpartition(".")[2] not in taken[name]} for key in POLICIES_WITHOUT
    }


def test_the_schema_offers_the_names() -> None:
    schema = str(json_schema())
    assert all(str(list(names)) in schema for names in (BACKENDS, POLICIES, {**SAMPLERS, **GENERATORS}, WRITERS))
