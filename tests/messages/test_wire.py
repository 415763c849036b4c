"""Bytes and messages."""

import contextlib
import math
import random
import struct
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from stream_server.errors import MalformedMessage, WrongProtocol
from stream_server.messages import wire
from stream_server.messages.client import (
    MAX_PART_BYTES,
    Ack,
    Block,
    Data,
    Hello,
    Message,
    Open,
    Opened,
    SegmentOffer,
    Stop,
)
from tests.faults.fuzz.mutation import mutated_json
from tests.messages.strategies import messages
from tests.support.payloads import payload_sizes

DATA = Data(simulation=1, attempt=0, incarnation=0, sequence=0, index=4, num_steps=3, present=0b101)
BLOCKS = tuple(
    Block(field=name, dtype=dtype, shape=(2, 3), offset=(0, 0), count=(2, 3))
    for name, dtype in (("a", "<f8"), ("b", "<f4"), ("c", "|b1"))
)


def header(message: Message) -> bytes:
    return bytes(wire.encode(message)[0])


@given(messages)
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    assert wire.decode(header(message)) == message
    assert wire.decode(memoryview(header(message))) == message


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_malformed_message(junk: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        wire.decode(junk)


@given(st.integers(0, 3), st.binary(max_size=200))
def test_any_body_behind_a_good_prefix_gives_a_message_or_malformed_message(kind: int, body: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        wire.decode(wire.PREFIX.pack(wire.MAGIC, 2, kind) + body)


@given(messages.filter(lambda it: not isinstance(it, Data | Ack)), st.integers(0, 2**32))
def test_json_with_other_values_gives_a_message_or_malformed_message(message: Message, seed: int) -> None:
    changed = mutated_json(header(message), random.Random(seed))
    if changed is not None:
        with contextlib.suppress(MalformedMessage):
            decoded = wire.decode(changed)
            assert wire.decode(header(decoded)) == decoded


@given(messages, st.data())
def test_a_damaged_message_gives_a_message_or_malformed_message(message: Message, data: st.DataObject) -> None:
    damaged = bytearray(header(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessage):
        decoded = wire.decode(bytes(damaged))
        assert wire.decode(header(decoded)) == decoded


@given(messages, st.integers(1, 30))
def test_a_message_cut_short_is_malformed(message: Message, cut: int) -> None:
    with pytest.raises(MalformedMessage):
        wire.decode(header(message)[:-cut])


@given(messages, st.binary(min_size=1, max_size=8).filter(lambda it: it.strip(b" \t\n\r")))
def test_bytes_behind_the_end_of_a_message_are_malformed(message: Message, surplus: bytes) -> None:
    with pytest.raises(MalformedMessage):
        wire.decode(header(message) + surplus)


@pytest.mark.parametrize(
    "other",
    [
        # A Ping of version 1, and of a later one.
        b"STRM\x01\x00\x07\x00",
        b'{"message":"Ping","protocol":1}',
    ],
)
def test_another_version_of_the_protocol_is_named(other: bytes) -> None:
    with pytest.raises(WrongProtocol, match="version 1, but this is version 4"):
        wire.decode(other)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"message":"Ping"}',
        b'{"message":"Ping","protocol":4,"protocol":3}',
        b'{"message":"Ping","protocol":4,"more":1}',
        b'{"message":"Pong","protocol":4}',
        b'{"message":["Ping"],"protocol":4}',
        b'{"protocol":4}',
        b'[{"message":"Ping","protocol":4}]',
        b'\xef\xbb\xbf{"message":"Ping","protocol":4}',
        '{"message":"Ping","protocol":4}'.encode("utf-16"),
        b'{"message":"Invalidated","protocol":4,"simulation":1.0}',
        b'{"message":"Invalidated","protocol":4,"simulation":true}',
        b'{"message":"Invalidated","protocol":4,"simulation":9223372036854775808}',
        b'{"message":"Stop","protocol":4,"text":"\\ud800"}',
        b'{"message":"Stop","protocol":4,"text":"\\u0000"}',
        b'{"message":"Stop","protocol":4,"text":NaN}',
        b'{"message":"Ping","protocol":4' + b" " * wire.MAX_CONTROL_BYTES + b"}",
        b"[" * wire.MAX_CONTROL_BYTES,
    ],
    ids=lambda it: str(it[:60]),
)
def test_json_that_is_no_message_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        wire.decode(frame)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_parameter_comes_back_bit_by_bit(value: float) -> None:
    hello = Hello(study="", simulation=None, attempt=0, rank=0, num_ranks=1, parameters={"x": value})
    decoded = wire.decode(header(hello))
    assert isinstance(decoded, Hello)
    assert decoded.parameters is not None
    assert struct.pack("<d", decoded.parameters["x"]) == struct.pack("<d", value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_parameter_that_is_not_finite_is_not_encoded(value: float) -> None:
    with pytest.raises(ValueError, match=r"."):
        wire.encode(Hello(study="", simulation=None, attempt=0, rank=0, num_ranks=1, parameters={"x": value}))


def test_numbers_of_numpy_are_encoded() -> None:
    hello = Hello(study="", simulation=np.int64(3), attempt=0, rank=0, num_ranks=1, parameters={"x": np.float64(0.1)})
    assert wire.decode(header(hello)) == hello


def test_decoding_takes_time_in_proportion_to_the_bytes() -> None:
    def cost_s(num: int) -> float:
        message = header(
            Hello(
                study="", simulation=None, attempt=0, rank=0, num_ranks=1, parameters={str(i): 1.0 for i in range(num)}
            )
        )
        start = time.thread_time()
        wire.decode(message)
        return time.thread_time() - start

    small = min(cost_s(4000) for _ in range(5))
    large = min(cost_s(64000) for _ in range(3))
    assert large < 16 * small * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": 0},
        {"present": 0},
        {"offset": 1},
        {"last": False},
        {"field": 1, "num_steps": 1},
        {"field": 64, "num_steps": 1},
        {"field": 0},
        {"field": 0, "num_steps": 1, "offset": 1},
        {"simulation": 2**63},
        {"sequence": -1},
        {"static": True, "num_steps": 1, "index": 0},
        {"static": True, "num_steps": 1, "field": 0},
        {"in_segment": True, "checksum": 0},
        {"in_segment": True, "num_steps": 1, "field": 0},
    ],
)
def test_data_out_of_bounds_is_not_encoded(changes: dict[str, int]) -> None:
    wrong = replace(DATA, **changes)
    with pytest.raises(ValueError, match=r"."):
        wire.encode(wrong)


