"""The launcher of a whole study: it runs the server beside the simulations, and starts it again when it is lost.

A server may die of anything, and mpirun's status does not tell. So a lost one comes back this way:

1. `RunningServer.look` finds it silent, stopped or too slow, and it is killed; or it ends by itself.
2. `RunningServer.how_it_ended` reads its end from the files that it has left.
3. `Restarts.decide` says whether another one starts, and when. The simulations go on meanwhile.

Why: docs/decisions/0058-server-in-a-job.md
"""

import json
import logging
import math
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace

from stream_server.config import differences
from stream_server.errors import EXIT_SAVED, RankLost, UserCodeError
from stream_server.failpoints import failpoint
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import OpenServer
from stream_server.launcher.simulations.ensemble import Ensemble
from stream_server.launcher.simulations.remote_access import endpoint_file
from stream_server.launcher.supervision.liveness import LivenessSocket
from stream_server.launcher.supervision.server_job import LOCAL, RunningServer, ServerCommand, ServerJob
from stream_server.launcher.supervision.server_restart import EndReports, Restart, Restarts, ServerEnd, lost
from stream_server.launcher.supervision.servers import Servers
from stream_server.launcher.supervision.takeover import kill
from stream_server.machine import private_folder
from stream_server.machine.forced_exit import FIRST_SIGNAL
from stream_server.machine.run_folder import STUDY_FILE
from stream_server.machine.screen import print_escaped
from stream_server.machine.signals import Signals
from stream_server.messages import launcher_link
from stream_server.storage.disk import read_text
from stream_server.wording import listed

# A server in a job is told to stop this long before the time limit; a local one has the limit itself.
LEAVING_S = 120.0

log = logging.getLogger(__name__)


