"""The connection file as the C client reads it: what Python writes, and nothing that Python would not read."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.messages.connection import ConnectionFile, Security
from tests.native.unit.probe import Probe, text, word, words
from tests.support.examples import examples

PROBE = "probe_connection"
# What a text of C can be.
texts = st.text(max_size=20).filter(lambda it: "\0" not in it)
keys = st.text("0123456789abcABC.-:+=^!/*?&<>()[]{}@%$#", min_size=40, max_size=40)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)
files = st.builds(
    ConnectionFile,
    study=texts,
    incarnation=st.integers(0, 2**32 - 1),
    host=texts,
    control=st.lists(texts, min_size=1, max_size=3).map(tuple),
    simulation=st.none() | st.integers(0, 2**63 - 1),
    attempt=st.integers(0, 2**32 - 1),
    parameters=st.none() | st.dictionaries(texts, numbers, max_size=4),
    security=st.none() | st.builds(Security, server_public_key=keys, client_public_key=keys, client_secret_key=keys),
)
LEAST: dict[str, Any] = {"study": "heat", "incarnation": 3, "host": "n1", "control": ["tcp://n1:5000"]}


def content(file: ConnectionFile) -> dict[str, Any]:
    """The contents of the file."""
    security = file.security
    names = ("study", "incarnation", "host", "control", "simulation", "attempt", "parameters")
    keys = ("server_public_key", "client_public_key", "client_secret_key")
    inner = None if security is None else {name: getattr(security, name) for name in keys}
    return {name: getattr(file, name) for name in names} | {"security": inner}


def said(file: ConnectionFile) -> list[str]:
    """How the probe tells it."""
    parameters = {name: float(value) for name, value in (file.parameters or {}).items()}
    security = content(file)["security"] or {"": "", "1": "", "2": ""}
    return [
        "file",
        *words(file.study, file.incarnation, file.host, len(file.control), *file.control),
        *words(-1 if file.simulation is None else file.simulation, file.attempt),
        *words(file.parameters is not None, len(parameters), *(it for pair in parameters.items() for it in pair)),
        *words(file.security is not None, *security.values()),
    ]


def problem(probe: Probe, source: str | bytes) -> str:
    """Why the file is none; "" if it is one."""
    answer = probe.ask("parse", source)
    return text(answer[1]) if answer[0] == "refused" else ""


@given(files, st.booleans(), st.sampled_from([None, 1]))
def test_a_connection_file_is_read_as_python_wrote_it(
    probe: Probe, file: ConnectionFile, escaped: bool, indent: int | None
) -> None:
    source = json.dumps(content(file), ensure_ascii=escaped, indent=indent)
    assert probe.ask("parse", source) == said(file)


def test_a_file_on_disk_is_read(probe: Probe, tmp_path: Path) -> None:
    file = ConnectionFile(**LEAST | {"control": ("ipc:///tmp/s/control",)})
    file.write(tmp_path / "connection.json")
    assert probe.ask("read", str(tmp_path / "connection.json")) == said(file)


def test_what_is_not_given_has_the_defaults_of_python(probe: Probe) -> None:
    assert probe.ask("parse", json.dumps(LEAST)) == said(ConnectionFile(**LEAST))


def test_a_file_that_is_not_there_is_named(probe: Probe, tmp_path: Path) -> None:
    told = text(probe.ask("read", str(tmp_path / "absent"))[1])
    assert told == f"cannot read the connection file {tmp_path / 'absent'}: No such file or directory"
    assert text(probe.ask("read", str(tmp_path))[1]).endswith(": Is a directory")


def test_a_file_that_is_too_long_is_refused(probe: Probe, tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text(json.dumps(LEAST).ljust(2**20))
    assert probe.ask("read", str(path))[0] == "file"
    path.write_text(json.dumps(LEAST).ljust(2**20 + 1))
    assert "more than 1 MiB" in text(probe.ask("read", str(path))[1])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"new": 1}, "'new' is unknown"),
        ({"study": None}, "'study' must be a text"),
        ({"study": "a\0b"}, "'study' has a zero character"),
        ({"study": "x" * 65536}, "'study' must have a length from 0 to 65535, not 65536"),
        ({"incarnation": -1}, "'incarnation' must be from 0 to 4294967295, but is -1"),
        ({"incarnation": 2**32}, "'incarnation' must be from 0 to 4294967295, but is 4294967296"),
        ({"incarnation": 1.0}, "'incarnation' must be a whole number"),
        ({"incarnation": True}, "'incarnation' must be a whole number"),
        ({"incarnation": "1"}, "'incarnation' must be a whole number"),
        ({"attempt": None}, "'attempt' must be a whole number"),
        ({"simulation": 2**63}, "'simulation' must be a whole number"),
        ({"simulation": -1}, "'simulation' must be from 0 to 9223372036854775807"),
        ({"control": "tcp://n1:5000"}, "'control' must be a list"),
        ({"control": []}, "'control' must have a length from 1 to 16, not 0"),
        ({"control": [5]}, "'control' must be a text"),
        ({"parameters": [1]}, "'parameters' must be an object"),
        ({"parameters": {"a": "1"}}, "'parameters' must be a finite number"),
        (
            {"parameters": {str(i): 1 for i in range(65536)}},
            "'parameters' must have a length from 0 to 65535, not 65536",
        ),
        ({"security": 5}, "'security' must be an object"),
        ({"security": {}}, "'server_public_key' is missing"),
        ({"security": {"secret": 1}}, "'secret' is unknown"),
        ({"security": {"server_public_key": "a" * 39}}, "'server_public_key' must have a length from 40 to 40, not 39"),
    ],
    ids=lambda it: str(it)[:40],
)
def test_a_key_with_another_value_than_it_should_have_is_told(probe: Probe, changes: dict[str, Any], told: str) -> None:
    found = problem(probe, json.dumps(LEAST | changes))
    assert found.startswith("FILE is not a connection file of this version: ")
    assert told in found


@pytest.mark.parametrize("missing", LEAST)
def test_a_key_that_is_missing_is_told(probe: Probe, missing: str) -> None:
    source = json.dumps({name: value for name, value in LEAST.items() if name != missing})
    assert problem(probe, source) == f"FILE is not a connection file of this version: '{missing}' is missing"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "a value was expected, at byte 0"),
        ("no json", "a value was expected, at byte 0"),
        ("[]", "must be an object"),
        ("{}", "'study' is missing"),
        ("[1,]", "a value was expected, at byte 3"),
        ('{"a" 1}', "a : was expected, at byte 5"),
        ("{a: 1}", "a name in quotes was expected"),
        ('{"a": 1 "b": 2}', "a , or the end of a list or object"),
        ('{"a": 1, "a": 2}', "a name occurs twice"),
        ("{} {}", "more than one value, at byte 3"),
        ("{}\0", "more than one value"),
        ('"a', "a string without an end"),
        ('"a\\', "a string without an end"),
        ('"a\0b"', "a string without an end"),
        ('"\n"', "a control character"),
        ('"\\x"', "an unknown escape"),
        ('"\\u12g4"', "four hexadecimal digits"),
        ('"\\ud834"', "half of a surrogate pair"),
        ('"\\udd1e"', "half of a surrogate pair"),
        ('"\\ud834\\u0041"', "half of a surrogate pair"),
        ("01", "more than one value"),
        ("0x10", "more than one value"),
        ("1.", "a value was expected"),
        (".5", "a value was expected"),
        ("+1", "a value was expected"),
        ("1e", "a value was expected"),
        ("1e999", "a number that is too large"),
        ("NaN", "a value was expected"),
        ("[" * 33, "too many levels"),
        ("[" * 100_000, "too many levels"),
        (b'"\xff"', "not UTF-8"),
    ],
    ids=lambda it: str(it)[:20],
)
def test_what_is_no_json_is_told(probe: Probe, source: str | bytes, told: str) -> None:
    found = problem(probe, source)
    assert found.startswith("FILE is not a connection file")
    assert told in found


@given(st.lists(st.sampled_from("0123456789+-.eE "), min_size=1, max_size=12).map("".join))
def test_numbers_are_those_of_python(probe: Probe, number: str) -> None:
    answer = probe.ask("parse", json.dumps(LEAST)[:-1] + f', "parameters": {{"a": {number}}}}}')
    expected = None
    with contextlib.suppress(ValueError, OverflowError):
        expected = float(json.loads(number))
    if expected is None or math.isinf(expected):
        assert answer[0] == "refused"
    else:
        assert word(expected) in answer


@settings(max_examples=examples(150))
@given(files, st.data())
def test_a_damaged_file_is_refused_or_read_as_in_python(
    probe: Probe, file: ConnectionFile, data: st.DataObject
) -> None:
    damaged = list(json.dumps(content(file)))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(
            st.sampled_from(["", '"', "\\", "{", "}", "[", "]", ",", ":", "0", "-", "e", "n", "é"])
        )
    source = "".join(damaged)
    answer = probe.ask("parse", source)
    if answer[0] == "file":
        assert answer == said(msgspec.json.decode(source, type=ConnectionFile))
