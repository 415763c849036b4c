"""The C client under test: a program in which it lives, told line by line what to do (see conformance/script.py)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest

from stream_server.messages.client import End, FieldSpec
from tests.native.building import run
from tests.native.conformance import build
from tests.native.conformance.script import DEADLINE_S, Driver, unexpected
from tests.native.conformance.values import values
from tests.needs import need
from tests.support.fake_server import FakeServer

PROGRAMS = Path(__file__).parent / "programs"
# Nobody waits for half a second here.
RELEASE_S = 0.1
QUICK = (
    "-DSC_LOOK_S=0.01",
    "-DSC_PING_S=0.05",
    "-DSC_REOPEN_S=0.05",
    "-DSC_REPEAT_S=0.1",
    "-DSC_REFUSED_S=0.2",
    "-DSC_OVERSLEPT_S=0.1",
    f"-DSC_RELEASE_S={RELEASE_S}",
)
SMALL = (FieldSpec(name="u", shape=(4,)),)


class NativeClient(Driver):
    """A process with one simulation at a time, and these `variables` in its environment.

    What it is to write to its standard error is in `complaint`.
    """

    def __init__(self, program: Path, **variables: str) -> None:
        super().__init__(["env", *(f"{name}={value}" for name, value in variables.items()), str(program)])
        self.complaint = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.process.kill()
        try:
            _, told = self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()
        if kind is None:
            assert self.process.returncode == 0, told.decode()
            told_else = unexpected(told)
            assert (self.complaint in told_else) if self.complaint else not told_else, told_else
            assert len(told_else.splitlines()) == bool(self.complaint)

    def ask(self, line: str) -> str:
        """The answer to a line."""
        self.say(line)
        return self.hear()

    def connect(self, server: FakeServer, *options: str, rank: int = 0, num_ranks: int = 1) -> str:
        """Take part, by the server's connection file."""
        return self.ask(f"connect {rank} {num_ranks} connection={server.path} {' '.join(options)}")

    def begin_to_send(self, *steps: int, count: str = "4") -> Callable[[], list[str]]:
        """Have these steps sent; the result gives the answers, and waits for them."""
        for step in steps:
            self.say(f"put u float64 {count} {step}")
            self.say(f"send {step}")
        return lambda: [[self.hear(), self.hear()][1] for _ in steps]

    def send(self, *steps: int, count: str = "4") -> list[str]:
        """Send these steps; the answers."""
        return self.begin_to_send(*steps, count=count)()

    def begin(self, line: str) -> Callable[[], str]:
        """Have this done; the result gives the answer, and waits for it."""
        self.say(line)
        return self.hear


def u(step: int) -> np.ndarray:
    """The values that `send` puts."""
    return values("float64", (4,), step)


def received(server: FakeServer) -> set[int]:
    return {index for _, index in server.steps}


def messages(server: FakeServer, kind: type) -> list:  # type: ignore[type-arg]
    return [it for of_rank in list(server.messages.values()) for it in list(of_rank) if isinstance(it, kind)]


def assert_has(server: FakeServer, num: int, simulation: int = 7) -> None:
    """The server has so many steps, each as it was sent, and was told so."""
    assert sorted(server.steps) == [(simulation, index) for index in range(num)]
    assert all(np.array_equal(server.steps[simulation, index]["u"], u(index)) for index in range(num))
    ends = [it for it in messages(server, End) if it.incarnation == server.incarnation]
    assert sum(it.share for it in ends) == num
    assert {it.total for it in ends} == {num}


def built(library: Path, folder: Path, source: str, *options: str) -> Path:
    """A program of the folder `programs`, with the `library` of the fixture."""
    executable = folder / Path(source).stem
    words = ["gcc", "-std=c11", "-g", "-Wall", "-Wextra", "-Werror", *build.SANITIZERS, f"-I{build.NATIVE / 'include'}"]
    run([*words, *options, str(PROGRAMS / source), str(library), *build.LIBRARIES, "-o", str(executable)], cwd=folder)
    return executable


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick client, under ASan and UBSan; import it into the module of the tests, as the next two."""
    need("compilers")
    return build.client_archive(tmp_path_factory.mktemp("native-client") / "quick", *build.SANITIZERS, *QUICK)


@pytest.fixture(scope="session")
def program(library: Path) -> Path:
    """The driver with it."""
    return build.c_driver(library, *build.SANITIZERS)


@pytest.fixture
def client(program: Path) -> Iterator[NativeClient]:
    """The driver, running."""
    with NativeClient(program) as client:
        yield client
