"""The commands as they are installed: each goes on in a process with the import path of ours.

Why: docs/decisions/0071-import-path.md
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module

from stream_server.machine.interpreter import python_command, python_environment


def server() -> int:
    return _run("stream_server.server.commands.cli")


def launcher() -> int:
    return _run("stream_server.launcher.supervision.cli")


def study() -> int:
    return _run("stream_server.commands.cli")


def follow() -> int:
    return _run("stream_server.adapters.follow")


def adios() -> int:
    return _run("stream_server.adapters.adios")


def _run(module: str) -> int:
    """Run `main` of a module; 2 where a package is missing, as in an environment of the client alone."""
    _begin()
    try:
        main: Callable[[], int] = import_module(module).main
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("stream_server"):
            raise
        print(
            f"{os.path.basename(sys.argv[0])} needs {error.name}, which is not installed in {sys.prefix}: without its "
            "dependencies Stream Server has the client alone. `pip install .` in its folder brings them, or its wheel",
            file=sys.stderr,
        )
        return 2
    return main()


def _begin() -> None:
    """Start this process again unless it was started as one of ours: whoever typed the command did not do that.

    The script that pip installs has no options for Python, without which the processes of multiprocessing would look
    into the working folder first. What little is imported until here costs some hundredths of a second.
    """
    environment = python_environment(os.environ)
    if not (sys.flags.safe_path and sys.flags.utf8_mode) or environment != os.environ:
        os.execve(sys.executable, python_command(*sys.orig_argv[1:]), environment)  # noqa: S606
