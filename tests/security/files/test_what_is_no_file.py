"""A pipe, a device or a file without end in the place of a file: who reads it is neither kept waiting nor filled up."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_server.analysis.follow import Tail
from stream_server.analysis.growing import GrowingFile
from stream_server.analysis.reading import RunFolder, lines_of
from stream_server.analysis.run_status import damages_of, newest_checkpoint, status_of
from stream_server.analysis.simulations import simulations_of
from stream_server.commands.cli import main
from stream_server.config import load
from stream_server.config.parameters import DesignFile
from stream_server.errors import ConfigError, DamagedCheckpoint
from stream_server.launcher.backends.backend import EXIT_FILE, exit_code_of
from stream_server.launcher.journal.journal import Journal
from stream_server.machine.log_end import log_end
from stream_server.machine.study_lock import RUN_LOCK, holder_of
from stream_server.messages.connection import NEXT_VARIABLE, ConnectionFile, further_files
from stream_server.server.checkpoint.folder import read_manifest
from stream_server.server.run.output import OutputFolder
from stream_server.server.study.failure import Failure
from stream_server.storage import disk
from tests.native.native_client import NativeClient, client, library, program

__all__ = ["client", "library", "program"]

Put = Callable[[Path], Path]


def pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path, 0o600)
    return path


def device(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/zero")
    return path


def endless(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    os.truncate(path, 1 << 40)
    return path


@pytest.fixture(params=[pipe, device, endless], ids=lambda put: put.__name__)
def put(request: pytest.FixtureRequest) -> Put:
    """What puts something in the place of a file."""
    found: Put = request.param
    return found


@pytest.fixture(params=[pipe, device], ids=lambda put: put.__name__)
def put_no_file(request: pytest.FixtureRequest) -> Put:
    found: Put = request.param
    return found


def test_a_connection_file_in_python(tmp_path: Path, put: Put) -> None:
    path = put(tmp_path / "connection.json")
    with pytest.raises(ConfigError, match=r": It (is no ordinary file|has more than)"):
        ConnectionFile.read(path)


def test_a_connection_file_in_c(tmp_path: Path, put: Put, client: NativeClient) -> None:
    path = put(tmp_path / "connection.json")
    said = client.ask(f"connect 0 1 connection={path}")
    assert said.startswith("error CONNECTION_FILE: ")
    assert said.endswith(("It is no ordinary file", "it has more than 1 MiB"))


def test_the_list_of_a_worker(tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "next.txt")
    monkeypatch.setenv(NEXT_VARIABLE, str(path))
    with pytest.raises(ConfigError, match=rf"cannot read STREAM_NEXT={path}: It "):
        further_files()


def test_a_study_and_its_design(tmp_path: Path, put: Put) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: .*It "):
        load(put(tmp_path / "study.json"))
    with pytest.raises(ValueError, match=r"cannot be read: .*It "):
        DesignFile.read(put(tmp_path / "design.csv"))


def test_the_files_of_a_run_that_somebody_looks_at(tmp_path: Path, put: Put) -> None:
    run = RunFolder(tmp_path)
    for name in ("study.json", "report.json", "exit.json", "journal.jsonl", "parameters.csv", "run.lock"):
        put(tmp_path / name)
    put(tmp_path / "checkpoints" / "000001" / "manifest.json")
    assert newest_checkpoint(run) is None
    assert status_of(run).checkpoint is None
    assert len(damages_of(run)) == 3
    assert simulations_of(run) == []
    assert not OutputFolder(tmp_path).is_finished({"study": {"simulations": 1}, "training": {}})
    assert Failure.read(tmp_path) is None


def test_a_manifest(tmp_path: Path, put: Put) -> None:
    put(tmp_path / "manifest.json")
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_a_journal(tmp_path: Path, put: Put) -> None:
    put(tmp_path / "journal.jsonl")
    with pytest.raises(ConfigError, match=r"journal\.jsonl"):
        Journal(tmp_path).__enter__()


def test_a_lock(tmp_path: Path, put_no_file: Put) -> None:
    assert holder_of(put_no_file(tmp_path / RUN_LOCK)) is None


def test_what_a_simulation_leaves(tmp_path: Path, put: Put) -> None:
    assert exit_code_of(put(tmp_path / EXIT_FILE)) is None
    assert len(log_end(put(tmp_path / "output.log"))) <= 4 * 2000


@pytest.mark.parametrize("command", ["status", "simulations", "logs", "plot", "list", "export"])
def test_a_run_of_somebody_else_that_is_none(
    tmp_path: Path, put_no_file: Put, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("study.json", "report.json", "run.lock", "logs/rank-0.log", "metrics/metrics.jsonl"):
        put_no_file(tmp_path / name)
    to = ["--to", str(tmp_path / "out.csv")] if command == "export" else []
    assert main([command, str(tmp_path), *to]) in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_logs_and_metrics(tmp_path: Path, put_no_file: Put) -> None:
    path = put_no_file(tmp_path / "metrics.jsonl")
    with pytest.raises(disk.UnusableFile):
        list(lines_of(path))
    with pytest.raises(disk.UnusableFile):
        GrowingFile(path, lambda lines, number: [lines]).update()
    with pytest.raises(disk.UnusableFile):
        list(Tail(path, num_bytes=10).lines(is_last=True))


def test_no_more_is_read_of_a_file_than_it_may_have(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"12345")
    assert disk.read_file(path, max_bytes=5) == b"12345"
    with pytest.raises(OSError, match="It has more than 4 bytes"):
        disk.read_file(path, max_bytes=4)
