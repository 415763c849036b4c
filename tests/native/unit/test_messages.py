"""Messages of the C client, byte by byte and verdict by verdict those of the Python client."""

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.client_api import wire
from stream_server.client_api.layouts import DTYPES, LAYOUTS
from stream_server.client_api.messages import (
    Ack,
    Data,
    End,
    FieldSpec,
    Hello,
    Invalidate,
    Invalidated,
    Message,
    Open,
    Opened,
    Ping,
    Reason,
    Refusal,
    Stop,
    TimeSteps,
    Welcome,
)
from stream_server.errors import MalformedMessage
from tests.client_api import strategies
from tests.client_api.test_protocol_page import EXAMPLES, page_bytes
from tests.native.unit.probe import Probe, extents, text, word, words

PROBE = "probe_wire"
REPLIES = (Welcome, Opened, Ack, Invalidated, Stop, Refusal)
replies = strategies.messages.filter(lambda it: isinstance(it, REPLIES))
# What a text of C can be.
requests = strategies.messages.filter(lambda it: not isinstance(it, REPLIES) and "\\x00" not in repr(it))


def header(message: Message) -> bytes:
    return bytes(wire.encode(message)[0])


def c_word(content: str) -> str:
    """A text in C ends at its first zero."""
    return word(content.split("\0")[0])


def optional(number: int | None) -> int:
    return -1 if number is None else number


def said_welcome(it: Welcome) -> list[str]:
    said = ["welcome", c_word(it.study), *words(it.simulation, it.attempt, it.epoch, len(it.endpoints))]
    for addresses in it.endpoints:
        said += [word(len(addresses)), *map(c_word, addresses)]
    said.append(word(len(it.parameters)))
    for name, value in it.parameters.items():
        said += [c_word(name), word(value)]
    said += words(optional(it.time_steps.num), it.time_steps.first, it.time_steps.every, len(it.fields))
    for field in it.fields:
        said += [c_word(field.name), *words(*extents(field.shape), DTYPES.index(field.dtype), field.optional)]
    return said + words(it.routing, it.window_bytes, it.if_server_away, it.wait_s)


def said(message: Message) -> list[str] | None:
    """How the probe tells a message; None if it must refuse it."""
    match message:
        case Welcome():
            return said_welcome(message)
        case Opened(epoch=epoch, credit=credit, known=known):
            return ["opened", *words(epoch, credit, known)]
        case Ack(received=received, durable=durable, ended=ended, stop=stop):
            return ["ack", *words(received, durable, ended, stop)]
        case Invalidated(simulation=simulation):
            return ["invalidated", word(simulation)]
        case Stop(text=why):
            return ["stop", c_word(why)]
        case Refusal(reason=reason, text=why, sequence=sequence):
            return ["refusal", word(reason), c_word(why), word(optional(sequence))]
    return None


def asked(message: Message) -> list[Any]:
    """What makes the probe encode a message."""
    match message:
        case Hello():
            parameters = message.parameters or {}
            given = [message.parameters is not None]
            if message.parameters is not None:
                given += [len(parameters), *(it for pair in parameters.items() for it in pair)]
            ranks = [message.attempt, message.rank, message.num_ranks]
            return ["hello", message.study, optional(message.simulation), *ranks, *given]
        case Open():
            blocks: list[Any] = []
            for block in message.blocks:
                blocks += [block.field, DTYPES.index(block.dtype)]
                blocks += [*extents(block.shape), *extents(block.offset), *extents(block.count)]
            ids = [message.study, message.simulation, message.attempt, message.epoch]
            return ["open", *ids, message.rank, message.num_ranks, len(message.blocks), *blocks]
        case End():
            return ["end", "", message.simulation, message.attempt, message.epoch, message.share, message.total]
        case Invalidate():
            return ["invalidate", message.study, message.simulation, message.attempt, 0, message.reason]
        case Data():
            which = [message.simulation, message.attempt, message.epoch, message.sequence, message.index]
            what = [message.present, message.offset, message.num_steps, message.field, message.last]
            return ["data", *which, *what, message.checksum is not None, message.checksum or 0]
        case Ping():
            return ["ping"]
    raise AssertionError(message)


def assert_same_verdict(probe: Probe, content: bytes) -> None:
    answer = probe.ask("decode", content)
    try:
        expected = said(wire.decode(content))
    except MalformedMessage:
        expected = None
    if expected is None:
        assert answer[0] == "refused"
        assert text(answer[1])
    else:
        assert answer == expected


@given(replies)
def test_a_reply_is_decoded_as_in_python(probe: Probe, message: Message) -> None:
    assert probe.ask("decode", header(message)) == said(message)


