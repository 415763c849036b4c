"""The clients of all languages say the same: what is in tests/vectors."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.conformance import build, vectors
from tests.native.conformance.case import DTYPES, Case
from tests.native.conformance.cases import CASES
from tests.native.conformance.run import play_case, run
from tests.native.conformance.script import Driver

BY_NAME = {case.name: case for case in CASES}
OF_FORTRAN = ("float32", "float64", "int32", "int64")
NOT_IN_FORTRAN = tuple(f"dtype_{dtype}" for dtype in DTYPES if dtype not in OF_FORTRAN)
IN_FORTRAN = [case for case in CASES if case.name not in NOT_IN_FORTRAN]
# Some of each kind: valgrind is slow. The sanitizers look at all.
UNDER_VALGRIND = (
    "parts_again",
    *(
        pytest.param(it, marks=pytest.mark.full)
        for it in ("page", "mistakes", "stopped_later", "optional", "worker", "static_parts", "ragged")
    ),
)
VALGRIND = (
    *("valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite,indirect"),
    *("--errors-for-leak-kinds=definite,indirect", "--fair-sched=yes", "--vgdb=no"),
)


def name_of(case: Case) -> str:
    return case.name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return build.client_archive(folder / "plain")


@pytest.fixture(scope="module")
def c_driver(library: Path) -> Path:
    return build.c_driver(library)


@pytest.fixture(scope="module")
def fortran_driver(library: Path) -> Path:
    return build.fortran(library, "driver_fortran", build.HERE / "driver.f90")


@pytest.fixture(scope="module")
def sanitized_c_driver(folder: Path) -> Path:
    return build.c_driver(build.client_archive(folder / "sanitized", *build.SANITIZERS), *build.SANITIZERS)


@pytest.fixture(scope="module")
def python_driver() -> Iterator[Driver]:
    with Driver([sys.executable, "-m", "tests.native.conformance.driver"]) as driver:
        yield driver


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_python_says_what_is_in_the_vector(case: Case, python_driver: Driver) -> None:
    assert run(case, python_driver) == vectors.path(case).read_text()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_c_says_what_is_in_the_vector(case: Case, c_driver: Path) -> None:
    with Driver([str(c_driver)]) as driver:
        assert run(case, driver) == vectors.path(case).read_text()


@pytest.mark.parametrize("case", IN_FORTRAN, ids=name_of)
def test_fortran_says_what_is_in_the_vector(case: Case, fortran_driver: Path) -> None:
    with Driver([str(fortran_driver)]) as driver:
        assert run(case, driver) == vectors.path(case).read_text()


@pytest.mark.parametrize("name", NOT_IN_FORTRAN)
def test_fortran_has_no_other_types(name: str, fortran_driver: Path) -> None:
    with Driver([str(fortran_driver)]) as driver:
        played = play_case(BY_NAME[name], driver).played
    assert {answer for line, answer in played if line.startswith("put")} == {"unsupported"}


@pytest.mark.parametrize("case", [it for it in CASES if it.own_words], ids=name_of)
def test_c_and_fortran_tell_a_mistake_in_the_same_words(case: Case, c_driver: Path, fortran_driver: Path) -> None:
    with Driver([str(c_driver)]) as driver:
        told_by_c = play_case(case, driver).played
    with Driver([str(fortran_driver)]) as driver:
        assert play_case(case, driver).played == told_by_c
    assert all(answer.startswith("error CONNECTION_FILE: ") for _, answer in told_by_c if answer)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_c_is_clean_under_the_sanitizers(case: Case, sanitized_c_driver: Path) -> None:
    with Driver([str(sanitized_c_driver)]) as driver:
        assert run(case, driver) == vectors.path(case).read_text()


@pytest.mark.parametrize("name", UNDER_VALGRIND)
def test_c_is_clean_under_valgrind(name: str, c_driver: Path) -> None:
    with Driver([*VALGRIND, str(c_driver)]) as driver:
        assert run(BY_NAME[name], driver) == vectors.path(BY_NAME[name]).read_text()


def test_fortran_is_clean_under_valgrind(fortran_driver: Path) -> None:
    with Driver([*VALGRIND, str(fortran_driver)]) as driver:
        assert run(BY_NAME["layouts"], driver) == vectors.path(BY_NAME["layouts"]).read_text()
