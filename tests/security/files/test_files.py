"""What a study writes is its owner's alone, and what others made is not used."""

import errno
import grp
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from stream_server.errors import ConfigError
from stream_server.machine import run_folder
from stream_server.storage.ownership import private_files
from tests.needs import need
from tests.security.stranger import Stranger
from tests.support.access_lists import open_to
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

SETTINGS = {
    "study.simulations": 2,
    "checkpoint.record": True,
    "metrics.writers": ["tensorboard"],
}
SECRETS = {"connection.json", "operator.json", "run.lock", "server.lock", "journal.jsonl", "incarnations.lock"}
# The stranger may not be allowed to read the version of the package, and all else is imported before.
IMPORT = """
sys.path.insert(0, sys.argv[1])
from stream_server.analysis import live
from stream_server.commands import cli
cli.version = lambda package: "of ours"
cli.parser()
"""
LOOK = """
found = []
for root, folders, files in os.walk(sys.argv[1]):
    found += files
print(len(found))
"""


@pytest.fixture(params=[0o000, 0o077], ids="umask {:04o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The modes of the folder and of all that is in it, by relative path."""
    return {str(it.relative_to(folder)): stat.S_IMODE(it.lstat().st_mode) for it in (folder, *folder.rglob("*"))}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["stream-server", "stream-launcher"])
def test_all_that_a_study_writes_is_private_under_an_open_umask(shared: Path, stranger: Stranger, program: str) -> None:
    settings = SETTINGS if program == "stream-server" else {"study.simulations": 2}
    output_dir = shared / "ripple"
    before = os.umask(0)
    try:
        run = run_study(NUMPY_STUDY, output_dir, mpi=None, program=program, settings=settings)
    finally:
        os.umask(before)
    assert_complete(run, num_simulations=2)
    found = modes(output_dir)
    assert len(found) > 30
    assert {path: f"{it:o}" for path, it in found.items() if it & 0o077} == {}
    assert stranger.run(LOOK, output_dir) == "0"


@pytest.mark.slow
def test_a_group_that_a_study_is_shared_with_reads_all_but_keys_and_locks(shared: Path) -> None:
    need("root")
    group = grp.getgrgid(1)
    output_dir = shared / "ripple"
    before = os.umask(0o077)
    try:
        settings = {"study.simulations": 1, "study.share_with": group.gr_name}
        run = run_study(NUMPY_STUDY, output_dir, mpi=None, program="stream-launcher", settings=settings)
    finally:
        os.umask(before)
    assert_complete(run, num_simulations=1)
    found = modes(output_dir)
    assert found["."] == 0o2750
    closed = {Path(path).name for path, it in found.items() if not it & 0o040}
    assert closed <= SECRETS
    assert {"connection.json", "run.lock", "server.lock", "journal.jsonl"} <= closed
    assert {path: f"{it:o}" for path, it in found.items() if it & 0o027} == {}
    assert {it.stat().st_gid for it in (output_dir / "metrics").rglob("*")} == {group.gr_gid}


def test_files_are_private_whatever_the_umask_was(tmp_path: Path, umask: int) -> None:
    with private_files():
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
    with private_files(group_reads=True):
        (tmp_path / "shared file").touch()
        (tmp_path / "shared folder").mkdir()
    assert (mode(tmp_path / "file"), mode(tmp_path / "folder")) == (0o600, 0o700)
    assert (mode(tmp_path / "shared file"), mode(tmp_path / "shared folder")) == (0o640, 0o750)
    assert os.umask(umask) == umask


def test_a_run_folder_that_is_open_to_others_is_closed_and_the_user_hears_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)
    assert run_folder.claim(folder, None) == f"{folder} was open to others (mode 0777), and is closed now"
    assert mode(folder) == 0o700
    assert run_folder.claim(folder, None) == ""


def test_where_no_folder_can_be_made_another_place_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(ConfigError, match=r"runs/heat cannot be used: .*File exists.*Write a study\.output_dir in"):
        run_folder.claim(tmp_path / "runs" / "heat", None)


def test_a_disk_that_fails_is_told_and_not_taken_for_one_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **options: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path))

    for call, told in (("mkdir", "cannot be used"), ("fchmod", "cannot be closed to others")):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fails)
            with pytest.raises(
                ConfigError, match=f"run {told}: .*Input/output error.*disk or file system fails.*dmesg"
            ):
                run_folder.claim(tmp_path / "run", None)
        (tmp_path / "run").mkdir(mode=0o755, exist_ok=True)


