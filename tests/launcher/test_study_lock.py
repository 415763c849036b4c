"""The locks of an output folder."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stream_server.errors import ConfigError
from stream_server.machine import processes, study_lock
from stream_server.machine.study_lock import Holder, StudyLock

HOLD = """\
import sys
from pathlib import Path
from stream_server.machine.study_lock import StudyLock
with StudyLock(Path(sys.argv[1]), "stream-server"):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "run.lock"


@pytest.fixture
def hold(path: Path) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    """`hold()` starts a process that locks the file and keeps it."""
    started: list[subprocess.Popen[str]] = []

    def hold() -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", HOLD, str(path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def take(path: Path, *, was_killed: bool = False) -> None:
    with StudyLock(path, "stream-launcher", was_killed=was_killed):
        pass


def test_the_second_process_is_told_who_the_first_one_is(
    path: Path, hold: Callable[[], "subprocess.Popen[str]"]
) -> None:
    first = hold()
    expected = rf"run is in use: stream-server, process {first.pid} on {socket.gethostname()}, since \d{{4}}-"
    for _ in range(2):
        with pytest.raises(ConfigError, match=expected):
            take(path)


def test_a_lock_is_free_once_its_holder_was_killed(path: Path, hold: Callable[[], "subprocess.Popen[str]"]) -> None:
    first = hold()
    first.kill()
    take(path)


def test_a_stopped_process_still_holds_its_lock(path: Path, hold: Callable[[], "subprocess.Popen[str]"]) -> None:
    hold().send_signal(signal.SIGSTOP)
    with pytest.raises(ConfigError, match="is in use"):
        take(path)


def test_a_holder_that_was_killed_is_waited_for(
    path: Path, hold: Callable[[], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hold()
    # It dies as soon as it has been waited for once.
    monkeypatch.setattr(study_lock.time, "sleep", lambda _: first.kill())
    take(path, was_killed=True)


def test_a_dying_holder_is_waited_for_but_not_for_ever(
    path: Path, hold: Callable[[], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold()
    waits: list[float] = []
    monkeypatch.setattr(processes, "is_dying", lambda pid: True)
    monkeypatch.setattr(study_lock, "DYING_S", 0.2)
    monkeypatch.setattr(study_lock.time, "sleep", waits.append)
    with pytest.raises(ConfigError, match="is in use"):
        take(path)
    assert waits


def test_a_holder_on_another_host_is_believed_to_run(path: Path) -> None:
    assert Holder(program="stream-server", pid=1, started=0, host="elsewhere", since="today").may_run
    assert not Holder(program="stream-server", pid=1, started=0, host=socket.gethostname(), since="today").may_run
    assert Holder.this("stream-server").may_run


def test_a_lock_file_with_junk_in_it_is_a_lock_nevertheless(
    path: Path, hold: Callable[[], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold()
    path.write_text("junk")
    monkeypatch.setattr(study_lock, "UNNAMED_S", 0.0)
    with pytest.raises(ConfigError, match="is in use: another process runs the study there"):
        take(path)


def test_a_lock_is_that_of_the_folder_that_has_the_name_now(
    path: Path, hold: Callable[[], "subprocess.Popen[str]"]
) -> None:
    hold()
    os.rename(path.parent, path.parent.with_name("run.1"))
    take(path)


def test_a_lock_that_was_renamed_while_it_was_taken_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it, another process renames the folder and makes a new one."""
    path.parent.mkdir()
    flock, renamed = fcntl.flock, path.parent.with_name("run.1")

    def late_flock(descriptor: int, operation: int) -> None:
        if not renamed.exists():
            os.rename(path.parent, renamed)
            path.parent.mkdir()
        flock(descriptor, operation)

    monkeypatch.setattr(study_lock.fcntl, "flock", late_flock)
    with StudyLock(path, "stream-server"), pytest.raises(ConfigError, match="is in use"):
        take(path)
    assert renamed.exists()


def test_a_program_that_the_holder_has_started_does_not_keep_the_lock(path: Path) -> None:
    with ExitStack() as stack:
        with StudyLock(path, "stream-server"):
            child = stack.enter_context(subprocess.Popen(["sleep", "60"]))
            stack.callback(child.kill)
        take(path)
