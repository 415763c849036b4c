"""The import rules of DESIGN.md: which part knows which, and one door per dependency."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "stream_server"
FILES = sorted(PACKAGE.rglob("*.py"))

KNOWS = {
    "errors": {"errors"},
    "failpoints": {"failpoints"},
    "disk": {"disk"},
    "config": {"config", "errors", "failpoints"},
    "client_api": {"client_api", "disk", "errors", "failpoints"},
    "buffers": {"buffers", "errors", "failpoints"},
    "launcher": {"launcher", "config", "disk", "errors", "failpoints"},
    "analysis": {"analysis", "config", "errors"},
    "server": {"server", "launcher", "buffers", "client_api", "config", "disk", "errors", "failpoints"},
}

DOORS = {
    "mpi4py": ["server/ranks.py"],
    "zmq": [
        *("client_api/transport.py", "server/sockets.py", "server/sign_of_life.py", "server/access.py"),
        *("launcher/sockets.py", "launcher/liveness.py"),
    ],
    "tensorboard": ["server/training/tensorboard_writer.py"],
    "psij": ["launcher/jobs.py"],
    "pandas": ["analysis/export.py"],
    "pyarrow": ["analysis/export.py"],
    "matplotlib": ["analysis/figures.py", "analysis/plot.py"],
    "safetensors": ["server/tensor_file.py"],
    "torch": ["server/torch_*.py", "server/training/torch_*.py"],
    "lightning_fabric": ["server/training/torch_lightning.py"],
}

CLIENT_NEVER_LOADS = {"torch", "mpi4py", "pydantic", "scipy", "lightning", "lightning_fabric", "psij", "rich"}
CLIENT_IMPORT_S = 0.3


def relative(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def part(module_parts: list[str]) -> str:
    """The part of the package a dotted path below `stream_server` belongs to."""
    return module_parts[0].removesuffix(".py") if module_parts else ""


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


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_a_part_imports_only_the_parts_it_may_know(file: Path) -> None:
    own_part = part(list(file.relative_to(PACKAGE).parts))
    allowed = KNOWS.get(own_part, set(KNOWS))
    parts = {part(module[1:]) for module in imported(file) if module[0] == "stream_server"}
    assert parts & set(KNOWS) <= allowed


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


def test_importing_the_client_takes_less_than_0_3_s() -> None:
    # Of a core: how many others share it with us is not the client's affair.
    code = "from time import process_time as now; start = now(); import stream_server.client_api as api; api.connect"
    code += "; print(now() - start)"
    durations = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(7)]
    assert min(durations) < CLIENT_IMPORT_S


def test_starting_a_rank_does_not_import_torchmetrics_which_fabric_only_looks_at() -> None:
    code = "import sys, stream_server.server.torch_server; print('torchmetrics' in sys.modules); import torchmetrics"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False"]
