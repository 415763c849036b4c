"""User code: loaded by the name that study.json gives it, and called so that its errors name it.

Why: docs/decisions/0091-plug-points.md
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from stream_server.errors import ConfigError, StreamServerError, UserCodeError
from stream_server.live_parts import SUFFIX, read_parts

# What a user's file imports of ours in order to inherit from it: a class that is not there is never one of these.
BASES = frozenset({"Callback", "StreamDataset", "StreamServer", "TorchServer"})

# Whose classes this process has loaded: files of two studies often have the same names.
_study_dirs: set[str] = set()


def load_class(name: str, folder: Path, *, kind: str) -> Any:
    """Import the class, or other callable, named by `FILE.py:Class` or `package.module:Class`.

    Args:
        name: a relative FILE starts at `folder`; it may be one of `live_parts`.
        folder: folder of the study; it becomes the last entry of the import path, in place of that of another
            study, so that the files of a study can import each other, and none is taken for a module of Python or of
            an installed package. A file is run once, however many of its classes are named.
        kind: key of study.json that holds the name, such as `server.class`; errors begin with it.

    Raises:
        ConfigError: there is no such file, module or class, or the name stands for something that cannot be called.
        UserCodeError: the file or module raised while it was imported; that exception is the cause.
    """
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise ConfigError(f'{kind} must be "FILE.py:Class" or "package.module:Class", but is "{name}"')
    _study_dirs.add(str(folder))
    sys.path[:] = [*(path for path in sys.path if path not in _study_dirs), str(folder)]
    if where.endswith(SUFFIX):
        module: Any = _load_parts(folder / where)
    else:
        module = _load_file(folder / where, kind) if where.endswith(".py") else _import_module(where, kind)
    loaded = getattr(module, attribute, None)
    if loaded is None:
        known = [key for key, value in vars(module).items() if callable(value) and key not in BASES]
        raise ConfigError(f"{kind} must name a class, but {where} has no {attribute}{_meant(attribute, known)}")
    if not callable(loaded):
        raise ConfigError(f"{kind} must name a class, but {name} is {loaded!r}")
    return loaded


def digest_of(name: str, folder: Path) -> str:
    """The SHA-256 of the file that `load_class` runs for such a name, "" for a class of a package."""
    where = name.rpartition(":")[0]
    try:
        return hashlib.sha256((folder / where).read_bytes()).hexdigest() if where.endswith(".py") else ""
    except OSError:
        return ""


def arguments_for(called: Any, args: Mapping[str, Any], offered: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    """The keyword arguments for a user's class: all of `args`, and what its signature names of what is `offered`.

    Args:
        called: the class, or other callable.
        args: what study.json gives it under the key `kind`.
        offered: what Stream Server has for it; a class need not take it.
        kind: key of study.json that holds `args`, such as `buffer.args`; errors begin with it.

    Raises:
        ConfigError: it takes no such argument as one of `args`, or needs another one.
    """
    parameters = [
        each for each in inspect.signature(called).parameters.values() if each.kind is not each.POSITIONAL_ONLY
    ]
    names = {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    own = sorted(names - set(offered))
    for name in args:
        if name in offered:
            raise ConfigError(
                f'{kind} must not have "{name}", which is given to {called.__name__} anyway: leave it out'
            )
        if name not in names and not takes_all:
            taken = ", ".join(f'"{name}"' for name in own) or "none"
            raise ConfigError(f'{kind} has "{name}", but the arguments of {called.__name__} are {taken}')
    given = {**{name: value for name, value in offered.items() if name in names}, **args}
    missing = [
        each.name for each in parameters if each.name in own and each.default is each.empty and each.name not in given
    ]
    if missing:
        raise ConfigError(f"{kind} must have {' and '.join(missing)}, which {called.__name__} needs")
    return given


def call_user(name: str, method: Any, *arguments: Any) -> Any:
    """Call a user's method; what it raises becomes a `UserCodeError` that says where.

    Raises:
        UserCodeError: the method raised an exception of its own, which is the cause.
    """
    try:
        return method(*arguments)
    except StreamServerError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{name} raised {type(error).__name__}: {error}{_advice(error)}") from error


def _meant(word: str, known: Iterable[str]) -> str:
    """The advice to write the known word that is meant, "" if there is none that is like it."""
    matches = get_close_matches(word, known, n=1)
    return f": write {matches[0]}" if matches else ""


def _import_module(name: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{kind} must name a class, but there is no module {error.name}: install the package, "
                'or write "FILE.py:Class" for a file of the study'
            ) from error
        raise _import_error(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error


def _load_parts(file: Path) -> SimpleNamespace:
    try:
        return SimpleNamespace(**read_parts(file))
    except StreamServerError:
        raise
    except (Exception, SystemExit) as error:
        advice = _advice(error)
        if isinstance(error, ModuleNotFoundError):
            advice += f", or put {error.name}.py into {file.parent}"
        raise UserCodeError(f"importing {file} raised {type(error).__name__}: {error}{advice}") from error


def _load_file(file: Path, kind: str) -> ModuleType:
    name = file.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == os.path.abspath(file):
        return loaded
    if not file.is_file():
        known = [other.name for other in file.parent.glob("*.py")]
        raise ConfigError(f"{kind} must name a class, but there is no file {file}{_meant(file.name, known)}")
    if name in sys.stdlib_module_names:
        raise ConfigError(f"{kind} must name a class, but {file.name} has the name of a module of Python: rename it")
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(file))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before it runs: dataclasses and pickle look a class up in the module of its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_error(str(file), error) from error
    return module


def _import_error(where: str, error: BaseException) -> UserCodeError:
    name = type(error).__name__
    return UserCodeError(f"importing {where} raised {name}{_place(where, error)}: {error}{_advice(error)}")


def _advice(error: BaseException) -> str:
    """Advice about a module that is missing, or is another one than the file of the study with its name."""
    match error:
        case ImportError(name=str(name)) | AttributeError(obj=ModuleType(__name__=str(name))):
            top = name.partition(".")[0]
        case _:
            return ""
    taken, study = sys.modules.get(top), Path(sys.path[-1])
    file = getattr(taken, "__file__", None) or "a part of Python"
    own = next((path for path in (study / f"{top}.py", study / top) if path.exists()), None)
    if taken is not None and own is not None and not file.startswith(f"{study}/"):
        return f": {top} is {file}, which comes before {own}: rename yours"
    if isinstance(error, ModuleNotFoundError):
        return f": {sys.executable} has no package {top}, install it there"
    return ""


def _place(where: str, error: BaseException) -> str:
    """The line of the user's code that raised, or that called what raised; "" if the error itself names its place."""
    if isinstance(error, SyntaxError):
        return ""
    outside = (__file__, "<frozen", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(outside)]
    if not places:
        return ""
    file = "" if places[-1].filename == os.path.abspath(where) else f" of {places[-1].filename}"
    return f" in line {places[-1].lineno}{file}"
