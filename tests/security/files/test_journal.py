"""What a journal, or a stranger, names is used and removed only if it is ours."""

from pathlib import Path

import pytest

from stream_server.errors import ConfigError
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.journal import JOURNAL_FILE, Journal
from stream_server.launcher.journal.records import LauncherStarted, ServerStarting, encode
from stream_server.launcher.supervision.server_job import LOCAL
from stream_server.launcher.supervision.takeover import is_resumed
from stream_server.machine import private_folder, processes
from tests.security.stranger import Stranger
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study


def launcher(folder: Path) -> LauncherStarted:
    """The record of a launcher that was killed just now."""
    link = private_folder.link(folder)
    return LauncherStarted(pid=1, boot=processes.this_boot(), link=link, supervises=True, resumed=False)


def server(folder: Path, number: int = 1) -> ServerStarting:
    return ServerStarting(number=number, ranks=1, folder=str(folder), alive="ipc:///nowhere", reports_before="")


@pytest.fixture
def folder(shared: Path) -> Path:
    """The place of a launcher's private folder in a folder that is everybody's."""
    shared.chmod(0o1777)
    return shared / f"{private_folder.PREFIX}0123456789abcdef"


def test_a_journal_of_somebody_else_is_not_read(shared: Path, stranger: Stranger) -> None:
    file = shared / JOURNAL_FILE
    file.write_bytes(encode(launcher(shared)))
    file.chmod(0o666)
    stranger.owns(file)
    with pytest.raises(ConfigError, match=f"cannot be opened: .* belongs to user {stranger.uid}, and is not trusted"):
        Journal(shared).__enter__()


def test_a_journal_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / JOURNAL_FILE
    file.write_bytes(encode(launcher(tmp_path)))
    file.chmod(0o666)
    with pytest.raises(ConfigError, match=r"Others may write into it \(mode 0666\), so it is not trusted"):
        Journal(tmp_path).__enter__()


def test_a_link_in_the_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    (tmp_path / JOURNAL_FILE).symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="cannot be opened"):
        Journal(tmp_path).__enter__()


def test_a_private_folder_that_is_still_there_or_was_cleaned_away_is_used_again(folder: Path) -> None:
    history = History.of([launcher(folder)])
    assert is_resumed(history, LOCAL, link=None)
    private_folder.make(folder, again=True)
    assert is_resumed(history, LOCAL, link=None)
    private_folder.make(folder, again=True)
    assert private_folder.is_private(folder)


def test_a_folder_that_a_stranger_made_is_not_adopted_and_not_removed(folder: Path, stranger: Stranger) -> None:
    stranger.run("os.mkdir(sys.argv[1], 0o777)", folder)
    assert not is_resumed(History.of([launcher(folder)]), LOCAL, link=None)
    with pytest.raises(FileExistsError):
        private_folder.make(folder, again=True)
    private_folder.remove(folder)
    assert folder.stat().st_uid == stranger.uid


def test_a_link_that_a_stranger_made_to_a_private_folder_of_ours_is_not_followed(
    folder: Path, shared: Path, stranger: Stranger
) -> None:
    ours = shared / "ours"
    ours.mkdir(mode=0o700)
    (ours / "precious").touch()
    stranger.run("os.symlink(sys.argv[1], sys.argv[2])", ours, folder)
    assert not private_folder.is_private(folder)
    assert not is_resumed(History.of([launcher(folder)]), LOCAL, link=None)
    private_folder.remove(folder)
    assert (ours / "precious").exists()


def test_a_folder_that_we_left_open_is_not_adopted(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    assert not is_resumed(History.of([launcher(folder)]), LOCAL, link=None)


def test_a_journal_that_names_other_folders_than_a_launcher_makes_is_not_followed(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    assert is_resumed(History.of([launcher(folder), server(folder / "1")]), LOCAL, link=None)
    assert not is_resumed(History.of([launcher(folder), server(precious)]), LOCAL, link=None)
    assert not is_resumed(History.of([launcher(folder), server(folder / "..", number=2)]), LOCAL, link=None)
    assert not is_resumed(History.of([launcher(precious)]), LOCAL, link=None)


@pytest.mark.slow
@pytest.mark.parametrize("of_server", [False, True], ids=["of sockets", "of the server"])
def test_a_forged_journal_makes_no_launcher_delete_a_folder(shared: Path, of_server: bool) -> None:
    """The journal is forged before anybody looks at owners: it is ours, as after a mistake of ours."""
    victim = shared / ("home" if of_server else f"{private_folder.PREFIX}home")
    victim.mkdir(mode=0o755 if not of_server else 0o700)
    (victim / "thesis").touch()
    output_dir = shared / "run"
    output_dir.mkdir(mode=0o700)
    folder = private_folder.new_name() if of_server else victim
    records = [launcher(folder), *([server(victim)] if of_server else [])]
    journal = output_dir / JOURNAL_FILE
    journal.write_bytes(b"".join(map(encode, records)))
    journal.chmod(0o600)
    run = run_study(NUMPY_STUDY, output_dir, mpi=None, program="stream-launcher", settings={"study.simulations": 1})
    assert_complete(run, num_simulations=1)
    assert (victim / "thesis").exists()
