"""No code comes from data: in no process of a study is anything unpickled."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.killing import killed_at
from tests.support.launch import alone
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

WATCHED = Path(__file__).parent / "watched"
SETTINGS: dict[str, Any] = {
    "study.simulations": 3,
    "server.class": "torch_server.py:TinyServer",
    "checkpoint.every_batches": 2,
    "checkpoint.record": True,
}


def watched(folder: Path) -> tuple[dict[str, str], Path]:
    """An environment in which unpickling is noted, and the file with the notes."""
    notes = folder / "unpickled"
    return {"PYTHONPATH": str(WATCHED), "UNPICKLED": str(notes)}, notes


def test_nothing_is_unpickled_in_a_study_with_torch_that_is_killed_and_continued(tmp_path: Path) -> None:
    environment, notes = watched(tmp_path)
    output_dir = tmp_path / "run"
    options: dict[str, Any] = {"num_ranks": 2, "settings": SETTINGS, "environment": environment}
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, output_dir, **options)
    done = run_study(NUMPY_STUDY, output_dir, **options)
    assert_complete(done, num_simulations=3)
    assert done.report["restarts"] == 1
    assert not notes.exists(), notes.read_text()
    seen = notes.with_suffix(".watched").read_text()
    for program in ("stream-server", "stream_server.launcher.supervision.cli", "ripple.py"):
        assert program in seen


@pytest.mark.parametrize(
    ("code", "noted"),
    [
        ("import pickle; pickle.loads(pickle.dumps(1))", "pickle.loads"),
        ("import io, pickle; pickle.Unpickler(io.BytesIO(pickle.dumps(1))).load()", "pickle.Unpickler"),
        (
            "import io, torch; f = io.BytesIO(); torch.save({}, f); f.seek(0); torch.load(f, weights_only=True)",
            "torch._weights_only_unpickler",
        ),
    ],
    ids=["loads", "Unpickler", "torch"],
)
def test_whatever_is_unpickled_would_be_noted(tmp_path: Path, code: str, noted: str) -> None:
    environment, notes = watched(tmp_path)
    launch = alone(["-c", code])
    subprocess.run(launch.argv, env=launch.environment | environment, check=True, timeout=50)
    assert notes.read_text().startswith(f"{noted} in process")
