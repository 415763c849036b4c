"""The file in which classes and objects of a script reach the server: whose it may be, and what comes out of it."""

import os
import sys
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch

from stream_server import live_parts
from stream_server.errors import ConfigError, UserCodeError
from stream_server.live_parts import MARK, SUFFIX, LiveObject, checked, read_parts, write_parts
from stream_server.storage.disk import read_open, replace_file
from stream_server.user_code import load_class
from tests.needs import need


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with parts, as a process finds it that has not written it."""
    scale = 3.0
    written = tmp_path / f"heat{SUFFIX}"
    write_parts(written, {"model": lambda x: scale * x, "callbacks_0": LiveObject([1])})
    monkeypatch.setattr(live_parts, "_known", {})
    return written


def test_a_part_is_loaded_by_its_name_as_one_of_a_file_in_python(file: Path) -> None:
    loaded = load_class(f"{file.name}:model", file.parent, kind="training.model.class")
    assert loaded(2) == 6.0
    with pytest.raises(ConfigError, match=r"heat\.study-parts\.pickle has no modle: write model"):
        load_class(f"{file.name}:modle", file.parent, kind="training.model.class")


def test_who_has_written_the_parts_keeps_them_as_they_are(tmp_path: Path) -> None:
    class Own:
        pass

    written = tmp_path / f"heat{SUFFIX}"
    write_parts(written, {"server": Own})
    assert read_parts(written)["server"] is Own


def test_a_file_that_was_written_since_is_read_again(file: Path) -> None:
    assert read_parts(file)["model"](2) == 6.0
    assert read_parts(file) is read_parts(file)
    replace_file(file, MARK + cloudpickle.dumps({"model": lambda x: -x}))
    file.chmod(0o600)
    assert read_parts(file)["model"](2) == -2.0


def test_parts_that_are_checked_are_forgotten_after_it(file: Path) -> None:
    with checked(file, {"model": dict}):
        assert read_parts(file)["model"] is dict
    assert read_parts(file)["model"](2) == 6.0


def test_the_file_is_replaced_as_a_whole_and_is_its_owners_alone(file: Path) -> None:
    file.chmod(0o664)
    with file.open("rb") as before:
        write_parts(file, {"model": dict})
        assert read_open(before, file, max_bytes=None).startswith(MARK + b"\x80")
        assert os.fstat(before.fileno()).st_ino != file.stat().st_ino
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(file.parent) == [file.name]


def test_code_that_refers_to_weights_of_which_the_server_trains_a_copy_is_refused(file: Path) -> None:
    net = torch.nn.Linear(1, 1)
    parts = {"model": LiveObject(net), "callbacks_0": LiveObject(SimpleNamespace(net=net))}
    write_parts(file, parts)
    for own in (lambda _: net.parameters(), net.forward, LiveObject(SimpleNamespace(call=lambda: net.weight))):
        with pytest.raises(ConfigError, match=r"^optimizer refers in its code to weights of an object that is a part"):
            write_parts(file, {**parts, "optimizer": own})


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


def test_a_file_of_somebody_else_is_refused(file: Path) -> None:
    need("root")
    os.chown(file, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        read_parts(file)


def test_a_part_that_cannot_be_made_here_is_the_users_error(file: Path) -> None:
    replace_file(file, MARK + b"cno_such_module\nNetwork\n.")
    with pytest.raises(UserCodeError, match=r"no package no_such_module, .*or put no_such_module.py into /"):
        load_class(f"{file.name}:model", file.parent, kind="training.model.class")


def test_a_part_that_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    lock = Lock()
    with pytest.raises(ConfigError, match=r"^model cannot be sent .*TypeError"):
        write_parts(tmp_path / f"heat{SUFFIX}", {"server": dict, "model": lambda: lock})


def test_parts_that_leave_python_are_the_users_error(file: Path) -> None:
    replace_file(file, MARK + cloudpickle.dumps({"model": Leaving()}))
    with pytest.raises(UserCodeError, match="raised SystemExit: 3"):
        load_class(f"{file.name}:model", file.parent, kind="training.model.class")


class Leaving:
    def __reduce__(self) -> Any:
        return sys.exit, (3,)
