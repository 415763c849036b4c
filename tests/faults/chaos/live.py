"""A study under `stream-launcher` as a set of processes, of which any may be gone at any time."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.census import HARMLESS_FOLDERS
from tests.faults.chaos.plan import STUDY, Plan
from tests.faults.chaos.processes import name_of, processes_by_kind
from tests.support.launch import MPICH_PREFIX, mpirun
from tests.support.runs import MARK, marked_processes

EXIT_GRACE_S = 5.0
STACKS_S = 2.0
OUTPUT_TAIL = 4000


class LiveStudy:
    """Starts the launcher of a study, and again when asked to; at the end of the block nothing of it runs any more.

    The temporary files of all its processes go to a folder of its own.
    """

    def __init__(self, plan: Plan, output_dir: Path, *, mpi: str, environment: Mapping[str, str]) -> None:
        self.plan = plan
        self.output_dir = output_dir
        self._command = launcher_command(plan, output_dir)
        self._mpi = mpi
        self._environment = dict(environment)
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # The path stays short: sockets in the file system allow 107 bytes.
        self._temporary = Path(tempfile.mkdtemp(prefix="cha-"))
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in marked_processes(self._mark):
            with contextlib.suppress(psutil.Error):
                process.kill()
        assert self._process is not None
        self._process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def start(self) -> None:
        """Start the launcher, by the same command each time."""
        launch = mpirun(self._mpi, 1, self._command)
        variables = {
            # Our programs are in the environment of MPICH, whichever MPI runs them.
            "PATH": f"{launch.environment['PATH']}{os.pathsep}{MPICH_PREFIX / 'bin'}",
            "TMPDIR": str(self._temporary),
            MARK: self._mark,
            "PYTHONFAULTHANDLER": "1",
        }
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                launch.argv[-len(self._command) - 1 :],
                env=launch.environment | variables | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> Path:
        """The file with the output of the launcher and the server."""
        return self.output_dir.with_suffix(".output")

    @property
    def exit_code(self) -> int | None:
        """How the launcher has ended, None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def wait(self) -> int:
        """How the launcher has ended, once it has."""
        assert self._process is not None
        return self._process.wait()

    def processes(self) -> dict[str, list[psutil.Process]]:
        """All that runs, by kind."""
        return processes_by_kind(self._mark)

    def leftovers(self) -> list[str]:
        """The processes and temporary files that an ended study should not have left."""
        _, alive = psutil.wait_procs(marked_processes(self._mark), timeout=EXIT_GRACE_S)
        files = [file.name for file in self._temporary.iterdir() if not file.name.startswith(HARMLESS_FOLDERS)]
        return [f"left running: {name_of(one)}" for one in alive] + [f"left in TMPDIR: {name}" for name in files]

    def dump_stacks(self) -> None:
        """Let every Python process write the stacks of its threads, and end."""
        pythons = [one for one in marked_processes(self._mark) if one.name().startswith(("python", "stream-"))]
        for process in pythons:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGABRT)
                process.send_signal(signal.SIGCONT)
        psutil.wait_procs(pythons, timeout=STACKS_S)

    def said(self) -> str:
        """The end of what it printed."""
        return self.output.read_bytes()[-OUTPUT_TAIL:].decode(errors="replace")


def launcher_command(plan: Plan, output_dir: Path) -> list[str]:
    """`stream-launcher` for the study of a plan."""
    settings = {"study.output_dir": str(output_dir)} | plan.settings()
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    return [str(MPICH_PREFIX / "bin" / "stream-launcher"), "--config", str(STUDY), *overrides]
