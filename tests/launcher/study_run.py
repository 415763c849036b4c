"""`stream-launcher` as a process, with programs of the test in the place of mpirun and stream-server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from stream_server.launcher.supervision.cli import main
from stream_server.machine import processes
from stream_server.machine.run_folder import JOURNAL_FILE
from stream_server.messages import launcher_link
from tests.launcher.plans import SERVER, STUDY
from tests.support.forked_program import ForkedProgram
from tests.support.timing import until

DEADLINE_S = 100.0
MARKS = ("STREAM_CONNECTION", "STREAM_SERVER_JOB")
SLEEPING = "import os, time; print(os.getpid(), flush=True); time.sleep(120)"
PATH = os.pathsep.join([str(Path(__file__).parent.parent.parent), *sys.path])

Act = list[Any]


class StudyRun:
    """A study whose server does the `acts`, one list of them for each start, and whose simulations run `script`.

    What still runs when the block is left is killed.
    """

    def __init__(
        self,
        folder: Path,
        *acts: list[Act],
        ranks: int = 1,
        script: str = SLEEPING,
        arguments: tuple[str, ...] = (),
        restarts: int = 3,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.output_dir = folder / "runs" / folder.name
        self.arguments = arguments
        self.environment = environment or {}
        programs = folder / "bin"
        programs.mkdir()
        (programs / "python").symlink_to(os.path.realpath(sys.executable))
        for name, module in ("mpirun", "scripted_mpirun"), ("stream-server", "scripted_server"):
            start = f"from tests.fakes.{module} import main; main({str(programs / name)!r})"
            (programs / name).write_text(f"#!{sys.executable}\n{start}\n")
            (programs / name).chmod(0o755)
        (folder / "server.py").write_text(SERVER)
        (folder / "simulation.py").write_text(script)
        (folder / "acts.json").write_text(json.dumps(acts))
        study = {
            **STUDY,
            "server": {"class": "server.py:Server", "ranks": ranks},
            "simulation": {"command": [sys.executable, "simulation.py"], "max_failed": 100},
            "launcher": {"restarts": restarts},
        }
        (folder / "study.json").write_text(json.dumps(study))

    def __enter__(self) -> Self:
        # Short, for it will hold sockets.
        self.temporary = Path(tempfile.mkdtemp())
        self.launcher = self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # One that was forked a moment ago has no mark yet.
        with suppress(psutil.NoSuchProcess):
            found = {it.pid for it in psutil.Process(self.launcher.pid).children(recursive=True)}
            self.launcher.kill()
            processes.send(found, signal.SIGKILL)
        self.launcher.wait()
        while found := {it.pid for mark in MARKS for it in self.processes(mark)}:
            processes.send(found, signal.SIGKILL)
        shutil.rmtree(self.temporary)

    def make_run(self) -> None:
        """Let there be a run in the output folder already."""
        self.output_dir.mkdir(parents=True)
        (self.output_dir / "study.json").write_text("{}")

    def start(self, *arguments: str) -> ForkedProgram:
        """Give the command once more."""
        words = ["--config", str(self.folder / "study.json"), *self.arguments, *arguments]
        # Not into pipes: the server would hold them open when the launcher is gone.
        with (self.folder / "output").open("ab") as output, (self.folder / "errors").open("ab") as errors:
            return ForkedProgram(
                lambda: main(words),
                environment={**os.environ, "PYTHONPATH": PATH, "TMPDIR": str(self.temporary), **self.environment},
                executable=str(self.folder / "bin" / "python"),
                output=output,
                errors=errors,
            )

    @property
    def output(self) -> str:
        """The output of launcher and server."""
        return (self.folder / "output").read_text()

    @property
    def errors(self) -> str:
        """The errors that they have printed."""
        return (self.folder / "errors").read_text()

    @property
    def log(self) -> str:
        """The log of the launcher."""
        return (self.output_dir / "logs" / "launcher.log").read_text()

    def kill_and_restart(self) -> None:
        """The launcher is killed; the same command is given again."""
        self.launcher.kill()
        self.launcher.wait()
        self.launcher = self.start()

    def end(self) -> int:
        """Wait for the end of the launcher, which leaves nothing behind; its exit code."""
        try:
            self.launcher.wait(DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            # Python's fault handler shows the stacks of all threads.
            self.launcher.send_signal(signal.SIGABRT)
            self.launcher.wait(DEADLINE_S)
            raise AssertionError(f"the launcher did not end in time; it said:\n{self.errors}\n{self.log}") from error
        assert self.processes("STREAM_CONNECTION") == []
        assert self.processes("STREAM_SERVER_JOB") == []
        assert [path.name for path in self.temporary.iterdir()] == []
        return self.launcher.returncode

    def wait_until(self, condition: Callable[[], Any], limit_s: float = DEADLINE_S) -> None:
        """Wait until something is so, which must be while the launcher runs."""
        until(lambda: condition() or self._assert_running(), limit_s, told=lambda: self.errors)

    def _assert_running(self) -> None:
        assert self.launcher.poll() is None, self.errors

    def facts(self, number: int, rank: int = 0) -> dict[str, Any]:
        """The world as a rank of the server's start has seen it, once it has started."""
        file = self.folder / f"start-{number}-{rank}.json"
        self.wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        return json.loads(file.read_text())  # type: ignore[no-any-return]

    @property
    def num_starts(self) -> int:
        return len(list(self.folder.glob("start-*-0.json")))

    def heard(self, number: int) -> list[launcher_link.ToServer]:
        """The messages that the server's start has received from the launcher."""
        file = self.folder / f"heard-{number}.jsonl"
        return [launcher_link.to_server(line) for line in file.read_bytes().splitlines()] if file.exists() else []

    def attempts(self, number: int) -> list[tuple[int, int]]:
        """The attempts of which the server's start was told: simulation and number."""
        return [(it.simulation, it.attempt) for it in self.heard(number) if isinstance(it, launcher_link.Attempt)]

    def wait_for_output(self, simulation: int, attempt: int = 0) -> str:
        """The output of an attempt, once that is a whole line."""
        log = self.folder_of(simulation, attempt) / "output.log"
        self.wait_until(lambda: log.exists() and "\n" in log.read_text())
        return log.read_text()

    def folder_of(self, simulation: int, attempt: int = 0) -> Path:
        return self.output_dir / "simulations" / str(simulation) / f"attempt-{attempt}"

    def processes(self, mark: str) -> list[processes.Process]:
        """The processes of this study that still run."""
        return [it for it in processes.running(mark) if self._is_ours(it.mark)]

    @property
    def journal(self) -> list[dict[str, Any]]:
        return journal_of(self.output_dir)

    def _is_ours(self, mark: str) -> bool:
        return mark.startswith((str(self.folder), str(self.temporary)))


def journal_of(output_dir: Path) -> list[dict[str, Any]]:
    """The records of a journal, as they are written."""
    lines = map(json.loads, (output_dir / JOURNAL_FILE).read_text().splitlines())
    return [record for line in lines for record in line.get("records", [line])]
