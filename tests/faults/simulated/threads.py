"""Threads that run one at a time, in an order that a seed decides, under a virtual clock.

They are real threads of Python, of which one has the *baton*. It passes the baton on at *switch points* only: locks,
conditions, events, queues, sleep and threads themselves (`tests/faults/simulated/stand_ins.py` has them in place of
Python's), failpoints, and whatever calls `switch` or `wait`. So the code of the product runs as it is, and a seed
repeats what happened. Code between two switch points is not interrupted, which real threads could be.

The clock stands still but for `TICK_S` at each switch, and jumps to the next time for which somebody waits when all do.
If nobody waits for a time either, that is a `Deadlock`. A run that takes longer than it may is `Overtime`.

    threads = Threads(random.Random(seed))
    with threads, stand_in(threads, buffer, gate):
        threads.spawn(fill, name="receiver")
        threads.spawn(draw, name="training")
        threads.run()

A thread that was *killed* never gets the baton again. It is unwound only when `threads` is left, after everything was
judged: every switch point raises `Killed` then, so that what its `finally` and `with` do meets closed doors.
"""

import _thread
import heapq
import itertools
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import Any, Self

TICK_S = 1e-5
UNWIND_S = 10.0
STACK_DEPTH = 4


class Killed(BaseException):
    """Unwinds a thread that must do nothing any more."""


class Deadlock(AssertionError):
    """All threads wait, and none of them for a time."""


class Overtime(AssertionError):
    """The threads still run after the time they had."""


