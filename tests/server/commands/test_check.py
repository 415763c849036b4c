"""What `--check` tells of a study, and what it refuses as a start would."""

import json
from pathlib import Path
from typing import Any

import pytest

from stream_server.config import StudyConfig, load
from stream_server.errors import ConfigError
from stream_server.server.commands.check import _at_once, require_start
from stream_server.server.run.output import OutputFolder
from stream_server.storage.plain_state import write_state
from tests.support.runs import NUMPY_STUDY


def study(output_dir: Path, **changes: Any) -> StudyConfig:
    changes = {"study.output_dir": str(output_dir), **changes}
    return load(NUMPY_STUDY, [f"{key}={json.dumps(value)}" for key, value in changes.items()])


def test_a_study_that_needs_more_memory_than_the_node_has_is_refused_unless_its_server_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_server.server.commands.check.memory_problem", lambda *_: "too little memory")
    monkeypatch.setattr("stream_server.server.commands.check.check_backends", lambda _: None)
    with pytest.raises(ConfigError, match="too little memory"):
        require_start(study(tmp_path / "run"))
    require_start(study(tmp_path / "run", **{"server.backend": "slurm"}))


def test_what_a_restart_would_tell_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_server.server.commands.check.check_backends", lambda _: None)
    before = study(tmp_path / "run")
    run = OutputFolder(before.output_dir)
    run.prepare(before, resume=False)
    now = study(tmp_path / "run", **{"training.batch_size": 3, "training.prefetch": 2})
    assert require_start(now) == []
    (checkpoint := run.checkpoints / "000001").mkdir(parents=True)
    with (checkpoint / "study.state").open("wb") as file:
        write_state(file, {"settings": json.dumps(before.resolved())})
    was = before.training.batch_size
    assert require_start(now) == [f"training.batch_size {was} → 3; batches that were drawn before stay as they are"]
    assert require_start(now, fresh=True) == []


def test_a_study_without_a_command_tells_only_of_simulations_that_attach(tmp_path: Path) -> None:
    attached = "that attach by themselves (client.max_attached)"
    config = study(tmp_path)
    assert _at_once(config) == (
        f"at most {config.launcher.max_running} that the launcher starts (launcher.max_running), and "
        f"{config.client.max_attached} {attached}"
    )
    without = config.model_copy(update={"simulation": config.simulation.model_copy(update={"command": None})})
    assert _at_once(without) == f"at most {config.client.max_attached} {attached}"
