"""The simulations of a study as they run: the schedule decides, jobs and link carry out.

A launcher that takes over must know of all that was begun. So a decision takes this way:

1. `Ensemble.turn` hands messages of rank 0, ends of jobs and the time to `SimulationSchedule`, which returns actions.
2. `Journal` records what the next launcher must know.
3. `Starter` and `AttemptJobs` start and cancel jobs, and `Reports` tells rank 0.

Why: docs/decisions/0059-wait-for-the-next-server.md
"""

import logging
import math
import shutil
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from stream_server.failpoints import failpoint
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.simulation import Action, Cancel, Continue, ScheduledState, Submit
from stream_server.launcher.simulations.attempt_folders import AttemptFolders
from stream_server.launcher.simulations.attempt_jobs import AttemptJobs
from stream_server.launcher.simulations.server_connection import ServerConnection
from stream_server.launcher.simulations.starter import Starter
from stream_server.machine.log_end import log_end
from stream_server.messages import launcher_link
from stream_server.messages.launcher_link import Attached, Dropped, Failed, FailedLater, GaveUp, NoneLeft, TooMany
from stream_server.storage.disk import place_of
from stream_server.wording import counted

POLL_S = 1.0
POLL_BUSY_S = 0.05
# A busy machine may keep a process waiting for less than that.
SUSPENDED_S = 1.0
STATUS_S = 0.5
# Clients give up after a minute at the earliest, unless their programs say otherwise.
KEEP_WAITING_S = 10.0
LEAVE_S = 15.0

Decided = Attached | Dropped | Failed | FailedLater | GaveUp | NoneLeft | TooMany

log = logging.getLogger(__name__)


