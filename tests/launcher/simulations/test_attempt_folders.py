import errno
import json
import os
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from stream_server.launcher.simulations.attempt_folders import AttemptFolders
from stream_server.messages.connection import ConnectionFile, Security
from stream_server.messages.curve import KeyPair
from stream_server.storage.disk import hold_folder
from stream_server.storage.ownership import private_files

CONNECTION = ConnectionFile(study="heat-1", incarnation=0, host="node", control=("ipc:///tmp/x",))


@pytest.fixture
def attempts(tmp_path: Path) -> AttemptFolders:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "heat.nml").write_text("&heat t0={initial:.1f} id={simulation} / {other}\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho {initial}\n")
    (tmp_path / "run.sh").chmod(0o755)
    return AttemptFolders(
        command=("./solver", "inputs/heat.nml", "run.sh", "{attempt}"),
        templates=(tmp_path / "inputs" / "heat.nml", tmp_path / "run.sh"),
        environment={"PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
        seed=0,
        study_dir=tmp_path,
        output_dir=tmp_path / "runs" / "heat",
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_attempt_has_a_folder_of_its_own(attempts: AttemptFolders, tmp_path: Path) -> None:
    with private_files():
        spec = attempts.prepare(17, 2, {"initial": 300.0}, CONNECTION, None)
    assert spec.folder == tmp_path / "runs" / "heat" / "simulations" / "17" / "attempt-2"
    assert mode(spec.folder) == 0o700


def test_the_connection_file_names_the_attempt_and_only_its_owner_can_read_it(attempts: AttemptFolders) -> None:
    spec = attempts.prepare(17, 2, {"initial": 300.0}, CONNECTION, None)
    file = spec.folder / "connection.json"
    attempt = {"simulation": 17, "attempt": 2, "parameters": {"initial": 300.0}}
    assert ConnectionFile.read(file) == replace(CONNECTION, **attempt)
    assert mode(file) == 0o600


def test_with_curve_the_connection_file_holds_the_key_pair_of_the_attempt(attempts: AttemptFolders) -> None:
    study = Security(server_public_key="S" * 40, client_public_key="not", client_secret_key="passed on")
    spec = attempts.prepare(
        17, 0, {"initial": 300.0}, replace(CONNECTION, security=study), KeyPair(public="P", secret="K")
    )
    assert json.loads((spec.folder / "connection.json").read_text())["security"] == {
        "server_public_key": "S" * 40,
        "client_public_key": "P",
        "client_secret_key": "K",
    }
    assert "K" not in spec.command
    assert "K" not in spec.environment.values()


def test_a_simulation_finds_its_connection_in_its_environment(attempts: AttemptFolders) -> None:
    spec = attempts.prepare(17, 2, {"initial": 300.0}, CONNECTION, None)
    assert spec.environment == {
        "PATH": "/usr/bin",
        "OMP_NUM_THREADS": "1",
        "STREAM_CONNECTION": str(spec.folder / "connection.json"),
        "STREAM_SIMULATION_ID": "17",
        "STREAM_ATTEMPT": "2",
        "MELISSA_SIMU_ID": "17",
    }


def test_templates_are_rendered_into_the_folder_of_the_attempt(attempts: AttemptFolders) -> None:
    spec = attempts.prepare(17, 2, {"initial": 300.0}, CONNECTION, None)
    assert (spec.folder / "inputs" / "heat.nml").read_text() == "&heat t0=300.0 id=17 / {other}\n"
    assert mode(spec.folder / "run.sh") == 0o755
    assert spec.command == ("./solver", str(spec.folder / "inputs" / "heat.nml"), str(spec.folder / "run.sh"), "2")


def test_the_folder_of_an_attempt_is_never_used_again(attempts: AttemptFolders) -> None:
    first = attempts.prepare(17, 2, {"initial": 300.0}, CONNECTION, None)
    with pytest.raises(FileExistsError):
        attempts.prepare(17, 2, {"initial": 300.0}, CONNECTION, None)
    assert attempts.free_number(17, 2) == 3
    assert attempts.free_number(17, 1) == 1
    assert first.folder.exists()


def test_in_a_folder_that_has_taken_the_name_of_the_runs_nothing_is_prepared(attempts: AttemptFolders) -> None:
    with hold_folder(attempts.output_dir):
        attempts.output_dir.rename(attempts.output_dir.with_name("moved"))
        attempts.output_dir.mkdir()
        with pytest.raises(OSError, match="is another folder now: give that of this run its name back") as refused:
            attempts.prepare(17, 2, {"initial": 300.0}, CONNECTION, None)
    assert refused.value.errno == errno.ESTALE
    assert list(attempts.output_dir.iterdir()) == []


def test_a_connection_file_that_is_touched_stays_what_it_is(attempts: AttemptFolders) -> None:
    file = attempts.prepare(17, 2, {"initial": 300.0}, CONNECTION, None).folder / "connection.json"
    os.utime(file, (0, 0))
    before = file.read_bytes()
    attempts.touch(17, 2)
    assert file.stat().st_mtime > 0
    assert file.read_bytes() == before
    # One that is gone is no trouble.
    attempts.touch(17, 3)


def test_a_running_attempt_is_told_where_the_new_server_is_and_keeps_its_own(attempts: AttemptFolders) -> None:
    security = Security(server_public_key="S" * 40, client_public_key="A" * 40, client_secret_key="a" * 40)
    old = replace(CONNECTION, security=security)
    folder = attempts.prepare(17, 2, {"initial": 300.0}, old, KeyPair(public="P" * 40, secret="K" * 40)).folder
    new = replace(
        CONNECTION,
        incarnation=1,
        control=("ipc:///tmp/y",),
        security=replace(security, server_public_key="T" * 40),
    )
    attempts.reconnect(17, 2, new)
    file = folder / "connection.json"
    assert json.loads(file.read_text()) == {
        "study": "heat-1",
        "incarnation": 1,
        "host": "node",
        "control": ["ipc:///tmp/y"],
        "simulation": 17,
        "attempt": 2,
        "parameters": {"initial": 300.0},
        "security": {"server_public_key": "T" * 40, "client_public_key": "P" * 40, "client_secret_key": "K" * 40},
    }
    assert mode(file) == 0o600
    assert [path.name for path in folder.iterdir() if "connection" in path.name] == ["connection.json"]
