"""State as bytes: what comes back, what is refused, and what junk gives."""

import io
import json
from collections import Counter, OrderedDict, defaultdict, namedtuple
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from stream_server.errors import DamagedCheckpoint
from stream_server.storage.checksums import ChecksumFile
from stream_server.storage.plain_state import MAGIC, encode, freeze, from_bytes, read_state, to_bytes, write_state

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(1 << 200), max_value=1 << 200)
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
)
KEYS = st.recursive(
    st.booleans() | st.integers() | st.text() | st.binary(),
    lambda it: st.tuples(it, it) | st.frozensets(it, max_size=3),
    max_leaves=4,
)
DTYPES = (
    st_numpy.scalar_dtypes()
    | st_numpy.unicode_string_dtypes(min_len=1, max_len=5)
    | st_numpy.byte_string_dtypes(min_len=1, max_len=5)
)
ARRAYS = st_numpy.arrays(DTYPES, st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
ORDERED_ARRAYS = (
    ARRAYS
    | ARRAYS.map(np.asfortranarray)
    | ARRAYS.map(lambda it: it.T)
    | ARRAYS.map(lambda it: it[..., ::-1] if it.ndim else it)
)
STATES = st.recursive(
    SCALARS | ORDERED_ARRAYS | ARRAYS.filter(lambda it: it.size > 0).map(lambda it: it.reshape(-1)[0]),
    lambda it: (
        st.lists(it, max_size=4)
        | st.lists(it, max_size=4).map(tuple)
        | st.dictionaries(KEYS, it, max_size=4)
        | st.dictionaries(KEYS, it, max_size=3).map(OrderedDict)
        | st.dictionaries(KEYS, it, max_size=3).map(lambda items: defaultdict(list, items))
        | st.dictionaries(KEYS, st.integers(), max_size=3).map(Counter)
        | st.sets(KEYS, max_size=3)
    ),
    max_leaves=12,
)


def form(value: Any) -> Any:
    """Something that is equal for values that are the same to the last bit."""
    kind = type(value)
    if isinstance(value, np.ndarray | np.generic):
        return kind, value.dtype.str, value.shape, np.asarray(value).tobytes()
    if isinstance(value, dict):
        factory = value.default_factory if isinstance(value, defaultdict) else None
        return kind, factory, [(form(key), form(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return kind, [form(item) for item in value]
    if isinstance(value, set | frozenset):
        return kind, value
    return kind, repr(value)


@given(STATES)
def test_every_state_comes_back_as_it_was(state: Any) -> None:
    assert form(from_bytes(to_bytes(state))) == form(state)


def test_containers_numbers_and_arrays_come_back_as_they_were() -> None:
    state = {
        "a": [1, 2.5, None, "x", True],
        3: ({"k": np.arange(4).reshape(2, 2)}, np.zeros(0, np.float32)),
        (1, 2): (),
    }
    back = from_bytes(to_bytes(state))
    assert back["a"] == state["a"]
    assert back[(1, 2)] == ()
    inner, empty = back[3]
    assert inner["k"].tolist() == [[0, 1], [2, 3]]
    assert (empty.dtype, empty.shape) == (np.float32, (0,))


def test_integers_of_any_size_come_back() -> None:
    state = np.random.PCG64(7).state
    assert from_bytes(to_bytes(state)) == state
    assert from_bytes(to_bytes(-(10**20_000))) == -(10**20_000)


def test_fortran_order_is_kept() -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    back = from_bytes(to_bytes(array))
    assert back.flags.f_contiguous
    assert back.tolist() == array.tolist()


def test_arrays_come_back_writable() -> None:
    back = from_bytes(to_bytes([np.zeros(3), np.zeros((2, 2), order="F")]))
    assert all(array.flags.writeable for array in back)


def test_a_file_gives_back_what_was_written_to_it(tmp_path: Path) -> None:
    state = {"rows": np.arange(3_000_000), "name": "x", "mask": np.zeros((3, 1000), bool, order="F")}
    with ChecksumFile(tmp_path / "state") as file:
        write_state(file, state)
        file.close()
    assert form(read_state(tmp_path / "state")) == form(state)


def test_writing_takes_no_memory_for_the_arrays() -> None:
    array = np.zeros(1_000_000)
    written: list[Any] = []
    write_state(type("Sink", (), {"write": lambda _, data: written.append(data)})(), {"a": array})
    assert np.shares_memory(np.frombuffer(written[-1], np.uint8), array)


def test_frozen_state_does_not_see_later_changes() -> None:
    array, text = np.zeros(3), [1]
    frozen, encoded = freeze([array, text]), encode([array, text])
    array[:] = 1
    text.append(2)
    for state, expected in ((frozen, 0), (encoded, 1)):
        file = io.BytesIO()
        state.write(file)
        back = from_bytes(file.getvalue())
        assert (back[0].tolist(), back[1]) == ([expected] * 3, [1])


class Colour(IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "object"),
        (Colour.RED, "Colour"),
        (Point(1, 2), "Point"),
        (bytearray(b"x"), "bytearray"),
        (defaultdict(lambda: 1), "defaultdict"),
        (np.float64, "type"),
        (np.array([object()]), "ndarray of object"),
        (np.zeros(2, [("a", "i4")]), "ndarray of "),
        (np.ma.masked_array([1, 2], [True, False]), "MaskedArray of int64"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_what_would_not_come_back_as_it_was_is_refused_and_named(value: Any, what: str) -> None:
    with pytest.raises(TypeError) as caught:
        encode({"list": [0, {"x": value}]}, "Heat")
    assert str(caught.value).startswith(f"Heat.list.1.x is a {what}")


def test_a_key_that_cannot_be_saved_is_named() -> None:
    with pytest.raises(TypeError, match=r"a key of Heat\.a is a Colour, but only"):
        encode({"a": {Colour.RED: 1}}, "Heat")


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(TypeError, match="contains itself"):
        to_bytes(state)


def read_or_damaged(data: bytes) -> None:
    with suppress(DamagedCheckpoint):
        from_bytes(data)


@given(st.binary())
def test_junk_is_damage(junk: bytes) -> None:
    with pytest.raises(DamagedCheckpoint):
        from_bytes(junk)


@given(STATES, st.data())
def test_changed_bytes_give_a_value_or_damage(state: Any, data: st.DataObject) -> None:
    good = bytearray(to_bytes(state))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    read_or_damaged(bytes(good))


@given(STATES, st.data())
def test_every_truncation_and_extension_is_damage(state: Any, data: st.DataObject) -> None:
    good = to_bytes(state)
    for changed in (good[: data.draw(st.integers(0, len(good) - 1))], good + data.draw(st.binary(min_size=1))):
        with pytest.raises(DamagedCheckpoint):
            from_bytes(changed)


TAGS = [
    "array",
    "scalar",
    "bytes",
    "int",
    "complex",
    "tuple",
    "set",
    "frozenset",
    "items",
    "ordered",
    "counter",
    "default",
]
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=3) | st.just("list"),
    lambda it: (
        st.lists(it, max_size=3)
        | st.dictionaries(st.sampled_from([f"__{tag}__" for tag in TAGS]) | st.text(max_size=2), it, max_size=2)
    ),
)
SHAPES = st.lists(st.integers(-1, 3) | st.just(1 << 62), max_size=3) | TREES
FORMS = st.tuples(
    st.sampled_from(["<f8", "|u1", "|b1", "<U2", "|S0", "|O", "<M8[s]", "<M8[junk]", "|V2"]) | TREES,
    SHAPES,
    st.sampled_from("CFX"),
)


@given(TREES, st.lists(FORMS, max_size=3) | TREES, st.binary(max_size=64))
@example([{"__bytes__": 0}] * 2, [("|u1", [1], "C")], b"x")
def test_junk_that_looks_like_state_gives_a_value_or_damage(tree: Any, forms: Any, rest: bytes) -> None:
    text = json.dumps([tree, forms]).encode()
    read_or_damaged(MAGIC + len(text).to_bytes(8, "little") + text + rest)


def head(text: str) -> bytes:
    return MAGIC + len(text).to_bytes(8, "little") + text.encode()


@pytest.mark.parametrize(
    "junk",
    [
        MAGIC + b"\xff" * 8 + b"[]",
        head("[" * 200_000),
        head('[{"__array__": 0}, [["<f8", [1000000000000], "C"]]]'),
        head('[{"__array__": 0}, [["<f8", [0, 1000000000000000000000], "C"]]]'),
        head('[{"__array__": 0}, [["|S0", [1000000000000], "C"]]]'),
        head('[{"__array__": 0}, [["|O8", [1], "C"]]]') + bytes(8),
        head('[{"__array__": -1}, [["|u1", [1], "C"]]]') + b"x",
        head('[[{"__bytes__": 0}, {"__bytes__": 0}], [["|u1", [1], "C"]]]') + b"x",
        head('[{"__set__": [[]]}, []]'),
        head('[{"__default__": ["eval", []]}, []]'),
        head('[{"a": 1, "b": 2}, []]'),
        head(f"[{'9' * 5000}, []]"),
    ],
    ids=str,
)
def test_hostile_bytes_are_damage_and_take_no_memory(junk: bytes) -> None:
    with pytest.raises(DamagedCheckpoint):
        from_bytes(junk)


def test_a_file_that_is_not_there_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match="nothing cannot be read"):
        read_state(tmp_path / "nothing")
