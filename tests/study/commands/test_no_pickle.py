"""No code comes from data: in no process of a study is anything unpickled."""

import subprocess
from pathlib import Path

import pytest

from tests.study.conftest import watched
from tests.support.launch import alone
from tests.support.runs import Run, assert_complete


def test_nothing_is_unpickled_in_a_study_with_torch_that_is_killed_and_continued(torch_restarted: Run) -> None:
    _, notes = watched(torch_restarted.output_dir.parent)
    assert_complete(torch_restarted, num_simulations=4)
    assert torch_restarted.report["restarts"] == 1
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
    subprocess.run(launch.argv, env=launch.environment | environment, check=True, timeout=120)
    assert notes.read_text().startswith(f"{noted} in process")
