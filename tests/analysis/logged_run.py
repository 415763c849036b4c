"""The output folder of a run, with metrics as its ranks write them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.server.metrics.log_record import LoggedRun
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_own_writer, open_writers
from stream_server.server.progress.progress import Progress


class Alone:
    """The one rank there is."""

    rank = 0

    def gather(self, value: Any) -> list[Any]:
        return [json.loads(json.dumps(value))]


def log_run(folder: Path, batches: range = range(10, 60, 10), *, after: int = 0) -> Path:
    """Log a loss of 1 / batch and all that pictures show at these batches, and validate every 20."""
    progress = Progress()
    run = LoggedRun(folder=folder / "metrics", after=after)
    with Metrics(Alone(), open_writers(run), own=open_own_writer(run, 0), progress=progress) as metrics:
        for batch in batches:
            progress.batches, progress.updates, progress.samples = batch, batch // 2, 10 * batch
            metrics.log("train/loss", 1 / batch)
            metrics.log("speed/samples_per_s", 100.0)
            metrics.log("buffer/population", 50)
            metrics.log("buffer/unseen", 20)
            metrics.log("time/step", 0.6)
            metrics.log("time/wait_for_data", 0.3)
            if batch == batches[0]:
                metrics.log_histogram("buffer/seen", np.array([0, 1, 1, 2, 15]))
            metrics.write(batch, batch / 10)
            if batch % 20 == 0:
                metrics.write_reduced(batch, batch / 10 + 0.05, {"val/loss": 2 / batch})
    return folder
