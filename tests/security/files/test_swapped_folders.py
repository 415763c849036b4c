"""Whoever may write into the folder above a run can give its name to another folder of the same user."""

import hashlib
from pathlib import Path

import pytest

from stream_server.machine import private_folder, run_folder
from stream_server.storage import disk
from tests.security.stranger import Stranger
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study, start_study

RENAME_AND_LINK = """
run, aside, other = sys.argv[1:]
os.rename(run, aside)
os.symlink(other, run)
"""
GIVE_BACK = """
run, aside = sys.argv[1:]
os.unlink(run)
os.rename(aside, run)
"""


def content_of(folder: Path) -> dict[str, str]:
    """All files below a folder by their relative path, as a checksum of what is in them."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["stream-server", "stream-launcher"])
def test_a_run_whose_name_is_given_to_another_one_touches_nothing_of_that(
    shared: Path, stranger: Stranger, program: str
) -> None:
    settings = {
        "study.simulations": 4,
        "checkpoint.every_batches": 1,
        "checkpoint.record": True,
        "metrics.writers": ["tensorboard"],
    }
    old = run_study(NUMPY_STUDY, shared / "old", mpi=None, settings=settings)
    assert_complete(old, num_simulations=4)
    before = content_of(old.output_dir)
    project = shared / "project"
    project.mkdir()
    project.chmod(0o777)
    run, aside, waited_for = project / "run", project / "aside", shared / "go on"
    patient = {"simulation.command": ["python", "patient.py", str(waited_for)], "launcher.max_running": 3}
    with start_study(NUMPY_STUDY, run, mpi=None, program=program, settings=settings | patient) as live:
        live.wait_until(lambda: len(list((run / "checkpoints").glob("0*"))) > 1)
        stranger.run(RENAME_AND_LINK, run, aside, old.output_dir)
        waited_for.touch()
        live.wait_until(lambda: "is another folder now: give" in live.said)
        stranger.run(GIVE_BACK, run, aside)
        ended = live.end(60)
    assert content_of(old.output_dir) == before
    assert f"others may write into {project}, so that they can rename {run}" in ended.output
    assert_complete(ended, num_simulations=4)
    assert (run / "model").is_dir()


@pytest.mark.parametrize(("mode", "is_told"), [(0o777, True), (0o775, False), (0o1777, False), (0o755, False)])
def test_a_folder_above_in_which_others_may_rename_is_told(shared: Path, mode: int, *, is_told: bool) -> None:
    project = shared / "project"
    project.mkdir()
    project.chmod(mode)
    told = run_folder.claim(project / "runs" / "heat", None)
    assert ("can rename" in told) == is_told


def test_a_folder_above_that_a_group_may_write_is_told(shared: Path, stranger: Stranger) -> None:
    project = shared / "project"
    project.mkdir()
    stranger.is_in_the_group_of(project)
    project.chmod(0o2775)
    assert f"others may write into {project}" in run_folder.claim(project / "heat", None)


@pytest.mark.parametrize(("mode", "is_safe"), [(0o777, False), (0o2775, False), (0o1777, True), (0o755, True)])
@pytest.mark.parametrize("is_above", [True, False])
def test_private_folders_are_where_nobody_else_can_rename_them(
    shared: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, mode: int, *, is_safe: bool, is_above: bool
) -> None:
    """Sockets in them ask for no keys: in another folder of that name a stranger would have them, too."""
    project = shared / "project"
    temporary = project / "tmp" if is_above else project
    temporary.mkdir(parents=True)
    stranger.is_in_the_group_of(project)
    project.chmod(mode)
    monkeypatch.setenv("TMPDIR", str(temporary))
    with private_folder.temporary() as folder:
        assert (folder.parent == temporary) == is_safe


def test_a_folder_is_held_through_no_link_of_a_stranger(shared: Path, stranger: Stranger) -> None:
    """He may put it in the place of a folder that was looked at a moment before."""
    ours, link = shared / "ours", shared / "run"
    ours.mkdir()
    link.symlink_to(ours)
    stranger.owns(link)
    with pytest.raises(PermissionError, match=f"It is a link of user {stranger.uid}"):
        disk.open_folder(link)
