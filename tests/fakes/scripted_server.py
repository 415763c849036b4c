"""A program in the place of stream-server, which does at each start what the test has written down.

`acts.json` in the folder of the study has a list of acts for each start; the last list serves all later starts.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import zmq
from msgspec.structs import replace

from stream_server.messages import launcher_link
from stream_server.server.reception.heartbeat import Heartbeat
from tests.launcher.plans import plan

HERE_S = 0.2


class ScriptedServer:
    """One rank of the server. Rank 0 speaks with the launcher; every rank shows that it lives."""

    def __init__(self, study: Path, arguments: list[str]) -> None:
        self.study = study
        self.output_dir = study / "runs" / study.name
        self.arguments = arguments
        self.rank = int(os.environ.get("FAKE_RANK", "0"))
        self.number = len(list(study.glob(f"start-*-{self.rank}.json")))
        self.incarnation = self.number + 1
        self._context = zmq.Context()
        self._link = self._context.socket(zmq.DEALER)
        self._heartbeat: Heartbeat | None = None
        self._here_at = 0.0
        self._greets = False
        self._plan: launcher_link.Plan | None = None
        self._stop: launcher_link.StopSimulations | None = None

    def main(self) -> NoReturn:
        facts = {"arguments": self.arguments, "pid": os.getpid(), "folder": os.environ["STREAM_IPC_FOLDER"]}
        facts["mark"] = os.environ["STREAM_SERVER_JOB"]
        (self.study / f"start-{self.number}-{self.rank}.json").write_text(json.dumps(facts))
        signal.signal(signal.SIGUSR1, lambda *_: self.report(75))
        (Path(os.environ["STREAM_IPC_FOLDER"]) / f"d{self.rank}").touch()
        acts = json.loads((self.study / "acts.json").read_text())
        for name, *values in acts[min(self.number, len(acts) - 1)]:
            getattr(self, name)(*values)
        self.leave(0)

    def live(self) -> None:
        """Connect to where the launcher watches the ranks."""
        self._heartbeat = Heartbeat(self._option("--alive"), self.rank)
        self._heartbeat.__enter__()

    def plan(self, num: int, attempt: int = -1) -> None:
        """Say that we are there, and tell the launcher who asks what to run."""
        if self.rank > 0:
            return
        self._link.connect(self._option("--link"))
        self._greets = True
        self._plan = plan(num, output_dir=self.output_dir, incarnation=self.incarnation, attempt=attempt)
        self._wait_for(launcher_link.PlanAccepted)

    def commit(self, checkpoint: int) -> None:
        if self.rank == 0:
            self._tell(launcher_link.Committed(checkpoint=checkpoint, batches=10 * checkpoint))
            log = self.output_dir / "logs" / "launcher.log"
            self._wait_until(lambda: f"checkpoint {checkpoint} is committed" in log.read_text())

    def progress(self, simulation: int, attempt: int) -> None:
        if self.rank == 0:
            self._tell(launcher_link.ProgressReport(simulation=simulation, attempt=attempt, received=1, blocked=False))

    def finish(self, simulation: int) -> None:
        if self.rank == 0:
            assert self._plan is not None
            left = tuple(planned for planned in self._plan.simulations if planned.simulation != simulation)
            self._plan = replace(self._plan, simulations=left)
            self._tell(launcher_link.Finished(simulation=simulation))

    def stop_all(self) -> None:
        if self.rank == 0:
            self._stop = launcher_link.StopSimulations(reason="finished", grace_s=0.0)
            self._tell(self._stop)
            self._wait_for(launcher_link.LauncherDone)

    def wait_for_attempts(self, num: int) -> None:
        if self.rank == 0:
            for _ in range(num):
                self._wait_for(launcher_link.Attempt)

    def wait_for_output(self) -> None:
        """Go on once simulation 0 has printed something."""
        logs = self.output_dir / "simulations" / "0"
        self._wait_until(lambda: any(log.read_text() for log in logs.glob("attempt-*/output.log")))

    def wait_for_leave(self) -> None:
        """Stay until the launcher asks us to leave, and then do so."""
        if self.rank == 0:
            self._wait_for(launcher_link.Leave)
        self.report(75)

    def was_asked_to_stop(self, reason: str) -> None:
        """An operator has asked us to leave."""
        if self.rank == 0:
            self._tell(launcher_link.Stopping(reason=reason))
            log = self.output_dir / "logs" / "launcher.log"
            self._wait_until(lambda: reason in log.read_text())

    def wait_for_file(self, name: str) -> None:
        """Go on once there is such a file beside study.json."""
        self._wait_until((self.study / name).exists)

    def stay(self) -> None:
        self._wait_until(lambda: False)

    def die(self, rank: int = 0, number: int = signal.SIGKILL) -> None:
        if self.rank == rank:
            os.kill(os.getpid(), number)

    def be_deaf(self) -> None:
        """No signal that can be caught ends us; say when one comes."""
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _frame: print(number, flush=True))
        print("deaf", flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def raise_at(self, batch: int | None) -> None:
        """User code raises."""
        self._write("exit.json", {"exit_code": 3, "message": "KeyError", "batch": batch})
        self.leave(3)

    def write_report(self, code: int) -> None:
        self._write("report.json", {"exit_code": code, "exit_reason": "", "message": f"code {code}"})

    def report(self, code: int, status: int = 0) -> None:
        """Leave in order: rank 0 writes the report first, for mpirun kills the others when one leaves with a status."""
        if self.rank == 0:
            self.write_report(code)
            if self._greets:
                self._tell(launcher_link.Leaving())
        else:
            self._wait_until((self.output_dir / "report.json").exists)
        if self._heartbeat is not None:
            self._heartbeat.__exit__(None, None, None)
        self._context.destroy(linger=1000)
        sys.exit(status)

    def leave(self, status: int) -> NoReturn:
        """Leave without a word."""
        sys.stdout.flush()
        os._exit(status)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        self.output_dir.mkdir(parents=True, exist_ok=True)
        written = self.output_dir / f"{name}.new"
        written.write_text(json.dumps(content))
        written.replace(self.output_dir / name)

    def _option(self, name: str) -> str:
        return self.arguments[self.arguments.index(name) + 1]

    def _tell(self, message: launcher_link.ToLauncher) -> None:
        self._link.send(launcher_link.encode(message))

    def _wait_for(self, kind: type[launcher_link.ToServer]) -> None:
        while not any(isinstance(message, kind) for message in self._hear()):
            pass

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._hear()

    def _hear(self) -> list[launcher_link.ToServer]:
        """The next message, if one comes; what rank 0 hears is written down."""
        if self._greets and time.monotonic() >= self._here_at:
            self._tell(launcher_link.Rank0Alive(incarnation=self.incarnation))
            self._here_at = time.monotonic() + HERE_S
        if not self._link.poll(20):
            return []
        frame = self._link.recv()
        with (self.study / f"heard-{self.number}.jsonl").open("ab") as file:
            file.write(frame + b"\n")
        message = launcher_link.to_server(frame)
        if isinstance(message, launcher_link.AskPlan) and self._plan is not None:
            self._tell(self._plan)
            if self._stop is not None:
                self._tell(self._stop)
        return [message]


def main(program: str) -> NoReturn:
    """Be stream-server, which lies in the folder `bin` beside study.json."""
    if "--check" in sys.argv:
        print("checked")
        sys.exit(0)
    ScriptedServer(Path(program).parent.parent, sys.argv[1:]).main()
