from pathlib import Path

from stream_server.machine.log_end import log_end


def test_the_end_of_a_log_is_its_last_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(100)))
    assert log_end(tmp_path / "log", 20) == "line 98\nline 99"


def test_a_short_log_is_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"caf\xe9\n")
    assert log_end(tmp_path / "log") == "caf\N{REPLACEMENT CHARACTER}"


def test_a_log_that_does_not_exist_has_no_end(tmp_path: Path) -> None:
    assert log_end(tmp_path / "log") == ""
