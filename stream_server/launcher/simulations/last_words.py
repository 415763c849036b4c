"""The last words of a simulation: what the log of a program that failed says of the reason."""

import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MISSING_PACKAGE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
# The last place of a traceback, and the exception below it.
EXCEPTION = re.compile(r'^  File ".*", line \d.*\n(?:[ \t].*\n)*(\w[\w.]*(?:: .*)?)$', re.MULTILINE)
# What the native client writes of a mistake that the program has not looked at.
MISTAKE = re.compile(r"^stream_client, rank \d+, \w+: (.*)$", re.MULTILINE)
# What mpirun and the Fortran runtime write below the last words of a program that fails.
MPIRUN = re.compile(
    r"^(?:=+\n=   BAD TERMINATION|-+\n(?:Primary job |MPI_ABORT was invoked|\S*(?:mpirun|prterun)\S* ))", re.MULTILINE
)
SIGNALS = "|".join(re.escape(str(signal.strsignal(number))) for number in signal.Signals)
BACKTRACE = re.compile(
    r"#\d+ |\s+at |Error termination\. Backtrace:|Backtrace for this error:|STOP \d+$|Abort\(|"
    r"srun: |slurmstepd: |\s*$|"
    # The shell around it.
    rf"\S+: line \d+: +\d+ (?:{SIGNALS})\b|(?:{SIGNALS})(?: \(core dumped\))?\s*$"
)
MAX_CHARS = 500
# Exit codes of a program itself, and of signals that it brings on itself.
OWN_CODES = {
    *range(1, 129),
    *(
        128 + each
        for each in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS)
    ),
}
PYTHON = re.compile(r"python[\d.]*")


def explanation(log: str, exit_code: int, reason: str, python: Callable[[], str]) -> str:
    """The words of a log about a failure, to be put behind its `reason`; "" if there are none.

    `python` tells the one that the program runs with, as `python_of` gives it.
    """
    package = missing_package(log) if exit_code == 1 else None
    if package is not None:
        return f": {python()} has no package {package}; install it there, or let simulation.command name another Python"
    if exception := last_exception(log):
        return f": {exception}"
    # The last line tells nothing where the program was ended from outside.
    line = last_line(log) if exit_code in OWN_CODES else ""
    return f'; the last line of its output: "{line}"' if line not in reason else ""


def last_mistake(log: str) -> str:
    """The words of the native client about the last mistake that a program passed over, "" if there are none."""
    mistakes = MISTAKE.findall(log)
    return f": {mistakes[-1]}" if mistakes else ""


def missing_package(log: str) -> str | None:
    """The missing package that ended a program of Python, if its log says so at its end."""
    packages = MISSING_PACKAGE.findall(log)
    return packages[-1].partition(".")[0] if packages else None


def last_exception(log: str) -> str:
    """The exception of the last traceback of Python in a log, with its message; "" if there is no traceback."""
    exceptions = EXCEPTION.findall(log)
    return exceptions[-1][:MAX_CHARS] if exceptions else ""


def last_line(log: str) -> str:
    """The last line that a program itself has written into its log, "" if there is none."""
    ending = MPIRUN.search(log)
    lines = log[: ending.start() if ending else None].splitlines()
    return next((line.strip()[:MAX_CHARS] for line in reversed(lines) if not BACKTRACE.match(line)), "")


def python_of(command: Sequence[str], environment: Mapping[str, str], study_dir: Path) -> str:
    """The Python that a command line names, or else the program that started one."""
    path = environment.get("PATH", os.defpath)
    for word in command:
        if PYTHON.fullmatch(Path(word).name):
            return shutil.which(word, path=path) or word
    program = str(study_dir / command[0]) if (study_dir / command[0]).is_file() else command[0]
    return f"the Python of {program}"
