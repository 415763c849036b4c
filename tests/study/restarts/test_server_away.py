"""A server that is killed for ever: what its simulations do then is the study's to say."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.study.simulations.test_attaching import NOBODY_LAUNCHES
from tests.support.launch import alone
from tests.support.runs import NUMPY_STUDY, LiveRun

Start = Callable[..., AbstractContextManager[LiveRun]]

SILENCE_S = 4.0
WAIT_S = 6.0
# As little as can be under way: a step waits for the server to have taken the one before the last.
WAITED_FOR: dict[str, Any] = NOBODY_LAUNCHES | {"client.window": "1B"}


@contextmanager
def attached(connection: Path, go: Path) -> Iterator["subprocess.Popen[str]"]:
    """A simulation that nobody launched, half-way."""
    launch = alone([str(NUMPY_STUDY.parent / "attached.py"), str(connection), str(SILENCE_S), str(go)])
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(launch.argv, env=launch.environment, **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "half-way\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("client", "least_s", "exit_code"),
    [
        ({"client.if_server_away": "wait", "client.wait_s": WAIT_S}, WAIT_S, 1),
        ({"client.if_server_away": "stop"}, SILENCE_S, 1),
        ({"client.if_server_away": "continue"}, SILENCE_S, 0),
    ],
    ids=["wait", "stop", "continue"],
)
def test_a_simulation_whose_server_never_comes_back_does_as_the_study_says(
    start: Start, tmp_path: Path, client: dict[str, Any], least_s: float, exit_code: int
) -> None:
    go = tmp_path / "go"
    with start(mpi=None, settings=WAITED_FOR | client) as live:
        live.wait_until(lambda: "incarnation 1" in live.launcher_log)
        with attached(live.connection, go) as simulation:
            live.ranks[0].kill()
            live.end()
            go.touch()
            began = time.monotonic()
            said, error = simulation.communicate(timeout=120)
            waited_s = time.monotonic() - began
    assert simulation.returncode == exit_code, error
    assert waited_s >= least_s
    if exit_code == 0:
        assert "my own result is complete" in said
        assert "The simulation ends without it" in error
    else:
        assert f"no word for {least_s:g} s" in error.splitlines()[-1]
        assert "Unreachable" in error.splitlines()[-1]
