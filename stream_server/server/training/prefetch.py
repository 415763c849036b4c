"""A thread that makes the next batches beside the training step.

Why: docs/decisions/0028-batches-ahead.md
"""

import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

ASKS = object()


class Stopped(BaseException):
    """Ends the thread where it asks, through whatever code of the user's is on its stack."""


class Prefetch(Generic[T, R]):
    """Calls `make` on one item after another, on a thread of its own, which lives while the `with` block lasts.

    Results come in the order of the items. What `make` raises is raised where its result would have been taken. It may
    `ask` for something on the way, once for each time that something was given or will be. All other methods are for
    one other thread; `seconds` is the time that `make` has taken so far, without its waiting for what it asked for.
    """

    def __init__(self, make: Callable[[T], R], name: str = "prefetch") -> None:
        self.seconds = 0.0
        self._make = make
        self._items: SimpleQueue[T | None] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._waiting: deque[tuple[R | None, BaseException | None]] = deque()
        self._num_begun = 0
        self._num_asked = 0
        self._waited_s = 0.0
        self._is_over = False
        self._thread = Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over = True
        self._items.put(None)
        self._answers.put(None)
        self._thread.join()

    def begin(self, item: T) -> None:
        """Begin to make the result of `item`, after all others that were begun."""
        self._num_begun += 1
        self._items.put(item)

    def give(self, answer: Any) -> None:
        """Give what was asked for, or will be."""
        self._num_asked -= 1
        self._answers.put(answer)

    def take(self) -> R | Any:
        """Wait for the first result that was not taken; `ASKS` if the thread waits for what `give` gives.

        Something must have been begun for it.
        """
        while not self._waiting:
            if self._asks:
                return ASKS
            self._receive()
        result, error = self._waiting.popleft()
        if error is not None:
            raise error
        return result

    def quiesce(self) -> None:
        """Wait until the thread has nothing to do, or waits for what it asked for."""
        while self._num_begun and not self._asks:
            self._receive()

    def drop(self) -> None:
        """Wait until the thread has nothing to do, and forget what was made and not taken."""
        self.quiesce()
        self._waiting.clear()

    def rest(self) -> tuple[list[Any], list[Any]]:
        """Once the thread has ended: the results that nobody has taken, and what was given and not asked for."""
        results = [result for result, error in self._waiting if error is None]
        answers = [self._answers.get() for _ in range(self._answers.qsize())]
        return results, [answer for answer in answers if answer is not None]

    def ask(self) -> Any:
        """Wait for what `give` gives. Called by `make`.

        Raises:
            Stopped: the `with` block ends; again and again, where code of the user's swallows all exceptions.
        """
        started = time.perf_counter()
        self._results.put(ASKS)
        answer = None if self._is_over else self._answers.get()
        self._waited_s += time.perf_counter() - started
        if self._is_over:
            raise Stopped
        return answer

    @property
    def _asks(self) -> bool:
        return self._num_asked > 0

    def _receive(self) -> None:
        assert self._num_begun, "nothing was begun"
        item = self._results.get()
        if item is ASKS:
            self._num_asked += 1
            return
        result, error, seconds = item
        self._num_begun -= 1
        self.seconds += seconds
        self._waiting.append((result, error))

    def _run(self) -> None:
        while (item := self._items.get()) is not None and not self._is_over:
            self._results.put(self._time(item))

    def _time(self, item: T) -> tuple[R | None, BaseException | None, float]:
        started, waited_s = time.perf_counter(), self._waited_s
        try:
            result, error = self._make(item), None
        except BaseException as raised:
            result, error = None, raised
        return result, error, time.perf_counter() - started - (self._waited_s - waited_s)
