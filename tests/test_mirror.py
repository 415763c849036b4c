"""The tests of a module are where its name says: `tests` has the folders of the package."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_imports import MAX_FILES, MODULES, ROOMS, TESTS, imports, room_of

# Where the tests are of modules that no test in the folder of their room reaches.
ELSEWHERE = {
    "analysis.follow": "security/files/test_what_is_no_file.py",
    "analysis.live": "server/reception/test_operator_desk.py",
    "analysis.page": "security/files/test_links.py",
    "analysis.story": "study/commands/test_why.py",
    "backends": "launcher/backends/test_own_backend.py",
    "buffers.batch_memory": "server/training/test_stream.py",
    "built_in": "extending/test_built_in.py",
    "config.command_line": "launcher/supervision/test_cli.py",
    "doctor.rank": "doctor/test_doctor.py",
    "entry_points": "security/files/test_import_path.py",
    "extras": "commands/test_cli.py",
    "machine.caches": "security/files/test_caches.py",
    "machine.descriptors": "faults/resources/test_descriptors.py",
    "machine.garbage": "study/ends/test_held_ends.py",
    "machine.run_folder": "security/files/test_files.py",
    "machine.signals": "study/ends/test_signals.py",
    "messages.ipc": "security/messages/test_who_is_the_server.py",
    "messages.launcher_link": "launcher/simulations/test_server_connection.py",
    "messages.launcher_endpoint": "mpi/test_refusing.py",
    "messages.operator": "server/reception/test_operator_desk.py",
    "messages.simulation_phase": "server/simulations/test_roster_restart.py",
    "messages.tcp": "faults/network/test_ipv6.py",
    "samplers.sequences": "server/simulations/test_design.py",
    "server.intake.admission": "server/reception/test_receiver.py",
    "server.intake.mailbox": "server/reception/test_receiver.py",
    "server.intake.source": "server/replay/test_source.py",
    "server.metrics.union_mean": "server/training/validation/test_validation.py",
    "server.reception.build": "machine/test_program.py",
    "server.reception.heartbeat": "launcher/supervision/test_liveness.py",
    "server.reception.simulation_stop": "study/ends/test_early_end.py",
    "server.run.build": "extending/test_policies.py",
    "server.run.identity": "server/checkpoint/test_continuation.py",
    "server.study.saved_server": "server/commands/test_evaluate.py",
    "server.training.torch.framework": "gpu/test_step.py",
    "server.user.no_training": "study/training/test_offline.py",
    "server.user.stream_dataset": "server/training/test_train_dataloader.py",
    "server.user.torch_server": "server/training/torch/test_step.py",
    "storage.library_file": "server/replay/test_simulation_files.py",
    "storage.lines": "launcher/journal/test_journal.py",
    "storage.shards": "server/training/torch/test_shards.py",
    "storage.tensor_file": "server/model/test_model_export.py",
    "storage.typed": "server/checkpoint/test_incarnations.py",
    "studies.run": "studies/test_study.py",
}


def folder_of(room: str) -> Path:
    return TESTS.joinpath(*filter(None, room.split(".")))


def _names(file: Path) -> Iterator[str]:
    """The modules that a test file may import, dotted, below the package."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("stream_server."):
            module = node.module.removeprefix("stream_server.")
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.module == "stream_server":
            yield from (alias.name for alias in node.names)


@cache
def reached(room: str) -> set[str]:
    """The modules of a room that tests in its folder name or import, and what these import of the room."""
    own = {name for name in MODULES if room_of(name) == room}
    files = list(folder_of(room).glob("test_*.py"))
    prefix = f"{room}." if room else ""
    new = own & {name for file in files for name in (prefix + file.stem.removeprefix("test_"), *_names(file))}
    found: set[str] = set()
    while new:
        found |= new
        new = {it for name in new for it in imports(name) & own} - found
    return found


@pytest.mark.parametrize("room", ["", *ROOMS], ids=lambda room: room or "package")
def test_each_module_has_a_test_in_the_folder_of_its_room_or_is_listed(room: str) -> None:
    modules = {name for name in MODULES if name and name not in ROOMS and room_of(name) == room}
    assert modules - reached(room) - ELSEWHERE.keys() == set()


def test_a_test_that_is_listed_is_there() -> None:
    assert [it for it in ELSEWHERE if it not in MODULES] == []
    assert [it for it in ELSEWHERE.values() if not (TESTS / it).exists()] == []


def test_a_folder_has_at_most_twenty_files_of_tests() -> None:
    folders = {file.parent for file in TESTS.rglob("test_*.py")}
    assert [it for it in folders if len(list(it.glob("test_*.py"))) > MAX_FILES] == []
