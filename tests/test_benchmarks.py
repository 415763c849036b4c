"""The benchmarks start: they are run by hand, and nothing else would notice."""

from pathlib import Path

from benchmarks.__main__ import BENCHMARKS

FOLDER = Path(__file__).parent.parent / "benchmarks"


def test_every_benchmark_has_a_name_of_its_own_and_can_be_called() -> None:
    packages = {package.parent.name for package in FOLDER.glob("*/__init__.py")}
    modules = {module.stem for module in FOLDER.glob("*.py")}
    assert not packages & modules
    assert all(map(callable, BENCHMARKS.values()))
