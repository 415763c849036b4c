"""The worker of a `FolderQueue`: runs the jobs of the folder in its argument, until a file `stop` is there."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_S = 0.3
LOOK_S = 0.01


def work(queue: Path) -> None:
    running: dict[str, subprocess.Popen[bytes]] = {}
    kill_at: dict[str, float] = {}
    while not (queue / "stop").exists():
        for job in queue.glob("*.job"):
            if job.stem not in running and not job.with_suffix(".ended").exists():
                if job.with_suffix(".cancel").exists() or job.with_suffix(".kill").exists():
                    job.with_suffix(".ended").touch()
                    continue
                said = json.loads(job.read_text())
                running[job.stem] = subprocess.Popen(
                    said["command"], env=said["environment"], cwd=said["folder"], start_new_session=True
                )
                job.with_suffix(".running").touch()
        for name, process in list(running.items()):
            if (queue / f"{name}.cancel").exists() and name not in kill_at:
                kill_at[name] = time.monotonic() + GRACE_S
                _signal(process, signal.SIGTERM)
            if process.poll() is not None or time.monotonic() > kill_at.get(name, time.monotonic()):
                _signal(process, signal.SIGKILL)
            if (queue / f"{name}.kill").exists():
                _signal(process, signal.SIGKILL)
            if process.poll() is not None and not _signal(process, signal.SIGKILL):
                (queue / f"{name}.ended").touch()
                del running[name]
        time.sleep(LOOK_S)
    for process in running.values():
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> bool:
    """Signal the session of a job; False when nothing is left of it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
        return True
    return False


if __name__ == "__main__":
    work(Path(sys.argv[1]))
