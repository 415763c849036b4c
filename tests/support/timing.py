"""Time in tests: a clock that is wound by hand, and waiting with a limit that a busy machine does not exceed."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

LIMIT_S = 100.0
LOOK_S = 0.01
# A pause between two looks is this part of what was waited before, and so many times what a look takes, up to so long.
PART_OF_WAIT, TIMES_A_LOOK, LONGEST_PAUSE_S = 0.05, 4.0, 0.2
LOOK_AT_PROCESS_S = 0.5

T = TypeVar("T")


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    monotonic = __call__


class Deadline:
    """`limit_s` seconds, of a process's fair share of an idle machine.

    A second counts as half of one while twice as many processes want to run as there are cores. `has_passed` must be
    asked again and again: what is not seen is counted by what runs when it is asked.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._spent_s = 0.0
        self._looked_at = time.monotonic()

    @property
    def has_passed(self) -> bool:
        """Whether the time is over."""
        now = time.monotonic()
        self._spent_s += (now - self._looked_at) / crowding()
        self._looked_at = now
        return self._spent_s >= self.limit_s


def until(
    condition: Callable[[], T],
    limit_s: float = LIMIT_S,
    *,
    look_s: float = LOOK_S,
    told: Callable[[], str] = lambda: "",
) -> T:
    """Wait until something is so, and give what the condition then gave.

    It is looked at every `look_s` at first, and the less often the longer it takes to be so, and to look.

    Raises:
        AssertionError: it was not so in time; `told` says what there was instead.
    """
    deadline, began = Deadline(limit_s), time.monotonic()
    looked = began
    while not (found := condition()):
        assert not deadline.has_passed, f"not so after {limit_s:g} s\n{told()}"
        now = time.monotonic()
        pause_s = max(PART_OF_WAIT * (now - began), TIMES_A_LOOK * (now - looked))
        time.sleep(max(look_s, min(pause_s, LONGEST_PAUSE_S)))
        looked = time.monotonic()
    return found


def completed(argv: Sequence[str], env: Mapping[str, str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Raises:
        subprocess.TimeoutExpired: it had not ended in time, and was killed.
    """
    deadline = Deadline(limit_s)
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                output, errors = process.communicate(timeout=LOOK_AT_PROCESS_S)
            except subprocess.TimeoutExpired:
                if deadline.has_passed:
                    process.kill()
                    raise
            else:
                return subprocess.CompletedProcess(argv, process.returncode, output, errors)


def crowding() -> float:
    """How many processes and threads want to run now, for each core; at least 1."""
    with open("/proc/loadavg") as file:
        running = int(file.read().split()[3].partition("/")[0])
    return max(1.0, running / len(os.sched_getaffinity(0)))
