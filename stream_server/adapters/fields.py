"""The fields of a study, and what they are called in what a code writes."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stream_server.errors import ConfigError

# By name; each is read when it is called.
Arrays = Mapping[str, Callable[[], Any]]


class KnownField(Protocol):
    """What `Simulation.fields` says of a field."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def optional(self) -> bool: ...
    @property
    def ragged(self) -> bool: ...
    @property
    def is_static(self) -> bool: ...


class FieldsOfFiles:
    """Takes the fields of a study out of files, which call them as the options say, or as the study does.

    Without a study it takes what the options name, or all that there is.

    Raises:
        ConfigError: an option names no field of the study, or has no name.
    """

    def __init__(self, options: Sequence[str], specs: Mapping[str, KnownField]) -> None:
        self._specs = specs
        self._names = names_of(options, specs)

    @property
    def of_steps(self) -> list[str]:
        """The names, in the files, of those that each time step has."""
        static = {field for field, spec in self._specs.items() if spec.is_static}
        return [name for field, name in self._names.items() if field not in static]

    def take(self, arrays: Arrays, path: Path, *, is_first: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields that are sent once per simulation, which only the first step has, and those of the step."""
        statics: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for field, name in (self._names or {name: name for name in arrays}).items():
            spec = self._specs.get(field)
            if spec is not None and spec.is_static and not is_first:
                continue
            if list(arrays) == [""] and len(self._names) < 2:
                name = ""
            elif len(found := matches(name, arrays)) == 1:
                name = next(iter(found.values()))
            if name in arrays:
                array = _shaped(arrays[name](), () if spec is None or spec.ragged else spec.shape)
                (statics if spec is not None and spec.is_static else values)[field] = array
            elif spec is None or not spec.optional:
                there = ", ".join(arrays) if list(arrays) != [""] else "one array without a name"
                raise ConfigError(
                    f"{path} has no {name!r}, which field {field!r} was expected to be: it has {there}. "
                    f"--field {field}=NAME says which one it is"
                )
        return statics, values


def names_of(options: Sequence[str], known: Mapping[str, KnownField]) -> dict[str, str]:
    """What each field of the study is called by the code, from options FIELD=NAME, or FIELD where both have one name.

    Without a study these are the fields of the options alone.

    Raises:
        ConfigError: an option names no field of the study, has no name, or names a field again.
    """
    given: dict[str, str] = {}
    for option in options:
        field, _, name = (option if "=" in option else f"{option}={option}").partition("=")
        if field in given:
            raise ConfigError(
                f"--field {field}={name} is the second for this field: expected one, as {given[field]!r} is"
            )
        given[field] = name
        if not field or not name or (known and field not in known):
            fields = f"; the study has the fields {', '.join(known)}" if known else ""
            raise ConfigError(f"--field {field}={name} must be FIELD=NAME, such as velocity=U{fields}")
    return {**{field: field for field in known}, **given}


def matches(name: str, names: Iterable[str]) -> dict[int | None, str]:
    """The array of this name, or of each iteration of openPMD, /data/20/NAME, or of the present one, /data/NAME."""
    if name in names:
        return {None: name}
    pattern = re.compile(rf"/?data/(?:(\d+)/)?{re.escape(name)}")
    found = ((pattern.fullmatch(it), it) for it in names)
    return {None if match[1] is None else int(match[1]): it for match, it in found if match}


def _shaped(value: Any, shape: Sequence[int]) -> Any:
    """The array with the shape of its field, where its first axis has all points of that one's first axes."""
    array = np.asanyarray(value)
    others = array.ndim - 1
    if shape and array.ndim and array.shape != tuple(shape) and len(shape) > array.ndim:
        points = shape[: len(shape) - others]
        if tuple(shape[len(points) :]) == array.shape[1:] and math.prod(points) == len(array):
            return array.reshape(shape)
    return array
