"""The import rules of DESIGN.md: which room knows which, by what name, and one door per dependency.

Why: docs/decisions/0093-import-rules.md
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "stream_server"
# Folders in `templates` hold code of users.
FILES = sorted(set(PACKAGE.rglob("*.py")) - set(PACKAGE.glob("templates/*/**/*.py")))

DOORS = {
    "mpi4py": ["server/ranks/communicator.py"],
    "zmq": [
        *(
            "client_api/transport.py",
            "server/reception/sockets.py",
            "server/reception/heartbeat.py",
            "messages/connection_guard.py",
            "messages/curve.py",
            "messages/tcp.py",
        ),
        *(
            "launcher/simulations/remote_access.py",
            "launcher/simulations/server_connection.py",
            "launcher/supervision/liveness.py",
            "analysis/live.py",
        ),
    ],
    "gest_api": [
        *(f"samplers/{name}.py" for name in ("breed", "generative", "learning", "uncertainty", "vocs")),
    ],
    "tensorboard": ["server/metrics/tensorboard_writer.py"],
    "adios2": ["adapters/adios_stream.py"],
    "h5py": ["adapters/follow_formats.py", "server/replay/simulation_file.py"],
    "meshio": ["adapters/follow_formats.py", "adapters/follow_series.py"],
    "IPython": ["studies/notebook.py"],
    "pyarrow": ["analysis/export.py"],
    "bokeh": [f"dashboard/{name}.py" for name in ("charts", "page", "predictions", "serving", "texts")],
    "prometheus_client": ["server/study/prometheus.py"],
    "tornado": ["dashboard/serving.py"],
    "matplotlib": ["analysis/figures.py", "analysis/plot.py", "studies/notebook.py"],
    "safetensors": ["storage/tensor_file.py"],
    "torch": [
        "samplers/generative.py",
        "samplers/networks.py",
        "samplers/uncertainty.py",
        "server/training/torch/*.py",
        "server/user/torch_server.py",
        "server/user/stream_dataset.py",
        "studies/run.py",
        "studies/trained.py",
    ],
    "pandas": ["studies/notebook.py", "studies/run.py"],
}

CLIENT_NEVER_LOADS = {"torch", "mpi4py", "pydantic", "scipy", "rich"}
# Each costs a tenth of a second or more, and most are on the disk that a thousand simulations share.
LAUNCHER_NEVER_LOADS = {"torch", "mpi4py", "numpy", "scipy", "rich", "tensorboard", "google", "h5py", "asyncio", "ssl"}
SLOW = re.compile(
    r"^(?:import|from) (?:torch|matplotlib|scipy|jax|bokeh|stream_server\.(?:analysis|dashboard|studies))\b"
)
CLIENT_IMPORT_S = 0.3
MAX_FILES = 20


def relative(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@cache
def room_of(module: str) -> str:
    """The room of a module below `stream_server`, both dotted; a room is in itself."""
    return module if (PACKAGE / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]


@cache
def imported(file: Path) -> list[list[str]]:
    """Every module that a file imports, anywhere in it, as absolute dotted path split at the dots."""
    return list(_imports(file))


def _imports(file: Path) -> Iterator[list[str]]:
    package = ["stream_server", *file.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = above + (node.module.split(".") if node.module else [])
            yield from ([*module, alias.name] for alias in node.names)


def own(file: Path) -> str:
    """The dotted name of a file's module, below `stream_server`."""
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


MODULES = {own(file): file for file in FILES}
ROOMS = sorted(name for name, file in MODULES.items() if name and file.name == "__init__.py")


@cache
def imports(name: str) -> set[str]:
    """The modules below `stream_server` that a module imports."""
    dotted = [".".join(it[1:]) for it in imported(MODULES[name]) if it[0] == "stream_server"]
    return {it if it in MODULES else it.rpartition(".")[0] for it in dotted} - {name}


@cache
def promised(room: str, what: str) -> set[str] | None:
    """The list in a room's docstring under `what`: the modules that it offers, or the rooms that it may import."""
    text = ast.get_docstring(ast.parse(MODULES[room].read_text())) or ""
    found = re.search(rf"^{what}: ([^:]*?)\.$", text, re.MULTILINE | re.DOTALL)
    return {it.strip() for it in found[1].split(",")} - {"none"} if found else None


