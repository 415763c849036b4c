"""Links, pipes and files that a stranger puts where a study, or its user, will write: nothing else is touched."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stream_server.analysis.export import export
from stream_server.analysis.page import write_page
from stream_server.analysis.plot import plot
from stream_server.analysis.reading import RunFolder
from stream_server.commands.cli import main
from stream_server.errors import ConfigError
from stream_server.machine import run_folder
from stream_server.storage.disk import open_output
from stream_server.storage.links import open_by_own_links
from stream_server.studies.study import Study
from stream_server.templates.new_study import copy_example, make_blank
from tests.analysis.conftest import fonts
from tests.security.files.test_swapped_folders import content_of
from tests.security.stranger import Stranger
from tests.support.runs import NUMPY_STUDY, run_study

__all__ = ["fonts"]

SECRET = b"years of work"
# Some of the names that a study makes.
NAMES = ("run.lock", "metrics/metrics.jsonl", "simulations/0/attempt-0")


@pytest.fixture
def victim(shared: Path) -> Iterator[Path]:
    """A folder of ours, which nobody else can enter, with a file that stays what it is."""
    folder = shared / "victim"
    folder.mkdir(mode=0o700)
    (folder / "thesis").write_bytes(SECRET)
    (folder / "thesis").chmod(0o640)
    yield folder
    assert (folder / "thesis").read_bytes() == SECRET
    assert stat.S_IMODE((folder / "thesis").stat().st_mode) == 0o640
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [it.name for it in folder.iterdir()] == ["thesis"]


@pytest.fixture(params=[0o1777, 0o2775], ids=["sticky", "of the group"])
def project(request: pytest.FixtureRequest, shared: Path, stranger: Stranger) -> Path:
    """A folder that the stranger may write into, too: like /tmp, or that of a project whose group he is in."""
    folder = shared / "project"
    folder.mkdir()
    stranger.is_in_the_group_of(folder)
    folder.chmod(request.param)
    return folder


PLANT = """
kind, place, target = sys.argv[1:]
os.umask(0)
os.makedirs(os.path.dirname(place), exist_ok=True)
if kind == "link":
    os.symlink(target, place)
elif kind == "pipe":
    os.mkfifo(place, 0o666)
