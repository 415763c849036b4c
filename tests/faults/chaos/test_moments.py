"""The activity of a study when a process of it was killed."""

import os
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.chaos.moments import Moments
from tests.support.failpoints import FOLDER_VARIABLE, TRACE_FILE

ME = psutil.Process()
ALL = {"rank": [ME], "client": [ME]}


@pytest.fixture
def moments(tmp_path: Path) -> Moments:
    """Those of a study that has just been started: this process is its rank and its client."""
    moments = Moments(output_dir=tmp_path / "run")
    (tmp_path / "run" / "audit").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints").mkdir()
    Path(moments.environment[FOLDER_VARIABLE]).mkdir()
    return moments


def train(moments: Moments) -> None:
    (moments.output_dir / "audit" / f"incarnation-1-rank-0-{ME.pid}.jsonl").write_text("{}\n")


def trace(moments: Moments, *names: str) -> None:
    lines = [f"{name} {ME.pid} 5.0\n" for name in names]
    (Path(moments.environment[FOLDER_VARIABLE]) / TRACE_FILE).write_text("".join(lines))


def test_a_study_without_a_checkpoint_starts_until_it_has_trained_a_batch(moments: Moments) -> None:
    assert moments.now(ALL) == "start"
    train(moments)
    assert moments.now(ALL) == "training"


def test_a_study_with_a_checkpoint_is_restored_until_it_has_trained_a_batch(moments: Moments) -> None:
    (moments.output_dir / "checkpoints" / "000001").mkdir()
    assert moments.now(ALL) == "restore"
    assert moments.now({"rank": [], "client": []}) == "restore"
    train(moments)
    assert moments.now(ALL) == "training"


def test_a_commit_is_one_of_the_server_that_runs(moments: Moments) -> None:
    train(moments)
    temporary = moments.output_dir / "checkpoints" / "000001.incarnation-1.tmp"
    temporary.mkdir()
    assert moments.now(ALL) == "commit"
    os.utime(temporary, (0, ME.create_time() - 1))
    assert moments.now(ALL) == "training"


def test_a_client_reconnects_until_it_is_let_in(moments: Moments) -> None:
    train(moments)
    trace(moments, "client.after_opened", "client.before_reconnect")
    assert moments.now(ALL) == "reconnect"
    assert moments.now(ALL | {"client": []}) == "training"
    trace(moments, "client.after_opened", "client.before_reconnect", "client.after_opened")
    assert moments.now(ALL) == "training"


def test_lying_in_wait_for_a_commit_passes_over_what_is_there_already(moments: Moments) -> None:
    (moments.output_dir / "checkpoints" / "000001.incarnation-1.tmp").mkdir()
    assert not moments.is_committing(since=time.time() + 1)
