"""What the sections of study.json are made of: the base of all, and values beyond JSON's own (sizes, paths, names)."""

import math
import re
import shlex
from fractions import Fraction as Exact
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from stream_server.config.problems import shown, wrong

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
CLASS_REFERENCE = re.compile(r".+:[A-Za-z_][A-Za-z0-9_]*")


class Section(BaseModel):
    """One object of study.json: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def filled_in(description: str) -> Any:
    """A key whose default follows from other keys: `defaults.py` writes it before the models see it."""
    return Field(default=None, description=description)


def or_short_form(short_form: JsonSchemaValue, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """The JSON schema of a section that may also be written in a shorter form."""
    reference = handler(core)
    schema = handler.resolve_ref_schema(reference)
    as_object = dict(schema)
    schema.clear()
    schema["anyOf"] = [short_form, as_object]
    return reference


def size_in_bytes(text: str) -> int | None:
    """The number of bytes that `text` ("64MiB", "1.5 GB") stands for; None when it is no size."""
    match = re.match(SIZE_PATTERN, text)
    if match is None:
        return None
    number, unit = match[1], match[2][:-1]
    if len(number) > MOST_CHARACTERS:
        return None
    factor = SIZE_FACTORS.get(unit.replace("K", "k"))
    size = math.floor(Exact(number) * factor) if factor else 0
    return size if 0 < size <= MAX_INTEGER else None


def _parse_bytes(value: Any) -> Any:
    if isinstance(value, str):
        size = size_in_bytes(value)
        if size is None:
            raise wrong(f"{shown(value)} is no size", 'Write a number of bytes, or text such as "64MiB" or "4GB"')
        return size
    return value


def _parse_capacity(value: Any) -> Any:
    if isinstance(value, str):
        if size_in_bytes(value) is None:
            raise wrong(f"{shown(value)} is no size", 'Write a number of samples, or a size such as "4GiB"')
        raise wrong(f"{value} holds not one sample", "Write a larger size", needs="study.fields")
    return value


def _parse_path(value: Any) -> Any:
    if isinstance(value, str):
        if not value or "\0" in value:
            raise wrong(f"{shown(value)} is no path", "Write the path of a file or folder")
        return Path(value)
    if not isinstance(value, Path):
        raise wrong(f"{shown(value)} is no path", "Write a path in quotes, relative to the folder of study.json")
    return value


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
        raise wrong(f"{shown(value)} cannot name a folder", 'Write a name without "/", such as "heat"')
    return value


def _check_walltime(value: str) -> str:
    if not WALLTIME.fullmatch(value):
        raise wrong(f"{shown(value)} is no time", 'Write "HH:MM:SS", such as "01:30:00"')
    return value


def walltime_s(text: str) -> float:
    """The seconds of HH:MM:SS.

    Raises:
        ValueError: the text is no such time.
    """
    if not WALLTIME.fullmatch(text):
        raise ValueError(f'{shown(text)} is no time. Write "HH:MM:SS", such as "01:30:00"')
    hours, minutes, seconds = map(int, text.split(":"))
    return float(3600 * hours + 60 * minutes + seconds)


def _check_class_reference(value: str) -> str:
    if not CLASS_REFERENCE.fullmatch(value):
        raise wrong(f"{shown(value)} names no class", 'Write "FILE.py:Class" or "package.module:Class"')
    return value


def _check_command(value: Any) -> Any:
    if isinstance(value, str):
        try:
            elements = shlex.split(value)
        except ValueError:
            elements = value.split()
        raise wrong(f"{shown(value)} is one text; nothing passes through a shell", f"Write a list: {shown(elements)}")
    if isinstance(value, list) and not value:
        raise wrong("the list is empty", "Leave the key out when simulations attach by themselves")
    return value


def _check_mpirun(value: Any) -> Any:
    if isinstance(value, list) and not value:
        raise wrong("the list is empty", 'Write a list such as ["mpirun", "-n", "{ranks}"], or leave the key out')
    return _check_command(value)


_NUMBER_OR_SIZE = WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": SIZE_PATTERN}]}
)
Bytes = Annotated[int, BeforeValidator(_parse_bytes), Field(ge=1), _NUMBER_OR_SIZE]
Capacity = Annotated[int, BeforeValidator(_parse_capacity), Field(ge=1), _NUMBER_OR_SIZE]
FilePath = Annotated[Path, BeforeValidator(_parse_path), WithJsonSchema({"type": "string", "minLength": 1})]
Name = Annotated[str, AfterValidator(_check_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME.pattern}$"})]
StudyName = Annotated[str, AfterValidator(_check_study_name)]
Walltime = Annotated[
    str, AfterValidator(_check_walltime), WithJsonSchema({"type": "string", "pattern": f"^{WALLTIME.pattern}$"})
]
ClassReference = Annotated[
    str,
    AfterValidator(_check_class_reference),
    WithJsonSchema({"type": "string", "pattern": f"^{CLASS_REFERENCE.pattern}$"}),
]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
Paths = Annotated[tuple[FilePath, ...], Field(strict=False)]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(_check_command),
    Field(strict=False),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1}),
]
MpirunWords = Annotated[
    tuple[str, ...],
    BeforeValidator(_check_mpirun),
    Field(strict=False),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1}),
]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Moment = Count | Fraction
"""A number of batches, or a fraction of the run where the number of its batches is known."""