elif kind == "file":
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
"""


@pytest.fixture(params=["link", "link to a folder", "hard link", "pipe", "file"])
def plant(request: pytest.FixtureRequest, stranger: Stranger, victim: Path) -> Callable[[Path], None]:
    """What puts something at a path, as the stranger may."""

    def plant(path: Path) -> None:
        kind, target = request.param, victim / "thesis"
        if kind == "hard link":
            # Where the system lets everybody make them (fs.protected_hardlinks).
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(target, path)
        else:
            stranger.run(PLANT, kind.partition(" ")[0], path, target if kind == "link" else victim)

    return plant


@pytest.mark.parametrize("mode", [0o777, 0o2775, 0o755, 0o711])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_in_which_something_was_planted_is_refused(
    shared: Path, plant: Callable[[Path], None], mode: int, name: str
) -> None:
    """Its own mode may forbid that: folders below may be open."""
    folder = shared / "run"
    place = folder / name
    place.parent.mkdir(parents=True)
    for each in {folder, place.parent}:
        each.chmod(0o777)
    plant(place)
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=rf"{folder} was open to others \(mode {mode:04o}\), and {place} "):
        run_folder.claim(folder, None)
    assert stat.S_IMODE(folder.stat().st_mode) == mode


@pytest.mark.slow
@pytest.mark.parametrize("program", ["stream-server", "stream-launcher"])
@pytest.mark.parametrize("fresh", [False, True], ids=["goes on", "fresh"])
def test_no_study_writes_where_something_was_planted(
    shared: Path, victim: Path, stranger: Stranger, program: str, fresh: bool
) -> None:
    folder = shared / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs").chmod(0o777)
    stranger.run(PLANT, "link", folder / "logs" / "launcher.log", victim / "thesis")
    stranger.run(PLANT, "link", folder / "logs" / "rank-0.log", victim / "thesis")
    run = run_study(NUMPY_STUDY, folder, mpi=None, program=program, arguments=["--fresh"] if fresh else [])
    assert run.exit_code == 2
    assert f"{folder} was open to others (mode 0755)" in run.output


def test_an_earlier_run_is_renamed_to_a_name_that_nothing_has(project: Path, victim: Path, stranger: Stranger) -> None:
    folder = project / "run"
    folder.mkdir()
    stranger.run(PLANT, "link", f"{folder}.1", victim / "nothing")
    stranger.run(PLANT, "link", f"{folder}.2", victim)
    assert run_folder.set_aside(folder) == f"the earlier run in {folder} is kept as run.3"
    assert not folder.exists()


METRICS = '{"batch": 1, "update": 1, "sample": 10, "wall_s": 1.0, "train/loss": 0.5}\n'


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "run" / "metrics").mkdir(parents=True)
    (tmp_path / "run" / "metrics" / "metrics.jsonl").write_text(METRICS * 2)
    return RunFolder(tmp_path / "run")


RESULTS: dict[str, Callable[[RunFolder, Path], object]] = {
    "out.csv": lambda run, to: export([run], to),
    "out.parquet": lambda run, to: export([run], to),
    "page.html": write_page,
    "loss.png": lambda run, to: plot(run, to.parent),
}


@pytest.mark.parametrize("name", RESULTS)
def test_no_table_picture_or_page_goes_where_a_stranger_wants_it(
    project: Path, run: RunFolder, plant: Callable[[Path], None], name: str
) -> None:
    plant(project / name)
    with pytest.raises(ConfigError, match="cannot be written"):
        RESULTS[name](run, project / name)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_goes_where_its_user_wants_it(tmp_path: Path, run: RunFolder, name: str) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / name).symlink_to(tmp_path / name)
    (tmp_path / name).write_text("EARLIER" * 100_000)
    RESULTS[name](run, tmp_path / "to" / name)
    assert b"EARLIER" not in (tmp_path / name).read_bytes()
    assert (tmp_path / "to" / name).is_symlink()


@pytest.mark.parametrize("name", RESULTS)
def test_no_result_goes_by_a_folder_that_a_stranger_has_linked(
    project: Path, run: RunFolder, victim: Path, stranger: Stranger, name: str
) -> None:
    stranger.run(PLANT, "link", project / "figures", victim)
    with pytest.raises(ConfigError, match=r"cannot be written.*link of user"):
        RESULTS[name](run, project / "figures" / name)


IN_FOLDERS: dict[str, Callable[[RunFolder, Path], object]] = {
    **{name: lambda run, to, write=write, name=name: write(run, to / name) for name, write in RESULTS.items()},
    "pictures in a new folder": lambda run, to: plot(run, to / "new" / "deep"),
    "a study": lambda run, to: make_blank(to, "python"),
    "a study in a new folder": lambda run, to: make_blank(to / "new" / "deep", "python"),
}
# More than a result takes.
MOST_CALLS = 200


@pytest.mark.parametrize("what", IN_FOLDERS)
def test_no_result_goes_by_a_folder_that_a_stranger_swaps_at_any_moment(
    shared: Path, run: RunFolder, stranger: Stranger, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He gives the name of a folder to a link: between look and opening it led into any file of ours."""
    private, figures, link, aside = (shared / name for name in ("private", "figures", "link", "aside"))
    for folder in (private, figures):
        folder.mkdir()
    for name in RESULTS:
        (private / name).write_bytes(SECRET)
    before = content_of(private)
    link.symlink_to(private)
    stranger.owns(link)
    num_left = 0

    def counted(call: Callable[..., Any], *arguments: Any, **others: Any) -> Any:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            figures.rename(aside)
            link.rename(figures)
        return call(*arguments, **others)

    for name in ("open", "mkdir", "stat", "lstat"):
        monkeypatch.setattr(os, name, partial(counted, getattr(os, name)))
    for num_before in range(1, MOST_CALLS):
        num_left = num_before
        with suppress(ConfigError):
            IN_FOLDERS[what](run, figures)
        is_over, num_left = num_left > 0, 0
        if is_over:
            break
        assert content_of(private) == before
        assert [it.name for it in private.iterdir() if it.is_dir()] == []
        figures.rename(link)
        shutil.rmtree(aside)
        figures.mkdir()
    assert is_over


