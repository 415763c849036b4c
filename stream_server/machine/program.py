"""The beginning of each of our programs, which makes up for what an environment may lack, and the folder it works in.

Libraries read settings from the working folder (UCX `ucx.conf`, matplotlib `matplotlibrc`, numba `.numba_config.yaml`),
and that in which somebody types a command may be a folder into which others write.

Why: docs/decisions/0047-beginnings.md
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream_server.machine.screen import on_screen

_started_in: Path | None = None


def start_folder() -> Path:
    """The folder in which the command was typed, from which paths are shown, unless it was removed since."""
    return _started_in if _started_in is not None and _started_in.is_dir() else Path.cwd()


def work_in(folder: Path) -> None:
    """Make a folder the one in which this process works, as its user's own code sees it, too."""
    global _started_in
    _started_in = start_folder()
    os.chdir(folder)


@contextmanager
def outside_of_folders() -> Iterator[None]:
    """Within, this process works in the root folder, where imports find no settings. Main thread only."""
    before = os.open(".", os.O_PATH | os.O_DIRECTORY)
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def begin() -> None:
    """Make this process one with three open streams that take any text, in a folder that is there.

    What standard output and error cannot show, such as a
    name that is no UTF-8, is escaped; what a full disk does not take of standard error is lost. A stream that was
    closed leads nowhere: else the next file that is opened would have its number, and get what libraries print.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest free descriptor, which is the number of the stream.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stderr = on_screen(sys.stderr)
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")
        print("the current folder was removed: paths are relative to / instead", file=sys.stderr)
