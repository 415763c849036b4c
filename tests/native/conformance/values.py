"""The values that all drivers put, by one formula: element i of a block in C order depends on i and a seed only."""

import math

import numpy as np


def extents(word: str) -> tuple[int, ...]:
    """ "6,4" is (6, 4), and "." no dimension at all."""
    return () if word == "." else tuple(map(int, word.split(",")))


def values(dtype: str, count: tuple[int, ...], seed: int) -> np.ndarray:
    """A block, contiguous."""
    positive = (7 * seed + 3 * np.arange(math.prod(count))) % 61
    signed = positive - 20
    match np.dtype(dtype).kind:
        case "b":
            flat = positive % 2
        case "u":
            flat = positive * _spread(dtype)
        case "i":
            flat = signed * _spread(dtype)
        case "f":
            flat = signed / 3.0
        case _:
            flat = signed / 3.0 + 1j * (signed - 7)
    return flat.astype(dtype).reshape(count)


def laid_out(dtype: str, count: tuple[int, ...], seed: int, layout: str) -> np.ndarray:
    """The same block within a larger array, with ghost layers for instance."""
    if not count:
        return values(dtype, count, seed)
    begin, step = {"contiguous": (0, 1), "ghost": (1, 1), "reversed": (0, -1), "spread": (0, 2)}[layout]
    room = tuple(size + 2 if layout == "ghost" else 2 * size if layout == "spread" else size for size in count)
    whole = np.full(room, 42, dtype)
    block = whole[tuple(slice(begin, begin + size) if step == 1 else slice(None, None, step) for size in count)]
    block[...] = values(dtype, count, seed)
    return block


def _spread(dtype: str) -> int:
    """Makes use of all bytes of an integer."""
    return {1: 1, 2: 101, 4: 1000003, 8: 1000000000039}[np.dtype(dtype).itemsize]
