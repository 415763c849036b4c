"""The simulations of a study as they run: the schedule decides, jobs and link carry out."""

import errno
import logging
import math
import shutil
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stream_server.failpoints import failpoint
from stream_server.launcher import link, records
from stream_server.launcher.actions import Action, Cancel, Continue, Decline, Fail, Give, GiveUp, StopStudy, Submit
from stream_server.launcher.attempts import CONNECTION_FILE, Attempts, KeyPair
from stream_server.launcher.entry import Entry, State
from stream_server.launcher.jobs import LocalJobs
from stream_server.launcher.journal import Journal
from stream_server.launcher.log_end import log_end
from stream_server.launcher.past import Past
from stream_server.launcher.schedule import Schedule
from stream_server.launcher.sockets import Link, key_pair

POLL_S = 1.0
POLL_BUSY_S = 0.05
STATUS_S = 0.5
LEAVE_S = 15.0
NOT_COUNTED = "not counted against it, for the server or the launcher was restarted meanwhile"
DISK_IS_TO_BLAME = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})

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
        jobs: LocalJobs,
        server: Link,
        journal: Journal,
        keep_finished: bool,
    ) -> None:
        self.schedule = schedule
        self.attempts = attempts
        self.jobs = jobs
        self.server = server
        self.journal = journal
        self.keep_finished = keep_finished
        self._epoch = 0
        self._connection: dict[str, Any] = {}
        self._parameters: dict[int, dict[str, float]] = {}
        self._running: dict[Path, tuple[int, int]] = {}
        self._public_keys: dict[int, str | None] = {}
        self._given: dict[int, int] = {}
        self._leave_at = math.inf
        self._said_bye = False
        self._poll_at = 0.0
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
        now = time.monotonic()
        entries = {
            simulation: Entry(id=simulation, attempt=past.highest.get(simulation, -1), failures=failures)
            for simulation, failures in past.failures.items()
        }
        for simulation, reason in past.given_up.items():
            entry = entries.setdefault(simulation, Entry(id=simulation, attempt=past.highest.get(simulation, -1)))
            entry.state, entry.reason = State.GIVEN_UP, reason
        for it in past.attempts.values():
            entry = entries.setdefault(it.simulation, Entry(id=it.simulation))
            entry.state, entry.attempt, entry.has_job = State.RUNNING, it.attempt, it.folder is not None
            entry.floor = past.highest[it.simulation]
            entry.started = entry.quiet_since = now
            if it.folder is None:
                self._given[it.simulation] = it.attempt
                continue
            folder = Path(it.folder)
            self._running[folder] = (it.simulation, it.attempt)
            self._public_keys[it.simulation] = it.public_key
            self.jobs.adopt(folder, str(folder / CONNECTION_FILE), it.leader)
            log.info("simulation %d, attempt %d is taken over", it.simulation, it.attempt)
        self._epoch = past.epoch
        self.schedule.recall(past.highest, entries.values(), anything_came=past.anything_came)

    def turn(self) -> list[link.ToLauncher]:
        """Do all that is due; returns what rank 0 has said."""
        messages = self.server.receive()
        had_come = self.schedule.anything_came
        for message in messages:
            self._carry_out(self._take(message))
        if self.schedule.anything_came and not had_come:
            self.journal.note(records.FirstStep())
        self._poll_jobs()
        self._carry_out(self.schedule.tick(time.monotonic()))
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
                return self.schedule.attach(message.token, message.simulation, now)
            # What comes before the plan is in it.
            case _ if self.schedule.away:
                return []
            case link.Run():
                self._parameters[message.simulation] = message.parameters
                return self.schedule.add(message.simulation, now)
            case link.Progress():
                return self.schedule.progress(
                    message.simulation, message.attempt, message.received, message.blocked, now
                )
            case link.Finished():
                log.info("simulation %d finished", message.simulation)
                self._let_go(message.simulation, "finished")
                return self.schedule.finished(message.simulation, now)
            case link.Invalid():
                log.info("simulation %d withdrew itself: %s", message.simulation, message.reason)
                self._let_go(message.simulation, message.reason)
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
        self._connection = message.connection
        self._parameters |= {it.simulation: it.parameters for it in message.simulations}
        self._leave_at, self._said_bye, self._status = math.inf, False, None
        self.journal.note(records.PlanTaken(epoch=message.epoch))
        self.server.send(link.Ready())
        planned = {it.simulation: it.attempt for it in message.simulations}
        actions = self.schedule.replan(planned, time.monotonic(), new_epoch=new_epoch)
        failpoint("launcher.after_replan")
        return actions

    def _let_go(self, simulation: int, reason: str) -> None:
        """A simulation that a client brought to its end by itself has no job whose end could be waited for."""
        attempt = self._given.pop(simulation, None)
        if attempt is not None:
            self._note_end(simulation, attempt, reason)

    def _note_end(self, simulation: int, attempt: int, reason: str, *, counted: bool = False) -> None:
        self.journal.note(records.AttemptEnded(simulation=simulation, attempt=attempt, counted=counted, reason=reason))

    def _poll_jobs(self) -> None:
        now = time.monotonic()
        if now < self._poll_at:
            return
        for ended in self.jobs.poll(now):
            simulation, attempt = self._running.pop(ended.folder)
            log.info("simulation %d, attempt %d %s", simulation, attempt, ended.reason)
            self._carry_out(
                self.schedule.job_ended(simulation, attempt, ended.exit_code, ended.reason, now, excused=ended.unseen)
            )
            if self.schedule.state(simulation).terminal:
                self._note_end(simulation, attempt, ended.reason)
            if not self.keep_finished and self.schedule.state(simulation) is State.FINISHED:
                shutil.rmtree(ended.folder, ignore_errors=True)
        self._poll_at = now + (POLL_BUSY_S if self.jobs.busy else POLL_S)

    def _carry_out(self, actions: Sequence[Action]) -> None:
        cancelled = set()
        pending = deque(actions)
        while pending:
            action = pending.popleft()
            match action:
                case Submit():
                    pending += self._submit(action)
                case Continue():
                    self._go_on(action)
                case Cancel():
                    log.info("simulation %d, attempt %d is cancelled", action.simulation, action.attempt)
                    cancelled.add(self.attempts.folder(action.simulation, action.attempt))
                case _:
                    self._report(action)
        if cancelled:
            self.jobs.cancel_all(cancelled, time.monotonic())
            self._poll_at = 0.0

    def _submit(self, action: Submit) -> list[Action]:
        simulation = action.simulation
        attempt = self.attempts.free_number(simulation, action.attempt)
        self.schedule.renumber(simulation, attempt)
        keys = self._new_keys()
        public_key = keys.public if keys else None
        folder = self.attempts.folder(simulation, attempt)
        try:
            self.journal.write(
                records.AttemptStarting(
                    simulation=simulation, attempt=attempt, folder=str(folder), public_key=public_key
                )
            )
        except OSError as error:
            return self._postpone(simulation, error)
        # The server must know the key before the client can use it.
        self.server.send(link.Attempt(simulation=simulation, attempt=attempt, public_key=public_key))
        try:
            spec = self.attempts.prepare(simulation, attempt, self._parameters[simulation], self._connection, keys)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in DISK_IS_TO_BLAME:
                return self._postpone(simulation, error)
            reason = f"could not be prepared: {error}"
            log.warning("simulation %d, attempt %d %s", simulation, attempt, reason)
            return self.schedule.job_ended(simulation, attempt, None, reason, time.monotonic())
        log.info("simulation %d, attempt %d: %s", simulation, attempt, spec.command)
        self._running[spec.folder] = (simulation, attempt)
        self._public_keys[simulation] = public_key
        failpoint("launcher.before_submit")
        leader = self.jobs.submit(spec)
        failpoint("launcher.after_submit")
        if leader is not None:
            self.journal.note(
                records.AttemptStarted(simulation=simulation, attempt=attempt, pid=leader.pid, started=leader.started)
            )
        self._poll_at = 0.0
        return []

    def _postpone(self, simulation: int, error: OSError) -> list[Action]:
        log.error("no simulation is started as long as the disk refuses: %s", error)
        return self.schedule.postpone(simulation, time.monotonic())

    def _go_on(self, action: Continue) -> None:
        """An attempt outlived a server or a launcher: the server must know it, and it must find the server."""
        simulation, attempt = action.simulation, action.attempt
        log.info("simulation %d, attempt %d goes on", simulation, attempt)
        key = None if action.attached else self._public_keys.get(simulation)
        self.server.send(
            link.Attempt(simulation=simulation, attempt=attempt, public_key=key, attached=action.attached, goes_on=True)
        )
        if action.attached:
            return
        try:
            self.attempts.reconnect(simulation, attempt, self._connection)
        except (OSError, ValueError) as error:
            log.warning("simulation %d, attempt %d cannot be told where the server is: %s", simulation, attempt, error)

    def _report(self, action: Fail | GiveUp | Give | Decline | StopStudy) -> None:
        match action:
            case Fail(simulation=simulation, attempt=attempt, reason=reason, counted=counted):
                reason = reason if counted else f"{reason} ({NOT_COUNTED})"
                log.warning("simulation %d, attempt %d failed: %s", simulation, attempt, reason)
                self._given.pop(simulation, None)
                self._note_end(simulation, attempt, reason, counted=counted)
                path = self._log_path(simulation, attempt)
                self.server.send(link.Failed(simulation=simulation, attempt=attempt, reason=reason, log=path))
            case GiveUp(simulation=simulation, attempts=attempts, reason=reason, redraw=redraw):
                log.warning("simulation %d is given up after %d attempts: %s", simulation, attempts, reason)
                self.journal.note(records.GivenUp(simulation=simulation, reason=reason))
                path = self._log_path(simulation, attempts - 1)
                self.server.send(
                    link.GaveUp(simulation=simulation, attempts=attempts, reason=reason, log=path, redraw=redraw)
                )
            case Give(token=token, simulation=simulation, attempt=attempt):
                log.info("simulation %d, attempt %d goes to a client that attached", simulation, attempt)
                self._given[simulation] = attempt
                self.journal.note(records.AttemptGiven(simulation=simulation, attempt=attempt))
                self.server.send(link.Attached(token=token, simulation=simulation, attempt=attempt))
            case Decline(token=token, text=text, busy=busy):
                log.info("a client that attached is declined: %s", text)
                self.server.send(link.NoneLeft(token=token, text=text, busy=busy))
            case StopStudy(text=text, simulation=simulation, attempt=attempt):
                log.error("the study stops: %s", text)
                output = self.attempts.log(simulation, attempt)
                end = log_end(output)
                self.server.send(link.TooMany(text=f"{text}\nend of {output}:\n{end}" if end else text))

    def _new_keys(self) -> KeyPair | None:
        if self._connection.get("security") is None:
            return None
        public, secret = key_pair()
        return KeyPair(public=public, secret=secret)

    def _log_path(self, simulation: int, attempt: int) -> str:
        path = self.attempts.log(simulation, attempt)
        return str(path) if path.exists() else ""

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
