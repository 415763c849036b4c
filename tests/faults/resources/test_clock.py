"""Studies whose wall clock jumps by an hour on the way; `tests/test_clocks.py` looks for who asks it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.resources.clocks import HOUR_S, built, jumping
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

PACED: dict[str, Any] = {
    "study.simulations": 3,
    "simulation.command": ["python", "paced.py", "0.05"],
    "simulation.timeout_s": 100,
    "checkpoint.every_batches": 2,
    "checkpoint.record": True,
}


@pytest.mark.parametrize(
    ("shift_s", "program"),
    [(HOUR_S, "stream-launcher"), pytest.param(-HOUR_S, "stream-server", marks=pytest.mark.full)],
)
def test_a_study_whose_wall_clock_jumps_ends_balanced(tmp_path: Path, shift_s: int, program: str) -> None:
    notes = tmp_path / "notes"
    environment = jumping(built(tmp_path), notes, shift_s=shift_s, in_s=3)
    settings = PACED | ({"server.ranks": 1} if program == "stream-launcher" else {})
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
