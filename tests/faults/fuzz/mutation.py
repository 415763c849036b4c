"""Changes to inputs, to their bytes and to what they say as JSON, and inputs that are hard for any reader."""

import json
from collections.abc import Iterator
from math import inf, nan
from random import Random
from typing import Any

MANY = 100_000
MANY_KEYS = 10_000
LITTLE = 8
# Each of these is more than some reader expects where it may stand.
VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [0], {"": 0}),
    *(0, 1, -1, 255, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400),
    *(0.5, -0.0, 1.0, 1e308, 5e-324, inf, -inf, nan),
    *("", " ", "0", "-1", "--5", "1e999", "²", "٣", "9" * 5000, "9" * 5000 + "GB", "nan", "true"),
    *("\0", "\n", "\ud800", "é", "/", "..", "../x", "a" * 300, "{x:}", "%s", "<f8", "O", "(2,3)f4"),
)


def hard_inputs() -> Iterator[bytes]:
    """Inputs with something in large numbers, for which a careless reader takes more than linear time, or its stack."""
    yield b""
    yield from (byte * MANY for byte in (b"\0", b"\xff", b"\n", b"9", b"[", b'{"":', b'"', b","))
    yield b"[" * MANY + b"]" * MANY
    yield b"[" + b"0," * MANY + b"0]"
    yield json.dumps("x" * 10 * MANY).encode()
    yield json.dumps({str(number): number for number in range(MANY_KEYS)}).encode()
    yield b"{" + b'"a":0,' * MANY + b'"a":0}'


def mutated(data: bytes, random: Random, *, is_json: bool, max_bytes: int) -> bytes:
    """A valid input, changed in one to four places."""
    for _ in range(random.randint(1, 4)):
        changed = mutated_json(data, random) if is_json and random.random() < 0.5 else None
        data = _mutated_bytes(data, random) if changed is None else changed
    return data[:max_bytes]


def mutated_json(data: bytes, random: Random) -> bytes | None:
    """The JSON, or one line of it, with another value, key or length somewhere; None when it is no JSON."""
    lines = data.split(b"\n")
    number = random.randrange(len(lines)) if data.count(b"\n") > 1 and not data.startswith(b"{\n") else None
    text = data if number is None else lines[number]
    try:
        holder = [json.loads(text)]
        _change(holder, random)
        changed = json.dumps(holder[0]).encode()
    except (ValueError, RecursionError):
        return None
    if number is None:
        return changed
    lines[number] = changed
    return b"\n".join(lines)


def _change(holder: list[Any], random: Random) -> None:
    places = list(_places(holder))
    node, key = random.choice(places)
    match random.randrange(6):
        case 0:
            other, place = random.choice(places)
            node[key] = json.loads(json.dumps(other[place]))
        case 1 if node is not holder:
            del node[key]
        case 2 if isinstance(node, dict):
            others = [place for other, place in places if isinstance(other, dict)]
            node[random.choice([*others, "", "x", "__proto__", "\ud800"])] = node.pop(key)
        case 3 if isinstance(node, list) and node is not holder:
            node.insert(key, json.loads(json.dumps(node[key])))
        case 4 if isinstance(node[key], int):
            node[key] += random.choice((-1, 1, 256, -node[key]))
        case _:
            node[key] = random.choice(VALUES)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield node, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _mutated_bytes(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data) + 1)
    stop = min(len(data), start + random.randint(1, LITTLE))
    match random.randrange(6):
        case 0:
            return data[:start] + data[stop:]
        case 1:
            return data[:start] + random.randbytes(stop - start) + data[stop:]
        case 2:
            return data[:start] + random.randbytes(random.randint(1, LITTLE)) + data[start:]
        case 3:
            return data[:start] + data[start:stop] * random.randint(2, 50) + data[stop:]
        case 4:
            number = random.choice((0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1))
            return data[:start] + number.to_bytes(8, "little")[: stop - start] + data[stop:]
        case _:
            return data[:start] + bytes(byte ^ 1 << random.randrange(8) for byte in data[start:stop]) + data[stop:]
