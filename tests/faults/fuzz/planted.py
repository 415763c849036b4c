"""A target with a bug in it: what the tests of the fuzzer itself look for."""

from tests.faults.fuzz.target import Target


def run(data: bytes) -> None:
    """Any bytes are well, but for those that begin with the letters of a word."""
    for position, letter in enumerate(b"bug"):
        if len(data) <= position or data[position] != letter:
            return
    raise AssertionError("the planted bug")


TARGET = Target(run=run, seeds=(b"\0",))
