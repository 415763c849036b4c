"""Run under MPI: validates torchmetrics on uneven batches and prints, as one JSON line, what one rank and all find.

One argument, a JSON list: the sizes of the batches that all ranks share, or of several named sets.
"""

import json
import sys
from typing import Any

import torch
from torch import nn
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric
from torchmetrics.utilities import dim_zero_cat

from stream_server.config.training_sections import ValidationSettings
from stream_server.server.metrics.metric_objects import TrainedMetrics
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import Ranks, SoloRanks, ranks_from_environment
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.training.validation.validation import Validation
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.torch_server import TorchServer
from tests.server.training.validation.validating import Written
from tests.support.settings import settings

RANKS = ranks_from_environment()


class MedianError(Metric):
    """Collects every error, and needs them all for its value."""

    errors: list[torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("errors", [], dist_reduce_fx="cat")

    def update(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        self.errors.append((found - expected).abs().flatten())

    def compute(self) -> torch.Tensor:
        return dim_zero_cat(self.errors).median()


class Net(nn.Module):
    """A model with a metric in it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.median_error = MedianError()

    def forward(self, x: Any) -> Any:
        return self.linear(x)


class Server(TorchServer):
    def __init__(self, sizes: Any, ranks: Ranks) -> None:
        super().__init__(settings())
        self.sizes = sizes
        self.union_mean = UnionMean(ranks)

    def prepare_training_attributes(self) -> Any:
        self.training_error = MeanAbsoluteError()
        self.squared = MeanSquaredError()
        self.absolute = MeanAbsoluteError()
        model = Net()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def val_dataloader(self) -> Any:
        generator = torch.Generator().manual_seed(3)

        def batches(sizes: list[int]) -> list[Any]:
            return [tuple(torch.randn(2, size, 1, generator=generator, dtype=torch.float64)) for size in sizes]

        if isinstance(self.sizes, dict):
            return {name: batches(sizes) for name, sizes in self.sizes.items()}
        return batches(self.sizes)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        found = self.model(x)
        self.squared.update(found, y)
        self.absolute.update(found, y)
        self.model.median_error.update(found, y)
        return {"loss": nn.functional.mse_loss(found, y), "mean_error": self.absolute}


def found_on(ranks: Ranks) -> list[dict[str, Any]] | None:
    server = Server(json.loads(sys.argv[1]), ranks)
    with TorchStep(server, ranks, server.config) as step:
        server.training_error.update(torch.ones(1), -2.0 * ranks.rank * torch.ones(1))
        validation = Validation(
            server,
            ranks,
            Callbacks(server),
            step,
            held_out=lambda: None,
            settings=ValidationSettings(batch_size=1),
            progress=Progress(),
            metrics=Written(),
        )
        values = [validation.run(), validation.run()]
        num_updates = server.training_error.update_count
        metrics = Metrics(ranks)
        metrics.gauges.append(TrainedMetrics(server, ranks))
        if ranks.rank == 0:
            metrics.log("training_error", server.training_error)
        metrics.write(10, 1.0)
        return ranks.gather({"values": values, "training_updates": num_updates, "trained": metrics.latest})


found = [found_on(SoloRanks()), found_on(RANKS)]
if RANKS.rank == 0:
    print(json.dumps(found))
