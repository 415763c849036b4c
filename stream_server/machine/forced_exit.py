"""The thread that ends a process for which two signals were not enough.

Why: docs/decisions/0008-signals.md
"""

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from stream_server.errors import EXIT_FORCED
from stream_server.machine import exit_watch

FORCE_S = 3.0
REPEAT_S = 0.5
# So late is what a parent passes on at most.
LATE_S = 15.0
FIRST_SIGNAL = "the study saves a checkpoint and leaves; once more ends it at once"
URGENT = frozenset({signal.SIGINT, signal.SIGTERM})
# Batch systems send USR1 or USR2 before the time of a job is over, and XCPU; HUP comes when a terminal is closed.
_STOPPING = (*URGENT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP)


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals by which a study is asked to save and leave; without HUP where it is ignored, as under nohup."""
    return tuple(each for each in _STOPPING if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN)


class UrgentSignals:
    """Counts INT and TERM.

    A signal within `REPEAT_S` of another is the same: terminal, batch system and mpirun may each pass it on. One that
    was sent to this process and to its parent comes twice, and the parent may be late, by `LATE_S` at most: of both
    numbers the larger counts.
    """

    def __init__(self, num_passed_on: Callable[[], int] = exit_watch.num_passed_on) -> None:
        self.num = 0
        self._num_passed_on = num_passed_on
        self._num_before = num_passed_on()
        self._nums = {False: 0, True: 0}
        self._last = {False: -REPEAT_S, True: -REPEAT_S}

    def count(self, number: int, now: float) -> int:
        """Count a signal; return how many there were."""
        num = self._num_passed_on()
        is_passed_on, self._num_before = num > self._num_before, num
        if now >= max(self._last.values()) + LATE_S:
            self._nums = dict.fromkeys(self._nums, self.num)
        if number in URGENT and now >= self._last[is_passed_on] + REPEAT_S:
            self._nums[is_passed_on] += 1
            self._last[is_passed_on] = now
        self.num = max(self._nums.values())
        return self.num


class ForcedExit:
    """Ends this process `FORCE_S` after its second INT or TERM, if it has not ended by then.

    Entered in the main thread. Its own thread reads the numbers of the signals as they come, whatever call the main
    thread is in; only one that holds the lock of the interpreter can delay it. Signals that have no handler of Python
    are not seen. `pass_on` is called there with each number.
    """

    def __init__(
        self, pass_on: Callable[[int], object] = lambda number: None, *, end: Callable[[int], object] = exit_watch.leave
    ) -> None:
        self._pass_on = pass_on
        self._end = end
        self._thread = threading.Thread(target=self._run, name="signals")

    def __enter__(self) -> Self:
        self._came, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._writable)
        self._thread.join()
        os.close(self._came)

    def _run(self) -> None:
        urgent, end_at = UrgentSignals(), math.inf
        while select.select([self._came], [], [], None if end_at == math.inf else max(0.0, end_at - time.monotonic()))[
            0
        ]:
            numbers = os.read(self._came, 4096)
            if not numbers:
                return
            for number in numbers:
                self._pass_on(number)
                if urgent.count(number, time.monotonic()) > 1 and end_at == math.inf:
                    end_at = time.monotonic() + FORCE_S
        with suppress(OSError):
            print(
                f"process {os.getpid()} has not ended after a second signal: it is ended", file=sys.stderr, flush=True
            )
        self._end(EXIT_FORCED)
