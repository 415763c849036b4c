import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stream_server.config import StudyConfig, json_schema
from tests.docs import study_tables

ROOT = Path(__file__).parents[2]


def test_the_committed_schema_is_the_one_that_is_generated() -> None:
    committed = (ROOT / "configs" / "study.schema.json").read_text()
    assert committed == json.dumps(json_schema(), indent=2) + "\n", "stream-server --schema > configs/study.schema.json"


def test_the_tables_of_the_page_are_those_that_are_generated() -> None:
    page = study_tables.PAGE.read_text()
    assert page == study_tables.up_to_date(page), "python -m tests.docs.study_tables"


def test_every_key_is_in_a_table() -> None:
    keys = list(study_tables.keys())
    in_tables = study_tables.in_tables(study_tables.PAGE.read_text())
    sections = {key.path.rpartition(".")[0].removesuffix("[]").removesuffix(".NAME") for key in keys}
    shown = {key.owner for key in in_tables}
    assert [key.path for key in keys if key.owner not in shown and key.path not in sections] == []


def test_only_the_first_extent_of_a_shape_may_differ_and_categories_are_there_once() -> None:
    definitions = json_schema()["$defs"]
    shape = definitions["SampleField"]["properties"]["shape"]
    assert shape["items"] == {"minimum": 1, "type": "integer"}
    assert [choice["type"] for choice in shape["prefixItems"][0]["anyOf"]] == ["integer", "object"]
    assert [choice.get("uniqueItems") for choice in definitions["Bounds"]["anyOf"]] == [None, None, None, True, None]


def test_names_that_packages_register_are_taken() -> None:
    definitions = json_schema()["$defs"]
    name, _ = definitions["MetricWriter"]["anyOf"]
    assert name["anyOf"] == [{"enum": ["tensorboard"]}, {"minLength": 1, "type": "string"}]
    assert {"minLength": 1, "type": "string"} in definitions["BufferSettings"]["properties"]["policy"]["anyOf"]


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
