"""The C client under test: a program in which it lives, told line by line what to do (see conformance/script.py)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.client_api.clients import QUICK_S, Client
from tests.native.building import run
from tests.native.conformance import build
from tests.native.conformance.script import Driver
from tests.needs import need

PROGRAMS = Path(__file__).parent / "programs"
QUICK = tuple(f"-DSC_{name}={seconds}" for name, seconds in QUICK_S.items())


class NativeClient(Driver, Client):
    """A process with these `variables` in its environment."""

    def __init__(self, program: Path, **variables: str) -> None:
        super().__init__(["env", *(f"{name}={value}" for name, value in variables.items()), str(program)])

    def __enter__(self) -> Self:
        return self

    def check_complaint(self, told: str) -> None:
        Client.check_complaint(self, told)


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


@pytest.fixture(scope="session")
def fortran_program(library: Path) -> Path:
    """The driver in Fortran with it."""
    return build.fortran(library, "driver_fortran", build.HERE / "driver.f90", *build.SANITIZERS)


@pytest.fixture
def client(program: Path) -> Iterator[NativeClient]:
    """The driver, running."""
    with NativeClient(program) as client:
        yield client
