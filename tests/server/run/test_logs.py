"""Every rank has its log file; rank 0's warnings reach the screen."""

import logging
import warnings
from pathlib import Path

import pytest

from stream_server.server.run.logs import Logs


def test_each_rank_writes_its_own_file(tmp_path: Path) -> None:
    for rank in (0, 1):
        with Logs(tmp_path, rank):
            logging.getLogger("stream_server.server").info("rank %d is here", rank)
    for rank in (0, 1):
        content = (tmp_path / "logs" / f"server-{rank}.log").read_text()
        assert f"INFO    MainThread stream_server.server: rank {rank} is here" in content
        assert len(content.splitlines()) == 1


def test_warnings_of_rank_0_are_on_the_screen_and_notes_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Logs(tmp_path, 0):
        logging.getLogger("stream_server").info("a note")
        logging.getLogger("stream_server").warning("the disk is full")
    assert capsys.readouterr().err == "WARNING: the disk is full\n"


def test_other_ranks_are_silent_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Logs(tmp_path, 1):
        logging.getLogger("stream_server").error("trouble")
    assert capsys.readouterr().err == ""
    assert "trouble" in (tmp_path / "logs" / "server-1.log").read_text()


def test_python_warnings_of_user_code_are_logged(tmp_path: Path) -> None:
    with Logs(tmp_path, 1), warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("this is old", DeprecationWarning, stacklevel=1)
    assert "this is old" in (tmp_path / "logs" / "server-1.log").read_text()


def test_user_code_says_as_much_as_its_own_logger_lets_it(tmp_path: Path) -> None:
    talking, silent = logging.getLogger("talking_server"), logging.getLogger("silent_server")
    with Logs(tmp_path, 1):
        talking.setLevel(logging.DEBUG)
        silent.setLevel(logging.WARNING)
        for log in (talking, silent):
            log.debug("%s in detail", log.name)
            log.info("%s as usual", log.name)
    told = (tmp_path / "logs" / "server-1.log").read_text()
    assert [line.partition(": ")[2] for line in told.splitlines()] == [
        "talking_server in detail",
        "talking_server as usual",
    ]


def test_a_second_run_continues_the_file(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with Logs(tmp_path, 0):
            logging.getLogger("stream_server").info(text)
    assert len((tmp_path / "logs" / "server-0.log").read_text().splitlines()) == 2


def test_leaving_restores_the_logging_that_was_there(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers), warnings.showwarning)
    with Logs(tmp_path, 0):
        pass
    assert (root.level, list(root.handlers), warnings.showwarning) == before


def test_a_full_disk_costs_lines_of_the_log_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server-1.log").symlink_to("/dev/full")
    with Logs(tmp_path, 1):
        for text in ("lost", "lost, too"):
            logging.getLogger("stream_server").info(text)
    log = tmp_path / "logs" / "server-1.log"
    assert capsys.readouterr().err == f"WARNING: {log} loses lines: [Errno 28] No space left on device\n"
