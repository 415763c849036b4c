"""Output that somebody stops reading."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import NUMPY_STUDY

SCRIPTS = Path(sys.executable).parent


CHECK = f"stream-server --config {NUMPY_STUDY} --check"


@pytest.mark.parametrize("command", ["stream-server --schema", CHECK, "stream-study new --list"])
def test_a_reader_that_has_read_enough_is_no_error(command: str) -> None:
    program, *arguments = command.split()
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        # Gone before the first line is written.
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
