"""Types of the values in study.json beyond JSON's own: sections, sizes, paths, names, references to classes."""

import math
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction as Exact
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from stream_server.built_in import registered
from stream_server.config.problems import nearest, one_of, shown, wrong

MAX_INTEGER = 2**63 - 1
MOST_CHARACTERS = 40

SIZE_PATTERN = r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?i?B)\s*$"
SIZE_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    "ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
WALLTIME = re.compile(r"[0-9]+:[0-5][0-9]:[0-5][0-9]")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CLASS_REFERENCE = re.compile(r".+:[A-Za-z_][A-Za-z0-9_]*", re.DOTALL)

_study_dir: ContextVar[Path] = ContextVar("_study_dir")


class Section(BaseModel):
    """One object of study.json: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class NamedClass(Section):
    """A class with its arguments; its name alone stands for one with no other key."""

    class_: str = Field(alias="class")
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of the class by name.")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"class": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        settings = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [settings["properties"]["class"], settings]}


@contextmanager
def paths_relative_to(folder: Path) -> Iterator[None]:
    """Let relative paths that are validated within start at `folder`; elsewhere they start at the working directory."""
    token = _study_dir.set(Path(os.path.abspath(folder)))
    try:
        yield
    finally:
        _study_dir.reset(token)


def study_dir() -> Path:
    """The folder at which relative paths start."""
    return _study_dir.get(None) or Path.cwd()


def size_in_bytes(text: str) -> int | None:
    """The number of bytes that `text` ("64MiB", "1.5 GB") stands for; None when it is not a size."""
    match = re.match(SIZE_PATTERN, text)
    if match is None:
        return None
    number, unit = match[1], match[2][:-1]
    if len(number) > MOST_CHARACTERS:
        return None
    factor = SIZE_FACTORS.get(unit.replace("K", "k"))
    size = math.floor(Exact(number) * factor) if factor else 0
    return size if 0 < size <= MAX_INTEGER else None


def walltime_s(text: str) -> float:
    """The seconds of HH:MM:SS.

    Raises:
        ValueError: the text is no such time.
    """
    if not WALLTIME.fullmatch(text):
        raise wrong(f"{shown(text)} is not a time", 'Write "HH:MM:SS", such as "01:30:00"')
    hours, minutes, seconds = map(int, text.split(":"))
    return float(3600 * hours + 60 * minutes + seconds)


def resolve_class(value: str, plug_point: str) -> str | None:
    """A reference such as `FILE.py:Class`, with an absolute FILE, or the one of which this is a registered name."""
    if not CLASS_REFERENCE.fullmatch(value):
        return registered(plug_point).get(value)
    file, _, name = value.rpartition(":")
    return f"{os.path.abspath(study_dir() / file)}:{name}" if file.endswith(".py") else value


def _check_part(value: str) -> str:
    """Resolve the class of a part of the training."""
    if (reference := resolve_class(value, "parts")) is not None:
        return reference
    meant = nearest(value, registered("parts"))
    instead = f"{shown(meant)}, or FILE.py:Class" if meant else '"FILE.py:Class" or "package.module:Class"'
    raise wrong(f"{shown(value)} names no class", f"Write {instead}")


@dataclass(frozen=True)
class NameOrClass:
    """The type of a key that takes one of `names`, or a class: `Annotated[str, NameOrClass(…)]`.

    A class is written as a reference, or as the name under which a package registers it for the `plug_point`.
    `what` is what they name, for messages.
    """

    what: str
    names: tuple[str, ...]
    plug_point: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # Which names packages register, an editor cannot know: it offers the others.
        return {"anyOf": [{"enum": list(self.names)}, {"type": "string", "minLength": 1}]}

    def _check(self, value: Any) -> str:
        name = value if isinstance(value, str) else ""
        if name in self.names:
            return name
        if (reference := resolve_class(name, self.plug_point)) is not None:
            return reference
        known = (*self.names, *registered(self.plug_point))
        meant = nearest(name, known)
        instead = shown(meant) if meant else one_of(known)
        raise wrong(f"{shown(value)} is not a {self.what}", f"Write {instead}, or FILE.py:Class")


def _parse_bytes(value: Any) -> Any:
    if isinstance(value, str):
        size = size_in_bytes(value)
        if size is None:
            raise wrong(f"{shown(value)} is not a size", 'Write a number of bytes, or text such as "64MiB" or "4GB"')
        return size
    return value


def _parse_capacity(value: Any) -> Any:
    if isinstance(value, str):
        if size_in_bytes(value) is None:
            raise wrong(f"{shown(value)} is not a size", 'Write a number of samples, or a size such as "4GiB"')
        raise wrong(f"{value} holds not one sample", "Write a larger size", needs="study")
    return value


def _parse_path(value: Any) -> Any:
    if not isinstance(value, str | Path):
        raise wrong(f"{shown(value)} is not a path", "Write a path in quotes, relative to the folder of study.json")
    if not str(value) or "\0" in str(value):
        raise wrong(f"{shown(value)} is not a path", "Write the path of a file or folder")
    return Path(os.path.abspath(study_dir() / value))


def _check_name(value: str) -> str:
    if not NAME.fullmatch(value):
        meant = re.sub(r"\W+", "_", value, flags=re.ASCII).strip("_")
        instead = meant if NAME.fullmatch(meant) else "a_name"
        raise wrong(
            f"{shown(value)} is not a name made of letters, digits and underscores",
            f"Write a name such as {shown(instead)}",
        )
    return value


def _check_study_name(value: str) -> str:
    if not value.strip() or value in {".", ".."} or any(character in value for character in "/\\\0\n"):
        raise wrong(f"{shown(value)} cannot name a folder", 'Write a study.name without "/", such as "heat"')
    return value


def _check_words(value: Any) -> Any:
    if isinstance(value, str):
        try:
            elements = shlex.split(value)
        except ValueError:
            elements = value.split()
        raise wrong(f"{shown(value)} is one text; nothing passes through a shell", f"Write a list: {shown(elements)}")
    if isinstance(value, list) and not value:
        raise wrong("the list is empty", "Write a program and its arguments, or leave the key out")
    return value


def _make_file_absolute(word: str) -> str:
    """A word of a command that names a file of the study becomes absolute."""
    file = study_dir() / word
    return os.path.abspath(file) if word and os.path.isfile(file) else word


def _check_walltime(value: str) -> str:
    walltime_s(value)
    return value


def one_of_these(what: str, instead: str) -> WrapValidator:
    """Let there be one error, that a value is not `what`, where none of the types of a union takes it."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise wrong(f"{shown(value)} is {what}", instead) from error

    return WrapValidator(validate)


Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
_CountOrSize = Count | Annotated[str, Field(pattern=SIZE_PATTERN)]
Bytes = Annotated[Count, BeforeValidator(_parse_bytes, json_schema_input_type=_CountOrSize)]
Capacity = Annotated[Count, BeforeValidator(_parse_capacity, json_schema_input_type=_CountOrSize)]
FilePath = Annotated[Path, BeforeValidator(_parse_path), WithJsonSchema({"type": "string", "minLength": 1})]
Name = Annotated[str, AfterValidator(_check_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME.pattern}$"})]
StudyName = Annotated[str, AfterValidator(_check_study_name)]
ClassReference = Annotated[
    str,
    AfterValidator(_check_part),
    # Which names packages register, an editor cannot know.
    WithJsonSchema({"type": "string", "minLength": 1}),
]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
Walltime = Annotated[
    str, AfterValidator(_check_walltime), WithJsonSchema({"type": "string", "pattern": f"^{WALLTIME.pattern}$"})
]
Paths = Annotated[tuple[FilePath, ...], Field(strict=False)]
Words = Annotated[
    tuple[Annotated[str, AfterValidator(_make_file_absolute)], ...],
    BeforeValidator(_check_words),
    Field(strict=False),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1}),
]
Moment = Annotated[
    Count | Annotated[float, Field(gt=0, lt=1)],
    one_of_these(
        "neither a number of batches nor a fraction of the run",
        "Write a whole number of 1 or more, or a fraction between 0 and 1",
    ),
]
"""A number of batches, or a fraction of the run where the number of its batches is known."""


def filled_in(description: str) -> Any:
    """A key whose default follows from other sections; `StudyConfig` fills it in."""
    return Field(default_factory=lambda: None, description=description)
