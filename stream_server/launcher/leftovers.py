"""What an earlier launcher left running: taken over, or ended before anything new begins."""

import time
from pathlib import Path

from stream_server.launcher import jobs, private_folder, processes
from stream_server.launcher.past import Past
from stream_server.launcher.server_job import ServerJob

KILL_WAIT_S = 10.0
LOOK_S = 0.02


def is_resumed(past: Past, *, link: str | None) -> bool:
    """The last launcher was killed in the run in which this one begins.

    `link` is the address that rank 0 gave this one, None when it supervises the server.
    """
    before = past.launcher
    if before is None or past.ended_in_order or before.boot != processes.this_boot():
        return False
    return before.supervises if link is None else (before.supervises, before.link) == (False, link)


def end_leftovers(past: Past, output_dir: Path) -> None:
    """End every process of an earlier run, which nobody watches any more."""
    if past.server is not None:
        same_boot = past.launcher is not None and past.launcher.boot == processes.this_boot()
        server = ServerJob.adopt(past.server.starting.folder, past.server.leader if same_boot else None)
        if server is not None:
            _kill(server)
    if past.launcher is not None and past.launcher.supervises:
        private_folder.remove(private_folder.of(past.launcher.link))
    processes.end_all(jobs.MARK, output_dir / "simulations", jobs.GRACE_S)


def _kill(server: ServerJob) -> None:
    deadline = time.monotonic() + KILL_WAIT_S
    server.kill(time.monotonic())
    while not server.is_over and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        server.look(time.monotonic())
