"""A mistake in study.json, and the error that lists all of them."""

import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from stream_server.errors import ConfigError
from stream_server.wording import counted

MAX_SHOWN_CHARACTERS = 60
MAX_PROBLEMS = 100
WRONG = "wrong_value"


class Problem(NamedTuple):
    """The path of a mistake (`buffer.capacity`), what was found there, and what to write instead."""

    path: str
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}: {self.found}. {self.instead}."


def config_error(file: Path | str, problems: Sequence[Problem]) -> ConfigError:
    """The error that lists `problems`, one per line, of many the first ones."""
    count = counted(len(problems), "problem")
    if len(problems) > MAX_PROBLEMS:
        count = f"more than {MAX_PROBLEMS} problems, the first of which are"
    lines = (f"  {problem}" for problem in problems[:MAX_PROBLEMS])
    return ConfigError(printable("\n".join([f"{file} has {count}:", *lines])))


def wrong(found: str, instead: str, *, needs: str | None = None) -> PydanticCustomError:
    """The error that a validator raises; it is left out if the section that it `needs` is wrong as well."""
    return PydanticCustomError(WRONG, "{found}. {instead}.", {"found": found, "instead": instead, "needs": needs})


def shown(value: object) -> str:
    """A value as it stands in study.json, shortened for a message."""
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"


def printable(text: str) -> str:
    """The text without what no file can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def nearest(word: str, known: Iterable[str], *, likeness: float = 0.65) -> str | None:
    """The known word that `word` was probably meant to be; with a `likeness` of 0, any is near enough."""
    by_lower_case = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower_case, cutoff=likeness)
    # The best match comes first; one with the same letters in another order is a better one.
    matches.sort(key=lambda match: sorted(match) != sorted(word.lower()))
    return by_lower_case[matches[0]] if matches else None


def one_of(known: Iterable[str]) -> str:
    """`"a", "b" or "c"`."""
    *head, last = [shown(name) for name in known]
    return f"{', '.join(head)} or {last}" if head else last