class Supervisor:
    """Runs a study to its end, whatever the server dies of. Main thread only.

    `ends_at` is the time limit on the monotonic clock. `check_threads` raises what has ended a thread of ours. The
    server may have ranks on other nodes where the link to it reaches them.
    """

    def __init__(
        self,
        *,
        command: ServerCommand,
        servers: Servers,
        ensemble: Ensemble,
        signals: Signals,
        ends_at: float,
        check_threads: Callable[[], None],
    ) -> None:
        self.command = command
        self.servers = servers
        self.ensemble = ensemble
        self.signals = signals
        self.ends_at = ends_at
        self.check_threads = check_threads
        self.link = ensemble.server
        self.journal = ensemble.journal
        history = self.journal.history
        self.restarts = Restarts(
            command.study.launcher.restarts, num_in_a_row=history.num_in_a_row, failed_batch=history.failed_batch
        )
        self.output_dir = command.study.output_dir
        self.folder = private_folder.of(self.link.address)
        self._leave_at = math.inf
        if servers.backend != LOCAL and ends_at < math.inf:
            self._leave_at = ends_at - min(LEAVING_S, (ends_at - time.monotonic()) / 4)
        self._num_starts = history.num_starts
        self._running: RunningServer | None = None
        self._start_at = 0.0
        self._exit_code: int | None = None
        self._stop_reason = ""
        self._num_interrupts = 0
        self._forced = False

    def run(self) -> int:
        """Serve until the study is over; returns the exit code of the command."""
        self.link.watch(self.signals.readable)
        if self.journal.history.server is not None:
            self._adopt(self.journal.history.server)
        try:
            while self._exit_code is None or self._running is not None or not self._simulations_are_over:
                self._wait()
                self.check_threads()
                for message in self.ensemble.turn():
                    self._hear(message)
                self._look()
        except Exception as error:
            # Without a backend nothing is known of the simulations, and no server can be told that they are over.
            log.exception("the study ends")
            if self._running is not None:
                # A backend of the user's that raises now, too, ends its jobs when it is closed, if at all.
                with suppress(UserCodeError):
                    kill(self._running.job)
            if not isinstance(error, UserCodeError):
                raise
            say(f"{error}. The study goes on from its newest checkpoint once that is repaired")
            self._exit_code = error.exit_code
        finally:
            if self._running is not None:
                self._running.close()
        return self._exit_code

    @property
    def _simulations_are_over(self) -> bool:
        return self._forced or self.ensemble.has_left

    def _wait(self) -> None:
        wake_at = self.ensemble.wake_at
        if self._running is not None:
            wake_at = min(wake_at, self._running.wake_at, self._leave_at)
        elif self._exit_code is None:
            wake_at = min(wake_at, self._start_at)
        ready = self.link.wait(wake_at - time.monotonic())
        if self.signals.readable in ready:
            for number in sorted(self.signals.take()):
                if number == signal.SIGCHLD:
                    self.ensemble.look_soon()
                else:
                    self._interrupt(number)

    def _hear(self, message: launcher_link.ToLauncher) -> None:
        running = self._running
        match message:
            case launcher_link.Rank0Alive() if running is not None:
                self._ask_to_leave()
            case launcher_link.Plan() if running is not None:
                running.was_planned = True
                # It is on disk what this server was to try again.
                self.command = replace(self.command, retry=None)
                # What we said over another connection may have been lost.
                running.was_asked_to_leave = False
                self._ask_to_leave()
            case launcher_link.Committed():
                if self.restarts.num_in_a_row:
                    self.journal.note(message)
                self.restarts.progressed()
            case launcher_link.Stopping(reason=reason) if running is not None:
                if not self._stop_reason:
                    self._stop_reason = reason
                    say(reason)
                running.was_asked_to_leave = True
            case launcher_link.Leaving() if running is not None:
                running.leaving_since = time.monotonic()
            case _:
                return

    def _look(self) -> None:
        now = time.monotonic()
        running = self._running
        if running is None:
            if self._exit_code is None and now >= self._start_at:
                self._start(now)
            return
        if now >= self._leave_at:
            self._leave_at = math.inf
            self._stop("the time limit is near")
        if why := running.look(now):
            say(f"{why}; it is killed")
            failpoint("launcher.before_server_kill")
            running.kill(why, now)
        if running.job.is_over:
            self._ended(running, running.how_it_ended(self.output_dir), now)
        elif running.cannot_be_killed(now):
            self._stop_reason = "some process of the server cannot be killed"
            self._ended(running, lost(self._stop_reason), now)

    def _start(self, now: float) -> None:
        if now >= self.ends_at:
            self._leave(ServerEnd(exit_code=EXIT_SAVED, message="the time limit has been reached: run the study again"))
            return
        self._num_starts = self.servers.free_number(self._num_starts + 1)
        folder = self.folder / str(self._num_starts)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        starting = records.ServerStarting(
            number=self._num_starts,
            ranks=self.command.ranks,
            folder=str(folder),
            alive=f"ipc://{self.folder}/alive-{self._num_starts}",
            reports_before=EndReports.versions(self.output_dir),
            backend=self.servers.backend,
        )
        endpoint = None if self.link.remote is None else endpoint_file(self.folder, self.output_dir, starting.number)
        line = self.command.line(
            link=self.link.address, alive=starting.alive, endpoint=endpoint, time_limit_s=self.ends_at - now
        )
        log.info("server, start %d: %s", starting.number, shlex.join(line))
        self.journal.note(starting)
        self._run(starting, lambda: self.servers.start(starting, line, is_spread=endpoint is not None))
        assert self._running is not None
        self._running.coming_since = now

    def _run(
        self, starting: records.ServerStarting, begin: Callable[[], ServerJob], *, taken_over: bool = False
    ) -> None:
        remote = self.link.remote
        before = remote.before if taken_over and remote is not None else None
        with ExitStack() as stack:
            # The ranks must find us when they come.
            liveness = LivenessSocket(
                starting.alive,
                num_ranks=starting.ranks,
                remote=remote,
                before=None if before is None else before.alive,
            )
            stack.enter_context(liveness)
            if remote is not None:
                file = endpoint_file(self.folder, self.output_dir, starting.number)
                stack.enter_context(remote.published(file, link=self.link.endpoint, alive=liveness.endpoint))
            self.link.watch(*liveness.sockets)
            stack.callback(self.link.ignore, *liveness.sockets)
            failpoint("launcher.before_server_start")
            job = begin()
            failpoint("launcher.after_server_start")
            self._running = RunningServer(starting, job, liveness, stack.pop_all(), taken_over=taken_over)
        if job.leader is not None:
            self.journal.note(
                records.ServerStarted(number=starting.number, pid=job.leader.pid, started=job.leader.started)
            )

    def _adopt(self, server: OpenServer) -> None:
        """Continue with the server of a launcher that was killed. One that has ended meanwhile is started again."""
        starting = server.starting
        job = self.servers.adopt(server)
        if job is None:
            shutil.rmtree(starting.folder, ignore_errors=True)
            return
        log.info("server, start %d, is taken over", starting.number)
        self._tell_what_waits()
        # A rank that lives comes back at once; of one that died while nobody watched, mpirun may know nothing.
        self._run(starting, lambda: job, taken_over=True)

    def _tell_what_waits(self) -> None:
        """A server that runs keeps the study.json that it was started with."""
        config = self.command.study
        with suppress(OSError, ValueError):
            before = json.loads(read_text(config.output_dir / STUDY_FILE))
            if changed := [it.path for it in differences(before, config) if it.is_of_training]:
                what = "the server trains on with the study.json of its start; once it is started again, this holds: %s"
                log.warning(what, listed(changed))

    def _ended(self, running: RunningServer, end: ServerEnd, now: float) -> None:
        running.close()
        self._running = None
        shutil.rmtree(running.starting.folder, ignore_errors=True)
        self.ensemble.server_is_gone()
        decision = self.restarts.decide(end, stopping=bool(self._stop_reason) or self._forced)
        self.journal.note(
            records.ServerEnded(
                number=running.starting.number,
                exit_code=end.exit_code,
                num_in_a_row=self.restarts.num_in_a_row,
                failed_batch=self.restarts.failed_batch,
            )
        )
        match decision:
            case Restart(pause_s=pause_s, message=message):
                say(message)
                self._start_at = now + pause_s
            case ServerEnd():
                self._leave(decision)

    def _leave(self, end: ServerEnd) -> None:
        self._exit_code = end.exit_code
        if end.exit_code in (0, EXIT_SAVED):
            log.info("%s", end.message)
        else:
            say(f"{end.message}. {self.output_dir / 'logs'} holds the logs of launcher and ranks")
        if not self.ensemble.leaving:
            self.ensemble.leave(end.message)

    def _interrupt(self, number: signal.Signals) -> None:
        is_urgent = number in (signal.SIGINT, signal.SIGTERM)
        self._num_interrupts += is_urgent
        if is_urgent and self._num_interrupts > 1:
            self._force(number)
            return
        self._stop(f"stopped by {number.name}")

    def _stop(self, reason: str) -> None:
        is_first, self._stop_reason = not self._stop_reason, reason
        if self._exit_code is not None:
            self.ensemble.leave(self._stop_reason)
        elif self._running is None:
            self._leave(lost(f"{self._stop_reason} while no server was running"))
        elif EndReports(self.output_dir, self._running.starting.reports_before).has_report:
            why = f"{self._stop_reason} while the server, whose report is written, had not left"
            say(f"{why}: it is killed")
            self._running.kill(why, time.monotonic())
        elif is_first:
            # Rank 0 first: its live panel must not be drawn over the words.
            if self.link.connected:
                self._ask_to_leave()
            else:
                self._running.job.ask_to_leave()
            say(f"{self._stop_reason}: {FIRST_SIGNAL}")

    def _ask_to_leave(self) -> None:
        running = self._running
        if running is None or not self._stop_reason or running.was_asked_to_leave:
            return
        running.was_asked_to_leave = True
        self.link.send(launcher_link.Leave(reason=self._stop_reason))

    def _force(self, number: signal.Signals) -> None:
        say(f"{number.name} came again: server and simulations are killed")
        self._forced = True
        self._exit_code = RankLost.exit_code
        if self._running is not None:
            self._running.kill(f"{number.name} came again", time.monotonic())
            self._running.job.abandon()


def say(text: str) -> None:
    """Tell the user, on the screen and in the log."""
    log.warning("%s", text)
    # The terminal may be gone.
    with suppress(OSError):
        print_escaped(f"stream-launcher: {text}", sys.stderr)
