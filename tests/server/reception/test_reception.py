"""The beginning of a round at a source of simulations, without sockets."""

import logging
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.reception.reception import Reception
from stream_server.server.simulations.design import ParameterDesign, write_csv
from stream_server.server.simulations.roster import Roster
from tests.server.simulations.test_roster import FACTS
from tests.support.studies import StudyFolder

# Only later rounds have other values than 0, and those of the held-out simulation.
VALUES = [0.5, 0.0, 0.0, 0.5, 1.0]


@pytest.fixture
def source(tmp_path: Path) -> Reception:
    """A study of one held-out simulation and two rounds of two, the first of which has ended."""
    config = StudyFolder(tmp_path / "heat").load({
        "study.simulations": ...,
        "study.rounds": {"simulations": 2, "number": 2},
        "validation.simulations": 1,
        "parameters.bounds": {"x": [0, 1]},
        "simulation.command": ["python", "simulation.py", "{x}"],
        "buffer.policy": "fifo",
    })  # fmt: skip
    unused: Any = None
    output: Any = SimpleNamespace(parameters=tmp_path / "parameters.csv")
    dispatcher, buffer = SimpleNamespace(is_final=False), SimpleNamespace(reopen=lambda: None)
    receiver = SimpleNamespace(
        turn=Lock(), dispatcher=dispatcher, post=lambda _: None, intake=SimpleNamespace(observers=())
    )
    made = Reception(
        config,
        SoloRanks(),
        output,
        unused,
        plan=unused,
        design=ParameterDesign(config),
        buffer=buffer,  # type: ignore[arg-type]
        start=unused,
    )
    parameters = [{"x": value} for value in VALUES]
    made.roster = Roster(FACTS, parameters, num_planned=5, num_held_out=1, num_ranks=1, num_released=3)
    made._receiver = receiver  # type: ignore[assignment]
    made._note_design(made.roster.parameters)
    write_csv(output.parameters, made.roster.parameters)
    return made


def test_the_parameters_of_a_round_are_added_to_the_file_and_looked_at(source: Reception) -> None:
    file = source.folder.parameters
    before = file.read_text()
    assert not any("same parameters" in text for text in source.warnings)
    source.begin_round(1)
    assert file.read_text() == before + "3,0.5\n4,1.0\n"
    assert any("simulation 0 those of 3" in text for text in source.warnings)


def test_a_round_begins_although_the_disk_refuses_the_file_of_parameters(
    source: Reception, caplog: pytest.LogCaptureFixture
) -> None:
    source.folder.parameters.unlink()
    source.folder.parameters.mkdir()
    with caplog.at_level(logging.ERROR):
        source.begin_round(1)
    assert "parameters.csv lacks simulations" in caplog.text
    assert source.roster is not None
    assert source.roster.table.num_released == 5
