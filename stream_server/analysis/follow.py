"""The logs of a run, as they are and as they grow."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_state import OUTPUT_LOG, attempt_folders
from stream_server.errors import NotRunning
from stream_server.machine.screen import escaped
from stream_server.storage.disk import ordinary

LOOK_S = 0.2


def server_logs(run: RunFolder) -> list[Path]:
    """The logs of the launcher and of all ranks that are there now."""
    return sorted((run.path / "logs").glob("*.log"))


def simulation_logs(run: RunFolder, simulation: int) -> list[Path]:
    """The output of the attempts of a simulation that is there now, in their order."""
    logs = [folder / OUTPUT_LOG for _, folder in attempt_folders(run, simulation)]
    return [log for log in logs if log.exists()]


def newest_log(run: RunFolder, simulation: int) -> Path | None:
    """The output of the newest attempt of a simulation that has one."""
    return next(reversed(simulation_logs(run, simulation)), None)


def show(run: RunFolder, simulation: int | None, *, follows: bool, runs: Callable[[], bool]) -> None:
    """Write the logs to the standard output; with `follows`, go on until nothing `runs` any more.

    Lines bear the name of their file when there are several. Of a simulation the newest attempt is shown; while it is
    followed also those that come after it.

    Raises:
        NotRunning: there are none, and none will come.
    """
    tails: dict[Path, Tail] = {}
    is_first, has_lines = True, False
    while True:
        # Asked before the files are read: what was written before the end is shown.
        goes_on = follows and runs()
        found = server_logs(run) if simulation is None else simulation_logs(run, simulation)
        if is_first and simulation is not None:
            tails |= {path: Tail(path, at_end=True) for path in found[:-1]}
        for path in found:
            tail = tails.setdefault(path, Tail(path))
            for line in tail.lines(is_last=not goes_on):
                has_lines = True
                sys.stdout.write(escaped(f"{path.stem:<10} | {line}\n" if simulation is None else f"{line}\n"))
        sys.stdout.flush()
        is_first = is_first and not found
        if not goes_on:
            break
        time.sleep(LOOK_S)
    if found and not has_lines:
        print(f"{found[-1]} is empty", file=sys.stderr)
    if not tails:
        what = "logs" if simulation is None else f"output of simulation {simulation}"
        raise NotRunning(f"there is no {what} in {run.path}")


class Tail:
    """The lines that come at the end of a file."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self.path = path
        self._position = path.stat().st_size if at_end else 0

    def lines(self, *, is_last: bool) -> Iterator[str]:
        """The whole lines that are new; at the `is_last` time also one without an end."""
        with open(self.path, "rb", opener=ordinary) as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n") and not is_last:
                    return
                self._position += len(line)
                yield line.decode(errors="replace").rstrip("\r\n")
