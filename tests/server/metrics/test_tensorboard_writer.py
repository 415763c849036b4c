"""Our event files, as TensorBoard's own reader reads them."""

import json
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np

from stream_server.server.metrics.log_record import LoggedRun
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_writers
from tests.server.metrics.logged import Figure, OneOf


def test_tensorboard_reads_back_scalars_histograms_and_figures(tmp_path: Path) -> None:
    writers = open_writers(LoggedRun(folder=tmp_path))
    with Metrics(OneOf(0, []), writers) as metrics:
        metrics.log("train/loss", 0.25)
        metrics.log_histogram("buffer/seen", np.array([1, 1, 4]))
        metrics.log_figure("field", Figure())
        metrics.write(30, 2.0)
    script = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
(loss,) = events.Scalars("train/loss")
(seen,) = events.Histograms("buffer/seen")
(field,) = events.Images("field")
value = seen.histogram_value
print(loss.step, loss.value, value.num, value.min, value.max, sum(value.bucket), field.width, field.height)
"""
    read = run(
        [sys.executable, "-c", script, str(tmp_path / "tensorboard")], check=True, capture_output=True, text=True
    )
    assert read.stdout.split() == ["30", "0.25", "3.0", "1.0", "4.0", "3.0", "3", "2"]


def log_incarnation(folder: Path, batches: list[int], *, after: int, loss: float) -> None:
    """Log as one start of the server does, with a validation every 20 batches."""
    with Metrics(OneOf(0, []), open_writers(LoggedRun(folder=folder, after=after))) as metrics:
        for batch in batches:
            metrics.log("loss", loss)
            metrics.log_histogram("seen", np.array([loss]))
            metrics.write(batch, batch / 10)
            if batch % 20 == 0:
                metrics.write_reduced(batch, batch / 10, {"val/loss": loss})


def read_back(folder: Path) -> dict[str, Any]:
    """Step and value of every event that TensorBoard shows; of a histogram the sum."""
    script = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
everything = {"scalars": 0, "histograms": 0}
events = EventAccumulator(sys.argv[1], size_guidance=everything, purge_orphaned_data=True).Reload()
scalars = {tag: [[it.step, it.value] for it in events.Scalars(tag)] for tag in ("loss", "val/loss")}
seen = [[it.step, it.histogram_value.sum] for it in events.Histograms("seen")]
print(json.dumps({**scalars, "seen": seen}))
"""
    read = run([sys.executable, "-c", script, str(folder / "tensorboard")], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(read.stdout)
    return found


def test_tensorboard_shows_every_step_once_after_a_crash_and_a_restart(tmp_path: Path) -> None:
    log_incarnation(tmp_path, [10, 20, 30, 40], after=0, loss=1.0)
    log_incarnation(tmp_path, [30, 40, 50], after=20, loss=2.0)
    once = [[10, 1.0], [20, 1.0], [30, 2.0], [40, 2.0], [50, 2.0]]
    assert read_back(tmp_path) == {"loss": once, "seen": once, "val/loss": [[20, 1.0], [40, 2.0]]}


def test_tensorboard_shows_every_step_once_after_a_restart_between_log_points(tmp_path: Path) -> None:
    log_incarnation(tmp_path, [10, 20, 25], after=0, loss=1.0)
    log_incarnation(tmp_path, [30, 40], after=25, loss=2.0)
    log_incarnation(tmp_path, [40, 50], after=33, loss=3.0)
    once = [[10, 1.0], [20, 1.0], [25, 1.0], [30, 2.0], [40, 3.0], [50, 3.0]]
    assert read_back(tmp_path) == {"loss": once, "seen": once, "val/loss": [[20, 1.0], [40, 3.0]]}


def test_a_first_log_point_of_an_event_file_that_was_never_written_to_is_purged_too(tmp_path: Path) -> None:
    log_incarnation(tmp_path, [10, 20], after=0, loss=1.0)
    log_incarnation(tmp_path, [], after=10, loss=2.0)
    log_incarnation(tmp_path, [20], after=10, loss=3.0)
    assert read_back(tmp_path)["loss"] == [[10, 1.0], [20, 3.0]]


def test_writing_for_tensorboard_loads_neither_torch_nor_tensorflow_nor_asyncio(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from stream_server.server.metrics.log_record import LoggedRun
from stream_server.server.metrics.writers import open_writers
for writer in open_writers(LoggedRun(folder=Path(sys.argv[1]))):
    writer.close()
print(*sorted({"torch", "tensorflow", "asyncio"} & set(sys.modules)))
"""
    loaded = run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == ""
