"""A disk that is really full destroys no good checkpoint, and the next save that fits succeeds."""

import subprocess
import sys
from pathlib import Path

from tests.needs import need
from tests.support.small_disk import mounted

MODULE = "tests.server.checkpoint.full_disk"
SIZE = 4 << 20


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_full_disk_destroys_no_good_checkpoint(tmp_path: Path) -> None:
    script = [sys.executable, "-m", MODULE, str(tmp_path)]
    need("a small disk")
    assert run(mounted(tmp_path, SIZE, script)) == "the disk is full"


def test_a_limit_on_the_size_of_files_destroys_no_good_checkpoint(tmp_path: Path) -> None:
    script = [sys.executable, "-m", MODULE, str(tmp_path), str(SIZE)]
    assert run(script) == "the file is larger than is allowed"
