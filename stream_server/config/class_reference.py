"""Whether a class of the user exists, found out without running the user's code."""

import ast
import importlib.util
import os
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from stream_server.config.problems import Problem, nearest, shown

ANYTHING = "*"


def class_problem(path: str, reference: str, study_dir: Path) -> Iterator[Problem]:
    """What is wrong with `FILE.py:Class` or `package.module:Class`: nothing is imported, files are only parsed."""
    where, _, name = reference.rpartition(":")
    if where.endswith(".py"):
        file = study_dir / where
        if not os.path.isfile(file):
            yield Problem(path=path, found=f"there is no file {file}", instead=_near_file(file))
            return
    else:
        spec = _find_module(where, study_dir)
        if spec is None:
            yield Problem(
                path=path,
                found=f"there is no module {shown(where)}",
                instead='Write "FILE.py:Class" for a file of the study, or install the package',
            )
            return
        if not (spec.origin and spec.origin.endswith(".py")):
            return
        file = Path(spec.origin)
    yield from _problem_in(path, file, name)


def _near_file(file: Path) -> str:
    others = sorted(other.name for other in file.parent.glob("*.py"))
    meant = nearest(file.name, others)
    if meant:
        return f"Write {shown(meant)}"
    return f"Write one of {', '.join(others)}" if others else "Write a path relative to the folder of study.json"


def _find_module(name: str, study_dir: Path) -> ModuleSpec | None:
    """Find a module without importing the packages above it, which might take seconds or fail."""
    top, *below = name.split(".")
    try:
        spec = PathFinder.find_spec(top, [str(study_dir)]) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    full_name = top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return None
        full_name += f".{part}"
        spec = PathFinder.find_spec(full_name, spec.submodule_search_locations)
    return spec


def _problem_in(path: str, file: Path, name: str) -> Iterator[Problem]:
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        yield Problem(path=path, found=f"{file.name}, line {error.lineno}: {error.msg}", instead="Mend the file")
        return
    except (OSError, ValueError) as error:
        yield Problem(path=path, found=f"{file} cannot be read: {error}", instead="Mend the file")
        return
    known = set(_bound_names(tree.body))
    if name in known or ANYTHING in known or "__getattr__" in known:
        return
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    meant = nearest(name, classes) or (classes[0] if len(classes) == 1 else None)
    listed = f"Write one of {', '.join(classes)}" if classes else f"Define the class there: class {name}(TorchServer)"
    yield Problem(path=path, found=f"{file.name} has no class {name}", instead=f"Write {meant}" if meant else listed)


def _bound_names(statements: list[ast.stmt]) -> Iterator[str]:
    """What the top level of a module binds, in branches too."""
    for statement in statements:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case ast.Assign(targets=targets):
                yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.Try() | ast.With():
                for body in ("body", "orelse", "finalbody"):
                    yield from _bound_names(getattr(statement, body, []))
                for handler in getattr(statement, "handlers", []):
                    yield from _bound_names(handler.body)
