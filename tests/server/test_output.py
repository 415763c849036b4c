"""The output folder of a study."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.errors import ConfigError
from stream_server.server.output import OutputFolder

CONFIG: Any = SimpleNamespace(resolved=lambda: {"study": {"simulations": 1}})


def test_an_absent_folder_is_made_with_the_resolved_study_in_it(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "runs" / "heat")
    folder.prepare(CONFIG, fresh=False)
    assert json.loads(folder.study.read_text()) == {"study": {"simulations": 1}}


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "heat")
    folder.prepare(CONFIG, fresh=False)
    with pytest.raises(ConfigError, match="--fresh renames it"):
        folder.prepare(CONFIG, fresh=False)


def test_fresh_keeps_every_earlier_run_under_another_name(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "heat")
    for run in range(3):
        folder.prepare(CONFIG, fresh=True)
        (folder.path / "mark").write_text(str(run))
    assert [(tmp_path / name / "mark").read_text() for name in ("heat.1", "heat.2", "heat")] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("report", "finished"),
    [
        ('{"exit_code": 0, "exit_reason": "finished"}', True),
        ('{"exit_code": 0, "exit_reason": "max_batches"}', False),
        ('{"exit_code": 7, "exit_reason": "failed"}', False),
        ("{", False),
        ("[]", False),
    ],
)
def test_a_folder_is_finished_when_its_report_says_so(tmp_path: Path, report: str, *, finished: bool) -> None:
    (tmp_path / "report.json").write_text(report)
    assert OutputFolder(tmp_path).is_finished() is finished
