"""Output of a notebook cell that changes while the cell runs: the only door to IPython."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def changing_output() -> Iterator[Callable[[object], None] | None]:
    """A function that shows an object below the running cell, in place of the one before; None outside of notebooks.

    What was shown is gone when the context is left.
    """
    # Where nobody has imported IPython there is no notebook; one in a terminal has no kernel.
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        yield None
        return
    from IPython.display import DisplayHandle

    handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
    handle.display({}, raw=True)
    try:
        yield handle.update
    finally:
        handle.update({}, raw=True)
