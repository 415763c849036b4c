"""The wheel: what is in it, and a study that runs from it alone.

It is built and installed without the network: its environment sees the packages of the tests, but not their editable
installation of this package, which hangs on a .pth file that is not read there.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.launch import alone
from tests.support.runs import LEFT_BY_WORK, NUMPY_STUDY, run_here

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
CONFIGS = REPOSITORY / "configs"
TEMPLATES = Path("stream_server/templates")
DEADLINE_S = 120
CLIENT_BYTES = 30_000_000

SMALL = {
    "study.simulations": 4,
    "validation.simulations": 1,
    "buffer.watermark": 50,
}


def run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment or alone([]).environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def files_below(folder: Path) -> set[Path]:
    """The files of a folder of the repository, without those that work has left there."""
    found = set()
    for place, folders, files in os.walk(REPOSITORY / folder):
        left = LEFT_BY_WORK(place, folders)
        folders[:] = [name for name in folders if name not in left]
        found |= {Path(place, name).relative_to(REPOSITORY) for name in files}
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as setuptools leaves its traces beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("stream_server", "configs"):
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=LEFT_BY_WORK)
    # What a study leaves in a checkout.
    (source / "configs" / "heat" / "runs" / "heat").mkdir(parents=True)
    (source / "configs" / "heat" / "runs" / "heat" / "report.json").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder)]
    run([*pip, "wheel", *options, str(source)], folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def packed(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as contents:
        return set(contents.namelist())


@pytest.fixture(scope="module")
def environment(wheel: Path) -> dict[str, str]:
    """An environment with the wheel; everything else is that of the tests, mpirun included."""
    place = wheel.parent / "env"
    run([sys.executable, "-m", "venv", "--without-pip", str(place)], wheel.parent)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(place)]
    run([*pip, "install", "--no-deps", "--no-index", str(wheel)], wheel.parent)
    shared = sysconfig.get_path("purelib")
    own = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
    # A folder is added as it is: .pth files in it, such as that of an editable installation, are not read.
    Path(own, "shared.pth").write_text(f"{shared}\n")
    variables = {name: value for name, value in alone([]).environment.items() if name != "PYTHONPATH"}
    # As `pip install mpich` would put it there.
    for library in (Path(sys.prefix) / "lib").iterdir():
        if not library.name.startswith("python"):
            (place / "lib" / library.name).symlink_to(library)
    return variables | {"PATH": os.pathsep.join((str(place / "bin"), variables["PATH"]))}


@pytest.fixture(scope="module")
def client_python(wheel: Path) -> Path:
    """The Python of an environment that `pip install --no-deps WHEEL numpy pyzmq msgspec` would make."""
    place = wheel.parent / "client"
    run([sys.executable, "-m", "venv", "--without-pip", str(place)], wheel.parent)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(place)]
    run([*pip, "install", "--no-deps", "--no-index", str(wheel)], wheel.parent)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    for name in ("numpy", "numpy.libs", "zmq", "pyzmq.libs", "msgspec"):
        shared = Path(sysconfig.get_path("platlib"), name)
        if shared.exists():
            (own / name).symlink_to(shared)
    return place / "bin" / "python"


def test_the_wheel_has_every_file_of_the_library(packed: set[str]) -> None:
    files = files_below(Path("stream_server/native")) | files_below(Path("stream_server/adapters/openfoam"))
    assert {file.as_posix() for file in files} - packed == set()


def test_the_wheel_has_the_examples_and_the_blank_study_and_nothing_that_a_study_left(packed: set[str]) -> None:
    files = [*CONFIGS.glob("*.json"), *(file for file in CONFIGS.glob("*/*") if file.is_file())]
    examples = {TEMPLATES / "examples" / file.relative_to(CONFIGS) for file in files}
    modules = {file.relative_to(REPOSITORY) for file in (REPOSITORY / TEMPLATES).glob("*.py")}
    expected = {file.as_posix() for file in examples | files_below(TEMPLATES / "blank") | modules}
    assert {name for name in packed if name.startswith(TEMPLATES.as_posix())} == expected


def test_the_code_of_the_wheel_is_what_runs_in_its_environment(environment: dict[str, str], tmp_path: Path) -> None:
    code = "import stream_server, sys; print(stream_server.__file__); print(sys.prefix)"
    file, prefix = run(["python", "-c", code], tmp_path, environment).split()
    assert file.startswith(prefix)
    assert prefix != sys.prefix


def test_a_study_is_made_and_run_from_the_wheel(environment: dict[str, str], tmp_path: Path) -> None:
    assert "heat-numpy" in run(["stream-study", "new", "--list"], tmp_path, environment)
    told = run(["stream-study", "new", "heat-numpy", "my-study"], tmp_path, environment)
    command = told.splitlines()[-1].removeprefix("next: ")
    assert command == "cd my-study && mpirun -n 2 stream-server --config study.json"
    small = "".join(f" --set {key}={value}" for key, value in SMALL.items())
    run(["sh", "-c", command + small], tmp_path, environment)
    report = json.loads((tmp_path / "my-study" / "runs" / "heat-numpy" / "report.json").read_text())
    assert report["balanced"] is True
    assert report["ranks"] == 2
    assert report["samples"]["trained"] == 400


IMPORT = """
import json, sys
import stream_server.client_api
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))))
"""


def test_the_client_is_imported_where_nothing_but_its_packages_is_there(client_python: Path, tmp_path: Path) -> None:
    packages = json.loads(run([str(client_python), "-c", IMPORT], tmp_path))
    # Debian's Python has one.
    others = {name for name in packages if not name.startswith(("_", "cython"))} - {"sitecustomize"}
    assert others == {"msgspec", "numpy", "stream_server", "zmq"}


def test_the_client_alone_takes_little_room_beside_numpy(client_python: Path) -> None:
    (site_packages,) = client_python.parents[1].glob("lib/python*/site-packages")
    places = [it.resolve() for it in site_packages.iterdir() if not it.name.startswith("numpy")]
    files = {file for place in places for file in (place.rglob("*") if place.is_dir() else [place]) if file.is_file()}
    assert sum(file.stat().st_size for file in files) <= CLIENT_BYTES


@pytest.mark.parametrize("command", ["stream-server", "stream-launcher", "stream-study"])
def test_a_command_beside_the_client_alone_says_what_brings_the_rest(
    client_python: Path, tmp_path: Path, command: str
) -> None:
    done = subprocess.run([client_python.with_name(command)], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{command} needs ")
    assert f"which is not installed in {client_python.parents[1]}: without its dependencies" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_study_is_fed_by_simulations_that_have_the_client_alone(client_python: Path, tmp_path: Path) -> None:
    settings = {"study.simulations": 2, "simulation.command": [str(client_python), "ripple.py"]}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    assert done.account["trained"] == 40
