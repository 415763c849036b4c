"""The report of the end of a study when the disk has no room for it."""

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from stream_server.errors import ModelNotWritten
from stream_server.server.study.failure import Failure
from tests.support.failpoints import failpoints
from tests.support.runs import NUMPY_STUDY, assert_complete, run_here, run_study

SETTINGS: dict[str, Any] = {"study.simulations": 2}


def test_a_study_without_room_for_its_report_says_so_and_is_closed_by_the_next_start(tmp_path: Path) -> None:
    full = failpoints(tmp_path / "met", "server.before_report=raise:ENOSPC")
    done = run_study(
        NUMPY_STUDY, tmp_path / "run", mpi=None, program="stream-launcher", settings=SETTINGS, environment=full
    )
    assert done.exit_code == 5
    assert "it is started again" not in done.output
    assert "there is no report: [Errno 28] No space left on device" in done.output
    assert "40 accepted" in done.output
    assert "Traceback" not in done.output
    assert not (done.output_dir / "report.json").exists()
    assert_complete(run_here(NUMPY_STUDY, tmp_path / "run", settings=SETTINGS), num_simulations=2)


def test_a_study_without_room_for_its_model_has_failed_and_the_next_start_writes_it(tmp_path: Path) -> None:
    full = failpoints(tmp_path / "met", "model.before_rename=raise:EDQUOT")
    done = run_study(
        NUMPY_STUDY, tmp_path / "run", mpi=None, program="stream-launcher", settings=SETTINGS, environment=full
    )
    assert done.exit_code == ModelNotWritten.exit_code == done.report["exit_code"]
    assert f"the model could not be written to {done.output_dir / 'model'}" in done.output
    assert "run it again" in done.output
    assert done.report["restarts"] == 0
    assert not (done.output_dir / "model").exists()
    assert_complete(run_here(NUMPY_STUDY, tmp_path / "run", settings=SETTINGS), num_simulations=2)
    assert (done.output_dir / "model" / "model.safetensors").exists()


def test_a_failure_that_cannot_be_written_down_is_still_that_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failure = Failure.of(ArithmeticError("the user's own"), rank=1, phase="training", batch=3)
    monkeypatch.setattr(os, "write", refused)
    with caplog.at_level(logging.WARNING):
        failure.record(tmp_path)
    assert "exit.json cannot be written: [Errno 28]" in caplog.text
    assert Failure.read(tmp_path) is None


def refused(descriptor: int, data: memoryview) -> int:
    """Stand in for a disk that takes nothing."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
