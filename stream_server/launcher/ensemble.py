"""The loop of the launcher process: the schedule decides, jobs and link carry out."""

import logging
import math
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stream_server.launcher import link
from stream_server.launcher.actions import Action, Cancel, Decline, Fail, Give, GiveUp, StopStudy, Submit
from stream_server.launcher.attempts import Attempts, KeyPair
from stream_server.launcher.entry import State
from stream_server.launcher.jobs import LocalJobs
from stream_server.launcher.log_end import log_end
from stream_server.launcher.schedule import Schedule
from stream_server.launcher.signals import Signals

POLL_S = 1.0
POLL_BUSY_S = 0.05
STATUS_S = 0.5
LEAVE_S = 15.0

log = logging.getLogger(__name__)


class Ensemble:
    """Runs the simulations of one study until rank 0 says stop or is gone. Main thread only.

    `lifeline` is the read end of a pipe that rank 0 holds open: its end means that rank 0 is gone, and makes us
    `orphaned`.
    """

    def __init__(
        self,
        *,
        schedule: Schedule,
        attempts: Attempts,
        jobs: LocalJobs,
        server: link.Link,
        signals: Signals,
        lifeline: int,
        keep_finished: bool,
    ) -> None:
        self.schedule = schedule
        self.attempts = attempts
        self.jobs = jobs
        self.server = server
        self.signals = signals
        self.lifeline = lifeline
        self.keep_finished = keep_finished
        self._connection: dict[str, Any] = {}
        self._parameters: dict[int, dict[str, float]] = {}
        self._running: dict[Path, tuple[int, int]] = {}
        self._leave_at = math.inf
        self.orphaned = False
        self._poll_at = 0.0
        self._status_at = 0.0
        self._status: link.Status | None = None

    def run(self) -> None:
        """Serve until told to leave and every job has ended."""
        while not self._has_left:
            self._wait()
            for message in self.server.receive():
                self._carry_out(self._take(message))
            self._poll_jobs()
            self._carry_out(self.schedule.tick(time.monotonic()))
            self._tell_status()
        self.server.send(link.Bye())
        log.info("all jobs have ended")

    @property
    def _has_left(self) -> bool:
        return self.schedule.done or time.monotonic() >= self._leave_at

    def _wait(self) -> None:
        wake_at = min(self._poll_at, self.schedule.wake_at)
        ready = self.server.wait(wake_at - time.monotonic())
        if self.lifeline in ready and not os.read(self.lifeline, 4096):
            self.server.ignore(self.lifeline)
            self.orphaned = True
            self._leave("rank 0 of the server is gone")
        if self.signals.readable in ready:
            came = self.signals.take()
            if signal.SIGCHLD in came:
                self._poll_at = 0.0
            for number in came - {signal.SIGCHLD}:
                self._leave(f"got {number.name}")

    def _leave(self, reason: str, grace_s: float = 0.0) -> None:
        log.info("stopping: %s", reason)
        now = time.monotonic()
        self._leave_at = min(self._leave_at, now + grace_s + LEAVE_S)
        self._carry_out(self.schedule.stop(now, grace_s))

    def _take(self, message: link.ToLauncher) -> list[Action]:
        now = time.monotonic()
        match message:
            case link.Plan():
                log.info("study %s: %d simulations", message.study, len(message.simulations))
                self._connection = message.connection
                self._parameters = {it.simulation: it.parameters for it in message.simulations}
                self.server.send(link.Ready())
                return self.schedule.plan([it.simulation for it in message.simulations], now)
            case link.Run():
                self._parameters[message.simulation] = message.parameters
                return self.schedule.add(message.simulation, now)
            case link.Progress():
                return self.schedule.progress(
                    message.simulation, message.attempt, message.received, message.blocked, now
                )
            case link.Finished():
                log.info("simulation %d finished", message.simulation)
                return self.schedule.finished(message.simulation, now)
            case link.Invalid():
                log.info("simulation %d withdrew itself: %s", message.simulation, message.reason)
                return self.schedule.invalid(message.simulation, now)
            case link.AttachRequest():
                return self.schedule.attach(message.token, message.simulation, now)
            case link.StopAll():
                self._leave(message.reason, message.grace_s)
                return []

    def _poll_jobs(self) -> None:
        now = time.monotonic()
        if now < self._poll_at:
            return
        for ended in self.jobs.poll(now):
            simulation, attempt = self._running.pop(ended.folder)
            log.info("simulation %d, attempt %d %s", simulation, attempt, ended.reason)
            self._carry_out(self.schedule.job_ended(simulation, attempt, ended.exit_code, ended.reason, now))
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
                case Cancel():
                    log.info("simulation %d, attempt %d is cancelled", action.simulation, action.attempt)
                    cancelled.add(self.attempts.folder(action.simulation, action.attempt))
                case _:
                    self._report(action)
        if cancelled:
            self.jobs.cancel_all(cancelled, time.monotonic())
            self._poll_at = 0.0

    def _submit(self, action: Submit) -> list[Action]:
        simulation, attempt = action.simulation, action.attempt
        keys = self._new_keys()
        # The server must know the key before the client can use it.
        self.server.send(link.Attempt(simulation=simulation, attempt=attempt, public_key=keys.public if keys else None))
        try:
            spec = self.attempts.prepare(simulation, attempt, self._parameters[simulation], self._connection, keys)
        except (OSError, ValueError) as error:
            reason = f"could not be prepared: {error}"
            log.warning("simulation %d, attempt %d %s", simulation, attempt, reason)
            return self.schedule.job_ended(simulation, attempt, None, reason, time.monotonic())
        log.info("simulation %d, attempt %d: %s", simulation, attempt, spec.command)
        self._running[spec.folder] = (simulation, attempt)
        self.jobs.submit(spec)
        self._poll_at = 0.0
        return []

    def _report(self, action: Fail | GiveUp | Give | Decline | StopStudy) -> None:
        match action:
            case Fail(simulation=simulation, attempt=attempt, reason=reason):
                log.warning("simulation %d, attempt %d failed: %s", simulation, attempt, reason)
                path = self._log_path(simulation, attempt)
                self.server.send(link.Failed(simulation=simulation, attempt=attempt, reason=reason, log=path))
            case GiveUp(simulation=simulation, attempts=attempts, reason=reason, redraw=redraw):
                log.warning("simulation %d is given up after %d attempts: %s", simulation, attempts, reason)
                path = self._log_path(simulation, attempts - 1)
                self.server.send(
                    link.GaveUp(simulation=simulation, attempts=attempts, reason=reason, log=path, redraw=redraw)
                )
            case Give(token=token, simulation=simulation, attempt=attempt):
                log.info("simulation %d, attempt %d goes to a client that attached", simulation, attempt)
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
        public, secret = link.key_pair()
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
        if status != self._status:
            self.server.send(status)
            self._status = status
        self._status_at = now + STATUS_S