def from_outside(room: str) -> Iterator[tuple[str, str]]:
    """Each import between this room and another one: the importing module, and the imported."""
    return (
        (name, found)
        for name in MODULES
        if room_of(name) == room and name != room
        for found in imports(name)
        if room_of(found) not in {room, ""}
    )


def imported_rooms(room: str) -> set[str]:
    return {room_of(found) for _, found in from_outside(room)}


def may_import(room: str) -> set[str]:
    """The rooms that a room says it may import; which those are that do not import it, the test of circles knows."""
    rooms = promised(room, "May import") or set()
    return imported_rooms(room) if rooms == {"all rooms that do not import it"} else rooms


def circles(edges: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_exactly_which_rooms_it_imports(room: str) -> None:
    assert imported_rooms(room) == may_import(room)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_exactly_which_of_its_modules_the_others_import(room: str) -> None:
    used = {found for other in ROOMS for _, found in from_outside(other) if room_of(found) == room}
    assert {found.rpartition(".")[2] for found in used - {room}} == promised(room, "Offers")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_at_most_twenty_files(room: str) -> None:
    assert len(list((PACKAGE / room.replace(".", "/")).glob("*.py"))) <= MAX_FILES


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles({name: imports(name) for name in MODULES}) == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    assert circles({room: may_import(room) for room in ROOMS}) == []


def test_what_users_subclass_never_imports_the_training() -> None:
    reached, new = set(), {"server.user"}
    while new:
        reached |= new
        new = {it for room in new for it in may_import(room)} - reached
    assert not [room for room in reached if room.startswith(("server.training", "server.study"))]


@pytest.mark.parametrize("dependency", DOORS)
def test_a_dependency_has_one_door(dependency: str) -> None:
    users = {relative(file) for file in FILES for module in imported(file) if module[0] == dependency}
    assert {user for user in users if not any(fnmatch(user, door) for door in DOORS[dependency])} == set()


def test_importing_the_client_loads_numpy_and_zmq_only() -> None:
    code = (
        "import sys; from stream_server.client_api import connect; print(*{name.split('.')[0] for name in sys.modules})"
    )
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert {"numpy", "zmq"} <= loaded
    assert loaded & CLIENT_NEVER_LOADS == set()


def test_importing_the_launcher_loads_nothing_that_computes_or_draws_and_looks_for_no_plugins_of_pydantic() -> None:
    code = """
import importlib.metadata, os, sys
importlib.metadata.entry_points, before = None, dict(os.environ)
import stream_server.launcher.supervision.cli
assert os.environ == before
print(*{name.split('.')[0] for name in sys.modules})
"""
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert {"pydantic", "zmq"} <= loaded
    assert loaded & LAUNCHER_NEVER_LOADS == set()


def test_importing_the_client_takes_less_than_0_3_s() -> None:
    # Of a core: how many others share it with us is not the client's affair.
    code = "from time import process_time as now; start = now(); import stream_server.client_api as api; api.connect"
    code += "; print(now() - start)"
    assert any(float(subprocess.check_output([sys.executable, "-c", code])) < CLIENT_IMPORT_S for _ in range(7))


def test_starting_a_rank_does_not_import_torchmetrics() -> None:
    assert find_spec("torchmetrics")
    code = "import sys, stream_server.server.user.torch_server; print('torchmetrics' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False"]


@pytest.mark.parametrize("file", sorted(TESTS.rglob("conftest.py")), ids=lambda file: file.parent.name)
def test_no_conftest_which_each_process_of_a_run_imports_loads_what_takes_seconds(file: Path) -> None:
    nodes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [ast.unparse(node) for node in nodes if SLOW.search(ast.unparse(node))]


def test_no_two_classes_have_the_same_name() -> None:
    names = Counter(
        name for file in FILES for name in re.findall(r"^ *class (\w+)[(:]", file.read_text(), re.MULTILINE)
    )
    assert [name for name, num in names.items() if num > 1] == []
