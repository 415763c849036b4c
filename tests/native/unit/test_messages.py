"""Messages of the C client: those of the Python client, and verdict by verdict the same."""

import json
import random
import re
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UnsetType
from msgspec.structs import replace

from stream_server.errors import MalformedMessage
from stream_server.messages import wire
from stream_server.messages.client import (
    DTYPES,
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
    SegmentOffer,
    Stop,
    TimeSteps,
    Welcome,
)
from tests.faults.fuzz.mutation import mutated_json
from tests.messages import strategies
from tests.messages.test_protocol_page import EXAMPLES, page_bytes
from tests.native.unit.probe import Probe, extents, text, word, words
from tests.support.examples import examples

PROBE = "probe_wire"
# Each reader makes of it what it likes.
MINUS_ZERO = re.compile(rb"-0(?![0-9.eE])")
REPLIES = (Welcome, Opened, Ack, Invalidated, Stop, Refusal)
replies = strategies.messages.filter(lambda it: isinstance(it, REPLIES))
requests = strategies.messages.filter(lambda it: not isinstance(it, REPLIES))


def header(message: Message) -> bytes:
    return bytes(wire.encode(message)[0])


def content(answer: str) -> bytes:
    """The bytes that a word stands for."""
    return bytes.fromhex(answer.removeprefix("x"))


def optional(number: int | None) -> int:
    return -1 if number is None else number


def place(member: Enum) -> int:
    """Which of its enumeration it is, from 0."""
    return list(type(member)).index(member)


def said_welcome(it: Welcome) -> list[str]:
    said = ["welcome", word(it.study), *words(it.simulation, it.attempt, it.incarnation, len(it.endpoints))]
    for addresses in it.endpoints:
        said += [word(len(addresses)), *map(word, addresses)]
    said.append(word(len(it.parameters)))
    for name, value in it.parameters.items():
        said += [word(name), word(value)]
    said += words(optional(it.time_steps.num), it.time_steps.first, it.time_steps.every, len(it.fields))
    for field in it.fields:
        said += [word(field.name), *words(*extents(field.shape), DTYPES.index(field.dtype), field.optional)]
    return said + words(place(it.routing), it.window_bytes, place(it.if_server_away), it.wait_s)


def said(message: Message) -> list[str] | None:
    """How the probe tells a message; None if it must refuse it."""
    match message:
        case Welcome():
            return said_welcome(message)
        case Opened(incarnation=incarnation, credit=credit, known=known, segment=segment):
            return ["opened", *words(incarnation, credit, bytes.fromhex(known), segment is True)]
        case Ack(received=received, durable=durable, ended=ended, stop=stop):
            return ["ack", *words(received, durable, ended, stop)]
        case Invalidated(simulation=simulation):
            return ["invalidated", word(simulation)]
        case Stop(text=why):
            return ["stop", word(why)]
        case Refusal(reason=reason, text=why, sequence=sequence):
            return ["refusal", word(1 + place(reason)), word(why), word(optional(sequence))]
    return None


def offered(segment: SegmentOffer | UnsetType) -> list[Any]:
    """The words for the segment of an Open."""
    if isinstance(segment, UnsetType):
        return [False]
    return [True, segment.pid, segment.descriptor, segment.bytes, segment.token]


def asked(message: Message) -> list[Any]:
    """The request that makes the probe encode a message."""
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
            for block in (*message.blocks, *message.static_blocks):
                blocks += [block.field, DTYPES.index(block.dtype)]
                blocks += [*extents(block.shape), *extents(block.offset), *extents(block.count)]
            ids = [message.study, message.simulation, message.attempt, message.incarnation]
            nums = [len(message.blocks), len(message.static_blocks)]
            return ["open", *ids, message.rank, message.num_ranks, *nums, *blocks, *offered(message.segment)]
        case End():
            return ["end", "", message.simulation, message.attempt, message.incarnation, message.share, message.total]
        case Invalidate():
            return ["invalidate", message.study, message.simulation, message.attempt, 0, message.reason]
        case Data():
            which = [message.simulation, message.attempt, message.incarnation, message.sequence, message.index]
            what = [message.present, message.offset, message.num_steps, message.field]
            flags = [message.last, message.static, message.in_segment, message.checksum is not None]
            return ["data", *which, *what, *flags, message.checksum or 0]
        case Ping():
            return ["ping"]
    raise AssertionError(message)


