"""Whether the files and classes that a study names are there, found out without running the user's code."""

import importlib.util
import os
import re
import symtable
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from stream_server.built_in import BACKENDS, GENERATORS, SAMPLERS, WRITERS
from stream_server.config.parameters import DesignFile
from stream_server.config.placeholders import BUILT_IN
from stream_server.config.problems import Problem, nearest, shown
from stream_server.config.study import StudyConfig
from stream_server.storage.disk import MAX_TEXT_BYTES, read_file
from stream_server.user_code import BASES
from stream_server.wording import counted

IMPORTS_ALL = re.compile(rb"^\s*from\s+\S+\s+import\s+\*", re.MULTILINE)


def _server_class_is_there(config: StudyConfig) -> Iterator[Problem]:
    yield from _class_problem("server.class", config.server.class_, config.study_dir)


def _components_are_there(config: StudyConfig) -> Iterator[Problem]:
    for key, component in config.training.components.items():
        yield from _class_problem(f"training.{key}.class", component.class_, config.study_dir)


def _sampler_class_is_there(config: StudyConfig) -> Iterator[Problem]:
    sampler = config.parameters.sampler
    if sampler.class_ not in {**SAMPLERS, **GENERATORS}:
        yield from _class_problem("parameters.sampler", sampler.class_, config.study_dir)


def _policy_class_is_there(config: StudyConfig) -> Iterator[Problem]:
    if config.buffer.has_own_policy:
        yield from _class_problem("buffer.policy", config.buffer.policy, config.study_dir)


def _writer_classes_are_there(config: StudyConfig) -> Iterator[Problem]:
    for position, (name, _) in enumerate(config.metrics.wanted):
        if name not in WRITERS:
            yield from _class_problem(f"metrics.writers[{position}]", name, config.study_dir)


def _backend_classes_are_there(config: StudyConfig) -> Iterator[Problem]:
    for key, name in (("launcher.backend", config.launcher.backend), ("server.backend", config.server.backend)):
        if name not in BACKENDS:
            yield from _class_problem(key, name, config.study_dir)


def _design_file_is_sound(config: StudyConfig) -> Iterator[Problem]:
    if config.parameters.file is None:
        return
    path = "parameters.file"
    try:
        design = DesignFile.read(config.parameters.file)
    except ValueError as error:
        yield Problem(path, str(error), "Name a CSV file: a header of names, one row of numbers per simulation")
        return
    for name in sorted(set(design.names) & set(BUILT_IN)):
        yield Problem(path, f"{{{name}}} already stands for something else", "Rename the column")
    training, validation = config.study.simulations, config.validation.simulations
    needed = training + validation
    if len(design.rows) < needed:
        yield Problem(
            path,
            f"it has {counted(len(design.rows), 'row')} for {training} + {validation} simulations",
            "Add rows, or write fewer simulations (study.simulations, validation.simulations)",
        )
    elif len(design.rows) == needed and config.simulation.on_failure == "redraw":
        yield Problem(
            "simulation.on_failure",
            f'"redraw" would have no row to take: {config.parameters.file.name} has {needed}, all in use',
            'Add rows to the file, or write "give_up"',
        )


def _class_problem(path: str, reference: str, study_dir: Path) -> Iterator[Problem]:
    """Look for `FILE.py:Class` or `package.module:Class`; nothing is imported, files are only parsed."""
    where, _, name = reference.rpartition(":")
    if where.endswith(".py"):
        file = study_dir / where
        if file.stem in sys.stdlib_module_names:
            yield Problem(path, f"{file.name} has the name of a module of Python", "Rename the file")
            return
        if not os.path.isfile(file):
            yield Problem(path, f"there is no file {file}", _near_class(file, name, study_dir))
            return
        otherwise = f"Define it there: class {name}"
    else:
        spec = _find_module(where, study_dir)
        if spec is None:
            yield Problem(
                path,
                f"there is no module {shown(where)}",
                'Write "FILE.py:Class" for a file of the study, or install the package',
            )
            return
        if not (spec.origin and spec.origin.endswith(".py")):
            return
        file = Path(spec.origin)
        otherwise = "Name a class of this module"
    yield from _problem_in(path, file, name, otherwise)


def _near_class(file: Path, name: str, study_dir: Path) -> str:
    """The class that was probably meant, of a file beside the missing `file`."""
    folder = file.parent if os.path.isdir(file.parent) else study_dir
    classes = {other: _classes_in(other) for other in sorted(folder.glob("*.py"))}
    by_stem = {other.stem: other for other, names in classes.items() if name in names}
    by_stem = by_stem or {other.stem: other for other, names in classes.items() if names}
    stem = nearest(file.stem, by_stem, likeness=0)
    if stem is None:
        return 'Write "FILE.py:Class", the file relative to the folder of study.json'
    meant = by_stem[stem]
    reference = f"{os.path.relpath(meant, study_dir)}:{nearest(name, classes[meant], likeness=0)}"
    return f"Write {shown(reference)}"


def _classes_in(file: Path) -> list[str]:
    try:
        return _classes(_parsed(file))
    except (OSError, SyntaxError, ValueError):
        return []


def _find_module(name: str, study_dir: Path) -> ModuleSpec | None:
    """Find a module without importing the packages above it, which might take seconds or fail."""
    top, *below = name.split(".")
    try:
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, [str(study_dir)])
    except (ImportError, ValueError):
        return None
    full_name = top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return None
        full_name += f".{part}"
        spec = PathFinder.find_spec(full_name, spec.submodule_search_locations)
    return spec


def _problem_in(path: str, file: Path, name: str, otherwise: str) -> Iterator[Problem]:
    try:
        module = _parsed(file)
    except SyntaxError as error:
        yield Problem(path, f"{file.name}, line {error.lineno}: {error.msg}", "Correct the file")
        return
    except (OSError, ValueError) as error:
        yield Problem(path, f"{file} cannot be read ({error})", "Name a Python file")
        return
    known = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    if name in known or "__getattr__" in known or IMPORTS_ALL.search(read_file(file, max_bytes=MAX_TEXT_BYTES)):
        return
    classes = _classes(module)
    meant = (
        nearest(name, classes) or nearest(name, known.difference(BASES)) or (classes[0] if len(classes) == 1 else None)
    )
    listed = f"Write one of {', '.join(classes)}" if classes else otherwise
    yield Problem(path, f"{file.name} has no class {name}", f"Write {meant}" if meant else listed)


def _parsed(file: Path) -> symtable.SymbolTable:
    return symtable.symtable(importlib.util.decode_source(read_file(file, max_bytes=MAX_TEXT_BYTES)), str(file), "exec")


def _classes(module: symtable.SymbolTable) -> list[str]:
    return [table.get_name() for table in module.get_children() if isinstance(table, symtable.Class)]


FILE_CHECKS = (
    _server_class_is_there,
    _components_are_there,
    _sampler_class_is_there,
    _policy_class_is_there,
    _writer_classes_are_there,
    _backend_classes_are_there,
    _design_file_is_sound,
)
