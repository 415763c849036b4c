"""Places where a run may begin; those that need a second user are in tests/security."""

from pathlib import Path

import pytest

from stream_server.errors import ConfigError
from stream_server.machine.run_folder import JOURNAL_FILE, STUDY_FILE, check, was_set_aside
from stream_server.machine.study_lock import RUN_LOCK


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "heat"
    made.mkdir(mode=0o700)
    return made


def test_a_run_begins_beside_what_is_made_before_it_and_not_among_the_files_of_a_user(folder: Path) -> None:
    check(folder, resume=False)
    (folder / "logs").mkdir()
    (folder / RUN_LOCK).touch()
    (folder / f"{STUDY_FILE}.tmp").touch()
    check(folder, resume=False)
    (folder / "thesis.tex").touch()
    with pytest.raises(ConfigError):
        check(folder, resume=False)
    (folder / JOURNAL_FILE).touch()
    check(folder, resume=False)
    with pytest.raises(ConfigError, match="there is no run in"):
        check(folder, resume=True)
    (folder / STUDY_FILE).touch()
    check(folder, resume=True)


@pytest.mark.parametrize(
    ("name", "is_earlier"), [("heat.1", True), ("heat", False), ("heat.old", False), ("x.1", False)]
)
def test_an_earlier_run_is_known_by_its_name(folder: Path, name: str, *, is_earlier: bool) -> None:
    assert was_set_aside(folder.with_name(name), folder) is is_earlier
