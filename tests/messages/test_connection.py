"""The connection file and how a client finds it."""

import json
import stat
from pathlib import Path

import pytest

from stream_server.client_api.watch import watch
from stream_server.errors import ConfigError
from stream_server.messages.connection import ConnectionFile, Security, find

FILE = ConnectionFile(
    study="heat/1",
    incarnation=2,
    host="node7",
    control=("ipc:///tmp/x/control", "tcp://node7:5555"),
    simulation=17,
    attempt=1,
    parameters={"viscosity": 0.5},
    security=Security(server_public_key="a" * 40, client_public_key="b" * 40, client_secret_key="c" * 40),
)


def test_a_connection_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    FILE.write(tmp_path / "connection.json")
    assert ConnectionFile.read(tmp_path / "connection.json") == FILE


def test_only_the_owner_may_read_a_connection_file(tmp_path: Path) -> None:
    FILE.write(tmp_path / "connection.json")
    assert stat.S_IMODE((tmp_path / "connection.json").stat().st_mode) == 0o600


def test_writing_replaces_the_file_in_one_stroke_and_leaves_nothing_else(tmp_path: Path) -> None:
    FILE.write(tmp_path / "connection.json")
    FILE.write(tmp_path / "connection.json")
    assert [it.name for it in tmp_path.iterdir()] == ["connection.json"]


def test_the_secret_key_is_not_in_the_text_of_a_connection() -> None:
    assert "ccc" not in repr(FILE)


@pytest.mark.parametrize("content", ["", "{}", "[]", "no json", json.dumps({"study": "x", "control": 5}), '{"new": 1}'])
def test_another_file_is_named_as_no_connection_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"other\.json is not a connection file"):
        ConnectionFile.read(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("incarnation", "three"),
        ("incarnation", 3.5),
        ("study", 5),
        ("host", "a" * 2**16),
        ("control", "ipc:///tmp/x/control"),
        ("control", []),
        ("simulation", True),
        ("attempt", -1),
        ("parameters", {"viscosity": "thick"}),
        ("security", "curve"),
        ("security", {"server_public_key": "a" * 40}),
        ("security", dict.fromkeys(("server_public_key", "client_public_key", "client_secret_key"), "short")),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "connection.json"
    FILE.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(
        ConfigError, match=rf"connection\.json is not a connection file of this version: .* at `\$\.{key}"
    ):
        ConnectionFile.read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the connection file .*absent"):
        ConnectionFile.read(tmp_path / "absent.json")


def test_the_environment_names_the_connection_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FILE.write(tmp_path / "connection.json")
    monkeypatch.setenv("STREAM_CONNECTION", str(tmp_path / "connection.json"))
    watched = watch(None)
    assert watched is not None
    assert watched.file == FILE


def test_none_in_the_environment_means_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAM_CONNECTION", "none")
    assert find(None) is None


def test_without_any_connection_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAM_CONNECTION", raising=False)
    with pytest.raises(ConfigError, match="STREAM_CONNECTION is not set"):
        find(None)
