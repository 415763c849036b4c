from pathlib import Path

import pytest

from stream_server.machine.log_end import log_end, words_at_end

BAR = "".join(f"\r{number:3d}%|{'█' * (number // 5):<20}| {number}/100" for number in range(101))


def test_the_end_of_a_log_is_its_last_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(100)))
    assert log_end(tmp_path / "log", 20) == "line 98\nline 99"


def test_a_short_log_is_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"caf\xe9\n")
    assert log_end(tmp_path / "log") == "caf\N{REPLACEMENT CHARACTER}"


def test_a_log_that_does_not_exist_has_no_end(tmp_path: Path) -> None:
    assert log_end(tmp_path / "log") == ""


@pytest.mark.parametrize(
    "text",
    [
        f"starting\nERROR: diverged\n{BAR}",
        f"starting\n{BAR} ERROR: diverged\n",
        f"starting\n{BAR}\rERROR: diverged\r{BAR}\n",
        f"starting\n{BAR}\nERROR: diverged\n",
        f"starting\r\n{BAR * 20}\r\nERROR: diverged\r\n{BAR * 20}\r\n",
    ],
)
def test_no_progress_bar_hides_what_a_program_says(text: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(text.encode())
    words = words_at_end(tmp_path / "log").splitlines()
    assert words[-1].endswith("ERROR: diverged")
    assert words[0] == "starting"
    shown = log_end(tmp_path / "log")
    assert "ERROR: diverged" in shown
    assert "100/100" in shown
    assert "98/100" not in shown
    assert "\\x0d" not in shown + "".join(words)


def test_where_there_is_but_a_progress_bar_its_last_state_is_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(BAR)
    assert words_at_end(tmp_path / "log") == log_end(tmp_path / "log") == f"100%|{'█' * 20}| 100/100"
