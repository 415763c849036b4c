"""The file in which classes and objects of a script reach the server: whose it may be, and what comes out of it."""

import os
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from stream_server import live_parts
from stream_server.errors import ConfigError, UserCodeError
from stream_server.live_parts import MARK, SUFFIX, LiveObject, pickled, read_parts
from stream_server.user_code import load_class


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with parts, as a process finds it that has not written it."""
    scale = 3.0
    written = tmp_path / f"heat{SUFFIX}"
    written.write_bytes(pickled(written, {"model": lambda x: scale * x, "callbacks_0": LiveObject([1])}))
    written.chmod(0o600)
    monkeypatch.setattr(live_parts, "_known", {})
    return written


def test_a_part_is_loaded_by_its_name_as_one_of_a_file_in_python(file: Path) -> None:
    loaded = load_class(f"{file.name}:model", file.parent, kind="training.model.class")
    assert loaded(2) == 6.0
    with pytest.raises(ConfigError, match=r"heat\.study-parts\.pickle has no modle: write model"):
        load_class(f"{file.name}:modle", file.parent, kind="training.model.class")


def test_an_object_is_new_each_time(file: Path) -> None:
    make = read_parts(file)["callbacks_0"]
    make().append(2)
    assert make() == [1]


def test_who_has_written_the_parts_keeps_them_as_they_are(tmp_path: Path) -> None:
    class Own:
        pass

    written = tmp_path / f"heat{SUFFIX}"
    pickled(written, {"server": Own})
    assert read_parts(written)["server"] is Own


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda file: file.chmod(0o620), "Others may write into it"),
        (lambda file: file.unlink(), "No such file"),
        (lambda file: file.write_bytes(b"Written by Study.start() in Python 3.1\n"), "in this version"),
        (lambda file: file.write_bytes(file.read_bytes()[len(MARK) :]), "must begin with `Written by"),
    ],
)
def test_a_file_that_others_could_have_written_or_of_another_python_is_refused(
    file: Path, change: Any, told: str
) -> None:
    change(file)
    with pytest.raises(ConfigError, match=told):
        load_class(f"{file.name}:model", file.parent, kind="training.model.class")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give a file away")
def test_a_file_of_somebody_else_is_refused(file: Path) -> None:
    os.chown(file, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        read_parts(file)


def test_a_part_that_cannot_be_made_here_is_the_users_error(file: Path) -> None:
    file.write_bytes(MARK + b"cno_such_module\nNetwork\n.")
    with pytest.raises(UserCodeError, match=r"no package no_such_module, .*or put no_such_module.py into /"):
        load_class(f"{file.name}:model", file.parent, kind="training.model.class")


def test_a_part_that_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    lock = Lock()
    with pytest.raises(ConfigError, match=r"^model cannot be sent .*TypeError"):
        pickled(tmp_path / f"heat{SUFFIX}", {"server": dict, "model": lambda: lock})
