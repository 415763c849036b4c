"""The census notices whatever a test can leave behind: each is planted, seen, and taken away again."""

import ctypes
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import zmq

from tests.census import PROJECT, Census

C = ctypes.CDLL(None, use_errno=True)
PRIVATE, MODE, REMOVE, ATTACHED_TO_NOBODY = 0, 0o600, 0, 4096
Leak = Callable[[Path], AbstractContextManager[str]]


def shared_memory() -> Path:
    """One byte of it, as shm_open makes it."""
    path = Path(f"/dev/shm/planted-{os.getpid()}")
    path.write_bytes(b".")
    return path


@contextmanager
def a_thread(folder: Path) -> Iterator[str]:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="planted")
    thread.start()
    yield "thread planted"
    leave.set()
    thread.join()


@contextmanager
def a_process(folder: Path) -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield f"process {process.pid} ("


@contextmanager
def a_zombie(folder: Path) -> Iterator[str]:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    yield f"process {pid} (zombie)"
    os.waitpid(pid, 0)


@contextmanager
def a_file_in_the_project(folder: Path) -> Iterator[str]:
    path = PROJECT / f"planted-{os.getpid()}"
    path.touch()
    yield str(path)
    path.unlink()


@contextmanager
def a_zmq_socket(folder: Path) -> Iterator[str]:
    with zmq.Context() as context, context.socket(zmq.DEALER):
        yield "open <zmq."


@contextmanager
def a_port(folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"which listens at 127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def a_socket_in_the_file_system(folder: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "planted"))
        server.listen()
        yield f"which listens at {folder / 'planted'}"
    (folder / "planted").unlink()


@contextmanager
def an_abstract_socket(folder: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0planted-{os.getpid()}")
        server.listen()
        yield f"which listens at @planted-{os.getpid()}"


@contextmanager
def a_file(folder: Path) -> Iterator[str]:
    with (folder / "planted").open("w"):
        (folder / "planted").unlink()
        yield "planted (deleted)"


@contextmanager
def a_temporary_folder(folder: Path) -> Iterator[str]:
    (folder / "stream-planted").mkdir()
    yield f"temporary {folder / 'stream-planted'}"
    (folder / "stream-planted").rmdir()


@contextmanager
def shared_memory_that_nobody_has(folder: Path) -> Iterator[str]:
    path = shared_memory()
    yield f"shared memory {path}"
    path.unlink()


@contextmanager
def a_posix_semaphore(folder: Path) -> Iterator[str]:
    name = f"/planted-{os.getpid()}".encode()
    C.sem_open.restype = ctypes.c_void_p
    semaphore = C.sem_open(name, os.O_CREAT, MODE, 0)
    C.sem_close(ctypes.c_void_p(semaphore))
    yield f"shared memory /dev/shm/sem.planted-{os.getpid()}"
    C.sem_unlink(name)


@contextmanager
def system_v_memory(folder: Path) -> Iterator[str]:
    number = C.shmget(PRIVATE, ATTACHED_TO_NOBODY, MODE)
    yield f"System V shm {number}"
    C.shmctl(number, REMOVE, None)


@contextmanager
def a_system_v_semaphore(folder: Path) -> Iterator[str]:
    number = C.semget(PRIVATE, 1, MODE)
    yield f"System V sem {number}"
    C.semctl(number, 0, REMOVE)


@contextmanager
def a_system_v_queue(folder: Path) -> Iterator[str]:
    number = C.msgget(PRIVATE, MODE)
    yield f"System V msg {number}"
    C.msgctl(number, REMOVE, None)


LEAKS: list[Leak] = [
    a_thread,
    a_process,
    a_zombie,
    a_zmq_socket,
    a_port,
    a_socket_in_the_file_system,
    an_abstract_socket,
    a_file,
    a_temporary_folder,
    shared_memory_that_nobody_has,
    a_posix_semaphore,
    system_v_memory,
    a_system_v_semaphore,
    a_system_v_queue,
    a_file_in_the_project,
]


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_what_is_left_behind_is_noticed(leak: Leak, tmp_path: Path) -> None:
    before = Census.take(tmp_path)
    with leak(tmp_path) as expected:
        found = Census.take(tmp_path).since(before)
    assert any(expected in line for line in found), found
    assert not any(expected in line for line in Census.take(tmp_path).since(before))


def test_shared_memory_that_a_process_has_is_no_leak(tmp_path: Path) -> None:
    before = Census.take(tmp_path)
    path = shared_memory()
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 1)
    with memory:
        found = Census.take(tmp_path).since(before)
    path.unlink()
    assert not any(str(path) in line for line in found), found


def test_a_process_that_an_older_process_started_is_left_to_that_one(tmp_path: Path) -> None:
    script = "input(); subprocess.run([sys.executable, '-c', 'print(0, flush=True); input()'])"
    command = [sys.executable, "-c", f"import subprocess, sys; {script}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as older:
        assert older.stdin is not None
        assert older.stdout is not None
        before = Census.take(tmp_path)
        older.stdin.write(b"\n")
        older.stdin.flush()
        older.stdout.readline()
        now = Census.take(tmp_path)
        assert len(now.processes - before.processes) == 1
        assert not any(line.startswith("process") for line in now.since(before))
