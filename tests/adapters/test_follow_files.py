"""Which files are of which step, and when they are finished."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stream_server.adapters import follow_files, follow_lock
from stream_server.adapters.follow_files import StepFiles, signature
from stream_server.adapters.follow_lock import lock_of
from stream_server.errors import ConfigError
from tests.support.timing import Clock

QUIET_S = 2.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(follow_files, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()


def files(pattern: str = "out/step_*.npy", finished_by: str = "quiet", *, earlier: bool = False) -> StepFiles:
    return StepFiles(pattern, finished_by=finished_by, quiet_s=QUIET_S, earlier=earlier)


def numbers(watched: StepFiles) -> list[float]:
    return [file.number for file in watched.look()]


@pytest.mark.parametrize(
    ("pattern", "names", "expected"),
    [
        ("out/step_*.npy", ["step_10.npy", "step_0009.npy", "other.npy"], [9, 10]),
        ("out/*.npy", ["a_0.05.npy", "a_1e-3.npy"], [0.001, 0.05]),
        ("out/run7_*_t*.npy", ["run7_x2_t3.npy"], [3]),
        ("out/s[0-9]?.npy", ["s41.npy"], [41]),
        ("out/*", ["step_5.npy"], [5]),
        ("./out//step_*.npy", ["step_0010.npy"], [10]),
        ("out/step_*.npy", ["step_-3.npy", "step_3.npy"], [-3, 3]),
        ("out/s*.npy", ["s_2020-01-05.npy", "step-7.npy"], [5, 7]),
        ("out/step_*.npy", [f"step_{2**53 + 1}.npy", f"step_{2**53}.npy"], [2**53, 2**53 + 1]),
    ],
)
def test_a_step_is_the_last_number_in_what_the_pattern_leaves_open(
    pattern: str, names: list[str], expected: list[float]
) -> None:
    watched = files(pattern)
    for name in names:
        Path("out", name).write_text("1")
    assert numbers(watched) == expected


def test_a_file_without_a_number_is_refused() -> None:
    watched = files("out/*.npy")
    Path("out/mesh.npy").write_text("1")
    with pytest.raises(ConfigError, match=r"out/mesh\.npy matches 'out/\*\.npy', and has no number there"):
        watched.look()


def test_two_files_with_one_number_are_refused() -> None:
    watched = files("out/*.npy")
    for name in ("a_1.npy", "b_01.npy"):
        Path("out", name).write_text("1")
    with pytest.raises(ConfigError, match=r"out/a_1\.npy and out/b_01\.npy are both files of 1: expected one"):
        watched.look()


def test_a_marker_of_all_files_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--finished-by out/done would be one marker for all files: expected quiet"):
        files(finished_by="out/done")


def test_a_file_is_finished_when_nothing_changes_or_the_next_one_is_there(clock: Clock) -> None:
    watched, path = files(), Path("out/step_0.npy")
    path.write_text("1")
    assert watched.is_finished(path, next_is_there=True)
    assert not watched.is_finished(path, next_is_there=False)
    clock.now += QUIET_S - 0.1
    assert not watched.is_finished(path, next_is_there=False)
    path.write_text("12")
    clock.now += QUIET_S - 0.1
    assert not watched.is_finished(path, next_is_there=False)
    clock.now += QUIET_S
    assert watched.is_finished(path, next_is_there=False)


def test_a_file_that_is_renamed_into_its_place_is_finished() -> None:
    assert files(finished_by="rename").is_finished(Path("out/step_0.npy"), next_is_there=False)


@pytest.mark.parametrize(
    ("finished_by", "marker"), [("{}.done", "out/step_0.npy.done"), ("out/done_*", "out/done_0"), ("*.ok", "0.ok")]
)
def test_a_file_is_finished_with_its_marker(finished_by: str, marker: str) -> None:
    watched, path = files(finished_by=finished_by), Path("out/step_0.npy")
    path.write_text("1")
    assert not watched.is_finished(path, next_is_there=True)
    Path(marker).touch()
    assert watched.is_finished(path, next_is_there=False)
    watched.remove(path)
    assert not path.exists()
    assert not Path(marker).exists()


def test_what_was_there_before_counts_once_it_is_written_anew() -> None:
    old = Path("out/step_0.npy")
    old.write_text("1")
    watched = files()
    Path("out/step_1.npy").write_text("1")
    assert numbers(watched) == [1]
    old.write_text("12")
    assert numbers(watched) == [0, 1]
    assert numbers(files(earlier=True)) == [0, 1]


def test_xdmf_consists_of_two_files_and_adios_of_a_folder() -> None:
    xdmf, numbers = Path("out/step_0.xdmf"), Path("out/step_0.h5")
    folder = Path("out/step_0.bp")
    folder.mkdir()
    for path in (xdmf, numbers, folder / "data.0"):
        path.write_text("1")
    for path, part in ((xdmf, numbers), (folder, folder / "data.0")):
        before = signature(path)
        part.write_text("12")
        assert signature(path) != before
        files().remove(path)
    assert os.listdir("out") == []


def test_a_message_names_what_is_there(tmp_path: Path) -> None:
    assert files("else/step_*.npy").neighbours() == "there is no folder else"
    assert files().neighbours() == f"{tmp_path}/out is empty"
    Path("out/step-1.npy").touch()
    assert files().neighbours() == f"{tmp_path}/out has step-1.npy"


@pytest.mark.parametrize("folder", ["out", "new"])
def test_a_folder_has_one_follower(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setattr(follow_lock, "LOCK_WAIT_S", 0.0)
    with lock_of(f"{folder}/step_*.npy"):
        Path(folder).mkdir(exist_ok=True)
        expected = rf"/{folder} is followed already, by process {os.getpid()} or the solver"
        with pytest.raises(ConfigError, match=expected), lock_of(os.path.abspath(f"{folder}/all.h5")):
            pass
        with lock_of("another/step_*.npy"):
            pass
    with lock_of(f"{folder}/step_*.npy"):
        pass


def test_a_place_without_room_for_a_lock_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = r"\.stream-follow-\w+ cannot be opened: Permission denied\. stream-follow needs a file"

    def refused(number: int) -> Callable[..., int]:
        def refuse(*_: Any) -> int:
            raise OSError(number, os.strerror(number))

        return refuse

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused(errno.EACCES))
        with pytest.raises(ConfigError, match=expected), lock_of("out/step_*.npy"):
            pass
    monkeypatch.setattr(fcntl, "flock", refused(errno.ENOLCK))
    with pytest.raises(ConfigError, match=r"cannot be locked: No locks available\."), lock_of("out/step_*.npy"):
        pass
