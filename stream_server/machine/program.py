"""The beginning of each of our programs, which makes up for what an environment may lack."""

import io
import os
import sys

from stream_server.machine.screen import on_screen


def begin() -> None:
    """Make this process one with three open streams that take any text, in a folder that is there.

    What standard output and error cannot show, such as a
    name that is no UTF-8, is escaped; what a full disk does not take of standard error is lost. A stream that was
    closed leads nowhere: else the next file that is opened would have its number, and get what libraries print.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest one that is free, which is the number of the stream.
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