def assert_same_verdict(probe: Probe, content: bytes) -> None:
    answer = probe.ask("decode", content)
    if MINUS_ZERO.search(content):
        return
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
def test_python_understands_a_request(probe: Probe, message: Message) -> None:
    answer = probe.ask(*asked(message))
    assert wire.decode(content(answer[0])) == message
    if isinstance(message, Data):
        assert answer[0] == word(header(message))
    if isinstance(message, Open):
        assert answer[1:] == [str(wire.block_bytes(block)) for block in (*message.blocks, *message.static_blocks)]


def test_python_understands_what_is_said_of_a_segment(probe: Probe) -> None:
    opening, data = EXAMPLES["Open"], EXAMPLES["Data"]
    assert isinstance(opening, Open)
    assert isinstance(data, Data)
    offer = SegmentOffer(pid=2**22, descriptor=2**31 - 1, bytes=2**41, token="0f" * 16)
    for message in (replace(opening, segment=offer), replace(data, in_segment=True, checksum=None)):
        assert wire.decode(content(probe.ask(*asked(message))[0])) == message


@given(st.integers(0, 2**63 - 1))
def test_python_understands_a_place_in_the_segment(probe: Probe, offset: int) -> None:
    assert wire.OFFSET.unpack(content(probe.ask("place", offset)[0])) == (offset,)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_parameter_arrives_bit_by_bit(probe: Probe, value: float) -> None:
    hello = Hello(study="", simulation=None, attempt=0, rank=0, num_ranks=1, parameters={"x": value})
    decoded = wire.decode(content(probe.ask(*asked(hello))[0]))
    assert isinstance(decoded, Hello)
    assert decoded.parameters is not None
    assert word(decoded.parameters["x"]) == word(value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_protocol_page_are_ours(probe: Probe, name: str) -> None:
    message = EXAMPLES[name]
    if isinstance(message, REPLIES):
        assert probe.ask("decode", page_bytes(name)) == said(message)
    else:
        sent = content(probe.ask(*asked(message))[0])
        assert sent == page_bytes(name) or json.loads(sent) == json.loads(page_bytes(name))
        assert probe.ask("decode", page_bytes(name))[0] == "refused"


@given(st.binary(max_size=200))
def test_any_bytes_get_the_verdict_of_python(probe: Probe, junk: bytes) -> None:
    assert_same_verdict(probe, junk)


@settings(max_examples=examples(100))
@given(st.integers(0, 3), st.binary(max_size=30))
def test_any_body_behind_a_good_prefix_gets_the_verdict_of_python(probe: Probe, kind: int, body: bytes) -> None:
    assert_same_verdict(probe, wire.PREFIX.pack(wire.MAGIC, 2, kind) + body)


@settings(max_examples=examples(100))
@given(replies, st.data())
def test_a_damaged_reply_gets_the_verdict_of_python(probe: Probe, message: Message, data: st.DataObject) -> None:
    damaged = bytearray(header(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(
            st.sampled_from(b'\x00\x01\x02\x80\xff"\\[]{},:0-.en')
        )
    assert_same_verdict(probe, bytes(damaged))


@settings(max_examples=examples(100))
@given(replies.filter(lambda it: not isinstance(it, Ack)), st.integers(0, 2**32))
def test_a_reply_with_other_values_gets_the_verdict_of_python(probe: Probe, message: Message, seed: int) -> None:
    changed = mutated_json(header(message), random.Random(seed))
    if changed is not None:
        assert_same_verdict(probe, changed)


@given(replies, st.integers(1, 30), st.binary(min_size=1, max_size=8))
def test_a_reply_of_another_length_is_refused(probe: Probe, message: Message, cut: int, surplus: bytes) -> None:
    assert_same_verdict(probe, header(message)[:-cut])
    assert_same_verdict(probe, header(message) + surplus)


def steps(num: int | None, first: int, every: int) -> dict[str, Any]:
    return {"num": num, "first": first, "every": every}


def fields(*fields: tuple[str, tuple[int, ...], str]) -> list[dict[str, Any]]:
    return [{"name": name, "shape": shape, "dtype": dtype, "optional": False} for name, shape, dtype in fields]


@pytest.mark.parametrize(
    "changes",
    [
        {"time_steps": steps(2**63 - 1, 0, 1)},
        {"time_steps": steps(2**63 - 1, 2, 1)},
        {"time_steps": steps(2**63 - 1, -(2**63), 1)},
        {"time_steps": steps(2**63 - 1, -(2**63) - 1, 1)},
        {"time_steps": steps(3, -(2**63), 2**63 - 1)},
        {"time_steps": steps(4, -(2**63), 2**63 - 1)},
        {"time_steps": steps(1, 2**63 - 1, 2**63 - 1)},
        {"time_steps": steps(1, 2**63 - 1, 2**63)},
        {"time_steps": steps(0, 0, 1)},
        {"time_steps": steps(1, 0, 0)},
        {"time_steps": {"num": None}},
        {"time_steps": {"first": 0}},
        {"time_steps": None},
        {"fields": fields(("u", (2**29, 2**30), "<f4"))},
        {"fields": fields(("u", (2**29, 2**30 + 1), "<f4"))},
        {"fields": fields(("u", (2**63 - 1, 2**63 - 1, 4), "<f4"))},
        {"fields": fields(("u", (2**59, 1, 1), "<f4"))},
        {"fields": fields(("u", (2, 0), "<f4"))},
        {"fields": fields(("u", (1,) * 8, "<f4"))},
        {"fields": fields(("u", (1,) * 9, "<f4"))},
        {"fields": fields(("u", (1,), "float32"))},
        {"fields": fields(("", (1,), "<f4"))},
        {"fields": fields(("u", (1,), "<f4"), ("v", (1,), "<f4"), ("u", (2,), "<f4"))},
        {"fields": fields(("u\0a", (1,), "<f4"))},
        {"fields": fields(("x" * 65535, (1,), "<f4"))},
        {"fields": fields(("x" * 65536, (1,), "<f4"))},
        {"fields": fields(*((f"{i}", (), "") for i in range(64)))},
        {"fields": fields(*((f"{i}", (), "") for i in range(65)))},
        {"fields": [{"name": "u", "shape": []}]},
        {"fields": [{"name": "u"}]},
        {"fields": [{"name": "u", "shape": [], "optional": None}]},
        {"fields": [{"name": "u", "shape": [], "unit": "K"}]},
        {"fields": {}},
        {"parameters": {"a": float("inf")}},
        {"parameters": {"a": 10**400}},
        {"parameters": {"a": 2**70 + 1}},
        {"parameters": {"a": True}},
        {"parameters": {"a": None}},
        {"parameters": {"\ud800": 0.0}},
        {"parameters": {"a\0": 0.0}},
        {"parameters": {f"{i}": 0 for i in range(65536)}},
        {"parameters": None},
        {"endpoints": []},
        {"endpoints": [["a"], []]},
        {"endpoints": [["a"] * 16]},
        {"endpoints": [["a"] * 17]},
        {"endpoints": [["a"]] * 65536},
        {"endpoints": ["a"]},
        {"routing": "STEPS"},
        {"routing": 0},
        {"if_server_away": "leave"},
        {"window_bytes": -1},
        {"wait_s": -1.0},
        {"wait_s": -0.0},
        {"wait_s": 5},
        {"wait_s": float("nan")},
        {"block": 1},
        {"protocol": 4.0},
        {"protocol": "2"},
        {"protocol": None},
        {"message": "Open"},
        {"message": None},
        {"study\0": ""},
    ],
    ids=lambda it: str(it)[:60],
)
def test_a_welcome_at_the_bounds_gets_the_verdict_of_python(probe: Probe, changes: dict[str, Any]) -> None:
    assert_same_verdict(probe, json.dumps(json.loads(page_bytes("Welcome")) | changes).encode())


@pytest.mark.parametrize("missing", json.loads(page_bytes("Welcome")))
def test_a_welcome_without_a_key_gets_the_verdict_of_python(probe: Probe, missing: str) -> None:
    values = json.loads(page_bytes("Welcome"))
    del values[missing]
    assert_same_verdict(probe, json.dumps(values).encode())


@pytest.mark.parametrize("number", ["-0.0", "0", "1e2", "1E-400", "0.1e1", "5e-324", "123456789012345678901234567890"])
@pytest.mark.parametrize("key", ["wait_s", "window_bytes"])
def test_a_number_in_another_form_gets_the_verdict_of_python(probe: Probe, key: str, number: str) -> None:
    values = json.loads(page_bytes("Welcome")) | {key: "HERE"}
    assert_same_verdict(probe, json.dumps(values).replace('"HERE"', number).encode())


@pytest.mark.parametrize(
    "sequence", [{}, {"sequence": None}, {"sequence": 2**63 - 1}, {"sequence": 2**63}, {"sequence": -1}]
)
@pytest.mark.parametrize("reason", [*(reason.name.lower() for reason in Reason), "BUSY", "", 12, None])
def test_a_refusal_at_the_bounds_gets_the_verdict_of_python(
    probe: Probe, reason: str | int | None, sequence: dict[str, Any]
) -> None:
    values = {"message": "Refusal", "protocol": 4, "reason": reason, "text": "", **sequence}
    assert_same_verdict(probe, json.dumps(values).encode())


@pytest.mark.parametrize("known", ["", "00ff", "0", "FF", "0 ", "\u00e9", 5])
def test_known_steps_in_another_form_get_the_verdict_of_python(probe: Probe, known: str | int) -> None:
    values = {"message": "Opened", "protocol": 4, "incarnation": 0, "credit": 1, "known": known}
    assert_same_verdict(probe, json.dumps(values).encode())


@pytest.mark.parametrize("segment", [True, False, None, 1, "true", {}])
def test_a_segment_that_is_read_or_not_gets_the_verdict_of_python(probe: Probe, segment: object) -> None:
    values = {"message": "Opened", "protocol": 4, "incarnation": 0, "credit": 1, "known": "", "segment": segment}
    assert_same_verdict(probe, json.dumps(values).encode())


@pytest.mark.parametrize("other", [b"STRM\x01\x00\x07\x00", b'{"message":"Stop","protocol":1,"text":""}'])
def test_another_version_of_the_protocol_is_named(probe: Probe, other: bytes) -> None:
    assert "of protocol version 1, but this is version 4" in text(probe.ask("decode", other)[1])


def test_a_reply_of_more_than_four_mib_gets_the_verdict_of_python(probe: Probe) -> None:
    for num in (2**22, 2**22 + 1):
        assert_same_verdict(probe, page_bytes("Stop").ljust(num))


def test_a_welcome_with_all_names_there_can_be_is_decoded(probe: Probe) -> None:
    example = EXAMPLES["Welcome"]
    assert isinstance(example, Welcome)
    message = replace(
        example,
        parameters={f"{i}": float(i) for i in range(65535)},
        endpoints=(("a",),) * 65535,
        fields=tuple(FieldSpec(name=f"{i}", shape=(1,) * 8) for i in range(64)),
        time_steps=TimeSteps(num=None),
    )
    assert probe.ask("decode", header(message)) == said(message)


@settings(max_examples=examples(20))
@given(st.text(alphabet=st.sampled_from("aé€𝄞"), min_size=1020, max_size=4200))
def test_prose_is_cut_between_two_characters(probe: Probe, reason: str) -> None:
    message = Invalidate(study="s", simulation=1, attempt=0, reason=reason)
    [answer] = probe.ask(*asked(message))
    assert wire.decode(content(answer)) == wire.decode(header(message))


def test_prose_that_is_no_utf8_is_sent_with_question_marks(probe: Probe) -> None:
    (answer,) = probe.ask("invalidate", "s", 1, 0, 0, b"L\xf6sung")
    assert wire.decode(content(answer)) == Invalidate(study="s", simulation=1, attempt=0, reason="L?sung")


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
