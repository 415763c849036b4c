"""The launcher's reading of a backend's answers: a job that is not known to have ended has not."""

import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from stream_server.launcher.backends.backend import Backend, JobSpec, JobState, JobStatus, Outage, SavedJob, SubmitError
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.records import AttemptCancelled, AttemptStarted, AttemptStarting
from stream_server.launcher.schedule.simulation import RESTARTED
from stream_server.launcher.simulations import attempt_jobs
from stream_server.launcher.simulations.attempt_folders import AttemptFolders
from stream_server.launcher.simulations.attempt_jobs import (
    FORGOTTEN_S,
    SUBMIT_PAUSE_S,
    AttemptJobs,
)
from stream_server.launcher.simulations.last_words import last_exception, last_line, missing_package, python_of
from tests.support.connections import NOWHERE

RUNNING = JobStatus(state=JobState.RUNNING)
UNKNOWN = JobStatus(state=JobState.UNKNOWN)
ENDED = JobStatus(state=JobState.ENDED)


class SpokenBackend(Backend):
    """Answers what the test says; an exception is raised once."""

    query_interval_s = 0.0

    def __init__(self) -> None:
        self.status: JobStatus = RUNNING
        self.errors: list[Exception] = []
        self.calls: list[Any] = []

    def submit(self, spec: JobSpec) -> str:
        self._call("submit", spec.folder.name)
        return "job 7"

    def cancel(self, handles: Collection[str]) -> None:
        self._call("cancel", *handles)

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        self._call("query", *handles)
        return dict.fromkeys(handles, self.status)

    def reattach(self, job: SavedJob) -> str:
        self._call("reattach", job.handle)
        return job.handle or "found"

    def close(self) -> None:
        pass

    def _call(self, *call: Any) -> None:
        if self.errors:
            raise self.errors.pop()
        self.calls.append(call)


@pytest.fixture
def backend() -> SpokenBackend:
    return SpokenBackend()


@pytest.fixture
def jobs(backend: SpokenBackend, tmp_path: Path) -> AttemptJobs:
    attempts = AttemptFolders(
        command=("true",), templates=(), environment={}, seed=0, study_dir=tmp_path, output_dir=tmp_path
    )
    return AttemptJobs(backend, attempts, None, Outage())


def start(jobs: AttemptJobs, simulation: int = 3) -> None:
    """Submit attempt 0 of a simulation."""
    jobs.submit({(simulation, 0): jobs.attempts.prepare(simulation, 0, {}, NOWHERE, None)}, 0.0)


def left(jobs: AttemptJobs, *, cancelled: bool = False) -> History:
    """The history of that attempt that a killed launcher has left."""
    folder = str(jobs.attempts.folder(3, 0))
    jobs.attempts.folder(3, 0).mkdir(parents=True)
    starting = AttemptStarting(simulation=3, attempt=0, folder=folder, public_key=None)
    started = AttemptStarted(simulation=3, attempt=0, handle="job 7")
    cancel = AttemptCancelled(simulation=3, attempt=0, reason="late", excuse="")
    return History.of([starting, started, *([cancel] if cancelled else [])])


@pytest.mark.parametrize("error", [None, OSError("busy"), subprocess.TimeoutExpired("squeue", 1)], ids=str)
def test_a_job_that_is_unknown_has_not_ended_however_long(
    jobs: AttemptJobs, backend: SpokenBackend, error: Exception | None
) -> None:
    start(jobs)
    backend.status = UNKNOWN
    backend.errors = [error] if error else []
    assert jobs.poll(1.0) == []
    assert jobs.poll(1e9) == []
    assert jobs.num_running == 1


def test_a_cancelled_job_that_stays_unknown_is_over_after_a_while(jobs: AttemptJobs, backend: SpokenBackend) -> None:
    start(jobs)
    jobs.cancel([(3, 0)])
    backend.status = UNKNOWN
    assert jobs.poll(5.0) == []
    assert jobs.poll(4.9 + FORGOTTEN_S) == []
    [end] = jobs.poll(5.0 + FORGOTTEN_S)
    assert (end.simulation, end.exit_code, end.reason) == (3, None, "ended, and left no exit code")


def test_a_backend_is_not_asked_when_there_is_no_job(jobs: AttemptJobs, backend: SpokenBackend) -> None:
    assert jobs.poll(1.0) == []
    jobs.cancel([(3, 0)])
    assert backend.calls == []


