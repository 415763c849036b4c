"""Locks, conditions, events, queues, threads and clocks of `Threads`, in place of Python's own."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from stream_server import failpoints
from tests.faults.simulated.threads import Killed, Task, Threads


class Lock:
    """threading.Lock."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_held = False
        self.holder: Task | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        limit_s = (None if timeout < 0 else timeout) if blocking else 0.0
        if self._threads.is_closing and not blocking:
            # What a task that was killed leaves behind is closed, and no task goes on.
            return False
        if not self._threads.wait(self._is_free, limit_s, "lock"):
            return False
        self._is_held, self.holder = True, self._threads.current
        return True

    def release(self) -> None:
        self.let_go()
        self._threads.switch("unlocked")

    def let_go(self) -> None:
        """Release it without letting anybody else run yet."""
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held, self.holder = False, None

    def locked(self) -> bool:
        return self._is_held

    def _is_free(self) -> bool:
        return not self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """threading.RLock."""

    def __init__(self, threads: Threads) -> None:
        super().__init__(threads)
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        mine = self._is_held and self.holder is self._threads.current
        if not mine and not super().acquire(blocking, timeout):
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        if self._depth > 1:
            self._depth -= 1
        else:
            super().release()

    def let_go(self) -> None:
        self._depth = 0
        super().let_go()


class Condition:
    """threading.Condition; no wake-up comes by itself."""

    def __init__(self, threads: Threads, lock: Lock | None = None) -> None:
        self._threads = threads
        self._lock = lock or RLock(threads)
        self._waiting: deque[list[bool]] = deque()
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._lock.locked():
            raise RuntimeError("cannot wait on un-acquired lock")
        told = [False]
        self._waiting.append(told)
        self._lock.let_go()
        is_told = self._threads.wait(lambda: told[0], timeout, "condition")
        if not is_told:
            self._waiting = deque(other for other in self._waiting if other is not told)
        self._lock.acquire()
        return is_told

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        give_up_at = None if timeout is None else self._threads.now + timeout
        while not (result := predicate()):
            left_s = None if give_up_at is None else give_up_at - self._threads.now
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        if not self._lock.locked():
            raise RuntimeError("cannot notify on un-acquired lock")
        for _ in range(min(n, len(self._waiting))):
            self._waiting.popleft()[0] = True

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """threading.Event."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._threads.switch("event set")

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._threads.wait(self.is_set, timeout, "event")


class SimpleQueue:
    """queue.SimpleQueue."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._items: deque[Any] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        self._threads.switch("queue filled")

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._threads.wait(lambda: bool(self._items), timeout if block else 0.0, "queue"):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class Thread:
    """threading.Thread, in the process of who starts it."""

    def __init__(
        self,
        threads: Threads,
        *,
        target: Callable[..., Any],
        name: str = "thread",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self.name = name
        self.daemon = bool(daemon)
        self._threads = threads
        self._target = partial(target, *args, **(kwargs or {}))
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)

    def start(self) -> None:
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        self._task = self._threads.spawn(self._target, name=self.name)
        self._threads.switch("thread started")

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is None:
            raise RuntimeError("cannot join thread before it is started")
        self._threads.wait(lambda: task.has_ended, timeout, f"end of {self.name}")

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.has_ended


class Future:
    """concurrent.futures.Future, of a job that `ThreadPoolExecutor` was given."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_done = False
        self._result: Any = None
        self._error: Exception | None = None

    def done(self) -> bool:
        return self._is_done

    def exception(self, timeout: float | None = None) -> Exception | None:
        if not self._threads.wait(self.done, timeout, "future"):
            raise TimeoutError
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._result

    def run(self, job: Callable[[], Any]) -> None:
        try:
            self._result = job()
        except Exception as error:
            self._error = error
        self._is_done = True
        self._threads.switch("future done")


class ThreadPoolExecutor:
    """concurrent.futures.ThreadPoolExecutor, with one thread, which `shutdown` waits for."""

    def __init__(self, threads: Threads, max_workers: int, *, thread_name_prefix: str) -> None:
        assert max_workers == 1
        self._threads = threads
        self._jobs = SimpleQueue(threads)
        self._thread = Thread(threads, target=self._work, name=f"{thread_name_prefix}_0")

    def submit(self, job: Callable[..., Any], *arguments: Any) -> Future:
        future = Future(self._threads)
        if self._thread.ident is None:
            self._thread.start()
        self._jobs.put((future, partial(job, *arguments)))
        return future

    def shutdown(self) -> None:
        if self._thread.ident is not None:
            self._jobs.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, job = item
            future.run(job)


class Clock:
    """The module `time`, as far as anybody here asks it. Other questions are answered by the real one."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.sleep = threads.sleep

    def monotonic(self) -> float:
        return self._threads.now

    perf_counter = process_time = thread_time = time = monotonic

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def switch_at_failpoint(threads: Threads, on_failpoint: Callable[[str], None] | None, name: str) -> None:
    """Pass a failpoint, at which somebody else may go on; `on_failpoint` is told its name before."""
    if threads.is_closing:
        raise Killed
    if threads.current is None:
        return
    if on_failpoint is not None:
        on_failpoint(name)
    threads.switch(name)


def names_of(threads: Threads) -> dict[str, Any]:
    """The stand-ins, by the names under which modules import what they stand for."""
    classes: dict[str, Any] = {
        each.__name__: partial(each, threads)
        for each in (Lock, RLock, Condition, Event, SimpleQueue, Thread, ThreadPoolExecutor)
    }
    return {
        **classes,
        "time": Clock(threads),
        "threading": _over(threading, classes),
        "queue": _over(queue, classes),
    }


@contextmanager
def stand_in(
    threads: Threads, *modules: ModuleType, on_failpoint: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Put the stand-ins into these modules, and make every failpoint a switch point, while the `with` block lasts."""
    names = names_of(threads)
    real = {"time": time, "threading": threading, "queue": queue, "SimpleQueue": queue.SimpleQueue}
    real["ThreadPoolExecutor"] = futures.ThreadPoolExecutor
    real |= {name: getattr(threading, name) for name in ("Lock", "RLock", "Condition", "Event", "Thread")}
    undo: list[tuple[ModuleType, str, Any]] = []
    for module in modules:
        for name in names.keys() & vars(module).keys():
            if vars(module)[name] is real[name]:
                undo.append((module, name, real[name]))
                setattr(module, name, names[name])
    try:
        with mock.patch.object(failpoints, "_hook", partial(switch_at_failpoint, threads, on_failpoint)):
            yield
    finally:
        for module, name, value in undo:
            setattr(module, name, value)


def _over(module: ModuleType, names: Mapping[str, Any]) -> SimpleNamespace:
    """A module with some names replaced."""
    return SimpleNamespace(**{**vars(module), **{name: names[name] for name in names if hasattr(module, name)}})
