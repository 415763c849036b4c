"""The simulations of a study as they run: the schedule decides, jobs and link carry out."""

import logging
import math
import shutil
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from stream_server.failpoints import failpoint
from stream_server.launcher import link, records
from stream_server.launcher.actions import Action, Cancel, Continue, Submit
from stream_server.launcher.attempt_jobs import AttemptJobs
from stream_server.launcher.attempts import Attempts
from stream_server.launcher.blame import AttemptEnd
from stream_server.launcher.entry import State
from stream_server.launcher.journal import Journal
from stream_server.launcher.past import Past
from stream_server.launcher.recalled import entries_of
from stream_server.launcher.reports import Reports
from stream_server.launcher.schedule import Schedule
from stream_server.launcher.sockets import Link
from stream_server.launcher.starter import Starter

POLL_S = 1.0
POLL_BUSY_S = 0.05
# A busy machine may keep a process waiting for less than that.
OVERSLEPT_S = 1.0
STATUS_S = 0.5
LEAVE_S = 15.0

log = logging.getLogger(__name__)


class Ensemble:
    """Runs the simulations of one study, whatever becomes of its server. Main thread only.

    `turn` moves everything on; it is due when something has come over the link, and at `wake_at`.
    """

    def __init__(
        self,
        *,
        schedule: Schedule,
        attempts: Attempts,
        jobs: AttemptJobs,
        server: Link,
        journal: Journal,
        keep_finished: bool,
    ) -> None:
        self.schedule = schedule
        self.attempts = attempts
        self.jobs = jobs
        self.server = server
        self.journal = journal
        self.starter = Starter(schedule=schedule, attempts=attempts, jobs=jobs, server=server, journal=journal)
        self.reports = Reports(attempts, server, journal)
        self.keep_finished = keep_finished
        self._epoch = 0
        self._not_kept: set[tuple[int, int]] = set()
        self._leave_at = math.inf
        self._said_bye = False
        self._poll_at = 0.0
        self._judged_at = math.inf
        self._status_at = 0.0
        self._status: link.Status | None = None

    @property
    def leaving(self) -> bool:
        """Told to leave; not before another plan is anything started."""
        return self._leave_at < math.inf

    @property
    def has_left(self) -> bool:
        """Told to leave, and every job has ended, or will not in time."""
        return self.schedule.done or time.monotonic() >= self._leave_at

    @property
    def wake_at(self) -> float:
        """When the next `turn` is due at the latest, on the monotonic clock."""
        return min(self._poll_at, self.schedule.wake_at)

    def look_soon(self) -> None:
        """Some process has ended: look at the jobs in the next turn."""
        self._poll_at = 0.0

    def recall(self, past: Past) -> None:
        """Take over what a launcher that was killed has left: its jobs that still run, and what it knew."""
        cancelled = {(it.simulation, it.attempt) for it in past.attempts.values() if it.cancelled is not None}
        for it in past.attempts.values():
            if it.job is None:
                self.reports.given(it.simulation, it.attempt)
                continue
            log.info("simulation %d, attempt %d is taken over", it.simulation, it.attempt)
            self.starter.recall(it.simulation, it.public_key)
            if it is past.in_job(it.job)[0]:
                shared = past.jobs.get(it.job, ((it.simulation, it.attempt),))
                self.jobs.adopt(Path(it.job), shared, it.leader, ranks=it.ranks)
        if cancelled:
            self.jobs.cancel(cancelled, time.monotonic())
        self._epoch = past.epoch
        entries = entries_of(past, time.monotonic())
        self.schedule.recall(past.highest, entries, anything_came=past.anything_came)

    def turn(self) -> list[link.ToLauncher]:
        """Do all that is due; returns what rank 0 has said."""
        # Before what has come is taken: no clock may run out by what is not heard yet, however long this turn takes.
        now = time.monotonic()
        overslept_s = now - self._judged_at - POLL_S
        if overslept_s > OVERSLEPT_S:
            self.schedule.overslept(overslept_s, now)
        self._judged_at = now
        messages = self.server.receive()
        had_come = self.schedule.anything_came
        for message in messages:
            self._carry_out(self._take(message))
        if self.schedule.anything_came and not had_come:
            self.journal.note(records.FirstStep())
        self._poll_jobs()
        self._carry_out(self.schedule.tick(now))
        self._tell_status()
        if self.has_left and not self._said_bye:
            self._said_bye = True
            self.server.send(link.Bye())
            log.info("all jobs have ended")
        return messages

    def leave(self, reason: str, grace_s: float = 0.0) -> None:
        """Start nothing more, and cancel after `grace_s` what still runs."""
        log.info("stopping: %s", reason)
        now = time.monotonic()
        self._leave_at = min(self._leave_at, now + grace_s + LEAVE_S)
        self._carry_out(self.schedule.stop(now, grace_s))

    def server_is_gone(self) -> None:
        """Until the next server comes with its plan, nothing is started and no simulation is late."""
        self.server.forget_peer()
        self.schedule.pause()

    def _take(self, message: link.ToLauncher) -> list[Action]:
        now = time.monotonic()
        match message:
            case link.Here():
                if self.schedule.away or message.epoch != self._epoch:
                    self.server.send(link.AskPlan())
            case link.Plan():
                return self._plan(message)
            case link.StopAll():
                self.leave(message.reason, message.grace_s)
            case link.AttachRequest():
                return self.schedule.attach(message.token, message.simulation, now, client=message.client)
            # What comes before the plan is in it.
            case _ if self.schedule.away:
                return []
            case link.Run():
                self.starter.added(message)
                return self.schedule.add(message.simulation, now)
            case link.Progress():
                return self.schedule.progress(
                    message.simulation, message.attempt, message.received, message.blocked, now
                )
            case link.Finished():
                log.info("simulation %d finished", message.simulation)
                self.reports.let_go(message.simulation, "finished")
                return self.schedule.finished(message.simulation, now)
            case link.Invalid():
                log.info("simulation %d withdrew itself: %s", message.simulation, message.reason)
                self.reports.let_go(message.simulation, message.reason)
                return self.schedule.invalid(message.simulation, now)
            case link.Committed() | link.Leaving():
                log.info("server: %s", message)
        return []

    def _plan(self, message: link.Plan) -> list[Action]:
        if not self.schedule.away and message.epoch == self._epoch:
            return []
        log.info("study %s, epoch %d: %d simulations", message.study, message.epoch, len(message.simulations))
        failpoint("launcher.before_replan")
        new_epoch, self._epoch = message.epoch != self._epoch, message.epoch
        self.starter.planned(message)
        self._leave_at, self._said_bye, self._status = math.inf, False, None
        self.journal.note(records.PlanTaken(epoch=message.epoch))
        self.server.send(link.Ready())
        planned = {it.simulation: it.attempt for it in message.simulations}
        actions = self.schedule.replan(planned, time.monotonic(), new_epoch=new_epoch)
        failpoint("launcher.after_replan")
        return actions

    def _poll_jobs(self) -> None:
        now = time.monotonic()
        # Whose fault it is that a clock runs out is to be known before.
        if now < min(self._poll_at, self.schedule.wake_at):
            return
        for ended in self.jobs.poll(now):
            # A launcher that was killed may have dealt with some of those that shared the job.
            if self.schedule.runs(ended.simulation, ended.attempt):
                self._has_ended(ended, now)
        for it in self.jobs.ranks_ended():
            what = it.at_fault or ("all ranks ended with exit code 0" if it.over else "")
            if what:
                log.info("simulation %d, attempt %d: %s, while its job runs on", it.simulation, it.attempt, what)
            self.schedule.ranks_ended(it.simulation, it.attempt, it.at_fault, now, over=it.over)
        self._remove_folders()
        self._poll_at = now + (POLL_BUSY_S if self.jobs.busy else POLL_S)

    def _has_ended(self, ended: AttemptEnd, now: float) -> None:
        simulation, attempt = ended.simulation, ended.attempt
        self.reports.job_ended(ended)
        self._carry_out(
            self.schedule.job_ended(simulation, attempt, ended.exit_code, ended.reason, now, excuse=ended.excuse)
        )
        if self.schedule.state(simulation).terminal:
            self.reports.attempt_ended(simulation, attempt, ended.reason)
        if not self.keep_finished and self.schedule.state(simulation) is State.FINISHED:
            self._not_kept.add((simulation, attempt))

    def _remove_folders(self) -> None:
        # In that of a shared job lies what tells how the others ended.
        due = {it for it in self._not_kept if not self.schedule.shares_a_job(it[0])}
        for attempt in due:
            shutil.rmtree(self.attempts.folder(*attempt), ignore_errors=True)
        self._not_kept -= due

    def _carry_out(self, actions: Sequence[Action]) -> None:
        cancelled = set()
        pending = deque(actions)
        while pending:
            action = pending.popleft()
            match action:
                case Submit():
                    pending += self.starter.start(action)
                    self._poll_at = 0.0
                case Continue():
                    self.starter.go_on(action)
                case Cancel():
                    log.info("simulation %d, attempt %d is cancelled", action.simulation, action.attempt)
                    cancelled.add((action.simulation, action.attempt))
                    self.journal.note(*self._cancelling(action.simulation))
                case _:
                    self.reports.tell(action)
        if cancelled:
            self.jobs.cancel(cancelled, time.monotonic())
            self._poll_at = 0.0

    def _cancelling(self, simulation: int) -> list[records.AttemptCancelled]:
        return [
            records.AttemptCancelled(simulation=it.id, attempt=it.attempt, reason=it.reason, excuse=it.excuse)
            for it in self.schedule.decided(simulation)
        ]

    def _tell_status(self) -> None:
        now = time.monotonic()
        if now < self._status_at:
            return
        counts = self.schedule.counts
        status = link.Status(
            waiting=counts[State.WAITING],
            running=counts[State.RUNNING] + counts[State.SETTLING],
            done=counts[State.FINISHED],
            failed=counts[State.GIVEN_UP] + counts[State.INVALID],
        )
        if status != self._status and not self.schedule.away:
            self.server.send(status)
            self._status = status
        self._status_at = now + STATUS_S
