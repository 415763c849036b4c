"""The garbage collector while a program starts, and at its end."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects between two looks for garbage, while modules are imported; usually there are 700.
SELDOM = 100_000


@contextmanager
def collect_seldom() -> Iterator[None]:
    """Seldom look for garbage. What importing torch makes stays, and looking through it is an eighth of the import."""
    usual = gc.get_threshold()
    gc.set_threshold(SELDOM, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def keep_modules() -> None:
    """Leave all that there is now, which is what imports have made, out of every later collection.

    The interpreter ends with one: without this the end of a process takes a fifth of what its start takes (measured).
    Objects of users come later, and are collected as ever.
    """
    gc.freeze()
