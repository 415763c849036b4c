"""Files that are named as modules and must not be imported: each notes who did it, and raises."""

import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path

STANDARD = frozenset(sys.stdlib_module_names)

CODE = """
import os, sys
with open({notes!r}, "a") as file:
    print(__file__, "was imported by", sys.orig_argv, "in", os.getcwd(), file=file)
raise ImportError("a file that has the name of a module was imported")
"""


def installed() -> frozenset[str]:
    """The names of all modules of the packages that are installed here, and ours."""
    return frozenset(name for name in packages_distributions() if name.isidentifier())


def present() -> frozenset[str]:
    """Those of the names that come before a file in the last folder of the path.

    The standard library has modules for other systems, and a folder without __init__.py gives way to a file.
    """
    found = (name for name in STANDARD | installed() if (spec := PathFinder.find_spec(name)) and spec.origin)
    return frozenset([*found, *sys.builtin_module_names])


def write_decoys(folder: Path, names: Iterable[str], notes: Path) -> None:
    """Put a file for each name into the folder; who imports one is written into `notes`."""
    for name in names:
        (folder / f"{name}.py").write_text(CODE.format(notes=str(notes)))
