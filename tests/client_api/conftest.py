"""The fixtures of the tests that every client must pass."""

from collections.abc import Callable, Iterator

import pytest

from tests.client_api.clients import Client, PythonClient, quicken
from tests.native.native_client import NativeClient, fortran_program, library, program

__all__ = ["fortran_program", "library", "program"]


@pytest.fixture(params=["python", "c", pytest.param("fortran", marks=pytest.mark.full)])
def begin(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], Client]:
    """Makes clients of each language."""
    if request.param == "python":
        quicken(monkeypatch)
        return lambda: PythonClient(capsys)
    program = request.getfixturevalue({"c": "program", "fortran": "fortran_program"}[request.param])
    return lambda: NativeClient(program)


@pytest.fixture
def client(begin: Callable[[], Client]) -> Iterator[Client]:
    """A client of each language."""
    with begin() as client:
        yield client
