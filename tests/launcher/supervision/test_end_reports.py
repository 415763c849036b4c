import json
from pathlib import Path

import pytest

from stream_server.launcher.supervision.server_restart import EndReports, ServerEnd


def words(folder: Path) -> EndReports:
    return EndReports(folder, EndReports.versions(folder))


def write(folder: Path, name: str, **content: object) -> None:
    # As the server does it: a new file in the place of the old one.
    (folder / "new").write_text(json.dumps(content))
    (folder / "new").replace(folder / name)


def test_the_report_says_how_the_server_ended(tmp_path: Path) -> None:
    before = words(tmp_path)
    write(tmp_path, "exit.json", exit_code=7, batch=4, message="b")
    write(tmp_path, "report.json", exit_code=3, message="a")
    assert before.read(9, was_planned=True) == ServerEnd(
        exit_code=3, message="the server ended with exit code 3: a", batch=4
    )


def test_without_a_report_the_first_failure_says_it(tmp_path: Path) -> None:
    write(tmp_path, "report.json", exit_code=0)
    before = words(tmp_path)
    write(tmp_path, "exit.json", exit_code=3, batch=None, message="b")
    assert before.read(1, was_planned=True).exit_code == 3


@pytest.mark.parametrize("name", ["report.json", "exit.json"])
def test_what_an_earlier_start_said_is_not_believed(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, exit_code=4)
    assert words(tmp_path).read(0, was_planned=True).exit_code == 7


def test_what_an_earlier_start_said_and_this_one_removed_is_no_word(tmp_path: Path) -> None:
    write(tmp_path, "report.json", exit_code=0)
    before = words(tmp_path)
    (tmp_path / "report.json").unlink()
    assert before.read(0, was_planned=False).exit_code == 7


@pytest.mark.parametrize("content", ["", "[]", "{", '{"exit_code": "0"}', "\xff"])
def test_a_report_that_is_none_is_no_word(tmp_path: Path, content: str) -> None:
    before = words(tmp_path)
    (tmp_path / "report.json").write_text(content, encoding="latin-1")
    assert before.read(0, was_planned=True).exit_code == 7


@pytest.mark.parametrize(("status", "code"), [(2, 2), (6, 6), (1, 7), (3, 7), (75, 75), (137, 7)])
def test_a_status_is_believed_only_of_a_server_that_refused_to_start(tmp_path: Path, status: int, code: int) -> None:
    assert words(tmp_path).read(status, was_planned=False).exit_code == code
    assert words(tmp_path).read(status, was_planned=True).exit_code == 7


def test_of_a_server_that_said_that_it_leaves_the_status_of_one_without_a_report_is_believed(tmp_path: Path) -> None:
    end = words(tmp_path).read(5, was_planned=True, has_left=True)
    assert end.exit_code == 5
    assert "could not write its report" in end.message
    assert words(tmp_path).read(137, was_planned=True, has_left=True).exit_code == 7


def test_a_study_that_was_finished_before_is_told_by_its_old_report(tmp_path: Path) -> None:
    assert words(tmp_path).read(0, was_planned=False).exit_code == 7
    write(tmp_path, "report.json", exit_code=0)
    assert words(tmp_path).read(0, was_planned=False).exit_code == 0