class Ensemble:
    """Runs the simulations of one study, whatever becomes of its server. Main thread only.

    `turn` moves everything on; it is due when something has come over the link, and at `wake_at`.
    """

    def __init__(
        self,
        *,
        schedule: SimulationSchedule,
        jobs: AttemptJobs,
        server: ServerConnection,
        journal: Journal,
        keep_finished: bool,
    ) -> None:
        self.schedule = schedule
        self.jobs = jobs
        self.server = server
        self.journal = journal
        self.starter = Starter(schedule=schedule, jobs=jobs, server=server, journal=journal)
        self.reports = Reports(jobs.attempts, server, journal)
        self.keep_finished = keep_finished
        self._incarnation = 0
        self._ended: dict[int, int] = {}
        self._leave_at = math.inf
        self._said_bye = False
        self._poll_at = self._polled_at = 0.0
        self._judged_at = math.inf
        self._status_at = self._keep_waiting_at = 0.0
        self._status: launcher_link.Status | None = None
        self._reported: set[str] = set()
        self._queue: dict[int, str] = {}

    @property
    def leaving(self) -> bool:
        """It was told to leave: nothing is started before another plan."""
        return self._leave_at < math.inf

    @property
    def has_left(self) -> bool:
        """It was told to leave, and every job has ended, or will not in time."""
        return self.schedule.done or time.monotonic() >= self._leave_at

    @property
    def wake_at(self) -> float:
        """The time of the next `turn` at the latest, on the monotonic clock."""
        return min(self._poll_at, self.schedule.wake_at)

    def look_soon(self) -> None:
        """Some process has ended, or is about to: look at the jobs as soon as the backend may be asked again."""
        self._poll_at = min(self._poll_at, self._polled_at + self.jobs.backend.query_interval_s)

    def restore(self, history: History) -> None:
        """Take over what a launcher that was killed has left: its jobs that still run, and what it knew."""
        for recorded in history.attempts.values():
            if recorded.starting is not None:
                log.info("simulation %d, attempt %d is taken over", *recorded.key)
                self.starter.restore(recorded.starting.simulation, recorded.starting.public_key)
        self.jobs.adopt(history)
        self._incarnation = history.incarnation
        self.schedule.restore(
            history.highest,
            history.simulations.values(),
            time.monotonic(),
            anything_came=history.anything_came,
            why_finishing=history.why_finishing,
        )

    def turn(self) -> list[launcher_link.ToLauncher]:
        """Do all that is due; returns what rank 0 has said."""
        # Before messages are taken: no clock may run out for lack of a waiting message, however long this turn takes.
        now = time.monotonic()
        suspended_s = now - self._judged_at - POLL_S
        if suspended_s > SUSPENDED_S:
            self.schedule.was_suspended(suspended_s, now)
        self._judged_at = now
        messages = self.server.receive()
        had_come = self.schedule.anything_came
        for message in messages:
            self._carry_out(self._take(message))
        if self.schedule.anything_came and not had_come:
            self.journal.note(records.FirstStep())
        self._poll_jobs()
        self._carry_out(self.schedule.tick(now))
        if self.schedule.away and not self.leaving and now >= self._keep_waiting_at:
            self.jobs.keep_waiting()
            self._keep_waiting_at = now + KEEP_WAITING_S
        self._tell_status()
        self.journal.flush()
        if self.has_left and not self._said_bye:
            self._said_bye = True
            self.server.send(launcher_link.LauncherDone())
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

    def _take(self, message: launcher_link.ToLauncher) -> list[Action]:
        now = time.monotonic()
        match message:
            case launcher_link.Rank0Alive():
                if self.server.was_interrupted:
                    log.warning("rank 0 has connected anew: what was under way may be lost, and is asked for again")
                    self.server.was_interrupted = False
                    self.schedule.pause()
                if self.schedule.away or message.incarnation != self._incarnation:
                    self.server.send(launcher_link.AskPlan())
                # Send the status again: rank 0 waits for a sign of life.
                self._status = None
            case launcher_link.Plan():
                return self._plan(message)
            case launcher_link.StopSimulations():
                self.leave(message.reason, message.grace_s)
            case launcher_link.AttachRequest():
                return self.schedule.attach(message, now)
            case launcher_link.FinishSimulations():
                if not self.schedule.why_finishing:
                    log.info("%s", message.reason)
                    self.journal.note(message)
                return self.schedule.finish(message.reason, now)
            # What comes before the plan is in it.
            case _ if self.schedule.away:
                return []
            case launcher_link.AddSimulation():
                self.starter.added(message)
                return self.schedule.add(message.simulation, now)
            case launcher_link.ProgressReport():
                return self.schedule.progress(
                    message.simulation, message.attempt, message.received, message.blocked, now
                )
            case launcher_link.Finished():
                log.info("simulation %d finished", message.simulation)
                self._note_end_without_job(message.simulation, "finished")
                return self.schedule.finished(message.simulation, now)
            case launcher_link.Invalid():
                log.info("simulation %d was withdrawn: %s", message.simulation, message.reason)
                self._note_end_without_job(message.simulation, message.reason)
                return self.schedule.invalid(message.simulation, now)
            case launcher_link.Committed():
                log.info("checkpoint %d is committed, after %s", message.checkpoint, counted(message.batches, "batch"))
            case launcher_link.Leaving():
                log.info("the server leaves")
        return []

    def _note_end_without_job(self, simulation: int, reason: str) -> None:
        """The server is done with a simulation: so are its worker, which goes on, and a client that attached."""
        if (attempts := self.schedule.jobs.attempts_of_worker(simulation)) is not None:
            self.jobs.attempts.worker_moved_on(*attempts)
        if (attempt := self.schedule.attached(simulation)) is not None:
            self.journal.note(records.AttemptEnded(simulation=simulation, attempt=attempt.number, reason=reason))

    def _plan(self, message: launcher_link.Plan) -> list[Action]:
        if not self.schedule.away and message.incarnation == self._incarnation:
            return []
        num = counted(len(message.simulations), "simulation")
        log.info("study %s, incarnation %d: %s", message.study, message.incarnation, num)
        failpoint("launcher.before_replan")
        new_incarnation, self._incarnation = message.incarnation != self._incarnation, message.incarnation
        self.starter.planned(message)
        self.jobs.outage.repeat()
        self._leave_at, self._said_bye, self._status, self._queue = math.inf, False, None, {}
        self.journal.note(records.PlanTaken(incarnation=message.incarnation))
        self.server.send(launcher_link.PlanAccepted())
        planned = {planned.simulation: planned.attempt for planned in message.simulations}
        actions = self.schedule.replan(planned, time.monotonic(), new_incarnation=new_incarnation)
        failpoint("launcher.after_replan")
        return actions

    def _poll_jobs(self) -> None:
        now = time.monotonic()
        # Poll before a clock may run out, so that blame is known.
        if now < min(self._poll_at, self.schedule.wake_at):
            return
        ended_for_good: list[records.AttemptEnded] = []
        polled = self.jobs.poll(now)
        self.starter.note_submitted()
        for ended in polled:
            # A killed launcher may have dealt with some attempts of the job.
            if self.schedule.runs(ended.simulation, ended.attempt):
                self._has_ended(ended, now)
                if self.schedule.state(ended.simulation).terminal:
                    ended_for_good.append(ended)
        # A launcher that takes over before this is written finds the jobs ended, and judges again.
        self.journal.defer(*ended_for_good)
        for (simulation, attempt), at_fault, over in self.jobs.ranks_ended():
            if self.schedule.ranks_ended(simulation, attempt, at_fault, now, over=over):
                what = at_fault or "all ranks ended with exit code 0"
                log.info("simulation %d, attempt %d: %s, while its job runs on", simulation, attempt, what)
        self._take_queue(now)
        self._remove_folders()
        self._tell_why_none_runs()
        self._tell_outage()
        self._polled_at = now
        self._poll_at = now + max(self.jobs.backend.query_interval_s, POLL_BUSY_S if self.jobs.busy else POLL_S)

    def _has_ended(self, ended: records.AttemptEnded, now: float) -> None:
        simulation, attempt = ended.simulation, ended.attempt
        self.reports.job_ended(ended)
        reason = ended.reason
        if ended.exit_code == 0 and not self.schedule.state(simulation).terminal:
            reason += self.jobs.mistake(ended)
        self._carry_out(self.schedule.job_ended(simulation, attempt, ended.exit_code, reason, now, excuse=ended.excuse))
        if not self.keep_finished:
            self._ended[simulation] = attempt

    def _remove_folders(self) -> None:
        for simulation, attempt in list(self._ended.items()):
            state = self.schedule.state(simulation)
            # The server may confirm later that it has all. In the folder of a shared job lies how the others ended.
            if self.schedule.is_unconfirmed(simulation) or self.schedule.shares_a_job(simulation):
                continue
            del self._ended[simulation]
            if state is ScheduledState.FINISHED and not self.schedule.failed_later(simulation):
                shutil.rmtree(Path(place_of(self.jobs.attempts.folder(simulation, attempt))), ignore_errors=True)

    def _carry_out(self, actions: Sequence[Action]) -> None:
        cancelled = set()
        pending = deque(actions)
        while pending:
            action = pending.popleft()
            match action:
                case Submit():
                    submits = [action]
                    while pending and isinstance(following := pending[0], Submit):
                        submits.append(following)
                        pending.popleft()
                    pending += self.starter.start(submits)
                    self.look_soon()
                case Continue():
                    self.starter.go_on(action)
                case Cancel():
                    log.info("simulation %d, attempt %d is cancelled", action.simulation, action.attempt)
                    cancelled.add((action.simulation, action.attempt))
                    self.journal.note(*self._cancel_records(action.simulation))
                case _:
                    self.reports.tell(action)
        if cancelled:
            self.jobs.cancel(cancelled)
            self.look_soon()

    def _cancel_records(self, simulation: int) -> list[records.AttemptCancelled]:
        return [
            records.AttemptCancelled(
                simulation=each.simulation, attempt=each.number, reason=each.reason, excuse=each.excuse
            )
            for each in self.schedule.decided(simulation)
        ]

    def _take_queue(self, now: float) -> None:
        """No clock runs while a job waits for its turn; rank 0 hears of what has changed."""
        jobs = self.jobs.queue.items()
        queue = {
            simulation: waits_for for (simulation, each), waits_for in jobs if self.schedule.runs(simulation, each)
        }
        for simulation in queue:
            self.schedule.begun(simulation, now)
        if self.schedule.away:
            return
        changed: dict[str | None, list[int]] = {}
        for simulation in queue.keys() | self._queue.keys():
            waits_for = queue[simulation] if simulation in queue else self.schedule.jobs.what_comes_before(simulation)
            if waits_for != self._queue.get(simulation):
                changed.setdefault(waits_for, []).append(simulation)
        for waits_for, simulations in changed.items():
            self.server.send(launcher_link.Queued(simulations=tuple(sorted(simulations)), waits_for=waits_for))
        self._queue = queue

    def _tell_why_none_runs(self) -> None:
        why = self.jobs.why_none_runs
        if why and why not in self._reported and not self.schedule.away:
            self._reported.add(why)
            num = self.jobs.num_running
            jobs = "its job waits" if num == 1 else f"all {num} jobs wait"
            self.server.send(launcher_link.HeldBack(text=f"no simulation runs: {jobs} in the queue ({why})"))

    def _tell_outage(self) -> None:
        if news := self.jobs.outage.news():
            log.warning("%s", news)
            if not self.schedule.away:
                self.server.send(launcher_link.HeldBack(text=news))

    def _tell_status(self) -> None:
        now = time.monotonic()
        if now < self._status_at:
            return
        counts = self.schedule.counts
        status = launcher_link.Status(
            waiting=counts[ScheduledState.WAITING],
            running=counts[ScheduledState.RUNNING],
            done=counts[ScheduledState.FINISHED],
            failed=counts[ScheduledState.GIVEN_UP] + counts[ScheduledState.INVALID],
        )
        if status != self._status and not self.schedule.away:
            self.server.send(status)
            self._status = status
        self._status_at = now + STATUS_S


