import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from stream_server.config import StudyConfig, json_schema
from stream_server.config.study import models_in

ROOT = Path(__file__).parents[2]
DOCUMENTED_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def keys(model: type[BaseModel], here: str = "") -> Iterator[str]:
    """Every key of study.json that has a value of its own, as docs/reference/study.md writes it."""
    for name, field in model.model_fields.items():
        path = f"{here}{field.alias or name}"
        inner = models_in(field.annotation)
        is_optional = NoneType in get_args(field.annotation)
        if inner and not is_optional and get_origin(field.annotation) not in (dict, tuple):
            yield from (key for kind in inner for key in keys(kind, f"{path}."))
        else:
            yield path


def documented() -> list[str]:
    """Every key with a row in docs/reference/study.md."""
    return DOCUMENTED_ROW.findall((ROOT / "docs" / "reference" / "study.md").read_text())


def test_the_committed_schema_is_the_one_that_is_generated() -> None:
    committed = (ROOT / "configs" / "study.schema.json").read_text()
    assert committed == json.dumps(json_schema(), indent=2) + "\n", "stream-server --schema > configs/study.schema.json"


@pytest.mark.parametrize("key", sorted(set(keys(StudyConfig))))
def test_every_key_is_documented(key: str) -> None:
    assert key in documented()


def test_every_documented_key_is_there() -> None:
    known = set(keys(StudyConfig))
    # A key whose value may be a section or something shorter has a row of its own.
    known |= {key.rpartition(".")[0] for key in known}
    assert [key for key in documented() if key not in known and not key.startswith("study.fields.NAME.")] == []


def test_every_key_of_the_schema_is_described() -> None:
    def undescribed(node: Any, path: str) -> Iterator[str]:
        for key, value in node.get("properties", {}).items():
            if "description" not in value:
                yield f"{path}.{key}"
        for choice in node.get("anyOf", []):
            yield from undescribed(choice, path)

    schema = json_schema()
    assert [path for name, node in [("", schema), *schema["$defs"].items()] for path in undescribed(node, name)] == []


def test_every_example_of_the_docs_is_a_study() -> None:
    text = (ROOT / "docs" / "reference" / "study.md").read_text()
    for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        StudyConfig.model_validate(json.loads(block))
