"""Named places in the code where a test makes a process die, stop, fail or wait.

`STREAM_FAILPOINTS_HOOK` names a Python file, whose function `passed(name)` is called at each of them; nothing happens
without it. The exception that it returns, if it does, is raised. docs/internals/failpoints.md lists all names.
"""

import os
from collections.abc import Callable


def failpoint(name: str) -> None:
    if _hook is not None and (error := _hook(name)) is not None:
        raise error


def _load_hook() -> Callable[[str], Exception | None] | None:
    file = os.environ.get("STREAM_FAILPOINTS_HOOK")
    if not file:
        return None
    import runpy

    passed: Callable[[str], Exception | None] = runpy.run_path(file)["passed"]
    return passed


_hook = _load_hook()
