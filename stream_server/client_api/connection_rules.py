"""What the keys of a connection file must hold."""

import sys
from collections.abc import Callable, Mapping, Set
from typing import Any

KEY_CHARACTERS = 40
MOST = sys.float_info.max

Rule = tuple[Callable[[Any], bool], str]


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and "\0" not in value and len(value.encode()) < 2**16
    except UnicodeEncodeError:
        return False


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and len(value) == KEY_CHARACTERS


def _is_whole(value: Any, bits: int) -> bool:
    return type(value) is int and 0 <= value < 2**bits


def _are_numbers(value: Any) -> bool:
    if not isinstance(value, dict) or not all(map(_is_text, value)):
        return False
    # False for NaN, too, and for a whole number beyond what a float can say.
    return all(type(number) in (int, float) and abs(number) <= MOST for number in value.values())


TEXT: Rule = (_is_text, "must be a text of at most 65535 bytes without a zero character")
KEY: Rule = (_is_key, f"must be a key of {KEY_CHARACTERS} characters")
SECURITY_RULES = dict.fromkeys(("server_public_key", "client_public_key", "client_secret_key"), KEY)
RULES: dict[str, Rule] = {
    "study": TEXT,
    "epoch": (lambda it: _is_whole(it, 32), "must be a whole number below 2^32"),
    "host": TEXT,
    "control": (
        lambda it: isinstance(it, list) and len(it) > 0 and all(map(_is_text, it)),
        "must be a list of addresses",
    ),
    "simulation": (lambda it: it is None or _is_whole(it, 63), "must be a whole number below 2^63"),
    "attempt": (lambda it: _is_whole(it, 32), "must be a whole number below 2^32"),
    "parameters": (lambda it: it is None or _are_numbers(it), "must be an object of numbers, or null"),
    "security": (lambda it: it is None or isinstance(it, dict), "must be an object of three keys, or null"),
}


def check(content: Any) -> None:
    """Look at the parsed JSON of a connection file.

    Raises:
        ValueError: a key is missing, unknown or not of its type.
    """
    _check_keys(content, RULES, optional={"simulation", "attempt", "parameters", "security"})
    if content.get("security") is not None:
        _check_keys(content["security"], SECURITY_RULES)


def _check_keys(content: Any, rules: Mapping[str, Rule], *, optional: Set[str] = frozenset()) -> None:
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    for key in content:
        if key not in rules:
            raise ValueError(f"{key!r} is unknown")
    for key, (is_right, expected) in rules.items():
        if key not in content and key not in optional:
            raise ValueError(f"{key!r} is missing")
        if key in content and not is_right(content[key]):
            raise ValueError(f"{key!r} {expected}")