def test_data_of_the_first_field_alone_comes_back_as_it_was() -> None:
    first = replace(DATA, present=0b1)
    assert wire.decode(header(first)) == first


def test_what_is_said_of_a_segment_comes_back_as_it_was_and_is_left_out_where_there_is_none() -> None:
    offer = SegmentOffer(pid=4711, descriptor=9, bytes=2**40, token="0123456789abcdef" * 2)
    opening = Open(study="s", simulation=1, attempt=0, incarnation=0, rank=0, num_ranks=1, blocks=BLOCKS, segment=offer)
    opened = Opened(incarnation=0, credit=1, known="", segment=True)
    for message in (opening, opened, replace(DATA, in_segment=True)):
        assert wire.decode(header(message)) == message
    for message in (opening.without_segment, replace(opened, segment=UNSET)):
        assert b"segment" not in header(message)
        assert wire.decode(header(message)) == message


def test_unknown_flags_of_data_are_malformed() -> None:
    wrong = bytearray(header(DATA))
    wrong[62] |= 0x80
    with pytest.raises(MalformedMessage, match="flags"):
        wire.decode(bytes(wrong))


@pytest.mark.parametrize(
    "block",
    [
        {"count": (3, 3)},
        {"offset": (1, 0)},
        {"shape": (2,)},
        {"count": (0, 3)},
        {"dtype": "O"},
        {"dtype": ">f8", "field": ""},
        {"dtype": "<f16"},
        {"shape": (2**40, 2**40)},
    ],
)
def test_a_block_that_is_no_part_of_a_numeric_field_is_not_encoded(block: dict[str, object]) -> None:
    def encode() -> None:
        wrong = replace(BLOCKS[0], **block)
        wire.encode(Open(study="", simulation=0, attempt=0, incarnation=0, rank=0, num_ranks=1, blocks=(wrong,)))

    with pytest.raises(ValueError, match=r"."):
        encode()


def test_a_field_that_occurs_twice_in_an_open_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        wire.encode(Open(study="", simulation=0, attempt=0, incarnation=0, rank=0, num_ranks=1, blocks=BLOCKS[:1] * 2))


def test_the_header_of_data_has_68_bytes() -> None:
    assert len(header(DATA)) == 68


def test_prose_is_cut_between_two_characters() -> None:
    stop = wire.decode(header(Stop(text="é" * 5000)))
    assert isinstance(stop, Stop)
    assert stop.text == "é" * 2048


def test_each_payload_frame_of_whole_steps_holds_one_block_of_every_step() -> None:
    assert payload_sizes(DATA, BLOCKS) == (3 * 6 * 8, 3 * 6)


def test_the_parts_of_a_field_are_of_the_largest_size_but_the_last() -> None:
    block = Block(field="u", dtype="<f8", shape=(10**6,), offset=(0,), count=(10**6,))
    sizes = [
        payload_sizes(replace(DATA, num_steps=1, present=1, field=0, offset=offset), (block,))
        for offset in (0, MAX_PART_BYTES)
    ]
    assert sizes == [(MAX_PART_BYTES,), (8 * 10**6 - MAX_PART_BYTES,)]


@pytest.mark.parametrize(
    "changes",
    [{"present": 0b1000}, {"num_steps": 10**6}, {"field": 0, "num_steps": 1, "offset": MAX_PART_BYTES}],
)
def test_a_payload_that_the_blocks_do_not_allow_is_malformed(changes: dict[str, int]) -> None:
    with pytest.raises(MalformedMessage):
        payload_sizes(replace(DATA, **changes), BLOCKS)


def test_the_checksum_is_over_all_frames_in_order() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert wire.checksum([array, b"abc"]) == wire.checksum([array.tobytes() + b"abc"])
    assert wire.checksum([b"123456789"]) == 0xCBF43926


def test_ten_thousand_random_messages_do_not_upset_the_decoder() -> None:
    generator = random.Random(5)
    for _ in range(10_000):
        junk = wire.PREFIX.pack(wire.MAGIC, 2, generator.randrange(4)) + generator.randbytes(generator.randrange(90))
        with contextlib.suppress(MalformedMessage):
            wire.decode(junk)
