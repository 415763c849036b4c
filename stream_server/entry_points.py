"""The commands as they are installed: each goes on in a process with the import path of ours."""

import os
import sys

from stream_server.machine.interpreter import python_command, python_environment


def server() -> int:
    """Run `stream-server`; returns its exit status."""
    _begin()
    from stream_server.server.commands.cli import main

    return main()


def launcher() -> int:
    """Run `stream-launcher`; returns its exit status."""
    _begin()
    from stream_server.launcher.supervision.cli import main

    return main()


def study() -> int:
    """Run `stream-study`; returns its exit status."""
    _begin()
    from stream_server.commands.cli import main

    return main()


def _begin() -> None:
    """Start this process anew unless it was started as one of ours: whoever typed the command did not do that.

    The script that pip installs has no options for Python, without which the processes of multiprocessing would look
    into the working folder first. What little is imported until here costs some hundredths of a second.
    """
    environment = python_environment(os.environ)
    if not (sys.flags.safe_path and sys.flags.utf8_mode) or environment != os.environ:
        os.execve(sys.executable, python_command(*sys.orig_argv[1:]), environment)  # noqa: S606
