"""The tables of docs/reference/study.md: each key, its default and the description that its model gives it.

`python -m tests.docs.study_tables` writes them anew. On the page, `<!-- keys: study.* study.fields.NAME.* -->` stands
before a table and names its keys; `*` is one key. Links and the text around the tables are written by hand.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from stream_server.config import StudyConfig
from stream_server.config.study import model_in

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "study.md"
TABLE = re.compile(r"(<!-- keys: (.*?) -->\n).*?(<!-- end of keys -->)", re.DOTALL)
DEFAULT = re.compile(r" Default: (.*)\.$")
HEAD = ["| key | default | meaning |", "|---|---|---|"]


@dataclass(frozen=True)
class Key:
    """A key of study.json, of one of the models that may stand at its path."""

    path: str
    model: type[BaseModel]
    field: FieldInfo

    @property
    def owner(self) -> tuple[str, str]:
        """The model that describes the key: several paths may lead to it."""
        return self.model.__name__, self.path.rpartition(".")[2]

    @property
    def default(self) -> str:
        """The default as study.json has it, or what the description says of one that depends on other keys."""
        if self.field.is_required():
            return "required"
        if told := DEFAULT.search(self.field.description or ""):
            return told[1]
        value = self.field.get_default(call_default_factory=True, validated_data={})
        if isinstance(value, BaseModel) and not any(it.is_required() for it in type(value).model_fields.values()):
            value = {}
        plain = TypeAdapter(Any).dump_python(value, mode="json", by_alias=True)
        plain = int(plain) if isinstance(plain, float) and plain.is_integer() else plain
        return f"`{json.dumps(plain)}`"

    @property
    def meaning(self) -> str:
        """The description, with the values that it does not name; before it the one that makes the model."""
        text = DEFAULT.sub("", self.field.description or "")
        values = get_args(self.field.annotation) if get_origin(self.field.annotation) is Literal else ()
        if len(values) == 1:
            text = f'`"{values[0]}"`: {text[:1].lower()}{text[1:]}'
        elif unnamed := [f'`"{value}"`' for value in values if f'"{value}"' not in f"{text}{self.default}"]:
            text = f"{text} Also {', '.join(unnamed)}."
        return re.sub(r"docs/(guide/([\w.]+)(?:#[\w-]+)?)", r"[\2](../\1)", text).replace("|", "\\|")


def keys(model: type[BaseModel] = StudyConfig, above: str = "") -> Iterator[Key]:
    """Every key that has a description, in the order of the models."""
    for name, field in model.model_fields.items():
        path = f"{above}{field.alias or name}"
        if field.description:
            yield Key(path, model, field)
        inside = {dict: f"{path}.NAME", tuple: f"{path}[]"}.get(get_origin(field.annotation), path)
        if inner := model_in(field.annotation):
            yield from keys(inner, f"{inside}.")


def named(patterns: str) -> list[Key]:
    """The keys of a table, in the order of its patterns."""
    forms = [re.escape(pattern).replace(r"\*", r"[^.]*") for pattern in patterns.split()]
    return list({(it.path, it.model): it for form in forms for it in keys() if re.fullmatch(form, it.path)}.values())


def table(patterns: str) -> str:
    """The table of the keys that `patterns` name."""
    rows: dict[str, list[Key]] = {}
    for key in named(patterns):
        rows.setdefault(key.path, []).append(key)
    lines = [
        f"| `{path}` | {same[0].default} | {' '.join(dict.fromkeys(it.meaning for it in same))} |"
        for path, same in rows.items()
    ]
    return "\n".join([*HEAD, *lines])


def in_tables(page: str) -> list[Key]:
    """The keys that the tables of the page have."""
    return [key for _, patterns, _ in TABLE.findall(page) for key in named(patterns)]


def up_to_date(page: str) -> str:
    """The page with its tables as the models have them now."""
    return TABLE.sub(lambda found: f"{found[1]}\n{table(found[2])}\n\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(up_to_date(PAGE.read_text()))