def test_no_picture_goes_into_the_run_of_a_stranger_unless_asked(
    project: Path, run: RunFolder, stranger: Stranger, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = run.path.rename(project / "theirs")
    (theirs / "plots").symlink_to(victim)
    for path in (theirs / "plots", theirs):
        stranger.owns(path)
    assert main(["plot", str(theirs)]) == 2
    assert f"{theirs} belongs to user" in capsys.readouterr().err


def test_links_of_ones_own_lead_where_the_system_follows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "file").touch()
    for name, target in (
        ("absolute", tmp_path / "deep"),
        ("relative", "deep/./deeper/"),
        ("chain", "relative/../../absolute"),
        ("to file", "chain/file"),
        ("root", "/"),
        ("up", ".."),
        ("loop", "loop"),
        ("nothing", "deep/missing"),
    ):
        (tmp_path / name).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    for path in (
        *(
            "absolute",
            "relative",
            "relative/..",
            "chain",
            "chain/file",
            "to file",
            "root",
            "up",
            ".",
            "deep",
            "/",
            "..",
        ),
        *(f"root{tmp_path}/deep", f"{tmp_path}/to file", "/proc/self/cwd/chain/file", "/proc/self/cwd", "/dev/null"),
    ):
        descriptor = open_by_own_links(path, os.O_PATH)
        assert os.path.samestat(os.fstat(descriptor), os.stat(path)), path
        os.close(descriptor)
    for path in ("loop", "loop/x", "nothing", "nothing/x", "missing", "missing/x", "to file/x", "chain/file/x"):
        with pytest.raises(OSError) as expected:  # noqa: PT011 (compared below)
            os.open(path, os.O_PATH)
        with pytest.raises(OSError) as found:  # noqa: PT011 (compared below)
            open_by_own_links(path, os.O_PATH)
        assert (found.value.errno, found.value.filename) == (expected.value.errno, path)


def test_a_result_goes_to_a_pipe_or_device_of_ones_own(tmp_path: Path) -> None:
    receiver, sender = os.pipe()
    with open(receiver, "rb") as read, open(sender, "wb"):
        with open(f"/dev/fd/{sender}", "w", opener=open_output) as file:
            assert os.get_blocking(file.fileno())
            file.write("words")
        assert read.read(5) == b"words"
    with open("/dev/null", "wb", opener=open_output) as file:
        file.write(b"words")


def test_neither_study_nor_console_of_a_notebook_goes_where_a_stranger_wants_it(
    project: Path, plant: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    study = Study.load(NUMPY_STUDY, {"study.output_dir": str(project / "heat")})
    plant(project / "heat.log")
    with pytest.raises(ConfigError, match=r"heat\.log cannot be written"):
        study.start()
    assert not (project / "heat" / "run.lock").exists()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_no_new_study_begins_in_a_folder_of_a_stranger(project: Path, stranger: Stranger, kind: str) -> None:
    """Else he puts a server class of his own in the place of ours."""
    folder = project / "my-study"
    if kind == "link":
        (project / "ours").mkdir()
        stranger.run(PLANT, "link", folder, project / "ours")
    else:
        folder.mkdir(mode=0o777)
        stranger.owns(folder)
    for make in (lambda: make_blank(folder, "python"), lambda: copy_example("heat", folder)):
        with pytest.raises(ConfigError, match=f"{folder} cannot be written: .*It (belongs to|is a link of) user"):
            make()
    assert list(folder.iterdir()) == []


def test_a_new_study_writes_no_file_that_is_there(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it came after the folder was looked at."""
    folder = shared / "new"
    folder.mkdir()
    (shared / "thesis").write_bytes(SECRET)
    (folder / "study.json").symlink_to(shared / "thesis")
    monkeypatch.setattr(Path, "iterdir", _as_if_empty(folder, Path.iterdir))
    with pytest.raises(ConfigError, match=f"{folder} is not empty"):
        make_blank(folder, "python")
    assert (shared / "thesis").read_bytes() == SECRET


def _as_if_empty(empty: Path, iterdir: Callable[[Path], Iterator[Path]]) -> Callable[[Path], Iterator[Path]]:
    return lambda folder: iter(()) if folder == empty else iterdir(folder)


def test_a_result_is_not_written_through_a_link_that_came_between_look_and_opening(
    shared: Path, stranger: Stranger, tmp_path: Path
) -> None:
    """It led into a private file in four of ten tries as long as these were two steps."""
    private = tmp_path / "private"
    private.write_text("kept")
    # Where the sticky bit is missing, Linux follows whosever link it is.
    project = shared / "project"
    project.mkdir()
    project.chmod(0o777)
    name = project / "result.csv"
    swaps = """
name, private, end = sys.argv[1:]
print("begun", flush=True)
while not os.path.exists(end):
    os.symlink(private, name + ".link")
    os.rename(name + ".link", name)
    try:
        os.unlink(name)
    except FileNotFoundError:
        pass
"""
    end = shared / "end"
    with stranger.start(swaps, name, private, end) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for _ in range(2000):
            with suppress(OSError), open(name, "w", opener=open_output) as file:
                file.write("a result")
            with suppress(OSError):
                if not name.is_symlink():
                    name.unlink()
        end.touch()
        process.wait(60)
    assert private.read_text() == "kept"