def test_a_group_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'study\.share_with: there is no group "nobody-has-this" here'):
        run_folder.claim(tmp_path / "run", "nobody-has-this")


def test_a_run_folder_of_somebody_else_is_refused(shared: Path, stranger: Stranger) -> None:
    folder = shared / "run"
    folder.mkdir()
    stranger.owns(folder)
    with pytest.raises(ConfigError, match=f"{folder} belongs to user {stranger.uid}, and a study trusts only"):
        run_folder.claim(folder, None)
    assert folder.stat().st_uid == stranger.uid


def test_a_link_of_somebody_else_to_a_folder_of_ours_is_not_followed(shared: Path, stranger: Stranger) -> None:
    ours = shared / "ours"
    ours.mkdir(mode=0o755)
    link = shared / "run"
    link.symlink_to(ours)
    stranger.owns(link)
    with pytest.raises(ConfigError, match=f"{link} belongs to user {stranger.uid}"):
        run_folder.claim(link, None)
    assert mode(ours) == 0o755


def test_a_link_of_somebody_else_on_the_way_to_a_run_is_not_followed(shared: Path, stranger: Stranger) -> None:
    """He would choose which run of ours goes on."""
    (shared / "ours" / "heat").mkdir(parents=True)
    link = shared / "runs"
    link.symlink_to(shared / "ours")
    stranger.owns(link)
    for name in ("heat", "new"):
        with pytest.raises(ConfigError, match=f"It is a link of user {stranger.uid}.*: '{link}'. Write a study.output"):
            run_folder.claim(link / name, None)
    assert [it.name for it in (shared / "ours").iterdir()] == ["heat"]


def test_a_link_of_our_own_to_a_folder_of_ours_is_followed(tmp_path: Path) -> None:
    ours = tmp_path / "scratch"
    ours.mkdir(mode=0o755)
    link = tmp_path / "run"
    link.symlink_to(ours)
    run_folder.claim(link, None)
    assert mode(ours) == 0o700


def test_a_run_into_which_somebody_else_has_put_a_file_is_refused(shared: Path, stranger: Stranger) -> None:
    folder = shared / "run"
    (folder / "logs").mkdir(parents=True)
    folder.chmod(0o777)
    planted = folder / "logs" / "planted"
    planted.touch()
    stranger.owns(planted)
    with pytest.raises(ConfigError, match=rf"{folder} was open to others \(mode 0777\), and {planted} belongs"):
        run_folder.claim(folder, None)


@pytest.mark.parametrize("program", ["stream-server", "stream-launcher"])
def test_no_study_begins_in_a_folder_of_somebody_else(shared: Path, stranger: Stranger, program: str) -> None:
    folder = shared / "run"
    folder.mkdir()
    stranger.owns(folder)
    run = run_study(NUMPY_STUDY, folder, mpi=None, program=program)
    assert run.exit_code == 2
    assert f"{folder} belongs to user {stranger.uid}" in run.output
    assert list(folder.iterdir()) == []


def test_a_run_of_somebody_else_is_looked_at_with_one_plain_sentence(shared: Path, stranger: Stranger) -> None:
    folder = shared / "run"
    folder.mkdir(mode=0o700)
    (folder / "study.json").write_text("{}")
    package = Path(sys.modules["stream_server"].__file__ or "").parents[1]
    said = stranger.run('print(cli.main(["status", sys.argv[2]]))', package, folder, before=IMPORT)
    assert "a run is its owner's alone, unless study.share_with says more" in said
    assert said.endswith("1")


LIST_IT = """
try:
    print(os.listdir(sys.argv[1]))
except PermissionError:
    print("closed")
"""


@pytest.mark.parametrize("is_there", [False, True])
def test_a_default_acl_above_opens_no_run_also_where_it_is_shared_with_a_group(
    shared: Path, stranger: Stranger, is_there: bool
) -> None:
    need("access lists")
    open_to(shared, stranger.uid)
    for group in (None, grp.getgrgid(os.getegid()).gr_name):
        folder = shared / f"run-{group}"
        if is_there:
            folder.mkdir()
            assert stranger.run(LIST_IT, folder) == "[]"
        run_folder.claim(folder, group)
        (folder / "report.json").write_text("{}")
        (folder / "metrics").mkdir()
        assert stranger.run(LIST_IT, folder) == "closed"
        assert os.listxattr(folder) == os.listxattr(folder / "report.json") == os.listxattr(folder / "metrics") == []
