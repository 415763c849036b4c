"""The takeover from an earlier launcher: its jobs are taken over, or ended before anything new begins."""

import logging
import os
import time
from pathlib import Path

from stream_server.launcher.backends import local
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.journal.records import LauncherStarted
from stream_server.launcher.simulations.attempt_jobs import AttemptJobs
from stream_server.launcher.supervision.server_job import ServerJob
from stream_server.launcher.supervision.servers import Servers
from stream_server.machine import private_folder, processes
from stream_server.machine.run_folder import SIMULATIONS

CANCEL_WAIT_S = 60.0
LOOK_S = 0.02

log = logging.getLogger(__name__)


def begin(journal: Journal, jobs: AttemptJobs, servers: Servers, *, link: str | None) -> LauncherStarted:
    """Continue where another launcher was killed, or check that nothing of an earlier run is left; record it.

    `link` is the address that rank 0 gave this launcher, None when it supervises the server.
    """
    history = journal.history
    resumed = is_resumed(history, servers.backend, link=link)
    if not resumed:
        end_earlier_run(history, jobs, servers, link=link)
        journal.history = history = history.of_other_runs()
    address = link or (history.launcher.link if history.launcher else private_folder.link(private_folder.new_name()))
    history.launcher = LauncherStarted(
        pid=os.getpid(), boot=processes.this_boot(), link=address, supervises=link is None, resumed=resumed
    )
    journal.note(history.launcher)
    if link is None:
        private_folder.make(private_folder.of(address), again=resumed)
    return history.launcher


def is_resumed(history: History, backend: str, *, link: str | None) -> bool:
    """Tell whether the last launcher was killed in the run in which this one begins; `link` is as in `begin`.

    Its server was run by the same `backend`.

    The folder of its sockets may have been removed meanwhile, and somebody else have made one of that name: then this
    is another run. So it is if the journal names a folder of the server that no launcher makes.
    """
    before = history.launcher
    if before is None or history.ended_in_order or before.boot != processes.this_boot():
        return False
    if link is not None:
        return (before.supervises, before.link) == (False, link)
    folder, server = private_folder.of(before.link), history.server
    is_within = server is None or (
        Path(server.starting.folder) == folder / str(server.starting.number) and server.starting.backend == backend
    )
    return before.supervises and is_within and private_folder.may_be_used(folder)


def end_earlier_run(history: History, jobs: AttemptJobs, servers: Servers, *, link: str | None = None) -> None:
    """End all jobs and processes of an earlier run, which nobody watches any more, and remove its folder of sockets.

    That is still there if a launcher was killed, or a rank 0 whose launcher had left in order before. The folder of
    `link` is that of a rank 0 that lives.
    """
    if history.server is not None:
        if history.launcher is None or history.launcher.boot != processes.this_boot():
            history.server.leader = None
        server = servers.adopt(history.server)
        if server is not None:
            kill(server)
    if history.launcher is not None and history.launcher.link != link:
        private_folder.remove(private_folder.of(history.launcher.link))
    _cancel_jobs(history, jobs)
    processes.end_all(local.MARK, servers.config.output_dir / SIMULATIONS, local.GRACE_S)


def _cancel_jobs(history: History, jobs: AttemptJobs) -> None:
    jobs.adopt(history)
    jobs.cancel([recorded.key for recorded in history.attempts.values()])
    deadline = time.monotonic() + CANCEL_WAIT_S
    while jobs.num_running and time.monotonic() < deadline:
        jobs.poll(time.monotonic())
        if news := jobs.outage.news():
            log.warning("%s", news)
        time.sleep(max(LOOK_S, jobs.backend.query_interval_s) if jobs.num_running else 0.0)


def kill(server: ServerJob) -> None:
    """End all of a server, and wait for that as long as it may take."""
    deadline = time.monotonic() + CANCEL_WAIT_S
    server.kill(time.monotonic())
    while not server.is_over and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        server.look(time.monotonic())
    server.abandon()
