"""The garbage collector while a program starts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects between two looks for garbage, while modules are imported; usually there are 700.
SELDOM = 100_000


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Seldom look for garbage. What importing torch makes stays, and looking through it is an eighth of the import."""
    usual = gc.get_threshold()
    gc.set_threshold(SELDOM, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
