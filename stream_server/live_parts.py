"""Classes and objects of a script or notebook, in the file by which they reach the server.

It is code, as a file in Python is, and not data: only one of this user's own is read.

Why: docs/decisions/0097-parts.md
"""

import copy
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stream_server.errors import ConfigError
from stream_server.storage.disk import by_own_links, read_open
from stream_server.storage.ownership import require_ours

# No module has a name with a hyphen.
SUFFIX = ".study-parts.pickle"
MARK = f"Written by Study.start() in Python {sys.version_info.major}.{sys.version_info.minor}\n".encode()

# Each file is read once. A notebook never reads its own: unpickling would change its classes in place.
_known: dict[Path, Mapping[str, Any]] = {}


class LiveObject:
    """Gives copies of an object, as a class makes new ones; it takes no arguments."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __call__(self) -> Any:
        return copy.deepcopy(self.original)

    def __repr__(self) -> str:
        return f"an object of the class {type(self.original).__name__}"


def pickled(file: Path, parts: Mapping[str, Any]) -> bytes:
    """The content of the file with these parts, which `read_parts` gives in this process from now on.

    Raises:
        ConfigError: a part cannot be pickled; the message names it.
    """
    import cloudpickle  # type: ignore[import-untyped]

    for name, part in parts.items():
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise ConfigError(
                f"{name} cannot be sent to the server, which is another process: {type(error).__name__}: {error}. Open "
                "files, locks and connections in its methods, or name a class in a file"
            ) from error
    _known[file] = parts
    return MARK + bytes(cloudpickle.dumps(parts))


def read_parts(file: Path) -> Mapping[str, Any]:
    """The parts by name; they share what they shared where they come from.

    Raises:
        ConfigError: the file is somebody else's, cannot be read, or is of another version of Python.
        Exception: whatever a part raises when it is made.
    """
    if file not in _known:
        try:
            with open(file, "rb", opener=by_own_links) as opened:
                require_ours(os.fstat(opened.fileno()), file)
                content = read_open(opened, file, max_bytes=None)
        except OSError as error:
            raise ConfigError(f"the classes in {file} cannot be read: {error}") from error
        if not content.startswith(MARK):
            text = MARK.decode().strip()
            raise ConfigError(f"{file} must begin with `{text}`: start the study from Python again, in this version")
        import cloudpickle

        _known[file] = cloudpickle.loads(content[len(MARK) :])
    return _known[file]
