"""Full disks: what the parts of a server and whole studies do on them, each in a namespace of its own."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.resources.disk_parts import Found
from tests.needs import need
from tests.support.small_disk import mounted

PARTS_BYTES = 4 << 20
LIMIT_S = 400
SETTINGS: Mapping[str, Any] = {"checkpoint.every_batches": 2, "checkpoint.record": True}


def parts(seed: int, pages: Sequence[int]) -> Found:
    """The cases of `tests.faults.resources.disk_parts` with each of these numbers of pages left."""
    with tempfile.TemporaryDirectory(prefix="disk-") as folder:
        said = _run(Path(folder), PARTS_BYTES, "tests.faults.resources.disk_parts", str(seed), *map(str, pages))
    return Found(**said)


def study(num_bytes: int, settings: Mapping[str, Any] = SETTINGS) -> tuple[str, list[str]]:
    """How a study with a disk of this size went, and what was wrong; see `tests.faults.resources.disk_study`."""
    with tempfile.TemporaryDirectory(prefix="disk-") as folder:
        disk = Path(folder) / "run"
        disk.mkdir()
        said = _run(disk, num_bytes, "tests.faults.resources.disk_study", str(num_bytes), json.dumps(dict(settings)))
    return said["how"], said["violations"]


def _run(disk: Path, num_bytes: int, module: str, *arguments: str) -> dict[str, Any]:
    need("a small disk")
    command = mounted(disk, num_bytes, [sys.executable, "-m", module, str(disk), *arguments])
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))
