"""The fields of a study, and what they are called in the files of a solver."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stream_server.adapters.follow_formats import Arrays
from stream_server.errors import ConfigError


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
        ConfigError: an option names no field of the study, or is no pair.
    """

    def __init__(self, options: Sequence[str], specs: Mapping[str, KnownField]) -> None:
        self._specs = specs
        self._names = _names_of(options, specs)

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
            if name in arrays:
                found = _shaped(arrays[name](), () if spec is None or spec.ragged else spec.shape)
                (statics if spec is not None and spec.is_static else values)[field] = found
            elif spec is None or not spec.optional:
                there = ", ".join(arrays) if list(arrays) != [""] else "one array without a name"
                raise ConfigError(
                    f"{path} has no {name!r}, which field {field!r} was expected to be: it has {there}. "
                    f"--field {field}=NAME says which one it is"
                )
        return statics, values


def _names_of(options: Sequence[str], known: Mapping[str, KnownField]) -> dict[str, str]:
    """What each field of the study is called in the files; those of the options alone without a study.

    Raises:
        ConfigError: an option names no field of the study, or is no pair.
    """
    given = dict(option.partition("=")[::2] for option in options)
    for field, name in given.items():
        if not name or (known and field not in known):
            fields = f"; the study has the fields {', '.join(known)}" if known else ""
            raise ConfigError(f"--field {field}={name} must be FIELD=NAME, such as velocity=U{fields}")
    return {**{field: field for field in known}, **given}


def _shaped(value: Any, shape: Sequence[int]) -> Any:
    """The array with the shape of its field, where its first axis has all points of that one's first axes."""
    array = np.asanyarray(value)
    others = array.ndim - 1
    if shape and array.ndim and array.shape != tuple(shape) and len(shape) > array.ndim:
        points = shape[: len(shape) - others]
        if tuple(shape[len(points) :]) == array.shape[1:] and math.prod(points) == len(array):
            return array.reshape(shape)
    return array
