"""The terminal at which a person sits, also behind the pipes of mpirun.

Why: docs/decisions/0080-console.md
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from stream_server.machine import exit_watch

PROC = Path("/proc")
# Programs that pass on what their ranks write, under the first 15 characters of their names.
FORWARDERS = frozenset(
    {"mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "orted", "prterun", "prte", "prted"}
)
STDERR = 2
USUAL = (80, 25)


def terminal_of_stderr(proc: Path = PROC) -> Path | None:
    """The terminal where standard error of this process is read; None if that is a file, a pipe or not known.

    mpirun gives its ranks pipes and copies what comes out of them to its own standard error. So that of the outermost
    forwarder above us counts. Its reader alone knows whether there is a person: `mpirun … 2>&1 | tee log` is a pipe.
    """
    place = proc / "self"
    for parent in _parents(proc):
        if _name(parent) not in FORWARDERS:
            break
        place = parent
    try:
        terminal = Path(os.readlink(place / "fd" / str(STDERR)))
    except OSError:
        return None
    return None if size_of(terminal) is None else terminal


def size_of(terminal: Path) -> tuple[int, int] | None:
    """Columns and lines of the terminal at this moment, the usual ones if it has not told; None for anything else."""
    try:
        descriptor = os.open(terminal, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        columns, lines = os.get_terminal_size(descriptor)
        return columns or USUAL[0], lines or USUAL[1]
    except OSError:
        # No terminal.
        return None
    finally:
        os.close(descriptor)


def _parents(proc: Path) -> Iterator[Path]:
    """The processes above this one, the nearest first."""
    pid = exit_watch.starter()
    while pid > 1:
        yield proc / str(pid)
        pid = _parent(proc / str(pid))


def _name(process: Path) -> str:
    with contextlib.suppress(OSError):
        return (process / "comm").read_text().strip()
    return ""


def _parent(process: Path) -> int:
    """The number of its parent, 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return 0
