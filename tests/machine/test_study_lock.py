"""The locks of an output folder."""

import errno
import fcntl
import logging
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
from stream_server.machine.study_lock import Holder, StudyLock, holder_of
from tests.support.lesser_disks import without_locks

HOLD = """\
import fcntl, sys
from pathlib import Path
from stream_server.machine import study_lock
from stream_server.machine.study_lock import StudyLock
def no_flock(descriptor, operation):
    raise OSError(int(sys.argv[2]), "no locks")
if sys.argv[2:]:
    fcntl.flock, study_lock.SETTLE_S = no_flock, 0.1
with StudyLock(Path(sys.argv[1]), "stream-server"):
    print("locked", flush=True)
    sys.stdin.read()
"""
Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "run.lock"


@pytest.fixture
def hold(path: Path) -> Iterator[Hold]:
    """`hold()` starts a process that locks the file and keeps it; `hold(ENOSYS)` one whose `flock` fails so."""
    started: list[subprocess.Popen[str]] = []

    def hold(*without: int) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", HOLD, str(path), *map(str, without)]
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


def test_the_second_process_is_told_who_the_first_one_is(path: Path, hold: Hold) -> None:
    first = hold()
    expected = rf"run is in use: stream-server, process {first.pid} on {socket.gethostname()}, since \d{{4}}-"
    for _ in range(2):
        with pytest.raises(ConfigError, match=expected):
            take(path)


def test_a_lock_is_free_once_its_holder_was_killed(path: Path, hold: Hold) -> None:
    first = hold()
    first.kill()
    take(path)


def test_a_stopped_process_still_holds_its_lock(path: Path, hold: Hold) -> None:
    hold().send_signal(signal.SIGSTOP)
    with pytest.raises(ConfigError, match="is in use"):
        take(path)


def test_a_holder_that_was_killed_is_waited_for(path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    first = hold()
    # It dies as soon as it has been waited for once.
    monkeypatch.setattr(study_lock.time, "sleep", lambda _: first.kill())
    take(path, was_killed=True)


def test_a_dying_holder_is_waited_for_but_not_for_ever(path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
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
    path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold()
    path.write_text("junk")
    monkeypatch.setattr(study_lock, "UNNAMED_S", 0.0)
    with pytest.raises(ConfigError, match="is in use: another process runs the study there"):
        take(path)


def test_a_lock_is_that_of_the_folder_that_has_the_name_now(path: Path, hold: Hold) -> None:
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

    monkeypatch.setattr(fcntl, "flock", late_flock)
    with StudyLock(path, "stream-server"), pytest.raises(ConfigError, match="is in use"):
        take(path)
    assert renamed.exists()


def test_a_program_that_the_holder_has_started_does_not_keep_the_lock(path: Path) -> None:
    with ExitStack() as stack:
        with StudyLock(path, "stream-server"):
            child = stack.enter_context(subprocess.Popen(["sleep", "60"]))
            stack.callback(child.kill)
        take(path)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> int:
    """The error with which a file system that has no locks refuses each."""
    without_locks(monkeypatch, errno.ENOSYS)
    monkeypatch.setattr(study_lock, "SETTLE_S", 0.1)
    return errno.ENOSYS


def test_without_locks_a_second_process_is_refused_by_what_the_first_has_written(
    path: Path, hold: Hold, no_locks: int
) -> None:
    first = hold(no_locks)
    with pytest.raises(ConfigError, match=f"is in use: stream-server, process {first.pid} on "):
        take(path)
    assert (holder := holder_of(path)) is not None
    assert holder.pid == first.pid


def test_without_locks_a_folder_is_free_once_its_process_has_left_or_was_killed(
    path: Path, hold: Hold, no_locks: int
) -> None:
    take(path)
    assert holder_of(path) is None
    first = hold(no_locks)
    first.kill()
    take(path)
    assert holder_of(path) is None


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_file_of_a_process_on_another_host_must_be_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
        lock = StudyLock(path, "stream-server")
        lock.__enter__()
    with pytest.raises(ConfigError, match=f"on elsewhere, .* if you are sure that it has ended, remove {path}"):
        take(path)
    # The launcher has killed it.
    take(path, was_killed=True)
    os.close(lock._descriptor)
    assert holder_of(path) is None


@pytest.mark.usefixtures("no_locks")
def test_without_locks_of_two_that_start_at_once_the_first_gives_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that nobody is there; the other one writes itself down last."""
    other = Holder.this("stream-launcher")

    def write_too(seconds: float) -> None:
        if seconds == study_lock.SETTLE_S:
            with path.open("ab") as file:
                other.write(file.fileno())

    monkeypatch.setattr(study_lock.time, "sleep", write_too)
    with pytest.raises(ConfigError, match="is in use: stream-launcher"), StudyLock(path, "stream-server"):
        pass
    assert Holder.read(path) == other


@pytest.mark.usefixtures("no_locks")
def test_without_locks_it_is_said_what_is_lost(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        take(path)
    assert f"{path.parent} is on a file system without locks" in caplog.text
    assert "a start on another node is refused until you remove run.lock and server.lock" in caplog.text
