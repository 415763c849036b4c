"""The server class of a study that only writes its samples to files."""

from typing import Any

from stream_server.server.user.simulation_data import SimulationBatch
from stream_server.server.user.stream_server import StreamServer


class NoTraining(StreamServer):
    """Takes batches and learns nothing: the samples have been recorded by the time they are drawn."""

    automatic_optimization = False

    def process_batch(self, batch: SimulationBatch, config: Any) -> None:
        """Make nothing of a batch."""

    def training_step(self, batch: None, batch_idx: int) -> None:
        """Learn nothing, and return no loss."""

    def validation_step(self, batch: None, batch_idx: int) -> None:
        """Validate nothing: held-out samples are recorded, and not kept."""
