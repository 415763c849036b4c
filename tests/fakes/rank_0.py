"""Rank 0 of the server, as the launcher sees it: a DEALER, and the other end of the launcher's stdin."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import zmq

from stream_server.launcher.supervision.cli import main
from stream_server.machine import private_folder, processes
from stream_server.messages import launcher_link
from stream_server.messages.connection import Security
from tests.launcher.plans import SERVER, STUDY, plan
from tests.support.forked_program import ForkedProgram
from tests.support.timing import Deadline, until

DEADLINE_S = 100.0

Message = TypeVar("Message", bound=launcher_link.ToServer)


class Rank0:
    """Starts the launcher on a study whose simulations run `script`, and speaks to it."""

    def __init__(self, folder: Path, script: str | None, *overrides: str) -> None:
        self.folder = folder
        self.output_dir = folder / "runs" / folder.name
        self.log = self.output_dir / "logs" / "launcher.log"
        self.seen: list[launcher_link.ToServer] = []
        self._overrides = overrides
        study: dict[str, Any] = dict(STUDY)
        if script is not None:
            (folder / "simulation.py").write_text(script)
            command = [sys.executable, "simulation.py", "{left}"]
            study["simulation"] = {"command": command, "retries": 1, "max_failed": 100}
        (folder / "server.py").write_text(SERVER)
        (folder / "study.json").write_text(json.dumps(study))

    def __enter__(self) -> Self:
        self.private = tempfile.TemporaryDirectory(prefix=private_folder.PREFIX)
        address = f"ipc://{self.private.name}/link"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(address)
        self.launcher = self._start(address)
        return self

    def _start(self, address: str) -> ForkedProgram:
        words = ["--config", str(self.folder / "study.json"), "--link", address]
        return ForkedProgram(
            lambda: main([*words, *(f"--set={override}" for override in self._overrides)]),
            environment=os.environ.copy(),
            new_session=True,
        )

    def kill_and_restart_launcher(self) -> None:
        """The launcher dies, and rank 0 starts another one at the same address."""
        self.launcher.kill()
        self.go()
        self.wait_for_end()
        self.launcher = self._start(f"ipc://{self.private.name}/link")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.go()
        self.launcher.kill()
        self.launcher.wait()
        processes.end_all("STREAM_CONNECTION", self.output_dir, grace_s=0.0)
        self._socket.close()
        self._context.term()
        self.private.cleanup()

    def plan(self, num: int, security: Security | None = None, attempt: int = -1, *, incarnation: int = 1) -> None:
        """Rank 0 is there, and has a plan of `num` simulations for the launcher that asks."""
        self.send(launcher_link.Rank0Alive(incarnation=incarnation))
        self.wait_for(launcher_link.AskPlan)
        self.send(plan(num, output_dir=self.output_dir, security=security, attempt=attempt, incarnation=incarnation))

    def send(self, message: launcher_link.ToLauncher) -> None:
        """Say something to the launcher."""
        self._socket.send(launcher_link.encode(message))

    def wait_for(self, kind: type[Message]) -> Message:
        """The next message of this kind; what comes before it is in `seen`."""
        deadline = Deadline(DEADLINE_S)
        while True:
            while not self._socket.poll(100):
                assert self.launcher.poll() is None
                assert not deadline.has_passed, f"no {kind.__name__} came, but {self.seen}"
            message = launcher_link.to_server(self._socket.recv())
            self.seen.append(message)
            if isinstance(message, kind):
                return message

    def wait_for_output(self, simulation: int, attempt: int = 0) -> str:
        """The output of an attempt, once that is a whole line."""
        log = self.folder_of(simulation, attempt) / "output.log"
        self.wait_until(lambda: log.exists() and "\n" in log.read_text())
        return log.read_text()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for what the launcher does to files."""
        until(condition)

    def folder_of(self, simulation: int, attempt: int = 0) -> Path:
        """The folder of an attempt."""
        return self.output_dir / "simulations" / str(simulation) / f"attempt-{attempt}"

    def go(self) -> None:
        """Rank 0 is gone: its end of the pipe closes."""
        self.launcher.stdin.close()

    def wait_for_end(self) -> int:
        """The exit status of the launcher."""
        return self.launcher.wait(DEADLINE_S)

    def processes(self) -> list[processes.Process]:
        """The processes of this study's simulations that still run."""
        return [it for it in processes.running("STREAM_CONNECTION") if it.mark.startswith(str(self.output_dir))]
