"""Types, conversions, copies and checksums of the C client, against NumPy and zlib."""

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.client_api.fields import number_text
from stream_server.messages.client import DTYPES
from tests.native.unit.probe import Probe, extents
from tests.support.examples import examples

PROBE = "probe_numbers"
NUMPY = [np.dtype(it) for it in DTYPES[1:]]
PAIRS = [(a, b) for a in NUMPY for b in NUMPY if np.can_cast(a, b, "same_kind")]


def copied(probe: Probe, array: np.ndarray, dtype: np.dtype, view: np.ndarray | None = None) -> np.ndarray:
    """`view`, which lies in `array`, as contiguous numbers of another type; what does not fit is told."""
    strides: tuple[int, ...] = ()
    first = 0
    if view is None:
        view = array
    else:
        strides = tuple(it // array.itemsize for it in view.strides)
        first = (view.__array_interface__["data"][0] - array.__array_interface__["data"][0]) // array.itemsize
    codes = (DTYPES.index(array.dtype.str), DTYPES.index(dtype.str))
    answer, *misfit = probe.ask("copy", *codes, *extents(view.shape), *extents(strides), first, array.tobytes())
    assert misfit == first_misfit(view, dtype)
    return np.frombuffer(bytes.fromhex(answer[1:]), dtype).reshape(view.shape)


def first_misfit(array: np.ndarray, dtype: np.dtype) -> list[str]:
    """The text and the index of the first element that becomes another integer or infinite; [] if all fit."""
    for index in np.ndindex(array.shape):
        value, number = array[index], astype(array[index], dtype)
        if dtype.kind in "iu":
            fits = int(value) == int(number)
        else:
            fits = bool(np.isfinite(number) or not np.isfinite(value))
            if dtype.kind == "c":
                parts = [(value.real, number.real), (value.imag, number.imag)]
                fits = all(np.isfinite(after) or not np.isfinite(before) for before, after in parts)
        if not fits:
            return [number_text(value), *map(str, index)]
    return []


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Bit by bit, but for the payload of a NaN."""
    if expected.dtype.kind == "c":
        component = f"<f{expected.itemsize // 2}"
        found, expected = found.reshape(-1).view(component), expected.reshape(-1).view(component)
    bits = f"<u{expected.itemsize}"
    same = np.ascontiguousarray(found).view(bits) == np.ascontiguousarray(expected).view(bits)
    if expected.dtype.kind == "f":
        same |= np.isnan(found) & np.isnan(expected)
    assert same.all(), (found[~same][:5], expected[~same][:5])


def astype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return array.astype(dtype)


def edges(dtype: np.dtype) -> np.ndarray:
    """The special values of a type, and a thousand numbers of all sizes."""
    generator = np.random.default_rng(7)
    if dtype.kind == "b":
        return np.array([False, True, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        near = [it + d for it in (info.min, 0, info.max, 2**11, 2**24, 2**53) for d in (-2, -1, 0, 1, 2)]
        special = np.array([it for it in near if info.min <= it <= info.max], dtype)
        return np.concatenate([special, np.frombuffer(generator.bytes(1000 * dtype.itemsize), dtype)])
    if dtype.kind == "c":
        component = edges(np.dtype(f"<f{dtype.itemsize // 2}"))
        return np.stack([component, np.roll(component, 1)], axis=-1).view(dtype).reshape(-1)
    with np.errstate(over="ignore"):
        sizes = [2.0**e for e in (-1074, -149, -126, -26, -25, -24, -15, -14, 0, 10, 16, 127, 128, 1023)]
        special = np.array([0.0, np.inf, np.nan, 65504, 65519.99, 65520, 65536, 1 / 3, *sizes]).astype(dtype)
    return np.concatenate([special, -special, np.frombuffer(generator.bytes(1000 * dtype.itemsize), dtype)])


def test_the_casting_rules_are_those_of_numpy(probe: Probe) -> None:
    expected = [int(np.can_cast(a, b, rule)) for a in NUMPY for b in NUMPY for rule in ("same_kind", "safe")]
    assert list(map(int, probe.ask("rules"))) == expected


def test_types_have_the_names_and_sizes_of_numpy(probe: Probe) -> None:
    expected = [it for dtype in NUMPY for it in (dtype.name, str(dtype.itemsize))]
    assert probe.ask("names") == expected


@pytest.mark.parametrize(("dtype", "to"), PAIRS, ids=lambda it: it.name)
def test_a_conversion_is_that_of_astype(probe: Probe, dtype: np.dtype, to: np.dtype) -> None:
    array = edges(dtype)
    assert_same(copied(probe, array, to), astype(array, to))


def test_every_half_becomes_the_double_that_it_is(probe: Probe) -> None:
    halves = np.arange(2**16, dtype="<u2").view("<f2")
    assert_same(copied(probe, halves, np.dtype("<f8")), halves.astype("<f8"))


def test_doubles_are_rounded_once_to_the_nearest_half(probe: Probe) -> None:
    halves = np.arange(0x7C00, dtype="<u2").view("<f2").astype("<f8")
    middles = (halves[:-1] + halves[1:]) / 2
    doubles = np.concatenate([halves, middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf), -middles])
    assert_same(copied(probe, doubles, np.dtype("<f2")), astype(doubles, np.dtype("<f2")))


@st.composite
def views(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """An array, and a part of it with gaps, turned round and with its dimensions in another order."""
    dtype = draw(st.sampled_from(NUMPY))
    shape = draw(st.lists(st.integers(1, 6), max_size=4))
    array = np.arange(int(np.prod(shape)), dtype="<u4").reshape(shape).astype(dtype)
    view: Any = array
    for axis, size in enumerate(shape):
        start, step = draw(st.integers(0, size - 1)), draw(st.sampled_from([1, 1, 2, -1, -2]))
        view = view[(slice(None),) * axis + (slice(start, None, step),)]
    if draw(st.booleans()):
        view = view.transpose(draw(st.permutations(range(len(shape)))))
    return array, view


@settings(max_examples=examples(300))
@given(views(), st.data())
def test_a_block_is_copied_from_inside_of_any_array(
    probe: Probe, arrays: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    array, view = arrays
    to = data.draw(st.sampled_from([it for it in NUMPY if np.can_cast(array.dtype, it, "same_kind")]))
    assert_same(copied(probe, array, to, view), astype(view, to))


def test_long_rows_with_gaps_are_converted_piece_by_piece(probe: Probe) -> None:
    array = np.random.default_rng(5).standard_normal((3, 7000))
    for dtype in ("<f8", "<f4", "<f2", "<c8"):
        view = array[::2, ::3]
        assert_same(copied(probe, array, np.dtype(dtype), view), view.astype(dtype))


def test_the_checksum_has_the_value_on_the_protocol_page(probe: Probe) -> None:
    assert probe.ask("checksum", 0, b"123456789") == [str(0xCBF43926)]


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_the_checksum_is_that_of_zlib(probe: Probe, content: bytes, before: int) -> None:
    assert probe.ask("checksum", before, content) == [str(zlib.crc32(content, before))]


def test_the_checksum_of_much_is_that_of_zlib(probe: Probe) -> None:
    content = np.random.default_rng(3).bytes(100_001)
    assert probe.ask("checksum", 0, content) == [str(zlib.crc32(content))]
