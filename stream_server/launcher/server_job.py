"""The server as a job of the launcher: started by mpirun, stopped by a signal, judged by its report."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, RankLost

REPORT_FILE = "report.json"


def run_server(config: StudyConfig, file: Path, *, overrides: Sequence[str], fresh: bool) -> int:
    """Run the study and return the exit code of its report.

    INT and TERM ask the server to stop in order, a second one tells mpirun to end it, a third one kills it.

    Raises:
        ConfigError: there is no mpirun.
    """
    report = config.output_dir / REPORT_FILE
    before = _written(report)
    command = [*_mpirun(config.server.ranks), _program("stream-server"), "--config", str(file)]
    command += [f"--set={override}" for override in overrides]
    command += ["--fresh"] if fresh else []
    status = _wait(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
    after = _written(report)
    if after not in (None, before):
        return int(json.loads(report.read_text())["exit_code"])
    # No report: the command line or study.json was refused, the study had ended before, or a rank was lost.
    return status if status >= 0 else RankLost.exit_code


def _mpirun(ranks: int) -> list[str]:
    return [] if ranks == 1 else [_program("mpirun"), "-n", str(ranks)]


def _program(name: str) -> str:
    """The program of our own environment, or else the one on PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} was found neither beside {sys.executable} nor on PATH; install it or mend PATH")
    return found


def _wait(server: "subprocess.Popen[bytes]") -> int:
    """Wait for the server; it has a session of its own, so that a Ctrl-C reaches it by us only, and once."""

    # mpirun passes both to all ranks, but Open MPI kills them 0.26 s after TERM, too soon for a stop in order.
    steps = iter((signal.SIGUSR1, signal.SIGTERM))

    def forward(number: int, frame: FrameType | None) -> None:
        step = next(steps, None)
        if step is not None:
            server.send_signal(step)
        else:
            os.killpg(server.pid, signal.SIGKILL)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return server.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _written(report: Path) -> tuple[int, int] | None:
    """What changes when the report is written again."""
    try:
        status = report.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