@given(requests)
def test_a_request_is_encoded_as_in_python(probe: Probe, message: Message) -> None:
    answer = probe.ask(*asked(message))
    assert answer[0] == word(header(message))
    if isinstance(message, Open):
        assert answer[1:] == [str(wire.block_bytes(block)) for block in message.blocks]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_protocol_page_are_ours(probe: Probe, name: str) -> None:
    message = EXAMPLES[name]
    if isinstance(message, REPLIES):
        assert probe.ask("decode", page_bytes(name)) == said(message)
    else:
        assert probe.ask(*asked(message))[0] == word(page_bytes(name))
        assert "from clients only" in text(probe.ask("decode", page_bytes(name))[1])


@given(st.binary(max_size=200))
def test_any_bytes_get_the_verdict_of_python(probe: Probe, junk: bytes) -> None:
    assert_same_verdict(probe, junk)


@settings(max_examples=300)
@given(st.sampled_from(sorted(LAYOUTS)), st.binary(max_size=200))
def test_any_body_behind_a_good_prefix_gets_the_verdict_of_python(probe: Probe, kind: int, body: bytes) -> None:
    assert_same_verdict(probe, wire.PREFIX.pack(wire.MAGIC, 1, kind) + body)


@settings(max_examples=300)
@given(replies, st.data())
def test_a_damaged_reply_gets_the_verdict_of_python(probe: Probe, message: Message, data: st.DataObject) -> None:
    damaged = bytearray(header(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
    assert_same_verdict(probe, bytes(damaged))


@given(replies, st.integers(1, 30), st.binary(min_size=1, max_size=8))
def test_a_reply_of_another_length_is_refused(probe: Probe, message: Message, cut: int, surplus: bytes) -> None:
    assert_same_verdict(probe, header(message)[:-cut])
    assert_same_verdict(probe, header(message) + surplus)


def welcome_bytes(**changes: Any) -> bytes:
    """A Welcome that may break the rules, written without a look at them."""
    values = {name: getattr(EXAMPLES["Welcome"], name) for name in LAYOUTS[2].attributes} | changes
    pairs = zip(LAYOUTS[2].attributes.values(), values.values(), strict=True)
    body = b"".join(value if isinstance(value, bytes) else codec.write(value) for codec, value in pairs)
    return wire.PREFIX.pack(wire.MAGIC, 1, 2) + body


def steps_bytes(num: int, first: int, every: int) -> bytes:
    return struct.pack("<BQqQ", 1, num, first, every)


def fields_bytes(*fields: tuple[bytes, tuple[int, ...], int]) -> bytes:
    packed = (
        struct.pack("<H", len(name)) + name + struct.pack(f"<B{len(shape)}QBB", len(shape), *shape, dtype, 0)
        for name, shape, dtype in fields
    )
    return struct.pack("<H", len(fields)) + b"".join(packed)


@pytest.mark.parametrize(
    "changes",
    [
        {"time_steps": steps_bytes(2**63 - 1, 0, 1)},
        {"time_steps": steps_bytes(2**63 - 1, 2, 1)},
        {"time_steps": steps_bytes(2**63 - 1, -(2**63), 1)},
        {"time_steps": steps_bytes(3, -(2**63), 2**63 - 1)},
        {"time_steps": steps_bytes(4, -(2**63), 2**63 - 1)},
        {"time_steps": steps_bytes(1, 2**63 - 1, 2**63 - 1)},
        {"time_steps": steps_bytes(0, 0, 1)},
        {"time_steps": steps_bytes(1, 0, 0)},
        {"fields": fields_bytes((b"u", (2**29, 2**30), 11))},
        {"fields": fields_bytes((b"u", (2**29, 2**30 + 1), 11))},
        {"fields": fields_bytes((b"u", (2**63 - 1, 2**63 - 1, 4), 11))},
        {"fields": fields_bytes((b"u", (2**59, 1, 1), 11))},
        {"fields": fields_bytes((b"u", (2, 0), 11))},
        {"fields": fields_bytes((b"u", (1,) * 8, 11))},
        {"fields": fields_bytes((b"u", (1,) * 9, 11))},
        {"fields": fields_bytes((b"u", (1,), 15))},
        {"fields": fields_bytes((b"", (1,), 11))},
        {"fields": fields_bytes((b"u", (1,), 11), (b"v", (1,), 11), (b"u", (2,), 11))},
        {"fields": fields_bytes((b"u\0a", (1,), 11), (b"u\0b", (1,), 11))},
        {"fields": fields_bytes(*((b"%d" % i, (), 0) for i in range(64)))},
        {"fields": fields_bytes(*((b"%d" % i, (), 0) for i in range(65)))},
        {"parameters": struct.pack("<HH1sdH1sd", 2, 1, b"a", 1.0, 1, b"a", 1.0)},
        {"parameters": struct.pack("<HH1sd", 1, 1, b"a", float("inf"))},
        {"parameters": struct.pack("<HH1sd", 1, 1, b"\xff", 0.0)},
        {"parameters": struct.pack("<HH3sd", 1, 3, b"\xed\xa0\x80", 0.0)},
        {"parameters": struct.pack("<HH2sd", 1, 2, b"\xc0\x80", 0.0)},
        {"parameters": struct.pack("<HH4sd", 1, 4, b"\xf4\x90\x80\x80", 0.0)},
        {"endpoints": struct.pack("<H", 0)},
        {"endpoints": struct.pack("<HHHH", 2, 1, 0, 0)},
        {"endpoints": struct.pack("<HH", 1, 16) + bytes(32)},
        {"endpoints": struct.pack("<HH", 1, 17) + bytes(34)},
        {"routing": b"\x02"},
        {"if_server_away": b"\x03"},
        {"wait_s": struct.pack("<d", -1.0)},
        {"wait_s": struct.pack("<d", -0.0)},
        {"wait_s": struct.pack("<d", float("nan"))},
    ],
)
def test_a_welcome_at_the_bounds_gets_the_verdict_of_python(probe: Probe, changes: dict[str, Any]) -> None:
    assert_same_verdict(probe, welcome_bytes(**changes))


@pytest.mark.parametrize("sequence", [b"\x00", b"\x01" + b"\xff" * 8, b"\x02"])
@pytest.mark.parametrize("reason", [0, 1, *Reason, 16, 65535])
def test_a_refusal_at_the_bounds_gets_the_verdict_of_python(probe: Probe, reason: int, sequence: bytes) -> None:
    assert_same_verdict(probe, wire.PREFIX.pack(wire.MAGIC, 1, 12) + struct.pack("<HH", reason, 0) + sequence)


def test_another_version_of_the_protocol_is_named(probe: Probe) -> None:
    other = bytearray(header(Stop()))
    other[4] = 2
    assert "of protocol version 2, but this is version 1" in text(probe.ask("decode", bytes(other))[1])


def test_a_welcome_with_all_names_there_can_be_is_decoded(probe: Probe) -> None:
    message = Welcome(
        **{name: getattr(EXAMPLES["Welcome"], name) for name in LAYOUTS[2].attributes}
        | {
            "parameters": {f"{i}": float(i) for i in range(65535)},
            "endpoints": (("a",),) * 65535,
            "fields": tuple(FieldSpec(name=f"{i}", shape=(1,) * 8) for i in range(64)),
            "time_steps": TimeSteps(num=None),
        }
    )
    assert probe.ask("decode", header(message)) == said(message)


@settings(max_examples=20)
@given(st.text(alphabet=st.sampled_from("aé€𝄞"), min_size=1020, max_size=4200))
def test_prose_is_cut_between_two_characters(probe: Probe, reason: str) -> None:
    message = Invalidate(study="s", simulation=1, attempt=0, reason=reason)
    assert probe.ask(*asked(message)) == [word(header(message))]


def test_prose_that_is_no_utf8_is_sent_with_question_marks(probe: Probe) -> None:
    (answer,) = probe.ask("invalidate", "s", 1, 0, 0, b"L\xf6sung")
    assert answer == word(header(Invalidate(study="s", simulation=1, attempt=0, reason="L?sung")))


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({b"a": 1.0, b"b": 2.0}, ""),
        ({b"a": float("nan")}, "parameter 'a' must be finite, but is nan"),
        ({b"\xf6": 1.0}, "parameter 0 is too long, or not UTF-8"),
        ({b"x" * 65536: 1.0}, "parameter 0 is too long, or not UTF-8"),
    ],
)
def test_parameters_that_cannot_be_sent_are_told(probe: Probe, parameters: dict[bytes, float], problem: str) -> None:
    pairs = [it for pair in parameters.items() for it in pair]
    status, told = probe.ask("check_parameters", len(parameters), *pairs)
    assert (status == "0") == (problem == "")
    assert problem in text(told)


def test_a_parameter_that_occurs_twice_is_told(probe: Probe) -> None:
    assert text(probe.ask("check_parameters", 2, "a", 1.0, "a", 1.0)[1]) == "a parameter occurs twice"
