"""The environments that `make` makes, and what README and `make help` say of the two commands."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.install.pins import CONSTRAINTS, Pin, pins, promised

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPENMPI = ROOT / ".venv-openmpi"


# An environment that is not there.
NEW = "VENV=.venv-that-is-not-there"


def make(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    # The `make` that runs the tests passes on its own variables.
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON", "VENV"))}
    variables["PATH"] = os.pathsep.join(filter(None, (path, variables["PATH"])))
    return subprocess.run(["make", *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)


def closure(requirements: list[Requirement]) -> set[str]:
    """The names of all packages that come with requirements, by the metadata of what is installed."""
    names = set[str]()
    waiting = [(requirement, extra) for requirement in requirements for extra in ("", *requirement.extras)]
    seen = set[tuple[str, str]]()
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        names.add(name)
        for text in importlib.metadata.requires(name) or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed, more) for more in ("", *needed.extras)]
    return names


def installed() -> Iterator[importlib.metadata.Distribution]:
    yield from importlib.metadata.distributions()
    yield from importlib.metadata.distributions(path=[str(it) for it in OPENMPI.glob("lib/python*/site-packages")])


def test_help_and_the_beginning_of_the_readme_show_the_two_commands_first() -> None:
    assert [line.split()[1] for line in make("help").stdout.splitlines()[:2]] == ["demo", "test"]
    beginning = (ROOT / "README.md").read_text().splitlines()[:20]
    for command in "make demo", "make test":
        (line,) = (line for line in beginning if line.strip().startswith(command))
        assert re.search(r"\d+ (s|minutes)", line), "how long it takes"


def test_the_environment_of_the_demo_has_nothing_that_only_the_tests_need() -> None:
    (install,) = re.findall(r"pip .*install.* --editable (.*)", make("--dry-run", NEW, "demo").stdout)
    lean = closure([*map(Requirement, PROJECT["dependencies"]), Requirement("mpich")])
    assert install == ". mpich"
    optional = {
        canonicalize_name(Requirement(text).name)
        for extra in PROJECT["optional-dependencies"].values()
        for text in extra
    } - {"stream-server"}
    assert {"atheris", "jax", "mkdocs-material", "mypy", "pytest", "selenium"} <= optional
    assert lean & optional == set()
    assert {"torch", "numpy", "mpi4py"} <= lean


def test_the_tests_add_to_the_environment_of_the_demo() -> None:
    told = make("--dry-run", NEW, "quick").stdout
    assert re.findall(r"pip .*install.* --editable (.*)", told) == [". mpich", "'.[dev]'"]
    assert told.count("-m venv") == 1


def test_an_environment_keeps_its_python_when_what_it_has_changes(tmp_path: Path) -> None:
    for name in "Makefile", "pyproject.toml", "constraints.txt":
        (tmp_path / name).symlink_to(ROOT / name)
    arguments = ["--dry-run", "--directory", str(tmp_path), "demo", f"PYTHON={sys.executable}"]
    assert f"{sys.executable} -m venv --clear .venv\n" in make(*arguments).stdout
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "pip").touch()
    told = make(*arguments).stdout
    assert "--editable . mpich" in told
    assert "-m venv" not in told


def test_without_a_suitable_python_make_says_what_to_do(tmp_path: Path) -> None:
    for name in "python3", *(f"python3.{minor}" for minor in range(11, 15)):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    for arguments, found in ([], "none on the PATH"), (["PYTHON=python3"], "python3"):
        done = make(NEW, "demo", *arguments, path=str(tmp_path))
        assert done.returncode == 2
        assert "needs Python 3.11 or newer with its modules venv and ensurepip" in done.stderr
        assert f"found {found}." in done.stderr
        assert "sudo apt-get install python3-venv" in done.stderr
        assert "make demo PYTHON=/path/to/python3.12" in done.stderr


def test_the_first_python_on_the_path_that_suits_is_taken(tmp_path: Path) -> None:
    for name, status in ("python3", 1), ("python3.14", 1), ("python3.13", 0):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    done = make("--dry-run", NEW, "demo", path=str(tmp_path))
    assert "\npython3.13 -m venv --clear .venv-that-is-not-there\n" in done.stdout


def test_every_pin_holds_for_every_python_that_is_promised() -> None:
    """Packages that are not installed here name their Requires-Python in a comment (`python -m tests.install.pins`)."""
    known = {
        (canonicalize_name(it.name), it.version.partition("+")[0]): it.metadata.get("Requires-Python")
        for it in installed()
    }
    wrong = []
    for pin in pins(CONSTRAINTS.read_text()):
        wants = known.get((pin.name, pin.version), pin.comment)
        if wants is None and (pin.name, pin.version) not in known:
            wrong.append(f"{pin.text}: not installed here, so it needs a comment: # Python >=…")
            continue
        if pin.comment is not None and SpecifierSet(pin.comment) != SpecifierSet(wants or "") and wants:
            wrong.append(f"{pin.text}: wants {wants}")
        if refused := [
            python for python in promised() if pin.is_for(python) and python not in SpecifierSet(wants or "")
        ]:
            wrong.append(f"{pin.text}: wants {wants}, which Python {', '.join(refused)} is not")
    assert wrong == []


def test_every_python_has_one_pin_of_each_package() -> None:
    by_name: dict[str, list[Pin]] = {}
    for pin in pins(CONSTRAINTS.read_text()):
        by_name.setdefault(pin.name, []).append(pin)
    for name, some in by_name.items():
        for python in promised():
            assert sum(pin.is_for(python) for pin in some) == 1 or len(some) == 1, f"{name} with Python {python}"


@pytest.mark.parametrize(
    ("text", "python", "holds"),
    [
        ('a==1; python_full_version < "3.11.5"', "3.11.2", True),
        ('a==1; python_full_version < "3.11.5"', "3.11.7", False),
        ('a==1; python_version < "3.14"', "3.14.1", False),
        ("a==1", "3.14.1", True),
    ],
)
def test_a_marker_says_for_which_python_a_pin_is(text: str, python: str, holds: bool) -> None:
    (pin,) = pins(text)
    assert pin.is_for(python) == holds


def test_each_package_of_the_demo_is_pinned() -> None:
    pinned = {pin.name for pin in pins(CONSTRAINTS.read_text())}
    free = closure([*map(Requirement, PROJECT["dependencies"]), Requirement("mpich")]) - pinned
    # torch pins its own packages of CUDA.
    assert {name for name in free if not name.startswith(("cuda-", "nvidia-", "triton"))} == set()


def test_what_torch_says_of_a_version_of_python_fails_no_test() -> None:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    text = '"(Guards may run slower on Python .*)"'
    (said,) = re.findall(text, (Path(spec.origin).parent / "_dynamo" / "guards.py").read_text())
    warnings.warn(said, RuntimeWarning, stacklevel=1)
