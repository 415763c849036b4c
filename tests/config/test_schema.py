import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from stream_server.config import StudyConfig, json_schema
from stream_server.config.study import model_in
from stream_server.config.usage import NOT_AVAILABLE

ROOT = Path(__file__).parents[2]
DOCUMENTED_ROW = re.compile(r"^\| `([^`]+)`( ○)? \|", re.MULTILINE)


def keys(model: type[BaseModel], here: str = "") -> Iterator[str]:
    """Every key of study.json that has a value of its own, as docs/study.md writes it."""
    for name, field in model.model_fields.items():
        path = f"{here}{field.alias or name}"
        inner = model_in(field.annotation)
        if inner is field.annotation and name != "job":
            yield from keys(inner, f"{path}.")  # type: ignore[arg-type]
        else:
            yield path


def documented() -> dict[str, bool]:
    """Every key with a row in docs/study.md, and whether it is marked as not available."""
    text = (ROOT / "docs" / "study.md").read_text()
    return {key: bool(mark) for key, mark in DOCUMENTED_ROW.findall(text)}


def test_the_committed_schema_is_the_one_that_is_generated() -> None:
    committed = (ROOT / "configs" / "study.schema.json").read_text()
    assert committed == json.dumps(json_schema(), indent=2) + "\n", "stream-server --schema > configs/study.schema.json"


@pytest.mark.parametrize("key", list(keys(StudyConfig)))
def test_every_key_is_documented(key: str) -> None:
    assert key in documented()


def test_the_docs_mark_what_is_not_available() -> None:
    marked = {key for key, is_marked in documented().items() if is_marked}
    # A key of `job` is marked when neither job has it; the text says so of one that only one job has.
    jobs = [
        {key.removeprefix(prefix) for key in NOT_AVAILABLE if key.startswith(prefix)}
        for prefix in ("server.", "simulation.")
    ]
    others = {key for key in NOT_AVAILABLE if ".job." not in key}
    assert marked == {key for key in jobs[0] & jobs[1] if key.startswith("job.")} | others
    assert jobs[0] - jobs[1] == {"job.cores_per_rank", "job.mpirun"}


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
    text = (ROOT / "docs" / "study.md").read_text()
    for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        StudyConfig.model_validate(json.loads(block))
