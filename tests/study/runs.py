"""Runs whole studies as a user does: a command, a time limit, and what it left behind."""

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from tests.mpi.launch import Launch, alone, mpirun

MARK = "STREAM_SERVER_TEST_RUN"
GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """A study that has ended."""

    exit_code: int
    output: str
    output_dir: Path
    wall_s: float
    ended_at: float

    @cached_property
    def report(self) -> dict[str, Any]:
        path = self.output_dir / "report.json"
        assert path.exists(), f"no report.json; the command said:\n{self.output}"
        return json.loads(path.read_text())  # type: ignore[no-any-return]

    @property
    def account(self) -> dict[str, Any]:
        return self.report["samples"]  # type: ignore[no-any-return]

    def log(self, simulation: int, attempt: int = 0) -> str:
        """What one attempt of a simulation wrote."""
        return (self.output_dir / "simulations" / str(simulation) / f"attempt-{attempt}" / "output.log").read_text()


def server_command(num_ranks: int, mpi: str | None, arguments: list[str]) -> Launch:
    """`stream-server` on `num_ranks` ranks, or without an MPI when `mpi` is None."""
    script = str(Path(sys.prefix) / "bin" / "stream-server")
    if mpi is None:
        assert num_ranks == 1
        return alone([script, *arguments])
    return mpirun(mpi, num_ranks, [script, *arguments])


def run_study(
    study: Path,
    output_dir: Path,
    *,
    num_ranks: int = 1,
    mpi: str | None = "mpich",
    settings: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    limit_s: float = 50,
) -> Run:
    """Run the study of a study.json to its end; `settings` become `--set KEY=VALUE`, `arguments` follow.

    Fails when the study takes longer than `limit_s`, or leaves a process behind.
    """
    changes = {"study.output_dir": str(output_dir)} | dict(settings or {})
    overrides = [word for key, value in changes.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    launch = server_command(num_ranks, mpi, ["--config", str(study), *overrides, *arguments])
    mark = uuid.uuid4().hex
    output_path = output_dir.with_suffix(".output")
    start = time.monotonic()
    with output_path.open("wb") as output:
        process = subprocess.Popen(
            launch.argv,
            env=launch.environment | {MARK: mark, "PYTHONFAULTHANDLER": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            exit_code = process.wait(limit_s)
            ended_at = time.time()
        except subprocess.TimeoutExpired:
            _kill(process, mark)
            raise AssertionError(f"not at its end after {limit_s} s:\n{_tail(output_path)}") from None
        except BaseException:
            _kill(process, mark)
            raise
    survivors = _survivors(mark)
    assert not survivors, f"left behind: {survivors}\n{_tail(output_path)}"
    return Run(
        exit_code=exit_code,
        output=output_path.read_text(errors="replace"),
        output_dir=output_dir,
        wall_s=time.monotonic() - start,
        ended_at=ended_at,
    )


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
    _, alive = psutil.wait_procs(marked_processes(mark), timeout=GRACE_S)
    names = [" ".join(process.cmdline()) for process in alive if process.is_running()]
    for process in alive:
        process.kill()
    return names


def _kill(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """End a run that hangs; every Python process of it writes the stacks of its threads first."""
    pythons = [each for each in marked_processes(mark) if each.name().startswith("python")]
    for each in pythons:
        each.send_signal(signal.SIGABRT)
    psutil.wait_procs(pythons, timeout=1)
    for each in marked_processes(mark):
        each.kill()
    process.wait()


def _tail(path: Path, num_bytes: int = 6000) -> str:
    return path.read_bytes()[-num_bytes:].decode(errors="replace")
