"""Nothing is decided by the wall clock: it may jump by an hour in the middle of a study."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.resources.clocks import HOUR_S, built, jumping
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

PACKAGE = Path(__file__).parent.parent.parent / "stream_server"
# Each asks for the time to put it into words for people, or into a name; nothing is decided by it.
ALLOWED = {
    "analysis/attempts.py": "until when an attempt ran, in what the page in the browser shows",
    "analysis/run_state.py": "how old a checkpoint is, and for how long an attempt runs, in what stream-study shows",
    "dashboard/page.py": "when the page was brought up to date, in its title line",
    "dashboard/watch.py": "until when what goes on has lasted, in what the page shows",
    "failpoints.py": "what a trace says, which tests ask for",
    "machine/study_lock.py": "since when a study is run, in what a second start is told",
    "server/checkpoint/continuation.py": "when a study was started, in its report",
    "server/checkpoint/capture.py": "when a checkpoint was written, in its manifest",
    "server/model/best_models.py": "when a model was written, in its facts",
    "server/metrics/tensorboard_writer.py": "what TensorBoard shows, and the name of its file",
}
ASKING = {("time", "time"), ("time", "time_ns"), ("time", "localtime"), ("datetime", "now"), ("datetime", "utcnow")}
PACED: dict[str, Any] = {
    "study.simulations": 3,
    "simulation.command": ["python", "paced.py", "0.05"],
    "simulation.timeout_s": 15,
    "checkpoint.every_batches": 2,
    "checkpoint.record": True,
}


def asks_for_the_wall_clock(file: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return any(
        isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and (call.value.id, call.attr) in ASKING
        for call in calls
    )


def files_that_ask() -> Iterator[str]:
    for file in PACKAGE.rglob("*.py"):
        if asks_for_the_wall_clock(file):
            yield file.relative_to(PACKAGE).as_posix()


def test_the_wall_clock_is_asked_for_words_and_names_only() -> None:
    assert sorted(files_that_ask()) == sorted(ALLOWED)


@pytest.mark.parametrize(
    ("shift_s", "program"),
    [(HOUR_S, "stream-launcher"), pytest.param(-HOUR_S, "stream-server", marks=pytest.mark.full)],
)
def test_a_study_whose_wall_clock_jumps_ends_balanced(tmp_path: Path, shift_s: int, program: str) -> None:
    notes = tmp_path / "notes"
    environment = jumping(built(tmp_path), notes, shift_s=shift_s, in_s=3)
    settings = PACED | ({"server.ranks": 2} if program == "stream-launcher" else {})
    done = run_study(
        NUMPY_STUDY, tmp_path / "run", mpi=None, program=program, settings=settings, environment=environment
    )
    assert_complete(done, num_simulations=3)
    assert done.report["restarts"] == 0
    assert max(done.attempts.values()) == 1
    assert done.report["wall_s"] < HOUR_S / 2
    assert list(notes.iterdir())


def test_the_clock_of_a_process_does_jump(tmp_path: Path) -> None:
    code = "import datetime, time; print(time.time(), datetime.datetime.now().timestamp(), time.monotonic())"
    environment = jumping(built(tmp_path), tmp_path / "notes", shift_s=HOUR_S, in_s=-1)
    told = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    plain = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    for shifted, real, shift in zip(told.stdout.split(), plain.stdout.split(), (HOUR_S, HOUR_S, 0), strict=True):
        assert abs(float(shifted) - float(real) - shift) < HOUR_S / 4
