"""A target of the fuzzer, and the search for targets."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.fuzz import targets

CORPORA = Path(__file__).parent / "corpus"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A reader of bytes, and what it promises.

    `run` takes any bytes and raises only when the promise is broken. `seeds` are valid bytes, made by our own writers.
    `is_json`: what is read is JSON, or lines of it, and is changed as such every other time. `is_script`: each byte
    makes something happen, so that very long inputs show nothing new.
    """

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    is_json: bool = False
    is_script: bool = False
    max_bytes: int = 2048


def names() -> tuple[str, ...]:
    """All targets in Python."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(targets.__path__)))


def load(name: str) -> Target:
    """The target of that name, or of a module whose whole name is given."""
    module: Any = importlib.import_module(name if "." in name else f"{targets.__name__}.{name}")
    target: Target = module.TARGET
    return target


def corpus(name: str) -> list[bytes]:
    """The inputs that are kept of a target."""
    folder = CORPORA / name
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []
