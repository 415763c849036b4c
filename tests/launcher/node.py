"""A machine for the launcher without processes, files and sockets; what happens on it, others decide.

Each thing that the launcher does passes a door, at which it may be killed; what it did before stays done.
"""

import errno
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from stream_server import failpoints
from stream_server.launcher.backends.backend import Backend, JobSpec, JobState, JobStatus, SavedJob, describe
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.simulations import attempt_jobs, ensemble, starter
from stream_server.launcher.simulations.attempt_folders import CONNECTION_FILE
from stream_server.messages import launcher_link
from stream_server.storage.lines import LineFile
from tests.fakes.one_rank import OneRank

Attempt = tuple[int, int]
KILLED_BY_TERM = 143


class LauncherKilled(BaseException):
    """The launcher does nothing any more."""


@dataclass(kw_only=True)
class Process:
    """An attempt of a simulation. `code` is how it ended by itself, None as long as it runs or if it was killed.

    One that `hangs` sends nothing more, one that `lingers` sends all and does not end.
    `quiet_since`: when it last came on, as far as the server could see. `blameless`: why it is not to be blamed if it
    fails, "" if it is.
    """

    simulation: int
    attempt: int
    quiet_since: float
    position: int = 0
    hangs: bool = False
    lingers: bool = False
    alive: bool = True
    code: int | None = None
    blameless: str = ""

    def end(self, code: int | None) -> None:
        self.alive, self.code = False, code


@dataclass(kw_only=True)
class Job:
    """Processes that were started together; mpirun, if it is several. `exit_code` None: it has left no word.

    `was_seen`: the launcher that started it has seen its end.
    """

    processes: list[Process]
    is_told_to_end: bool = False
    has_ended: bool = False
    was_seen: bool = False
    exit_code: int | None = None

    def end(self, exit_code: int | None) -> None:
        self.has_ended, self.exit_code = True, exit_code
        for process in self.processes:
            if process.alive:
                process.end(None)


