"""Classes and objects of a script or notebook, in the file by which they reach the server.

It is code, as a file in Python is, and not data: only one of this user's own is read.

Why: docs/decisions/0097-parts.md
"""

import copy
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from stream_server.errors import ConfigError
from stream_server.storage.disk import by_own_links, read_open, replace_file
from stream_server.storage.ownership import private_files, require_ours

# No module has a name with a hyphen.
SUFFIX = ".study-parts.pickle"
MARK = f"Written by Study.start() in Python {sys.version_info.major}.{sys.version_info.minor}\n".encode()

# What each file held when it had this inode and time. Who has written one does not read it: unpickling would change the
# classes of a notebook in place.
_known: dict[Path, tuple[tuple[int, int], Mapping[str, Any]]] = {}
_checked: dict[Path, Mapping[str, Any]] = {}


class LiveObject:
    """Stands for a class that makes this object; each server calls a copy of it, and so has one of its own."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __call__(self) -> Any:
        return self.original

    def __repr__(self) -> str:
        return f"an object of the class {type(self.original).__name__}"


@contextmanager
def checked(file: Path, parts: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, `read_parts` gives these parts, as if they were in the file.

    Raises:
        ConfigError: they cannot be written, see `write_parts`.
    """
    _pickled(parts)
    _checked[file] = parts
    try:
        yield
    finally:
        del _checked[file]


def write_parts(file: Path, parts: Mapping[str, Any]) -> None:
    """Put the file in place, readable by its owner alone; this process has the parts as they are.

    Raises:
        ConfigError: a part cannot be pickled, or has weights of another one that it would not share; the message names
            it. Or the file cannot be written.
    """
    content = _pickled(parts)
    try:
        with private_files():
            replace_file(file, content)
        _known[file] = (_stamp(os.stat(file)), parts)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}") from error


def _pickled(parts: Mapping[str, Any]) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        meets_original = False

        def persistent_id(self, each: Any) -> None:
            self.meets_original |= id(each) in originals

    copies, memo = dict[str, Any](), dict[int, Any]()
    for name, part in parts.items():
        with _named(name):
            copies[name] = copy.deepcopy(part, memo) if isinstance(part, LiveObject) else part
    # What an attribute refers to was copied with it. Code still refers to the original, which is never trained.
    originals = {id(each) for each in memo.get(id(memo), ()) if getattr(each, "requires_grad", None) is True}
    for name, part in copies.items():
        pickler = Pickler(BytesIO())
        with _named(name):
            pickler.dump(part)
        if pickler.meets_original:
            raise ConfigError(
                f"{name} refers in its code to weights of an object that is a part itself. The server trains a copy of "
                "it: use server.model, the parameters that an optimizer is given, or an attribute that holds the object"
            )
    return MARK + bytes(cloudpickle.dumps(parts))


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be sent to the server, which is another process: {type(error).__name__}: {error}. Open "
            "files, locks and connections in its methods, or name a class in a file"
        ) from error


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def read_parts(file: Path) -> Mapping[str, Any]:
    """The parts by name, as they are in the file now; they share what they shared where they come from.

    Raises:
        ConfigError: the file is somebody else's, cannot be read, or is of another version of Python.
        Exception: whatever a part raises when it is made.
    """
    if file in _checked:
        return _checked[file]
    try:
        with open(file, "rb", opener=by_own_links) as opened:
            status = os.fstat(opened.fileno())
            require_ours(status, file)
            if file in _known and _known[file][0] == _stamp(status):
                return _known[file][1]
            content = read_open(opened, file, max_bytes=None)
    except OSError as error:
        raise ConfigError(
            f"the classes in {file} cannot be read: {error}. Start the study from Python again"
        ) from error
    if not content.startswith(MARK):
        text = MARK.decode().strip()
        raise ConfigError(f"{file} must begin with `{text}`: start the study from Python again, in this version")
    import cloudpickle

    parts: Mapping[str, Any] = cloudpickle.loads(content[len(MARK) :])
    _known[file] = (_stamp(status), parts)
    return parts
