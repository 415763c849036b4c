"""A thread that forms the next batches beside the training step."""

import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Prefetch(Generic[T, R]):
    """Calls `make` on one item after another, on a thread of its own, which lives while the `with` block lasts.

    Results come in the order of the items. What `make` raises is raised where its result would have been taken. All
    methods are for one other thread; `seconds` is the time that `make` has taken so far.
    """

    def __init__(self, make: Callable[[T], R]) -> None:
        self.seconds = 0.0
        self._make = make
        self._items: SimpleQueue[T | None] = SimpleQueue()
        self._made: SimpleQueue[tuple[R | None, BaseException | None, float]] = SimpleQueue()
        self._waiting: deque[tuple[R | None, BaseException | None]] = deque()
        self._num_begun = 0
        self._is_over = False
        self._thread = Thread(target=self._run, name="prefetch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over = True
        self._items.put(None)
        self._thread.join()

    def begin(self, item: T) -> None:
        """Begin to make the result of `item`, after all others that were begun."""
        self._num_begun += 1
        self._items.put(item)

    def take(self) -> R:
        """Wait for the first result that was not taken; something must have been begun for it."""
        if not self._waiting:
            self._receive()
        result, error = self._waiting.popleft()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def quiesce(self) -> None:
        """Wait until the thread has nothing to do."""
        while self._num_begun:
            self._receive()

    def drop(self) -> None:
        """Wait until the thread has nothing to do, and forget what was made and not taken."""
        self.quiesce()
        self._waiting.clear()

    def _receive(self) -> None:
        assert self._num_begun, "nothing was begun"
        result, error, seconds = self._made.get()
        self._num_begun -= 1
        self.seconds += seconds
        self._waiting.append((result, error))

    def _run(self) -> None:
        while (item := self._items.get()) is not None and not self._is_over:
            self._made.put(self._timed(item))

    def _timed(self, item: T) -> tuple[R | None, BaseException | None, float]:
        started = time.perf_counter()
        try:
            result, error = self._make(item), None
        except BaseException as raised:
            result, error = None, raised
        return result, error, time.perf_counter() - started
