"""Runs a program in a terminal: `python in_terminal.py COLUMNS LINES COMMAND …` prints what comes there."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def main(columns: int, lines: int, command: list[str]) -> int:
    """Returns the exit code of the command."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    while True:
        try:
            content = os.read(ours, 65536)
        except OSError:
            # Nobody has the terminal any more.
            break
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
