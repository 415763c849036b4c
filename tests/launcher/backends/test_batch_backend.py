"""The mechanism of batch schedulers, on one that is a class of the test."""

import time
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from stream_server.launcher.backends.backend import FIRST_S, JobSpec, JobState, JobStatus
from stream_server.launcher.backends.batch_backend import BatchBackend
from stream_server.launcher.backends.scheduler import (
    BatchJob,
    CommandScheduler,
    JobKind,
    NotSubmitted,
    QueueEntry,
    SubmitRefusal,
)
from tests.support.studies import StudyFolder
from tests.support.timing import until

NUM = 10_000
MAX_RUNNING, MAX_QUEUED = 200, 50
# The site takes fewer jobs of a user than the study would like to have submitted.
SITE_LIMIT = 80
ASK_S = 0.05
ENDED = JobStatus(state=JobState.ENDED, exit_code=0)


class AnswerlessScheduler(CommandScheduler):
    """A scheduler whose methods raise what nobody expects, as where the directory of users is away."""

    title = "Answerless"
    variables: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.is_away = True
        self.asked: list[str] = []
        self.name = ""

    def _answer(self, method: str) -> None:
        self.asked.append(method)
        if self.is_away:
            raise KeyError("getpwuid(): uid not found: 1000")

    def check(self, ranks: int) -> None:
        """It takes any job."""

    def submit(self, job: BatchJob) -> str:
        # It comes through, and the answer is lost.
        self.name = job.name
        self._answer("submit")
        return "1"

    def queue(self) -> list[QueueEntry]:
        self._answer("queue")
        return [QueueEntry(id="1", name=self.name, status=JobStatus(state=JobState.RUNNING))]

    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        self._answer("cancel at once" if at_once else "cancel")


def test_what_nobody_expects_of_a_scheduler_is_an_outage_and_its_jobs_are_cancelled_at_the_end(tmp_path: Path) -> None:
    scheduler = AnswerlessScheduler()
    config = StudyFolder(tmp_path).load({"launcher.backend": "slurm"})
    backend = BatchBackend(JobKind.of_simulations(config), scheduler, ask_s=ASK_S, retry_s=ASK_S)
    with closing(backend):
        folder = tmp_path / "0"
        folder.mkdir()
        handle = backend.submit(JobSpec(command=("true",), environment={}, folder=folder, marks=frozenset()))
        assert "KeyError: 'getpwuid()" in until(lambda: backend.query([handle])[handle].reason)
        backend.outage._clock = lambda: backend.outage._since + FIRST_S
        assert "Answerless does not list jobs (KeyError" in until(backend.outage.news, 20)
        scheduler.is_away = False
        until(lambda: backend.query([handle])[handle].state is JobState.RUNNING)
        scheduler.is_away = True
        backend.cancel([handle])
        until(lambda: "cancel" in scheduler.asked)
        scheduler.is_away = False
    assert scheduler.asked[-1] == "cancel at once"


def test_no_other_job_is_submitted_before_a_scheduler_that_was_away_answers(tmp_path: Path) -> None:
    scheduler = AnswerlessScheduler()
    config = StudyFolder(tmp_path).load({"launcher.backend": "slurm"})
    backend = BatchBackend(JobKind.of_simulations(config), scheduler, ask_s=0.01, retry_s=0.001)
    with closing(backend):
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            backend.submit(JobSpec(command=("true",), environment={}, folder=folder, marks=frozenset()))
        until(lambda: scheduler.asked.count("queue") == 4)
        assert scheduler.asked.count("submit") == 1
        scheduler.is_away = False
        until(lambda: scheduler.asked.count("submit") == 3)


