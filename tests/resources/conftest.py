"""Collect the tests that mount a disk only where that is permitted; the summary names those left out."""

import tempfile
from pathlib import Path

import pytest

from tests.support.small_disk import can_mount

NEEDS_A_DISK = "test_disk.py"
collect_ignore = [] if can_mount(Path(tempfile.gettempdir())) else [NEEDS_A_DISK]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name in collect_ignore:
        terminalreporter.write_line(f"tests/resources/{name} needs unshare(1) and the right to mount a tmpfs: left out")