class Reports:
    """Passes decisions of the schedule on to the server, which alone acts on them. Main thread only."""

    def __init__(self, attempts: AttemptFolders, server: ServerConnection, journal: Journal) -> None:
        self.attempts = attempts
        self.server = server
        self.journal = journal
        self._logs: dict[tuple[int, int], Path] = {}

    def job_ended(self, ended: records.AttemptEnded) -> None:
        """The job of an attempt is over, whatever that means for the simulation."""
        # That it has finished, or has failed although its program did not, is told by itself.
        level = logging.DEBUG if ended.exit_code == 0 else logging.INFO
        log.log(level, "simulation %d, attempt %d %s", ended.simulation, ended.attempt, ended.reason)
        self._logs[ended.simulation, ended.attempt] = Path(ended.log)

    def tell(self, decided: Decided) -> None:
        """Pass a decision on."""
        match decided:
            case Failed(simulation=simulation, attempt=attempt):
                log.warning("simulation %d, attempt %d failed: %s", simulation, attempt, decided.explanation)
                self.journal.note(decided)
                decided = replace(decided, log=self._log_path(simulation, attempt))
            case FailedLater(simulation=simulation, attempt=attempt, reason=reason):
                log.warning(
                    "simulation %d, attempt %d failed after its last time step: %s", simulation, attempt, reason
                )
                decided = replace(decided, log=self._log_path(simulation, attempt))
            case GaveUp(simulation=simulation, attempts=attempts, reason=reason):
                log.warning("simulation %d is given up after %s: %s", simulation, counted(attempts, "attempt"), reason)
                self.journal.note(decided)
                decided = replace(decided, log=self._log_path(simulation, attempts - 1))
            case Attached(simulation=simulation, attempt=attempt):
                log.info("simulation %d, attempt %d goes to a client that attached", simulation, attempt)
                self.journal.note(decided)
            case NoneLeft(text=text):
                log.info("a client that attached is declined: %s", text)
            case TooMany(text=text, simulation=simulation, attempt=attempt):
                log.error("the study stops: %s", text)
                output = self._log(simulation, attempt)
                if end := log_end(output):
                    decided = replace(decided, text=f"{text}\nend of {output}:\n{end}")
        self.server.send(decided)

    def _log_path(self, simulation: int, attempt: int) -> str:
        path = self._log(simulation, attempt)
        return str(path) if path.exists() else ""

    def _log(self, simulation: int, attempt: int) -> Path:
        return self._logs.get((simulation, attempt), self.attempts.log(simulation, attempt))
