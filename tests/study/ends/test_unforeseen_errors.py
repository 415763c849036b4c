"""An exception that nobody foresaw ends a study with an exit code of its own, and asks for a report."""

import json
from collections.abc import Callable

import pytest

from tests.support.failpoints import failpoints
from tests.support.runs import Run


@pytest.mark.parametrize(
    ("point", "phase"),
    [
        pytest.param("server.trained", "training", marks=pytest.mark.full),
        ("server.before_capture", "training"),
        pytest.param("server.model_ready", "set-up", marks=pytest.mark.full),
        ("incarnations.appended", None),
    ],
)
def test_an_error_of_ours_ends_a_study_with_70_and_its_traceback(
    run: Callable[..., Run], point: str, phase: str | None
) -> None:
    done = run(mpi=None, settings={"checkpoint.every_batches": 2}, environment=failpoints(None, f"{point}=raise"))
    assert done.exit_code == 70
    assert "Traceback" in done.output
    assert "FailpointError" in done.output
    assert "This is a bug in Stream Server: please report it with its traceback" in done.output
    if phase is not None:
        failure = json.loads((done.output_dir / "exit.json").read_text())
        assert (failure["phase"], failure["exit_code"], done.report["exit_code"]) == (phase, 70, 70)
