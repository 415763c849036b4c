"""Processes with this folder on PYTHONPATH have no torch: whoever imports it is told."""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

ABSENT = {"torch", "torchmetrics"}


class Absent(MetaPathFinder):
    """Finds that a package is not to be found."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"{name} was imported where there is no torch", name=name)
        return None


sys.meta_path.insert(0, Absent())
