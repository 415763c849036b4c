"""A program in the place of mpirun."""

import os
import signal
import subprocess
import sys
import time
from typing import NoReturn


def main(_: str) -> NoReturn:
    """Be mpirun."""
    sys.exit(mpirun(sys.argv[1:]))


def mpirun(arguments: list[str]) -> int:
    """Start `-n R PROGRAM …` as R ranks, each in a session of its own as below a proxy; the first to fail ends all."""
    ranks = [
        subprocess.Popen(arguments[2:], env={**os.environ, "FAKE_RANK": str(rank)}, start_new_session=True)
        for rank in range(int(arguments[1]))
    ]
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: [rank.send_signal(number) for rank in ranks])
    running = list(ranks)
    status = 0
    while running:
        for rank in running:
            if rank.poll() is not None:
                running.remove(rank)
                status = status or abs(rank.returncode)
                break
        if status:
            for rank in running:
                rank.kill()
        time.sleep(0.01)
    return status