def test_a_cancelled_job_of_which_the_backend_cannot_be_asked_is_not_over(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    start(jobs)
    jobs.cancel([(3, 0)])
    for number in range(3):
        backend.errors = [OSError("away")]
        assert jobs.poll(number * FORGOTTEN_S) == []
    assert jobs.num_running == 1


def test_a_cancel_that_was_lost_is_sent_again(jobs: AttemptJobs, backend: SpokenBackend) -> None:
    start(jobs)
    backend.errors = [OSError("no route")]
    jobs.cancel([(3, 0)])
    jobs.poll(1.0)
    assert backend.calls[-1] == ("cancel", "job 7")


def test_a_backend_that_knows_no_exit_code_leaves_it_to_the_one_that_the_shell_wrote(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    start(jobs)
    (jobs.attempts.folder(3, 0) / "job.exit").write_text("139\n")
    backend.status = ENDED
    [end] = jobs.poll(1.0)
    assert (end.exit_code, end.reason, end.excuse) == (139, "was killed by SIGSEGV", "")


def test_a_job_whose_exit_code_cannot_be_read_now_is_judged_later(
    jobs: AttemptJobs, backend: SpokenBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(jobs)
    backend.status = ENDED
    with monkeypatch.context() as patch:
        patch.setattr(attempt_jobs, "exit_code_of", lambda file: _raise(OSError(24, "Too many open files")))
        assert jobs.poll(1.0) == []
    (jobs.attempts.folder(3, 0) / "job.exit").write_text("0\n")
    assert [end.exit_code for end in jobs.poll(2.0)] == [0]


def test_a_job_that_cannot_be_started_has_ended_and_its_log_says_why(jobs: AttemptJobs, backend: SpokenBackend) -> None:
    backend.errors = [SubmitError("the queue is closed", exit_code=1)]
    start(jobs)
    assert jobs.take_submitted() == []
    [end] = jobs.poll(1.0)
    assert (end.exit_code, end.reason) == (1, "the queue is closed")
    assert Path(end.log).read_text() == "the queue is closed\n"
    assert jobs.num_running == 0


AWAY = OSError("no route to the scheduler")
NOT_SUBMITTED = "no job can be submitted: no route to the scheduler"


@pytest.mark.parametrize("error", [AWAY, subprocess.TimeoutExpired("qsub", 1)], ids=["error", "timeout"])
def test_a_job_whose_submission_was_not_answered_is_found_by_its_folder_and_watched(
    jobs: AttemptJobs, backend: SpokenBackend, error: Exception
) -> None:
    backend.errors = [error]
    start(jobs)
    assert list(jobs.queue) == [(3, 0)]
    assert jobs.poll(1.0) == []
    assert backend.calls == [("reattach", None), ("query", "found")]
    assert jobs.queue == {}


def test_a_job_whose_submission_was_not_answered_and_that_does_not_exist_is_no_failure(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    backend.errors = [AWAY]
    start(jobs)
    backend.status = ENDED
    [end] = jobs.poll(1.0)
    assert (end.exit_code, end.excuse) == (None, "its submission was not answered")


def test_a_job_of_an_earlier_launcher_that_the_backend_says_is_not_there_has_ended_and_is_no_failure(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    backend.errors = [SubmitError("no job in this folder")]
    jobs.adopt(left(jobs))
    [end] = jobs.poll(1.0)
    assert (end.simulation, end.exit_code, end.excuse) == (3, None, RESTARTED)
    assert backend.calls == []
    assert jobs.num_running == 0


def test_no_clock_runs_for_a_job_of_an_earlier_launcher_before_the_backend_has_answered(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    backend.errors = [AWAY]
    jobs.adopt(left(jobs))
    assert list(jobs.queue) == [(3, 0)]
    jobs.poll(1.0)
    assert jobs.queue == {}


def test_jobs_wait_while_the_backend_takes_none_and_one_of_them_is_tried_after_a_pause(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    backend.errors = [AWAY]
    start(jobs)
    start(jobs, 4)
    start(jobs, 5)
    jobs.poll(SUBMIT_PAUSE_S - 1)
    assert ("submit", "attempt-0") not in backend.calls
    assert jobs.queue == {(4, 0): NOT_SUBMITTED, (5, 0): NOT_SUBMITTED}
    backend.errors = [AWAY]
    jobs.poll(SUBMIT_PAUSE_S)
    assert ("submit", "attempt-0") not in backend.calls
    assert jobs.queue == {(4, 0): NOT_SUBMITTED, (5, 0): NOT_SUBMITTED}
    jobs.poll(2 * SUBMIT_PAUSE_S)
    assert jobs.take_submitted() == [(((5, 0),), "job 7")]
    assert jobs.queue == {}
    assert jobs.num_running == 3


def test_a_job_that_is_cancelled_before_it_was_submitted_has_ended(jobs: AttemptJobs, backend: SpokenBackend) -> None:
    backend.errors = [AWAY]
    start(jobs)
    start(jobs, 4)
    jobs.cancel([(4, 0)])
    [end] = jobs.poll(SUBMIT_PAUSE_S)
    assert (end.simulation, end.reason) == (4, "was cancelled before it was submitted")
    assert ("submit", "attempt-0") not in backend.calls


def test_the_log_has_few_lines_of_a_backend_that_answers_nothing_for_an_hour(
    jobs: AttemptJobs, backend: SpokenBackend, caplog: pytest.LogCaptureFixture
) -> None:
    start(jobs)
    start(jobs, 4)
    jobs.cancel([(3, 0)])
    with caplog.at_level("INFO"):
        for number in range(3600):
            backend.errors = [AWAY, AWAY]
            jobs.poll(float(number))
    assert len(caplog.records) == 2


MISSING = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'stream_server.client_api'\n"


def test_a_simulation_whose_python_lacks_a_package_says_which_python_and_which_package(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    start(jobs)
    folder = jobs.attempts.folder(3, 0)
    (folder / "output.log").write_text(MISSING)
    (folder / "job.exit").write_text("1\n")
    backend.status = ENDED
    [end] = jobs.poll(1.0)
    assert end.reason == (
        "ended with exit code 1: the Python of true has no package stream_server; install it there, "
        "or let simulation.command name another Python"
    )


RAISED = """step 3
Traceback (most recent call last):
  File "/study/simulation.py", line 24, in <module>
    solve()
    ~~~~~^^
  File "/study/simulation.py", line 12, in solve
    raise FloatingPointError("CFL number 1.2")
FloatingPointError: CFL number 1.2
"""


def test_a_simulation_in_python_that_raises_tells_its_exception_in_the_reason(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    start(jobs)
    folder = jobs.attempts.folder(3, 0)
    (folder / "output.log").write_text(RAISED)
    (folder / "job.exit").write_text("1\n")
    backend.status = ENDED
    [end] = jobs.poll(1.0)
    assert end.reason == "ended with exit code 1: FloatingPointError: CFL number 1.2"


def test_the_exception_that_a_log_tells_is_that_of_its_last_traceback() -> None:
    assert last_exception(RAISED + RAISED.replace("1.2", "9.9") + "closing files\n") == (
        "FloatingPointError: CFL number 9.9"
    )
    assert last_exception(RAISED.replace(": CFL number 1.2\n", "\n")) == "FloatingPointError"
    assert last_exception('  File "simulation.py", line 3\n    u = (\n        ^\nSyntaxError: not closed\n') == (
        "SyntaxError: not closed"
    )
    assert last_exception("step 1\nsegmentation fault: core dumped\n") == ""


def test_the_python_of_a_command_line_is_found_on_the_path_of_the_simulations(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.touch(mode=0o755)
    environment = {"PATH": str(tmp_path)}
    assert python_of(["nice", "python3", "heat.py"], environment, tmp_path) == str(python)
    assert python_of(["/opt/bin/python3.11", "heat.py"], environment, tmp_path) == "/opt/bin/python3.11"
    (tmp_path / "run.sh").touch()
    assert python_of(["run.sh"], environment, tmp_path) == f"the Python of {tmp_path}/run.sh"
    assert missing_package("all is well") is None


def test_attempts_whose_job_is_queued_are_named_with_what_it_waits_for(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    start(jobs)
    backend.status = JobStatus(state=JobState.QUEUED, reason="Priority")
    jobs.poll(1.0)
    assert jobs.queue == {(3, 0): "Priority"}
    backend.status = RUNNING
    jobs.poll(2.0)
    assert jobs.queue == {}


def test_the_jobs_say_why_none_of_them_runs(jobs: AttemptJobs, backend: SpokenBackend) -> None:
    start(jobs)
    backend.status = JobStatus(state=JobState.QUEUED, reason="Priority")
    jobs.poll(0.0)
    assert jobs.why_none_runs == "Priority"
    backend.status = JobStatus(state=JobState.RUNNING)
    jobs.poll(1.0)
    assert jobs.why_none_runs == ""


def test_a_failure_that_the_backend_excuses_does_not_count(jobs: AttemptJobs, backend: SpokenBackend) -> None:
    start(jobs)
    backend.status = JobStatus(state=JobState.ENDED, reason="lost its node", excuse="lost its node")
    [end] = jobs.poll(0.0)
    assert (end.exit_code, end.reason, end.excuse) == (None, "lost its node", "lost its node")


def test_a_job_of_a_killed_launcher_is_taken_over_as_soon_as_the_backend_answers(
    jobs: AttemptJobs, backend: SpokenBackend
) -> None:
    backend.errors = [OSError("away"), OSError("away")]
    jobs.adopt(left(jobs))
    assert jobs.poll(1.0) == []
    assert jobs.poll(2.0) == []
    assert ("reattach", "job 7") in backend.calls
    backend.status = ENDED
    [end] = jobs.poll(3.0)
    assert (end.exit_code, end.excuse) == (None, RESTARTED)


def test_a_job_that_a_killed_launcher_was_about_to_end_is_cancelled(jobs: AttemptJobs, backend: SpokenBackend) -> None:
    jobs.adopt(left(jobs, cancelled=True))
    assert ("cancel", "job 7") in backend.calls
    backend.status = ENDED
    [end] = jobs.poll(3.0)
    assert end.excuse == ""


def _raise(error: Exception) -> None:
    raise error


RULE = "-" * 74
MPICH = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 8341 RUNNING AT n1
=   EXIT CODE: 4
===================================================================================
"""
OPEN_MPI = f"""{RULE}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{RULE}
{RULE}
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[19528,1],0]
  Exit code:    4
{RULE}
"""
BACKTRACE = """
Error termination. Backtrace:
#0  0x7efca8e218c2 in ???
#1  0x7efca8c45249 in __libc_start_call_main
\tat ../sysdeps/nptl/libc_start_call_main.h:58
"""


@pytest.mark.parametrize("mpirun", ["", MPICH, OPEN_MPI, f"{RULE}\nMPI_ABORT was invoked on rank 0\n{RULE}\n"])
@pytest.mark.parametrize(
    "after",
    [
        "",
        "STOP 4\n",
        BACKTRACE,
        "Abort(3) on node 0 (rank 0 in comm 0): application called MPI_Abort\n",
        "srun: error: n1: task 0: Exited with exit code 1\nslurmstepd: error: *** STEP 3.0 ON n1 CANCELLED ***\n",
        "Aborted (core dumped)\n",
        "bash: line 1:  6937 Aborted                 ./heat\n",
    ],
    ids=["nothing", "stop", "backtrace", "abort", "srun", "sh", "bash"],
)
def test_the_last_line_of_an_output_is_that_of_the_program(after: str, mpirun: str) -> None:
    table = f"{RULE}\nstep  CFL\n{RULE}\n"
    assert last_line(f"{table} CFL number 3.4 is too large\n\n{after}{mpirun}") == "CFL number 3.4 is too large"
    assert last_line(after + mpirun) == ""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (4, 'ended with exit code 4; the last line of its output: "no mesh"'),
        (134, 'was killed by SIGABRT; the last line of its output: "no mesh"'),
        (137, "was killed by SIGKILL"),
    ],
)
def test_a_program_that_fails_is_told_with_its_last_line_unless_it_was_ended_from_outside(
    jobs: AttemptJobs, backend: SpokenBackend, code: int, reason: str
) -> None:
    start(jobs)
    folder = jobs.attempts.folder(3, 0)
    (folder / "output.log").write_text("reading mesh.nc\nno mesh\n")
    (folder / "job.exit").write_text(f"{code}\n")
    backend.status = ENDED
    [end] = jobs.poll(1.0)
    assert end.reason == reason
