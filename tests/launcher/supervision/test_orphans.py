"""A launcher that is killed while it starts a job leaves it to the next one, which does not start it once more."""

import signal
from pathlib import Path

import pytest

from tests.launcher.study_run import StudyRun
from tests.launcher.supervision.test_takeover import STAYING
from tests.support.failpoints import failpoints

pytestmark = pytest.mark.slow


def test_a_job_whose_launcher_was_killed_right_after_its_start_is_taken_over(tmp_path: Path) -> None:
    environment = failpoints(tmp_path / "met", "launcher.after_submit=kill")
    with StudyRun(tmp_path, STAYING, environment=environment) as run:
        assert run.launcher.wait(100) == -signal.SIGKILL
        run.launcher = run.start()
        run.wait_until(lambda: len(run.attempts(0)) == 2)
        assert run.attempts(0) == [(0, 0), (0, 0)]
        run.wait_for_output(0)
        (tmp_path / "go").touch()
        assert run.end() == 0
        assert [folder.name for folder in run.folder_of(0).parent.iterdir()] == ["attempt-0"]
