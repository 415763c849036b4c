"""The memory of windows is that of the steps that they have, and not of all for which there is room."""

import subprocess
import sys

from tests.buffers.fill_windows import CAPACITY, SHAPE

MOST = 1.15


def test_a_reservoir_of_windows_takes_the_memory_of_the_steps_that_they_share() -> None:
    command = [sys.executable, "-m", "tests.buffers.fill_windows"]
    most, ratio = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    assert CAPACITY < int(most) < CAPACITY * SHAPE.length / 1.5
    assert float(ratio) <= MOST