class Process:
    """Threads that are killed and stopped together. Whoever starts a thread starts it in their own process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_killed = False
        self.is_stopped = False


class Task:
    """One thread: what it waits for, and until when at the latest."""

    def __init__(self, name: str, process: Process, function: Callable[[], Any]) -> None:
        self.name = name
        self.process = process
        self.function = function
        self.where = "start"
        self.ready: Callable[[], bool] | None = None
        self.give_up_at: float | None = None
        self.has_ended = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None
        self.baton = _thread.allocate_lock()
        self.baton.acquire()

    def can_run(self, now: float) -> bool:
        """Whether it may have the baton."""
        if self.process.is_stopped or self.process.is_killed:
            return False
        if self.ready is None or (self.give_up_at is not None and self.give_up_at <= now):
            return True
        return self.ready()


class Threads:
    """All threads of a simulation, their clock, and the choice who runs next.

    Args:
        random: decides; its state is the seed of everything that follows.
        linger: how probable it is that a thread that can go on does so at a switch point. High values make long
            stretches, which are fast, low ones many switches.

    Attributes:
        now: seconds since the beginning.
        current: who has the baton; None outside of `run`, where nothing switches.
        trace: who was given the baton, when and where. Equal seeds have equal traces.
        ends_at: when the run is over its time.
        is_closing: everything was judged, and the threads are unwound.
    """

    def __init__(self, random: Random, *, linger: float = 0.5) -> None:
        self.random = random
        self.linger = linger
        self.now = 0.0
        self.current: Task | None = None
        self.trace: list[tuple[float, str, str]] = []
        self.num_switches = 0
        self._tasks: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._awaited: tuple[Task, ...] = ()
        self.ends_at = 0.0
        self._home = _thread.allocate_lock()
        self._home.acquire()
        self._failure: BaseException | None = None
        self.is_closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def spawn(self, function: Callable[..., Any], *args: Any, name: str, process: Process | None = None) -> Task:
        """Start a thread, which waits for the baton; an exception of `function` ends the run."""
        if process is None:
            process = self.current.process if self.current else Process("main")
        task = Task(name, process, lambda: function(*args))
        task.thread = threading.Thread(target=self._live, args=(task,), name=name, daemon=True)
        self._tasks.append(task)
        task.thread.start()
        return task

    def run(self, *awaited: Task, limit_s: float = 3600.0) -> None:
        """Let the threads run until those that are awaited have ended, or all that were not killed.

        Raises:
            Deadlock: nothing can happen any more.
            Overtime: they had not ended after `limit_s` of virtual time.
            BaseException: what a thread raised.
        """
        assert self.current is None
        self._awaited, self.ends_at = awaited, self.now + limit_s
        chosen = self._next()
        if chosen is not None:
            chosen.baton.release()
            self._home.acquire()
        self.current = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def switch(self, where: str) -> None:
        """Let somebody else go on here, perhaps."""
        self._switch(where, None, None)

    def wait(self, ready: Callable[[], bool], timeout_s: float | None, where: str) -> bool:
        """Go on when `ready()`, which nobody changes then, or when the time is over; says whether it is ready."""
        give_up_at = None if timeout_s is None else self.now + max(timeout_s, 0.0)
        self._switch(where, ready, give_up_at)
        return ready()

    def sleep(self, seconds: float) -> None:
        """Let `seconds` go by."""
        self.wait(lambda: False, seconds, "sleep")

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call something at a time, between two switches; it must not switch itself."""
        heapq.heappush(self._timers, (when, next(self._numbers), call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call something after a while; see `at`."""
        self.at(self.now + delay_s, call)

    def kill(self, process: Process) -> None:
        """None of its threads does anything any more; if the caller is one of them, this does not return."""
        process.is_killed = True
        if self.current is not None and self.current.process is process:
            self.switch("killed")

    def close(self) -> None:
        """Unwind all threads, one after the other. Nobody may judge what they do now."""
        self.is_closing = True
        logged = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            for task in self._tasks:
                assert task.thread is not None
                if not task.has_ended:
                    self.current = task
                    task.baton.release()
                task.thread.join(UNWIND_S)
                assert not task.thread.is_alive(), f"{task.name} does not let itself be unwound:\n{_stack(task)}"
        finally:
            self.current = None
            logging.disable(logged)

    def story(self) -> str:
        """The threads that still live, each with what it waits for, and where."""
        return "\n".join(self._told(task) for task in self._tasks if not task.has_ended)

    def _live(self, task: Task) -> None:
        task.baton.acquire()
        try:
            if not self.is_closing:
                task.result = task.function()
        except Killed:
            pass
        except BaseException as error:
            task.error = error
            if not self.is_closing:
                self._failure = self._failure or error
        task.has_ended = True
        if not self.is_closing:
            self._pass_on()

    def _switch(self, where: str, ready: Callable[[], bool] | None, give_up_at: float | None) -> None:
        if self.is_closing:
            raise Killed
        me = self.current
        if me is None:
            self._wait_alone(where, ready, give_up_at)
            return
        me.where, me.ready, me.give_up_at = where, ready, give_up_at
        if self._pass_on() is not me:
            me.baton.acquire()
            if self.is_closing:
                raise Killed
        me.ready = me.give_up_at = None

    def _wait_alone(self, where: str, ready: Callable[[], bool] | None, give_up_at: float | None) -> None:
        if ready is not None and not ready():
            if give_up_at is None:
                raise Deadlock(f"outside of run, {where} waits for ever")
            self.now = max(self.now, give_up_at)

    def _pass_on(self) -> Task | None:
        """Give the baton to the next one, or home; returns whom. The caller waits for its own, or ends."""
        me = self.current
        chosen = self._next()
        if chosen is None:
            self._home.release()
        elif chosen is not me:
            chosen.baton.release()
        return chosen

    def _next(self) -> Task | None:
        """Choose the next task to run; None when the run is over."""
        before = self.current
        try:
            chosen = self._choose()
        except BaseException as error:
            self._failure, chosen = self._failure or error, None
        self.current = chosen
        if chosen is not None and chosen is not before:
            self.num_switches += 1
            self.trace.append((round(self.now, 6), chosen.name, chosen.where))
        return chosen

    def _choose(self) -> Task | None:
        self.now += TICK_S
        while not self._is_over():
            self._call_timers()
            me = self.current
            if me and not me.has_ended and me.can_run(self.now) and self.random.random() < self.linger:
                return me
            able = [task for task in self._tasks if not task.has_ended and task.can_run(self.now)]
            if able:
                return able[0] if len(able) == 1 else able[self.random.randrange(len(able))]
            self._jump()
        return None

    def _is_over(self) -> bool:
        if self._failure is not None:
            return True
        if self.now > self.ends_at:
            raise Overtime(f"after {self.now:.3f} s:\n{self.story()}")
        if self._awaited:
            return all(task.has_ended for task in self._awaited)
        return all(task.has_ended or task.process.is_killed for task in self._tasks)

    def _call_timers(self) -> None:
        me, self.current = self.current, None
        while self._timers and self._timers[0][0] <= self.now:
            _, _, call = heapq.heappop(self._timers)
            call()
        self.current = me

    def _jump(self) -> None:
        times = [task.give_up_at for task in self._tasks if _waits_for_a_time(task)]
        if self._timers:
            times.append(self._timers[0][0])
        known = [when for when in times if when is not None]
        if not known:
            raise Deadlock(f"after {self.now:.3f} s all wait for each other:\n{self.story()}")
        self.now = max(self.now, min(known))

    def _told(self, task: Task) -> str:
        state = "killed" if task.process.is_killed else "stopped" if task.process.is_stopped else task.where
        until = "" if task.give_up_at is None else f" until {task.give_up_at:.3f} s"
        return f"{task.process.name}/{task.name}: {state}{until}\n{_stack(task)}"


def _waits_for_a_time(task: Task) -> bool:
    process = task.process
    return not (task.has_ended or process.is_killed or process.is_stopped or task.give_up_at is None)


def _stack(task: Task) -> str:
    """The innermost calls of a thread, without those of the simulation."""
    assert task.thread is not None
    frame = sys._current_frames().get(task.thread.ident or 0)
    frames = traceback.extract_stack(frame) if frame else []
    told = [f for f in frames if f.filename != __file__ and not f.filename.endswith(("threading.py", "stand_ins.py"))]
    return "".join(f"    {f.filename}:{f.lineno} in {f.name}\n" for f in told[-STACK_DEPTH:])
