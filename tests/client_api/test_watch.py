"""The connection file, looked at again."""

import os
from pathlib import Path

import msgspec
import pytest

from stream_server.client_api import watch
from stream_server.client_api.watch import ConnectionWatch
from stream_server.messages.connection import ConnectionFile

FILE = ConnectionFile(study="heat/1", incarnation=2, host="node7", control=("tcp://node7:5555",))


def newer(incarnation: int = 3) -> ConnectionFile:
    return msgspec.structs.replace(FILE, incarnation=incarnation, control=("tcp://node8:5555",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    FILE.write(tmp_path / "connection.json")
    return tmp_path / "connection.json"


def test_a_file_of_a_later_incarnation_is_noticed(path: Path) -> None:
    watched = ConnectionWatch(FILE, path)
    assert not watched.newer_than(2, look_now=True)
    newer().write(path)
    assert watched.newer_than(2, look_now=True)
    assert not watched.newer_than(3)
    assert watched.file == newer()


def test_the_file_is_not_looked_at_all_the_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 1000.0)
    watched = ConnectionWatch(FILE, path)
    newer().write(path)
    assert not watched.newer_than(2)
    assert 900 < watched.slice_s <= 1000
    monkeypatch.setattr(watch, "LOOK_S", 0.0)
    assert watched.newer_than(2, look_now=True)
    assert watched.slice_s == 0


def test_a_file_that_did_not_change_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = ConnectionWatch(FILE, path)
    watched.newer_than(2, look_now=True)
    monkeypatch.setattr(ConnectionFile, "read", None)
    assert not watched.newer_than(2, look_now=True)


def test_a_file_of_the_same_or_an_older_incarnation_is_no_news(path: Path) -> None:
    watched = ConnectionWatch(FILE, path)
    for incarnation in (2, 1):
        newer(incarnation).write(path)
        assert not watched.newer_than(2, look_now=True)
        assert watched.file == FILE


def test_a_file_that_is_touched_says_once_that_a_server_will_come(path: Path) -> None:
    watched = ConnectionWatch(FILE, path)
    for num_touches in (0, 1, 0):
        for _ in range(num_touches):
            os.utime(path)
        assert not watched.newer_than(2, look_now=True)
        assert watched.was_touched() == bool(num_touches)
        assert not watched.was_touched()


def test_a_file_that_is_gone_or_broken_is_looked_at_again(path: Path) -> None:
    watched = ConnectionWatch(FILE, path)
    path.unlink()
    assert not watched.newer_than(2, look_now=True)
    path.write_text("{")
    assert not watched.newer_than(2, look_now=True)
    newer().write(path)
    assert watched.newer_than(2, look_now=True)


def test_a_relative_path_means_the_folder_of_the_beginning(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    watched = watch.watch("connection.json")
    assert watched is not None
    monkeypatch.chdir(os.sep)
    newer().write(path)
    assert watched.newer_than(2, look_now=True)


def test_a_connection_without_a_path_cannot_change() -> None:
    watched = watch.watch(FILE)
    assert watched is not None
    assert not watched.may_change
    assert not watched.newer_than(2, look_now=True)
    assert watched.slice_s == float("inf")
