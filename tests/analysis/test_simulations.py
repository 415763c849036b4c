"""The simulations of a run that is over, as its folder tells."""

from pathlib import Path

import pytest

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.simulations import simulations_of
from tests.dashboard.made_runs import make_run


@pytest.mark.parametrize("table", ["", "simulation,x\n0,oh\n", "simulation,x\n0\n", "x\n1\n", None])
def test_of_parameters_that_cannot_be_read_there_are_no_simulations(tmp_path: Path, table: str | None) -> None:
    run = RunFolder(make_run(tmp_path / "heat"))
    assert [(it.simulation, it.parameters["slope"]) for it in simulations_of(run)][-1] == (5, 0.5)
    (run.path / "parameters.csv").unlink()
    if table is not None:
        (run.path / "parameters.csv").write_text(table)
    assert simulations_of(run) == []
