"""The effects of a power failure that the model of a disk allows, and those that it does not."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stream_server.storage import disk
from tests.faults.disk.model import Tree
from tests.faults.disk.recording import recorded
from tests.faults.disk.scratch import put
from tests.faults.disk.states import LOSSES, Moment, State

NUM_DRAWN = 400


def states(folder: Path, before: Tree, change: Callable[[Path], None]) -> list[State]:
    """States after a change that was cut short by nothing but the power failure."""
    folder.mkdir(exist_ok=True)
    put(before, str(folder / "disk"))
    with recorded(folder / "disk", before) as history:
        change(folder / "disk")
    random = Random(5)
    moment = Moment(history, len(history.steps))
    return [
        moment.whole(),
        moment.without_content(),
        moment.synced(),
        *(moment.drawn(random) for _ in range(NUM_DRAWN)),
    ]


def trees(folder: Path, before: Tree, change: Callable[[Path], None]) -> list[Tree]:
    """Those that differ."""
    found: list[Tree] = []
    for state in states(folder, before, change):
        if state.tree not in found:
            found.append(state.tree)
    return found


def append(path: Path, data: bytes, *, synced: bool = False) -> None:
    file = disk.open_to_append(path)
    disk.write_all(file, memoryview(data))
    if synced:
        disk.sync(file)
    disk.close(file)


def test_what_was_synced_is_there_whatever_happens(tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        append(folder / "a", b"second", synced=True)
        append(folder / "b", b"new", synced=True)
        disk.sync_folder(folder)

    assert trees(tmp_path, {"a": b"first"}, change) == [{"a": b"firstsecond", "b": b"new"}]


def test_a_synced_file_may_lose_its_name_and_a_name_its_content(tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        append(folder / "a", b"x", synced=True)

    def other(folder: Path) -> None:
        append(folder / "b", b"x")
        disk.sync_folder(folder)

    assert trees(tmp_path / "1", {}, change) == [{"a": b"x"}, {}]
    assert trees(tmp_path / "2", {}, other) == [{"b": b"x"}, {"b": b""}, {"b": b"\0"}]


def test_content_that_was_not_synced_is_torn_anywhere_or_has_holes(tmp_path: Path) -> None:
    data = bytes(range(1, 251)) * 8
    found = [tree["a"] for tree in trees(tmp_path, {"a": b""}, lambda folder: append(folder / "a", data))]
    assert data in found
    assert b"" in found
    contents = [content for content in found if isinstance(content, bytes)]
    assert any(data.startswith(content) and len(content) % 512 for content in contents)
    assert any(data.startswith(content) and content and len(content) % 512 == 0 for content in contents)
    assert any(len(content) == len(data) and bytes(512) in content for content in contents)
    for content in contents:
        for start in range(0, len(content), 512):
            sector = content[start : start + 512]
            assert sector in (data[start : start + len(sector)], bytes(len(sector)))


def test_a_rename_may_be_lost_or_half_done_but_never_loses_the_file(tmp_path: Path) -> None:
    found = trees(tmp_path, {"a": b"x", "b": b"y"}, lambda folder: disk.os.rename(folder / "a", folder / "b"))
    assert sorted(found, key=str) == [{"a": b"x", "b": b"x"}, {"a": b"x", "b": b"y"}, {"b": b"x"}]


def test_a_folder_has_one_name(tmp_path: Path) -> None:
    before: Tree = {"a": {"x": b""}}
    found = trees(tmp_path, before, lambda folder: disk.os.rename(folder / "a", folder / "b"))
    assert found == [{"b": {"x": b""}}, before]


def test_a_rename_may_be_lost_while_the_removal_after_it_is_not(tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        disk.os.rename(folder / "a", folder / "b")
        disk.remove_file(folder / "c")

    assert {"a": b"x"} in trees(tmp_path, {"a": b"x", "c": b"y"}, change)


def test_what_is_in_a_folder_goes_with_its_name(tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        disk.os.mkdir(folder / "a")
        append(folder / "a" / "x", b"1", synced=True)
        disk.sync_folder(folder / "a")

    assert trees(tmp_path, {}, change) == [{"a": {"x": b"1"}}, {}]


def test_a_file_that_was_cut_off_may_have_its_end_again(tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        disk.truncate(folder / "a", 2)
        append(folder / "a", b"X")

    found = [tree["a"] for tree in trees(tmp_path, {"a": b"abcdef"}, change)]
    assert {b"abX", b"ab", b"abcdef", b"abX\0\0\0"} <= set(found)
    assert all(isinstance(content, bytes) and content.startswith(b"ab") for content in found)


def test_every_kind_of_loss_is_drawn(tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        for number in range(3):
            append(folder / f"{number}", b"x" * 700)
            append(folder / f"{number}", b"y" * 700)
            os.stat(folder / f"{number}")
        disk.sync_folder(folder)
        disk.os.rename(folder / "0", folder / "3")
        disk.os.rename(folder / "1", folder / "4")
        disk.remove_file(folder / "2")

    lost = [state.losses for state in states(tmp_path, {}, change)]
    assert {name for losses in lost for name in losses} == set(LOSSES)
    assert frozenset() in lost


@pytest.mark.parametrize("method", ["whole", "without_content", "synced"])
def test_a_moment_is_that_after_its_step(tmp_path: Path, method: str) -> None:
    with recorded(tmp_path, {}) as history:
        append(tmp_path / "a", b"x")
        append(tmp_path / "a", b"y", synced=True)
    found = [getattr(Moment(history, num), method)().tree for num in range(len(history.steps) + 1)]
    expected: dict[str, list[Tree]] = {
        "whole": [{}, {"a": b""}, {"a": b"x"}, {"a": b"xy"}, {"a": b"xy"}],
        "without_content": [{}, {"a": b""}, {"a": b""}, {"a": b""}, {"a": b"xy"}],
        "synced": [{}] * 5,
    }
    assert found == expected[method]
