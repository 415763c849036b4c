"""Runs whole studies as a user does: a command, a time limit, and what it left behind."""

import contextlib
import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import psutil

from stream_server.launcher.supervision import cli as launcher_cli
from stream_server.server.commands.cli import main
from tests.support.forked_program import ForkedProgram
from tests.support.launch import Launch, alone, mpirun
from tests.support.timing import Deadline, until

NUMPY_STUDY = Path(__file__).parent.parent / "study" / "numpy_study" / "study.json"
# What building and running a study leave in its folder, for copies of it.
LEFT_BY_WORK = shutil.ignore_patterns("__pycache__", "build", "runs")
MARK = "STREAM_SERVER_TEST_RUN"
GRACE_S = 20.0
LOOK_S = 0.5
# A script that is started by its name bears it.
PYTHONS = ("python", "stream-")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A study that has ended."""

    exit_code: int
    output: str
    output_dir: Path
    wall_s: float

    @cached_property
    def report(self) -> dict[str, Any]:
        path = self.output_dir / "report.json"
        assert path.exists(), f"no report.json; the command said:\n{self.output}"
        return json.loads(path.read_text())  # type: ignore[no-any-return]

    @property
    def account(self) -> dict[str, Any]:
        return self.report["samples"]  # type: ignore[no-any-return]

    @property
    def launcher_log(self) -> str:
        """The log of the launchers of all starts."""
        return launcher_log(self.output_dir)

    @property
    def attempts(self) -> dict[int, int]:
        """How many attempts each simulation took."""
        folders = (self.output_dir / "simulations").iterdir()
        return {int(folder.name): len(list(folder.glob("attempt-*"))) for folder in folders}

    def log(self, simulation: int, attempt: int = 0) -> str:
        """The output of one attempt of a simulation."""
        return log_path(self.output_dir, simulation, attempt).read_text()


class LiveRun:
    """A study that runs. Made by `start_study`; `end` waits for its end."""

    def __init__(
        self, process: "subprocess.Popen[bytes] | ForkedProgram", output_dir: Path, output: Path, mark: str
    ) -> None:
        self.process = process
        self.output_dir = output_dir
        self.output = output
        self.mark = mark
        self._started = time.monotonic()

    @property
    def connection(self) -> Path:
        return self.output_dir / "connection.json"

    @property
    def ranks(self) -> list[psutil.Process]:
        """The processes of the server, rank 0 first."""
        # A rank is a child of the process that mpirun has started, and has the same command line.
        return sorted(self._pythons("stream-server", generation=1), key=_rank_of)

    @property
    def launcher(self) -> psutil.Process:
        (launcher,) = self._pythons("stream_server.launcher.supervision.cli", generation=0)
        return launcher

    @property
    def launcher_log(self) -> str:
        """The log of the launchers so far."""
        return launcher_log(self.output_dir)

    def processes(self) -> list[psutil.Process]:
        return marked_processes(self.mark)

    def log(self, simulation: int, attempt: int = 0) -> str:
        """The output of one attempt of a simulation so far."""
        path = log_path(self.output_dir, simulation, attempt)
        return path.read_text() if path.exists() else ""

    def wait_until(self, condition: Callable[[], Any], limit_s: float = 60) -> None:
        """Wait until something is so, which must be while the study runs."""
        until(lambda: condition() or self._assert_running(), limit_s, told=lambda: _tail(self.output))

    def end(self, limit_s: float = 100) -> Run:
        """Wait for the end of the study, of which no process may be left."""
        deadline = Deadline(limit_s)
        while (exit_code := self._exit_code(LOOK_S)) is None:
            if deadline.has_passed:
                self.kill()
                raise AssertionError(f"not at its end after {limit_s} s:\n{_tail(self.output)}")
        survivors = _survivors(self.mark)
        assert not survivors, f"left behind: {survivors}\n{_tail(self.output)}"
        return Run(
            exit_code=exit_code,
            output=self.said,
            output_dir=self.output_dir,
            wall_s=time.monotonic() - self._started,
        )

    @property
    def said(self) -> str:
        """The output of the command so far."""
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        """End a study that hangs; every Python process of it writes the stacks of its threads first."""
        for each in self.processes():
            with contextlib.suppress(psutil.Error):
                if each.name().startswith(PYTHONS):
                    each.send_signal(signal.SIGABRT)
        psutil.wait_procs(self.processes(), timeout=1)
        for each in self.processes():
            with contextlib.suppress(psutil.Error):
                each.kill()
        self.process.wait()

    def _assert_running(self) -> None:
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{_tail(self.output)}"

    def _exit_code(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        return None

    def _pythons(self, program: str, *, generation: int) -> list[psutil.Process]:
        """Those with so many ancestors of the same program: a child has its parent's until it is another one itself."""
        found, parents = [], {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.name().startswith(PYTHONS) and any(word.endswith(program) for word in process.cmdline()):
                    parents[process.pid] = process.ppid()
                    found.append(process)
        return [process for process in found if _num_ancestors(process.pid, parents) == generation]


def _num_ancestors(pid: int, parents: Mapping[int, int]) -> int:
    parent = parents[pid]
    return 0 if parent not in parents else 1 + _num_ancestors(parent, parents)


def command(program: str, num_ranks: int, mpi: str | None, arguments: list[str]) -> Launch:
    """A program of ours, or the script at an absolute path, on `num_ranks` ranks; without an MPI when `mpi` is None."""
    script = str(Path(sys.prefix) / "bin" / program)
    if mpi is None:
        assert num_ranks == 1
        return alone([script, *arguments])
    return mpirun(mpi, num_ranks, [script, *arguments])


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """The options of the command that change these settings."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]


@contextmanager
def start_study(
    study: Path,
    output_dir: Path,
    *,
    num_ranks: int = 1,
    mpi: str | None = "mpich",
    settings: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    program: str = "stream-server",
    environment: Mapping[str, str] | None = None,
    mark: str | None = None,
    within: Sequence[str] = (),
) -> Iterator[LiveRun]:
    """Start the study of a study.json; `settings` become `--set KEY=VALUE`, `arguments` follow.

    What still runs when the block is left is killed. A `mark` of an earlier start makes one run of the two. `within` is
    a program that runs the command that is put after it.
    """
    launch = command(program, num_ranks, mpi, _words(study, output_dir, settings, arguments))
    mark = mark or uuid.uuid4().hex
    path = free_name(output_dir.with_suffix(".output"))
    with path.open("xb") as output:
        process = subprocess.Popen(
            [*within, *launch.argv],
            env=launch.environment | {MARK: mark, "PYTHONFAULTHANDLER": "1"} | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    live = LiveRun(process, output_dir, path, mark)
    try:
        yield live
    finally:
        if process.poll() is None or live.processes():
            live.kill()


def run_study(study: Path, output_dir: Path, *, limit_s: float = 100, num_ranks: int = 1, **options: Any) -> Run:
    """Run the study of a study.json to its end; the `options` are those of `start_study`.

    One rank runs without MPI unless `mpi` names one, as a fork of this process where nothing speaks against it.
    Fails when the study takes longer than `limit_s`, or leaves a process behind.
    """
    if num_ranks == 1:
        options.setdefault("mpi", None)
    # After a fork, torch's threads may wait for those of the parent.
    is_plain = options.keys() <= {"mpi", "settings", "arguments", "program"} and "torch" not in sys.modules
    main_of = {"stream-server": main, "stream-launcher": launcher_cli.main}.get(options.get("program", "stream-server"))
    if is_plain and num_ranks == 1 and options["mpi"] is None and main_of is not None:
        words = _words(study, output_dir, options.get("settings"), options.get("arguments", ()))
        return _run_fork(partial(main_of, words), output_dir, limit_s)
    with start_study(study, output_dir, num_ranks=num_ranks, **options) as live:
        return live.end(limit_s)


def _rank_of(process: psutil.Process) -> int:
    environment = process.environ()
    return int(environment.get("PMI_RANK") or environment.get("PMIX_RANK") or 0)


def _run_fork(program: Callable[[], int], output_dir: Path, limit_s: float) -> Run:
    mark, path = uuid.uuid4().hex, free_name(output_dir.with_suffix(".output"))
    with path.open("xb") as output:
        process = ForkedProgram(
            program, environment=alone([]).environment | {MARK: mark}, output=output, errors=output, new_session=True
        )
    live = LiveRun(process, output_dir, path, mark)
    try:
        return live.end(limit_s)
    finally:
        process.kill()
        live.kill()


def run_here(
    study: Path,
    output_dir: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
) -> Run:
    """Run `stream-server` on one rank in this process, which has imported what a process of its own would import anew.

    For a start that is refused or ends in order: what ends a server at once would end the tests.
    """
    started = time.monotonic()
    with left_as_it_was(study.parent), io.StringIO() as said:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            exit_code = main(_words(study, output_dir, settings, arguments))
        wall_s = time.monotonic() - started
        return Run(exit_code=exit_code, output=said.getvalue(), output_dir=output_dir, wall_s=wall_s)


@contextmanager
def left_as_it_was(folder: Path) -> Iterator[None]:
    """Undo what a server leaves in its process: the user's modules, its environment, and objects that are kept."""
    path, environment = list(sys.path), dict(os.environ)
    # Other studies have files of the same names.
    own = {file.stem for file in folder.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in own & set(sys.modules)}
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        gc.unfreeze()
        for name in own & set(sys.modules):
            del sys.modules[name]
        sys.modules.update(others)


def assert_complete(run: Run, num_simulations: int, num_steps: int = 20) -> None:
    """All training simulations, and the one for validation, were received and trained to the last sample."""
    assert run.exit_code == 0, run.output
    report, account = run.report, run.account
    assert report["exit_code"] == 0
    assert report["exit_reason"] == "finished"
    assert report["balanced"] is True
    assert report["simulations"]["finished"] == report["simulations"]["requested"] == num_simulations + 1
    assert account["expected"] == account["accepted"] == num_simulations * num_steps
    assert account["untrained"] == 0
    assert account["trained"] + account["skipped"] + account["withdrawn"] == account["accepted"]


def _words(study: Path, output_dir: Path, settings: Mapping[str, Any] | None, arguments: Sequence[str]) -> list[str]:
    changes = {"study.output_dir": str(output_dir)} | dict(settings or {})
    return ["--config", str(study), *overrides(changes), *arguments]


def assert_tried_once(run: Run, *, of_begun: bool = False) -> None:
    """No simulation took more than one attempt, or none `of_begun` ones: a job may never have been submitted.

    Of one that did, all that is known is told, and no more.
    """
    again = [simulation for simulation, num in sorted(run.attempts.items()) if num > 1]
    if of_begun:
        again = [simulation for simulation in again if log_path(run.output_dir, simulation, 0).exists()]
    told = [
        "\n".join(
            line for line in run.launcher_log.splitlines() if f"simulation {it}" in line or f"-{it}-attempt" in line
        )
        + f"\nits first attempt said:\n{run.log(it)[-1500:]}"
        for it in again
    ]
    assert not again, "\n\n".join(told)


def log_path(output_dir: Path, simulation: int, attempt: int) -> Path:
    """The path of the output of one attempt of a simulation."""
    return output_dir / "simulations" / str(simulation) / f"attempt-{attempt}" / "output.log"


def launcher_log(output_dir: Path) -> str:
    """The log of the launchers of a run."""
    path = output_dir / "logs" / "launcher.log"
    return path.read_text() if path.exists() else ""


def free_name(path: Path) -> Path:
    """The path, or the next one with a number that is free."""
    return next(it for it in (path, *(path.with_suffix(f".{i}{path.suffix}") for i in range(2, 99))) if not it.exists())


def marked_processes(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark of one run in their environment, whoever started them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _survivors(mark: str) -> list[str]:
    deadline = Deadline(GRACE_S)
    while (alive := marked_processes(mark)) and not deadline.has_passed:
        psutil.wait_procs(alive, timeout=LOOK_S)
    names = []
    for process in alive:
        # One that has ended, and for which its parent has not waited yet, is not left behind.
        with contextlib.suppress(psutil.Error):
            names.append(" ".join(process.cmdline()))
            process.kill()
    return names


def _tail(path: Path, num_bytes: int = 6000) -> str:
    return path.read_bytes()[-num_bytes:].decode(errors="replace")
