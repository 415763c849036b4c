"""The beginning of a program in an environment that lacks something, and what it says when the machine refuses more."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from stream_server.commands import cli as study_cli
from stream_server.config.loading import load_plain
from stream_server.errors import ConfigError
from stream_server.launcher.supervision import cli as launcher_cli
from stream_server.machine import private_folder
from stream_server.machine.refusals import refusal, require_threads
from stream_server.machine.screen import ignore_broken_pipe
from stream_server.server.commands import cli as server_cli
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.reception.build import make_ipc_folder
from stream_server.storage import disk
from tests.support.studies import StudyFolder

BEGIN = "from stream_server import entry_points; entry_points._begin(); "
BEGIN += "from stream_server.machine import program; program.begin(); "
NO_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def began(code: str, within: str = 'exec "$@"', **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """A program that begins as ours do and then runs `code`; `within` is a line of sh that starts it."""
    command = ["sh", "-c", within, "sh", sys.executable, "-c", BEGIN + code, "π"]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=100)


def test_a_program_in_a_locale_without_utf_8_starts_over_with_it() -> None:
    done = began("import sys; print(sys.argv[1:], sys.getfilesystemencoding(), open(0).encoding)", **NO_UTF8)
    assert done.stdout.decode() == "['π'] utf-8 utf-8\n"
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("written", "environment"), [(b"\\u2192 \\udce9\n", {"PYTHONIOENCODING": "ascii"}), ("→ \\udce9\n".encode(), {})]
)
def test_what_an_output_cannot_show_is_escaped(written: bytes, environment: dict[str, str]) -> None:
    assert began(r"print('\u2192 \udce9')", **environment).stdout == written


def test_a_stream_that_was_closed_leads_nowhere_so_that_no_file_gets_what_is_printed(tmp_path: Path) -> None:
    code = f"""
import os
with open({str(tmp_path / "file")!r}, "w") as file:
    print("told"); os.write(1, b"by a library"); os.write(2, b"too"); assert os.read(0, 1) == b""
    file.write(str(file.fileno()))
"""
    done = began(code, 'exec "$@" <&- >&- 2>&-')
    assert done.returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


def test_a_program_runs_although_its_current_folder_was_removed(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = began("import os; print(os.getcwd())", f'cd "{tmp_path}/gone" && rmdir "{tmp_path}/gone" && exec "$@"')
    assert done.stdout == b"/\n"
    assert b"the current folder was removed" in done.stderr


def test_output_that_a_full_disk_does_not_take_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with (
            pytest.raises(ConfigError, match=r"the output cannot be written: .*No space left"),
            ignore_broken_pipe(),
        ):
            print("a table")
        # The interpreter writes what is left at its end.
        full.flush()


LONG = "t" * 100


@pytest.mark.parametrize("name", [LONG, "tmp-π", "missing"])
def test_sockets_are_in_a_short_folder_in_ascii_whatever_tmpdir_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    if name != "missing":
        folder.mkdir()
    for variable, value in (("TMPDIR", str(folder)), ("TEMP", ""), ("TMP", "")):
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("STREAM_IPC_FOLDER", raising=False)
    with ExitStack() as stack:
        made = make_ipc_folder(SoloRanks(), stack)
        assert str(made).isascii()
        assert len(str(made / "d0123456789-0123456789")) < 107
        assert not made.is_relative_to(folder)
        assert private_folder.is_private(made)
    assert not made.exists()


def test_sockets_are_in_tmpdir_where_that_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with private_folder.temporary() as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        assert private_folder.new_name().parent == folder


def test_reading_a_small_file_asks_for_little_memory(tmp_path: Path) -> None:
    asked: list[int] = []

    class File:
        def __init__(self, path: Path) -> None:
            self.file = path.open("rb")
            self.fileno = self.file.fileno

        def read(self, num: int) -> bytes:
            asked.append(num)
            return self.file.read(num)

    path = tmp_path / "small"
    path.write_bytes(b"text")
    file = File(path)
    assert disk.read_open(file, path, max_bytes=1 << 30) == b"text"  # type: ignore[arg-type]
    file.file.close()
    assert max(asked) <= 1 << 20


def test_a_process_that_may_not_start_its_threads_is_told_before_zeromq_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_threads(8)
    start, started = threading.Thread.start, list[threading.Thread]()

    def limited(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(ConfigError, match=r"8 threads are needed, and only 3 can be started.*ulimit -u"):
        require_threads(8)


def test_an_error_of_the_machine_has_words_and_any_other_has_none() -> None:
    assert refusal(OSError(errno.ENOSPC, "No space left", "/f")) == (
        "[Errno 28] No space left: '/f'. Make room there, or write another study.output_dir"
    )
    assert refusal(MemoryError()).startswith("the system has no memory for it. Have more memory given")
    assert "more memory given" in refusal(ImportError("libtorch.so: failed to map segment from shared object"))
    assert refusal(OSError(errno.EINVAL, "Invalid argument")) == ""
    assert refusal(KeyError("k")) == ""


def raising(error: Exception) -> Callable[..., None]:
    def raise_it(*_: object, **__: object) -> None:
        raise error

    return raise_it


COMMANDS = {
    "stream-server": (server_cli, "_load", ["--config", "study.json"]),
    "stream-launcher": (launcher_cli, "load", ["--config", "study.json"]),
    "stream-study": (study_cli, "find_run", ["export", "run", "--to", "x.csv"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_the_machine_refuses_ends_a_command_with_2_and_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, function, arguments = COMMANDS[name]
    monkeypatch.setattr(module, function, raising(OSError(errno.EMFILE, "Too many open files")))
    assert module.main(arguments) == 2
    assert capsys.readouterr().err == (
        f"{name}: [Errno 24] Too many open files. Have the limit on open files raised (ulimit -n)\n"
    )


def test_an_error_that_nobody_foresaw_ends_the_launcher_with_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher_cli, "load", raising(KeyError("k")))
    assert launcher_cli.main(["--config", "study.json"]) == 70
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.endswith(
        "stream-launcher: KeyError: 'k'. This is a bug in Stream Server: please report it with its traceback\n"
    )


@pytest.mark.parametrize("name", ["a\nb", "a b'\"", "π ☃"])
def test_a_study_is_read_again_from_its_resolved_form_whatever_its_folder_is_called(tmp_path: Path, name: str) -> None:
    config = StudyFolder(tmp_path / name).load({"study.name": "heat"})
    assert load_plain(config.resolved(), tmp_path) == config


def test_a_folder_whose_name_cannot_be_that_of_the_study_is_refused_at_once(tmp_path: Path) -> None:
    problem = StudyFolder(tmp_path / "a\nb").problems()[-1]
    assert problem == 'study: "a\\nb" cannot name a folder. Write a study.name without "/", such as "heat".'


def test_a_study_in_a_folder_whose_name_is_no_utf_8_is_refused_in_words(tmp_path: Path) -> None:
    [problem] = StudyFolder(tmp_path / os.fsdecode(b"caf\xe9")).problems()
    assert problem.startswith("study_dir: ")
    assert "is not valid text" in problem
