"""The server as a job of a scheduler, as the launcher follows it; a scripted backend in the place of the scheduler."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from stream_server.launcher.backends.backend import Backend, JobSpec, JobState, JobStatus, Outage, SavedJob, SubmitError
from stream_server.launcher.journal.records import ServerStarting
from stream_server.launcher.supervision.liveness import LivenessSocket
from stream_server.launcher.supervision.server_job import (
    COMING_LIMIT_S,
    COMING_TOLD_S,
    KILL_LIMIT_S,
    TRY_MPIRUN,
    RunningServer,
)
from stream_server.launcher.supervision.server_restart import (
    REPORT_FILE,
    EndReports,
    Restart,
    Restarts,
    ServerEnd,
)
from stream_server.launcher.supervision.servers import Servers, SubmittedServer, folder_of
from tests.fakes import scheduler_commands as fake_scheduler
from tests.launcher.study_run import StudyRun
from tests.support.studies import StudyFolder
from tests.support.timing import Clock

# A job that is cancelled has the long grace of its site.
PATIENT = """#!/bin/sh
case "$*" in *KILL*) exec {bkill} "$@" ;; esac
"""
SAVED = ServerEnd(exit_code=75, message="saved before the time limit", is_of_job=True)


class ScriptedBackend(Backend):
    """A backend that says what it is told to say."""

    query_interval_s = 0.0

    def __init__(self) -> None:
        self.says: JobStatus | Exception = JobStatus(state=JobState.QUEUED)
        self.submits: Exception | None = None
        self.finds: Exception | None = None
        self.cancelled: list[str] = []
        self.cancels: Exception | None = None

    def submit(self, spec: JobSpec) -> str:
        if self.submits is not None:
            raise self.submits
        return "job-1"

    def cancel(self, handles: Collection[str]) -> None:
        self.cancelled += handles
        if self.cancels is not None:
            raise self.cancels

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        if isinstance(self.says, Exception):
            raise self.says
        return dict.fromkeys(handles, self.says)

    def reattach(self, job: SavedJob) -> str:
        if self.finds is not None:
            raise self.finds
        return "job-1"

    def close(self) -> None: ...


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def job(backend: ScriptedBackend, tmp_path: Path) -> SubmittedServer:
    return SubmittedServer.submit(backend, spec_in(tmp_path), Outage())


def spec_in(folder: Path) -> JobSpec:
    return JobSpec(command=("server",), environment={}, folder=folder, marks=frozenset())


def running(job: SubmittedServer, folder: Path, stack: ExitStack, *, taken_over: bool = False) -> RunningServer:
    """The server of a job, whose two ranks have not been heard of."""
    reports = EndReports.versions(folder)
    alive = f"ipc://{folder}/alive"
    starting = ServerStarting(
        number=1, ranks=2, folder=str(folder), alive=alive, reports_before=reports, backend="slurm"
    )
    liveness = stack.enter_context(LivenessSocket(alive, num_ranks=2))
    server = RunningServer(starting, job, liveness, stack, taken_over=taken_over)
    if not taken_over:
        server.coming_since = 0.0
    return server


def looks(server: RunningServer, begin: float, end: float) -> str:
    """What looks at it find from `begin` to `end`, one each second."""
    return next((why for second in range(int(begin), int(end)) if (why := server.look(float(second)))), "")


def test_the_time_in_the_queue_is_not_held_against_a_server(
    backend: ScriptedBackend, job: SubmittedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        server = running(job, tmp_path, stack)
        assert server.look(3 * COMING_LIMIT_S) == ""
        backend.says = JobStatus(state=JobState.RUNNING)
        assert server.look(3 * COMING_LIMIT_S + COMING_TOLD_S - 1) == ""
        assert not caplog.messages
        assert server.look(3 * COMING_LIMIT_S + COMING_TOLD_S) == server.look(4 * COMING_LIMIT_S - 1) == ""
        assert caplog.messages == [f"not all ranks of the server have come for {COMING_TOLD_S:g} s. {TRY_MPIRUN}"]
        assert "have come within" in server.look(4 * COMING_LIMIT_S)


def test_a_job_that_was_queued_when_it_was_taken_over_may_take_its_time_to_begin(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    job = SubmittedServer.adopt(backend, tmp_path, Outage())
    assert job is not None
    with ExitStack() as stack:
        server = running(job, tmp_path, stack, taken_over=True)
        assert looks(server, 0, 3) == ""
        backend.says = JobStatus(state=JobState.RUNNING)
        assert looks(server, 3, 60) == ""


def test_all_ranks_of_a_job_that_ran_when_it_was_taken_over_must_come_back(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    backend.says = JobStatus(state=JobState.RUNNING)
    job = SubmittedServer.adopt(backend, tmp_path, Outage())
    assert job is not None
    with ExitStack() as stack:
        assert "rank 0, rank 1 of the server does not answer" in looks(
            running(job, tmp_path, stack, taken_over=True), 0, 60
        )


def test_a_scheduler_that_does_not_answer_says_nothing_of_a_job(
    backend: ScriptedBackend, job: SubmittedServer, tmp_path: Path
) -> None:
    backend.says = subprocess.CalledProcessError(1, "squeue")
    with ExitStack() as stack:
        assert looks(running(job, tmp_path, stack), 0, 30) == ""
    assert not job.is_over


def test_a_job_that_never_came_to_be_submitted_is_not_taken_over(backend: ScriptedBackend, tmp_path: Path) -> None:
    backend.says = JobStatus(state=JobState.ENDED)
    assert SubmittedServer.adopt(backend, tmp_path, Outage()) is None


def test_a_job_that_cannot_be_submitted_has_ended(backend: ScriptedBackend, tmp_path: Path) -> None:
    backend.submits = SubmitError("could not be queued: no room")
    job = SubmittedServer.submit(backend, spec_in(tmp_path), Outage())
    assert job.is_over
    with ExitStack() as stack:
        end = running(job, tmp_path, stack).how_it_ended(tmp_path)
    assert end.message == "the job of the server could not be queued: no room and left no report"


@pytest.mark.parametrize(
    ("status", "is_of_job"),
    [
        (JobStatus(state=JobState.ENDED, reason="lost its node", excuse="lost its node"), True),
        (JobStatus(state=JobState.ENDED, reason="ended after its walltime", is_out_of_time=True), True),
        (JobStatus(state=JobState.ENDED, reason="was cancelled from outside"), False),
    ],
)
def test_what_ends_a_job_from_outside_is_told_from_a_failure(
    backend: ScriptedBackend, job: SubmittedServer, tmp_path: Path, status: JobStatus, is_of_job: bool
) -> None:
    backend.says = status
    job.look(1.0)
    with ExitStack() as stack:
        end = running(job, tmp_path, stack).how_it_ended(tmp_path)
    assert (end.is_of_job, end.exit_code) == (is_of_job, 7)
    assert end.message == f"the job of the server {status.reason} and left no report"


@pytest.mark.parametrize(
    ("printed", "is_refused"),
    [
        ("me@n2: Permission denied (publickey,password).\r\n", True),
        ("ssh: connect to host n2 port 22: Connection refused\n", True),
        ("Host key verification failed.\n", True),
        ("ssh: connect to host n2 port 22: No route to host\n", False),
        ("Bus error\n", False),
    ],
)
def test_what_mpirun_printed_last_is_told_and_a_server_that_ssh_refuses_is_not_started_again(
    backend: ScriptedBackend, job: SubmittedServer, tmp_path: Path, printed: str, is_refused: bool
) -> None:
    (tmp_path / "output.log").write_text(f"loading modules\n{printed}")
    backend.says = JobStatus(state=JobState.ENDED, exit_code=255, reason="ended with exit code 255")
    job.look(1.0)
    with ExitStack() as stack:
        end = running(job, tmp_path, stack).how_it_ended(tmp_path)
    told = f"the job of the server ended with exit code 255 and left no report; its last words: {printed.strip()}"
    assert end.message == told
    decision = Restarts(3).decide(end, stopping=False)
    assert isinstance(decision, ServerEnd) == is_refused
    assert decision.message.startswith(told)
    assert all(word in decision.message for word in ("server.job.mpirun", "pbs_tmrsh", "pbsdsh", "ssh")) == is_refused


@pytest.mark.parametrize("exit_code", [0, 4, 5, 6])
def test_a_server_whose_study_was_over_does_not_go_on_though_its_job_was_ended_from_outside(
    backend: ScriptedBackend, job: SubmittedServer, tmp_path: Path, exit_code: int
) -> None:
    backend.says = JobStatus(state=JobState.ENDED, reason="lost its node", excuse="lost its node")
    with ExitStack() as stack:
        server = running(job, tmp_path, stack)
        (tmp_path / REPORT_FILE).write_text(json.dumps({"exit_code": exit_code}))
        job.look(1.0)
        end = server.how_it_ended(tmp_path)
    assert (end.exit_code, end.is_of_job) == (exit_code, False)


def test_a_submission_without_an_answer_is_looked_for_until_there_is_one(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    backend.submits = backend.finds = subprocess.TimeoutExpired("ssh", 10.0)
    job = SubmittedServer.submit(backend, spec_in(tmp_path), Outage())
    job.look(1.0)
    job.ask_to_leave()
    assert not job.is_over
    assert backend.cancelled == []
    backend.finds = None
    job.look(2.0)
    assert (job.handle, job.state, backend.cancelled) == ("job-1", JobState.QUEUED, ["job-1"])


def test_a_submission_that_did_not_come_through_is_made_again_and_is_no_failure_of_the_server(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    backend.submits, backend.finds = ConnectionResetError("gone"), SubmitError("it was never started")
    job = SubmittedServer.submit(backend, spec_in(tmp_path), Outage())
    job.look(1.0)
    with ExitStack() as stack:
        end = running(job, tmp_path, stack).how_it_ended(tmp_path)
    assert end.message == "the job of the server was not submitted: it was never started and left no report"
    assert end.is_of_job
    assert SubmittedServer.adopt(backend, tmp_path, Outage()) is None


def test_a_cancel_that_was_lost_is_repeated_and_leaves_no_outage_behind(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    clock = Clock()
    outage = Outage(clock)
    job = SubmittedServer.submit(backend, spec_in(tmp_path), outage)
    backend.cancels = OSError("no route to host")
    job.kill(0.0)
    job.look(1.0)
    assert backend.cancelled == ["job-1"] * 3
    backend.cancels = None
    job.look(2.0)
    job.look(3.0)
    assert backend.cancelled == ["job-1"] * 4
    backend.cancels = OSError("no route to host")
    job.kill(4.0)
    backend.says = JobStatus(state=JobState.ENDED)
    job.look(5.0)
    clock.now = 100.0
    assert (job.is_over, outage.news()) == (True, "")


def test_a_job_whose_folder_cannot_be_made_has_ended(backend: ScriptedBackend, tmp_path: Path) -> None:
    (tmp_path / "server").touch()
    job = SubmittedServer.submit(backend, spec_in(folder_of(tmp_path, 1)), Outage())
    assert job.end is not None
    assert job.end.reason.startswith("could not be submitted: ")


def test_at_the_end_each_backend_is_closed_also_after_one_that_does_not_answer(
    backend: ScriptedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(ScriptedBackend):
        def close(self) -> None:
            raise OSError("no route to host")

    closed: list[str] = []
    monkeypatch.setattr(backend, "close", lambda: closed.append("job-1"))
    with closing(Servers(StudyFolder(tmp_path / "heat").load(), Outage())) as servers:
        servers._backends.update({"slurm": Away(), "pbs": backend})
    assert closed == ["job-1"]
    assert caplog.messages == ["jobs of the server may go on: slurm: no route to host"]


def test_the_folder_of_a_job_that_no_journal_knows_any_more_is_not_used_again(tmp_path: Path) -> None:
    servers = Servers(StudyFolder(tmp_path / "heat").load({"server.backend": "slurm"}), Outage())
    for number in (1, 2):
        folder_of(servers.config.output_dir, number).mkdir(parents=True)
    assert servers.free_number(1) == 3
    assert servers.free_number(4) == 4


def test_a_job_that_was_cancelled_before_it_had_a_plan_leaves_the_study_as_it_was(
    backend: ScriptedBackend, job: SubmittedServer, tmp_path: Path
) -> None:
    job.ask_to_leave()
    assert backend.cancelled == ["job-1"]
    backend.says = JobStatus(state=JobState.ENDED, reason="was cancelled")
    job.look(1.0)
    with ExitStack() as stack:
        assert running(job, tmp_path, stack).how_it_ended(tmp_path).exit_code == 75


def test_the_next_server_does_not_wait_for_a_job_on_a_node_that_is_gone(
    backend: ScriptedBackend, job: SubmittedServer, tmp_path: Path
) -> None:
    backend.query_interval_s = 10.0
    backend.says = JobStatus(state=JobState.ENDING)
    with ExitStack() as stack:
        server = running(job, tmp_path, stack)
        server.kill("rank 1 of the server does not answer any more", 10.0)
        server.look(10.0 + KILL_LIMIT_S - 1)
        assert not job.is_over
        server.look(10.0 + KILL_LIMIT_S)
        assert not server.cannot_be_killed(10.0 + KILL_LIMIT_S)
        assert server.how_it_ended(tmp_path).message == "rank 1 of the server does not answer any more"


def test_what_a_job_prints_is_shown_once_and_without_control_characters(
    job: SubmittedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "output.log").write_text("one\n")
    job.look(1.0)
    with (tmp_path / "output.log").open("a") as log:
        log.write("\x1b[2Jtwo\n")
    job.look(2.0)
    job.look(3.0)
    assert capsys.readouterr().err == "one\n\\x1b[2Jtwo\n"


def test_a_server_whose_job_is_over_goes_on_in_the_next_one_however_often_as_long_as_it_saves() -> None:
    restarts = Restarts(1)
    for _ in range(5):
        restarts.progressed()
        assert restarts.decide(SAVED, stopping=False) == Restart(
            pause_s=0.0, message="saved before the time limit; it goes on in the next job"
        )


def test_jobs_that_save_nothing_are_counted() -> None:
    restarts = Restarts(1)
    assert isinstance(restarts.decide(SAVED, stopping=False), Restart)
    last = restarts.decide(SAVED, stopping=False)
    assert isinstance(last, ServerEnd)
    assert last.exit_code == 75


def test_a_study_that_was_to_stop_does_not_go_on_in_another_job() -> None:
    restarts = Restarts(3)
    restarts.progressed()
    assert restarts.decide(SAVED, stopping=True) == SAVED


def test_whoever_asks_again_waits_for_no_abandoned_job(job: SubmittedServer, backend: ScriptedBackend) -> None:
    job.kill(10.0)
    job.abandon()
    assert backend.cancelled == ["job-1"]
    assert job.is_over


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_the_grace_of_the_scheduler(tmp_path: Path) -> None:
    cluster, commands = tmp_path / "cluster", tmp_path / "commands"
    fake_scheduler.install(cluster)
    commands.mkdir()
    (commands / "bkill").write_text(PATIENT.format(bkill=cluster / "bin" / "bkill"))
    (commands / "bkill").chmod(0o755)
    study = tmp_path / "study"
    study.mkdir()
    settings = {"server.backend": "lsf", "launcher.backend": "lsf", "server.job.setup": ["exec sleep 100"]}
    words = tuple(word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}"))
    path = os.pathsep.join([str(commands), str(cluster / "bin"), os.environ["PATH"]])
    with StudyRun(study, [], arguments=words, environment={"PATH": path}) as run:
        run.wait_until(lambda: list(cluster.glob("*.json")) and "is running" in run.log)
        run.launcher.send_signal(signal.SIGINT)
        run.wait_until(lambda: "once more ends it at once" in run.errors)
        run.launcher.send_signal(signal.SIGINT)
        sent_at = time.monotonic()
        assert run.end() == 75
        assert time.monotonic() - sent_at < KILL_LIMIT_S / 3
    [ended] = [json.loads(it.read_text()) for it in cluster.glob("*.json")]
    assert (ended["state"], ended["how"]) == ("ended", "killed")