class CountingScheduler(CommandScheduler):
    """A scheduler that starts what waits, and ends what runs, whenever it is asked for its queue.

    Nothing ends before a submission has met the limit of the site, however slowly they come.
    """

    title = "Counting"
    variables: tuple[str, ...] = ("COUNTING_",)

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}
        self.running: dict[str, str] = {}
        self.names: list[str] = []
        self.most_waiting = self.num_refused = self.num_looks = 0

    def check(self, ranks: int) -> None:
        """It takes any job."""

    def submit(self, job: BatchJob) -> str:
        if len(self.waiting) + len(self.running) >= SITE_LIMIT:
            self.num_refused += 1
            raise NotSubmitted(SubmitRefusal.FULL, "the limit of jobs of a user")
        self.names.append(job.name)
        number = str(len(self.names))
        self.waiting[number] = job.name
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        return number

    def queue(self) -> list[QueueEntry]:
        self.num_looks += 1
        ended = self.running if self.num_refused else {}
        self.running, self.waiting = ({} if ended else self.running) | self.waiting, {}
        running = JobStatus(state=JobState.RUNNING)
        return [
            *(QueueEntry(id=number, name=name, status=ENDED) for number, name in ended.items()),
            *(QueueEntry(id=number, name=name, status=running) for number, name in self.running.items()),
        ]

    def cancel(self, ids: Collection[str], *, at_once: bool = False) -> None:
        """Nobody asks for that here."""


class FillingScheduler(CountingScheduler):
    """One in which nothing starts or ends before a submission has met the limit."""

    def queue(self) -> list[QueueEntry]:
        if self.num_refused:
            return super().queue()
        waits = JobStatus(state=JobState.QUEUED)
        return [QueueEntry(id=number, name=name, status=waits) for number, name in self.waiting.items()]


def test_a_study_of_ten_thousand_simulations_keeps_within_max_queued_and_the_limits_of_the_site(tmp_path: Path) -> None:
    scheduler = CountingScheduler()
    settings = {"launcher.backend": "slurm", "launcher.max_queued": MAX_QUEUED, "launcher.max_running": MAX_RUNNING}
    config = StudyFolder(tmp_path).load({**settings, "buffer.capacity": 1000})
    folders = iter(range(NUM))
    handles: set[str] = set()
    num_ended = 0

    def turn() -> bool:
        nonlocal num_ended
        while len(handles) < MAX_RUNNING and (number := next(folders, None)) is not None:
            folder = tmp_path / str(number)
            folder.mkdir()
            handles.add(backend.submit(JobSpec(command=("true",), environment={}, folder=folder, marks=frozenset())))
        ended = {name for name, it in backend.query(handles).items() if it.state is JobState.ENDED}
        handles.difference_update(ended)
        num_ended += len(ended)
        return num_ended == NUM

    began = time.monotonic()
    with closing(BatchBackend(JobKind.of_simulations(config), scheduler, ask_s=ASK_S, retry_s=0.005)) as backend:
        until(turn, 400)
    assert len(scheduler.names) == len(set(scheduler.names)) == NUM
    assert scheduler.most_waiting == MAX_QUEUED
    assert scheduler.num_refused
    # One question for all jobs, at its time.
    assert scheduler.num_looks <= (time.monotonic() - began) / ASK_S + 1


def test_a_limit_of_the_site_holds_a_submission_back_until_a_job_ends_and_no_longer(tmp_path: Path) -> None:
    scheduler = FillingScheduler()
    settings = {"launcher.backend": "slurm", "launcher.max_running": MAX_RUNNING}
    config = StudyFolder(tmp_path).load({**settings, "buffer.capacity": 1000})
    num = 2 * SITE_LIMIT
    handles = set()
    # A submission that met the limit would otherwise be tried again in an hour.
    with closing(BatchBackend(JobKind.of_simulations(config), scheduler, ask_s=ASK_S, retry_s=3600)) as backend:
        for number in range(num):
            folder = tmp_path / str(number)
            folder.mkdir()
            handles.add(backend.submit(JobSpec(command=("true",), environment={}, folder=folder, marks=frozenset())))

        def have_ended() -> bool:
            handles.difference_update(h for h, it in backend.query(handles).items() if it.state is JobState.ENDED)
            return not handles

        until(have_ended, 60)
    assert len(scheduler.names) == num
    assert scheduler.num_refused
