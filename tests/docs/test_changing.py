"""The recipes for maintainers name files that are there, and things that are in them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = re.sub(r"\s+", " ", (ROOT / "docs" / "internals" / "changing.md").read_text())
FILES = sorted(set(re.findall(r"`((?:stream_server|tests|docs|configs|benchmarks)/[\w./-]*)`", PAGE)))
THINGS = sorted(set(re.findall(r"`(\w+)`(?:(?:, `\w+`)* (?:and `\w+` )?)in `([\w./]+\.\w+)`", PAGE)))


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_a_recipe_is_there(file: str) -> None:
    assert (ROOT / file).exists()


@pytest.mark.parametrize(("name", "file"), THINGS)
def test_a_thing_of_a_recipe_is_in_its_file(name: str, file: str) -> None:
    assert re.search(rf"\b{name}\b", (ROOT / file).read_text())


def test_the_recipes_name_files_and_things() -> None:
    assert len(FILES) > 50
    assert len(THINGS) > 10