@dataclass(kw_only=True)
class Node:
    """The things that outlive launchers: the journal, folders, jobs.

    The launcher is killed at the last of `doors_left`. `num_counted` are the failures that it held against simulations.
    `unanswered` are the methods of its backend that raise OSError, and "start" if a job without an answer begins.
    """

    max_running: int
    per_job: int
    now: float = 0.0
    journal: bytes = b""
    folders: set[Attempt] = field(default_factory=set)
    touched: Counter[Attempt] = field(default_factory=Counter)
    jobs: dict[Path, Job] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    server: OneRank | None = None
    disk_is_full: bool = False
    was_full: bool = False
    unanswered: frozenset[str] = frozenset()
    unpreparable: set[int] = field(default_factory=set)
    num_unprepared: Counter[int] = field(default_factory=Counter)
    num_counted: Counter[int] = field(default_factory=Counter)
    doors_left: int | None = None

    def door(self) -> None:
        """The launcher is about to do something, or has done it."""
        if self.doors_left is not None:
            self.doors_left -= 1
            if self.doors_left <= 0:
                self.doors_left = None
                raise LauncherKilled

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def job_of(self, process: Process) -> Job:
        return next(job for job in self.jobs.values() if process in job.processes)

    def processes_of(self, simulation: int) -> list[Process]:
        return [process for process in self.processes if process.simulation == simulation]

    def start(self, spec: JobSpec) -> None:
        """A job begins: the promises about attempts are kept here."""
        attempts = sorted(_attempt_of(mark) for mark in spec.marks)
        for simulation, attempt in attempts:
            earlier = self.processes_of(simulation)
            running = [it for it in earlier if not self.job_of(it).has_ended]
            assert not running, f"simulation {simulation} runs twice"
            assert attempt > max((it.attempt for it in earlier), default=-1), "numbers of attempts go back"
        processes = [Process(simulation=s, attempt=a, quiet_since=self.now) for s, a in attempts]
        self.processes += processes
        self.jobs[spec.folder] = Job(processes=processes)
        num_running = sum(len(job.processes) for job in self.jobs.values() if not job.has_ended)
        assert num_running <= self.max_running, f"{num_running} run at once"
        assert len(processes) <= self.per_job

    def end_process(self, process: Process, code: int) -> None:
        """A process ends by itself; mpirun ends the others of its job, unless all is well."""
        process.end(code)
        job = self.job_of(process)
        if code and not job.is_told_to_end:
            for mate in job.processes:
                if mate.alive:
                    mate.blameless = mate.blameless or "a mate failed"
        if code or not any(it.alive for it in job.processes):
            job.end(code)

    def codes(self, folder: Path) -> tuple[int, ...]:
        """The codes that the ranks of an attempt have left."""
        attempt = _attempt_of(str(folder / CONNECTION_FILE))
        found = [it.code for it in self.processes if (it.simulation, it.attempt) == attempt]
        return tuple(code for code in found if code is not None)

    @contextmanager
    def inhabited(self) -> Iterator[None]:
        """The launcher's modules see this machine, while the `with` block lasts."""
        clock = SimpleNamespace(monotonic=lambda: self.now)
        shell = SimpleNamespace(rmtree=self._remove_folder)
        with (
            mock.patch.object(ensemble, "time", clock),
            mock.patch.object(starter, "time", clock),
            mock.patch.object(ensemble, "shutil", shell),
            mock.patch.object(starter, "shutil", shell),
            mock.patch.object(attempt_jobs, "_codes", self.codes),
            mock.patch.object(failpoints, "_hook", self._pass_failpoint),
        ):
            yield

    def _pass_failpoint(self, name: str) -> None:
        """Each failpoint of the launcher is a door."""
        if name.startswith("launcher."):
            self.door()

    def _remove_folder(self, folder: Path, *, ignore_errors: bool) -> None:
        self.folders.discard(_attempt_of(str(folder / CONNECTION_FILE)))


class NodeJournal(Journal):
    """The real journal on a disk that may be full."""

    def __init__(self, node: Node) -> None:
        super().__init__(Path("/study"))
        self._lines = NodeLines(node, self.file)
        self.history = History.of(records.decode(node.journal))


class NodeLines(LineFile):
    """The lines of that journal."""

    def __init__(self, node: Node, path: Path) -> None:
        super().__init__(path)
        self.node = node

    def append(self, line: bytes) -> None:
        if self.node.disk_is_full:
            raise OSError(errno.ENOSPC, "no space left")
        self.node.journal += line
        self.node.door()


