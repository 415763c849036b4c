"""The clients of all languages under the same tests: each is told line by line what to do.

The lines are those of tests/native/conformance/script.py.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np
import pytest

from stream_server.client_api import hello, session, watch
from stream_server.messages.client import End, FieldSpec, Ping
from tests.fakes.server import FakeServer
from tests.native.conformance import driver
from tests.native.conformance.script import DEADLINE_S
from tests.native.conformance.values import values

SMALL = (FieldSpec(name="u", shape=(4,)),)
# Nobody waits for half a second here.
RELEASE_S = 0.1
QUICK_S = {
    "LOOK_S": 0.01,
    "PING_S": 0.05,
    "REOPEN_S": 0.05,
    "REPEAT_S": 0.1,
    "REFUSED_S": 0.2,
    "OVERSLEPT_S": 0.1,
    "RELEASE_S": RELEASE_S,
}


class Client:
    """One simulation at a time. What it is to write to its standard error is in `complaint`."""

    complaint = ""

    def say(self, *lines: str) -> None:
        """Have this done, without a pause between the lines."""
        raise NotImplementedError

    def hear(self) -> str:
        """The next answer."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def ask(self, line: str) -> str:
        """The answer to a line."""
        self.say(line)
        return self.hear()

    def begin(self, line: str) -> Callable[[], str]:
        """Have this done; the result gives the answer, and waits for it."""
        self.say(line)
        return self.hear

    def connect(self, server: FakeServer, *options: str, rank: int = 0, num_ranks: int = 1) -> str:
        """Take part, by the server's connection file."""
        return self.ask(f"connect {rank} {num_ranks} connection={server.path} {' '.join(options)}")

    def work(self, server: FakeServer) -> str:
        """Take part as a worker, which may say `next`."""
        return self.ask(f"work connection={server.path}")

    def begin_to_send(self, *steps: int, count: str = "4") -> Callable[[], list[str]]:
        """Have these steps sent; the result gives the answers, and waits for them."""
        self.say(*(line for step in steps for line in (f"put u float64 {count} {step}", f"send {step}")))
        return lambda: [[self.hear(), self.hear()][1] for _ in steps]

    def send(self, *steps: int, count: str = "4") -> list[str]:
        """Send these steps; the answers."""
        return self.begin_to_send(*steps, count=count)()

    def check_complaint(self, told: str) -> None:
        assert (self.complaint in told) if self.complaint else not told, told
        assert len(told.splitlines()) == bool(self.complaint)


class PythonClient(Client):
    """The Python client, in a thread of this process."""

    def __init__(self, stderr: pytest.CaptureFixture[str]) -> None:
        self._stderr = stderr
        self._driver = driver.Driver()
        self._said: deque[Future[list[str]]] = deque()
        self._answers: deque[str] = deque()

    def __enter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, "python-client")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self._driver._simulation is not None:
            self.ask("abandon")
        self._thread.shutdown(wait=kind is None)
        if kind is None:
            self.check_complaint(self._stderr.readouterr().err)

    def say(self, *lines: str) -> None:
        self._said.append(self._thread.submit(lambda: [self._driver.obey(line) for line in lines]))

    def hear(self) -> str:
        while not self._answers:
            self._answers.extend(self._said.popleft().result(DEADLINE_S))
        return self._answers.popleft()


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Python client wait no longer than the others."""
    for name, seconds in QUICK_S.items():
        [owner] = (it for it in (hello, session, watch) if hasattr(it, name))
        monkeypatch.setattr(owner, name, seconds)


def u(step: int) -> np.ndarray:
    """The values that `send` puts."""
    return values("float64", (4,), step)


def received(server: FakeServer) -> set[int]:
    return {index for _, index in server.steps}


def messages(server: FakeServer, kind: type) -> list:  # type: ignore[type-arg]
    return [it for of_rank in list(server.messages.values()) for it in list(of_rank) if isinstance(it, kind)]


def num_pings(server: FakeServer) -> int:
    return len(messages(server, Ping))


def assert_has(server: FakeServer, num: int, simulation: int = 7) -> None:
    """The server has so many steps, each as it was sent, and was told so."""
    assert sorted(server.steps) == [(simulation, index) for index in range(num)]
    assert all(np.array_equal(server.steps[simulation, index]["u"], u(index)) for index in range(num))
    ends = [it for it in messages(server, End) if it.incarnation == server.incarnation]
    assert sum(it.share for it in ends) == num
    assert {it.total for it in ends} == {num}
