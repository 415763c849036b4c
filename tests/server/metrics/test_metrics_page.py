"""docs/reference/metrics.md says what every logged name means."""

import re
from pathlib import Path

import numpy as np

from stream_server.buffers import Buffer, Fifo, Slots
from stream_server.server.metrics.log_record import AXES, LoggedRun
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_own_writer, open_writers
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.monitoring.gauges import (
    BufferGauge,
    MemoryGauge,
    SamplesGauge,
    SpeedGauge,
)
from tests.support.snapshots import board_of
from tests.support.timing import Clock

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()
STATISTICS = ("mean", "std", "min", "max")


def one_sample() -> Buffer:
    slots = Slots({"u": (2,)}, 1)
    slots.allocate({"u": np.float32})
    buffer = Buffer(Fifo(capacity=1), slots)
    buffer.enqueue(buffer.claim(1))
    buffer.admit()
    return buffer


def test_every_name_that_is_logged_without_being_asked_is_on_the_page() -> None:
    buffer, clock = one_sample(), Clock()
    metrics, (board, _) = Metrics(SoloRanks()), board_of(clock=clock)
    metrics.gauges += [
        BufferGauge(buffer),
        SamplesGauge(buffer),
        MemoryGauge(),
        SpeedGauge(Progress(), Phases(), clock),
        board,
    ]
    board.on_round(None)
    clock.now = 1.0
    board.on_round(None)
    metrics.write(1, 1.0)
    statistics = {name for name in metrics.latest if name.rpartition("/")[2] in STATISTICS}
    names = {name.rpartition("/")[0] if name in statistics else name for name in metrics.latest}
    assert len(names) >= 10
    assert {name for name in names if f"`{name}`" not in PAGE and f"`{name.partition('/')[2]}`" not in PAGE} == set()


def test_every_phase_and_axis_is_on_the_page() -> None:
    assert Phases.__doc__ is not None
    listed = re.search(r"names in use are (.*?)\.\n", Phases.__doc__, re.DOTALL)
    assert listed is not None
    phases = re.findall(r"\b[a-z_]{3,}\b", re.sub(r"\(.*?\)", "", listed[1]).replace(" and ", " "))
    assert len(phases) == 14
    for name in (*phases, *AXES):
        assert f"`{name}`" in PAGE, name


def test_every_file_is_on_the_page(tmp_path: Path) -> None:
    run = LoggedRun(folder=tmp_path)
    for writer in (*open_writers(run), open_own_writer(run, 0)):
        writer.close()
    for path in tmp_path.iterdir():
        name = re.sub(r"rank-\d+", "rank-R", path.name)
        assert f"`{name}`" in PAGE or f"`{name}/`" in PAGE, name
