"""Compiled code that a stranger has put where torch would load it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stream_server.machine import caches
from stream_server.machine.interpreter import python_command
from stream_server.machine.private_folder import is_private
from tests.security.stranger import Stranger
from tests.support.launch import alone
from tests.support.studies import StudyFolder

# What torch does with the code that is there; see torch/_inductor/runtime/cache_dir_utils.py.
PLACE = "from stream_server.machine import caches; caches.keep_private(); import torch._dynamo, os; \
from torch._inductor.runtime.cache_dir_utils import cache_dir; print(cache_dir())"
MAKE = "os.umask(0)\nfor path in sys.argv[1:]:\n    os.makedirs(path)"


@pytest.fixture
def temporary(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that others may write, too; no other place is named."""
    for name in caches.VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    folder = shared / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    (shared / "home").mkdir()
    monkeypatch.setenv("HOME", str(shared / "home"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def place_of_torch() -> Path:
    told = subprocess.run(python_command("-c", PLACE), env=alone([]).environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return Path(told.stdout.strip())


def test_torch_loads_no_code_that_a_stranger_has_put_there(temporary: Path, stranger: Stranger) -> None:
    user = subprocess.check_output(["id", "-un"], text=True).strip()
    stranger.run(MAKE, temporary / f"torchinductor_{user}", temporary / f"torchinductor_uid_{os.geteuid()}")
    place = place_of_torch()
    assert place.parent == temporary / f"stream-caches-{os.geteuid()}"
    assert is_private(place.parent)


@pytest.mark.parametrize("why", ["a stranger's", "open to all", "a link"])
def test_nor_where_our_own_folder_is_not_ours_alone(
    why: str, temporary: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = temporary / f"stream-caches-{os.geteuid()}"
    if why == "a stranger's":
        stranger.run(MAKE, place)
    elif why == "open to all":
        place.mkdir()
        place.chmod(0o777)
    else:
        stranger.run("os.symlink(sys.argv[1], sys.argv[2])", temporary.parent / "home", place)
    caches.keep_private()
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == Path.home() / f".stream-caches-{os.geteuid()}"


@pytest.mark.parametrize("is_above", [True, False])
def test_nor_where_others_can_rename_it(temporary: Path, *, is_above: bool) -> None:
    if is_above:
        temporary.chmod(0o700)
        temporary.parent.chmod(0o777)
    else:
        temporary.chmod(0o777)
    caches.keep_private()
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == Path.home() / f".stream-caches-{os.geteuid()}"


def test_in_a_folder_into_which_nobody_else_writes_nothing_is_made(temporary: Path) -> None:
    temporary.chmod(0o755)
    caches.keep_private()
    assert not os.environ.keys() & caches.VARIABLES.keys()
    assert list(temporary.iterdir()) == []


def test_a_place_that_the_user_names_is_taken(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in caches.VARIABLES:
        monkeypatch.setenv(name, "/somewhere")
    caches.keep_private()
    assert {os.environ[name] for name in caches.VARIABLES} == {"/somewhere"}
    assert list(temporary.iterdir()) == []


def test_a_command_makes_no_other_folder_of_a_name_that_can_be_guessed(temporary: Path) -> None:
    study = StudyFolder(temporary.parent / "heat")
    study.write("server.py", "import torch._dynamo\n\nclass HeatServer: ...\n")
    words = [str(Path(sys.executable).with_name("stream-server")), "--check", "--config", str(study.study())]
    told = subprocess.run(python_command(*words), env=alone([]).environment, capture_output=True, text=True)
    (ours,) = temporary.iterdir()
    assert ours.name == f"stream-caches-{os.geteuid()}"
    assert (ours / "torchinductor").is_dir(), told.stderr