class NodeAttempts:
    """Folders of attempts; see `AttemptFolders`."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def folder(self, simulation: int, attempt: int) -> Path:
        return Path(f"/study/simulations/{simulation}/attempt-{attempt}")

    def log(self, simulation: int, attempt: int) -> Path:
        return self.folder(simulation, attempt) / "output.log"

    def free_number(self, simulation: int, attempt: int) -> int:
        while (simulation, attempt) in self.node.folders:
            attempt += 1
        return attempt

    def prepare(self, simulation: int, attempt: int, *_: Any) -> JobSpec:
        self.node.door()
        if self.node.disk_is_full:
            raise OSError(errno.ENOSPC, "no space left")
        assert (simulation, attempt) not in self.node.folders
        self.node.folders.add((simulation, attempt))
        if simulation in self.node.unpreparable:
            self.node.unpreparable.discard(simulation)
            self.node.num_unprepared[simulation] += 1
            raise ValueError("a template is not text")
        folder = self.folder(simulation, attempt)
        mark = str(folder / CONNECTION_FILE)
        return JobSpec(command=("solver",), environment={}, folder=folder, marks=frozenset({mark}))

    def reconnect(self, simulation: int, attempt: int, connection: Mapping[str, Any]) -> None:
        assert (simulation, attempt) in self.node.folders

    def touch(self, simulation: int, attempt: int) -> None:
        assert (simulation, attempt) in self.node.folders
        self.node.touched[simulation, attempt] += 1


class NodeMpirun:
    """Several attempts in one job; see `Mpirun`."""

    ranks = 1

    def job(self, specs: list[JobSpec]) -> JobSpec:
        marks = frozenset[str]().union(*(spec.marks for spec in specs))
        return JobSpec(command=("mpirun",), environment={}, folder=specs[0].folder, marks=marks)


class NodeBackend(Backend):
    """The backend of one launcher; see `Backend`. The handle of a job is its folder."""

    query_interval_s = 0.0

    def __init__(self, node: Node) -> None:
        self.node = node
        self.adopted: set[Path] = set()

    def submit(self, spec: JobSpec) -> str:
        if "submit" not in self.node.unanswered or "start" in self.node.unanswered:
            self.node.start(spec)
        self._answer("submit")
        return str(spec.folder)

    def reattach(self, job: SavedJob) -> str:
        self._answer("reattach")
        self.adopted.add(job.folder)
        return str(job.folder)

    def cancel(self, handles: Collection[str]) -> None:
        self._answer("cancel")
        for handle in sorted(handles):
            self.node.door()
            if job := self.node.jobs.get(Path(handle)):
                job.is_told_to_end = True

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        self.node.door()
        self._answer("query")
        return {handle: self._status(Path(handle)) for handle in sorted(handles)}

    def close(self) -> None:
        pass

    def _answer(self, call: str) -> None:
        if call in self.node.unanswered:
            raise OSError("no route to the scheduler")

    def _status(self, folder: Path) -> JobStatus:
        job = self.node.jobs.get(folder)
        if job is not None and not job.has_ended:
            return JobStatus(state=JobState.ENDING if job.is_told_to_end else JobState.RUNNING)
        if job is None or job.exit_code is None:
            if job is not None:
                job.was_seen |= folder not in self.adopted
                for process in job.processes if not (job.was_seen or job.is_told_to_end) else ():
                    process.blameless = process.blameless or "nobody saw its end"
            return JobStatus(state=JobState.ENDED, reason="ended without a word")
        return JobStatus(state=JobState.ENDED, exit_code=job.exit_code, reason=describe(job.exit_code))


class NodeLink:
    """The `ServerConnection` of one launcher. Nothing is heard of a rank 0 before it says that it is there."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.peer: OneRank | None = None
        self.is_broken = self.was_interrupted = False

    def break_(self) -> None:
        """Lose all messages on the way in both directions; rank 0 connects again."""
        if self.peer is not None and self.peer is self.node.server:
            self.is_broken = True
            self.peer.to_launcher.clear()
            self.peer.from_launcher.clear()

    def receive(self) -> list[launcher_link.ToLauncher]:
        server, heard = self.node.server, []
        while server is not None and server.to_launcher:
            message = launcher_link.to_launcher(launcher_link.encode(server.to_launcher.popleft()))
            if isinstance(message, launcher_link.Rank0Alive | launcher_link.Plan):
                self.was_interrupted |= self.is_broken and self.peer is server
                self.peer, self.is_broken = server, False
            if self.peer is server and not self.is_broken:
                heard.append(message)
        return heard

    def send(self, message: launcher_link.ToServer) -> None:
        self.node.door()
        if isinstance(message, launcher_link.Failed) and not message.excuse:
            self.node.num_counted[message.simulation] += 1
        if self.peer is not None and self.peer is self.node.server and not self.is_broken:
            self.peer.from_launcher.append(launcher_link.to_server(launcher_link.encode(message)))

    def forget_peer(self) -> None:
        self.peer, self.is_broken = None, False


def _attempt_of(mark: str) -> Attempt:
    *_, simulation, attempt, _ = Path(mark).parts
    return int(simulation), int(attempt.removeprefix("attempt-"))
