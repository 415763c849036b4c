"""Placeholders in the command and the templates of a simulation, and what the command line of an attempt is."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stream_server.config.placeholders import PLACEHOLDER

# A shell's ${NAME} is none of ours.
FILLED_IN = re.compile(r"(?<!\$)" + PLACEHOLDER.pattern)

Value = float | int | str


def placeholders(
    parameters: Mapping[str, float], *, simulation: int, attempt: int, seed: int, study_dir: Path
) -> dict[str, Value]:
    """What may stand in braces. `{seed}` is the simulation's own, the same in every attempt."""
    return {
        **parameters,
        "simulation": simulation,
        "attempt": attempt,
        "seed": simulation_seed(seed, simulation),
        "study_dir": str(study_dir),
    }


def simulation_seed(seed: int, simulation: int) -> int:
    """A number from 0 to 2³¹ − 1 that depends on the study's seed and the simulation only."""
    digest = hashlib.sha256(f"{seed}/{simulation}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


def render(text: str, values: Mapping[str, Value]) -> str:
    """`text` with each `{name}` and `{name:format}` of `values` filled in; all other braces stay."""

    def fill(match: re.Match[str]) -> str:
        name, format_spec = match.groups()
        return format(values[name], format_spec or "") if name in values else match.group()

    return FILLED_IN.sub(fill, text)


def arguments(
    command: Sequence[str], values: Mapping[str, Value], *, study_dir: Path, rendered: Mapping[Path, Path]
) -> list[str]:
    """The command line of an attempt, its placeholders filled in.

    An element that names a file of the study's folder becomes absolute, for each attempt runs in a folder of its own;
    one that names a template becomes the file `rendered` from it.
    """
    return [_element(render(element, values), study_dir, rendered) for element in command]


def _element(element: str, study_dir: Path, rendered: Mapping[Path, Path]) -> str:
    path = study_dir / element
    if path in rendered:
        return str(rendered[path])
    return str(path) if element and path.is_file() else element
