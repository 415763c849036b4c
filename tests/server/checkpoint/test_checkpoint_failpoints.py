"""The named places that a save passes, in their order."""

import subprocess
import sys
from pathlib import Path

from tests.support.failpoints import failpoints

SCRIPT = """
import sys
from pathlib import Path
from tests.support.checkpoint_stores import save, store
store(Path(sys.argv[1]), 1)
save(Path(sys.argv[1]), 2, keep=1)
"""
START = ["incarnations.before_append", "incarnations.appended"]
PARTS = ["checkpoint.before_part", "checkpoint.part_written"] * 6
COMMIT = [
    "checkpoint.before_manifest",
    "checkpoint.manifest_written",
    "checkpoint.before_rename",
    "checkpoint.renamed",
]
PRUNE = ["checkpoint.before_prune", "checkpoint.pruned"]


def test_a_save_passes_every_failpoint_in_order(tmp_path: Path) -> None:
    traced = sorted({*START, *PARTS, *COMMIT, *PRUNE})
    environment = failpoints(tmp_path / "passed", *(f"{name}=trace" for name in traced))
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "store")], env=environment, check=True)
    passed = [line.split()[0] for line in (tmp_path / "passed" / "trace").read_text().splitlines()]
    assert passed == [*START, *PARTS, *COMMIT, *PARTS, *COMMIT, *PRUNE]
