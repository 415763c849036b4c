"""Ways to damage a file. What each has many of is numbered, so that a number says which."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

NUM_BLOCKS = 24
SMALLEST_BLOCK = 8


@dataclass(frozen=True, slots=True)
class OnBytes:
    """Gives other bytes for those of a file. `count` says how many such changes there are of so many bytes.

    One that `keeps_lines` leaves each line as it was, if in another place.
    """

    name: str
    count: Callable[[bytes], int]
    change: Callable[[bytes, int], bytes]
    keeps_lines: bool = False


def flipped(data: bytes, bit: int) -> bytes:
    place, mask = bit // 8, 1 << bit % 8
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def truncated(data: bytes, num_bytes: int) -> bytes:
    return data[:num_bytes]


def extended(data: bytes, number: int) -> bytes:
    return data + (b"\0", b"\n", b" ", b"}", bytes(512), b"\xff" * 8)[number]


def zeroed(data: bytes, block: int) -> bytes:
    parts = _blocks(data)
    return b"".join([*parts[:block], bytes(len(parts[block])), *parts[block + 1 :]])


def swapped(data: bytes, number: int) -> bytes:
    parts = _blocks(data)
    first, second = _pairs(len(parts))[number]
    parts[first], parts[second] = parts[second], parts[first]
    return b"".join(parts)


def cut_out(data: bytes, block: int) -> bytes:
    parts = _blocks(data)
    return b"".join([*parts[:block], *parts[block + 1 :]])


def doubled(data: bytes, block: int) -> bytes:
    parts = _blocks(data)
    return b"".join([*parts[:block], parts[block], *parts[block:]])


def line_lost(data: bytes, line: int) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([*lines[:line], *lines[line + 1 :]])


def lines_swapped(data: bytes, number: int) -> bytes:
    lines = data.splitlines(keepends=True)
    first, second = _pairs(len(lines))[number]
    lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


ON_BYTES = (
    OnBytes("bit flipped", lambda data: 8 * len(data), flipped),
    OnBytes("truncated", len, truncated),
    OnBytes("extended", lambda data: 6, extended),
    OnBytes("block zeroed", lambda data: len(_blocks(data)), zeroed),
    OnBytes("blocks swapped", lambda data: len(_pairs(len(_blocks(data)))), swapped),
    OnBytes("block cut out", lambda data: len(_blocks(data)), cut_out),
    OnBytes("block twice", lambda data: len(_blocks(data)), doubled),
    OnBytes("line lost", lambda data: _num_lines(data), line_lost, keeps_lines=True),
    OnBytes("lines swapped", lambda data: len(_pairs(_num_lines(data))), lines_swapped, keeps_lines=True),
)


def removed(path: Path) -> None:
    path.unlink()


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def made_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def linked_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def linked_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def linked_to_a_device(path: Path) -> None:
    """One that gives zeros for ever."""
    path.unlink()
    path.symlink_to("/dev/zero")


def moved_and_linked(path: Path) -> None:
    """The bytes are still there, somewhere else."""
    elsewhere = path.with_name(f"{path.name}.moved")
    path.rename(elsewhere)
    path.symlink_to(elsewhere.name)


ON_FILES: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("removed", removed),
    ("made a folder", made_a_folder),
    ("made a fifo", made_a_fifo),
    ("link to nothing", linked_to_nothing),
    ("link to itself", linked_to_itself),
    ("link to a device", linked_to_a_device),
    ("link to the same bytes", moved_and_linked),
)


def _blocks(data: bytes) -> list[bytes]:
    size = max(SMALLEST_BLOCK, -(-len(data) // NUM_BLOCKS))
    return [data[start : start + size] for start in range(0, len(data), size)]


def _num_lines(data: bytes) -> int:
    is_text = data.endswith(b"\n") and data.isascii()
    return len(data.splitlines()) if is_text else 0


def _pairs(num: int) -> list[tuple[int, int]]:
    return list(combinations(range(num), 2))
