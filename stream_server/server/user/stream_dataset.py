"""The samples of a rank as a dataset of torch."""

from collections.abc import Iterator
from typing import Any, NoReturn

from torch.utils.data import IterableDataset, get_worker_info

IN_A_WORKER = (
    "a StreamDataset gives the samples that this process receives, which a worker process does not have: use a "
    "DataLoader with num_workers=0, and workers of your own for what is not of the stream"
)


class StreamDataset(IterableDataset[Any]):
    """The samples that this rank draws from its buffer, one by one, for the loader that `train_dataloader` returns.

    Iterating gives what `process_simulation_data` returns for each sample, or, if the class does not define that, the
    `SimulationData`; the arrays are the loader's own, to keep and to write into. It waits for samples, and ends
    when all that will ever come has been drawn. There is one pass: a second iterator goes on where the first one is.
    The loader runs on a thread of its own, while the training waits for its next batch, and with `training.prefetch`
    also beside its steps.

    Pass the objects on as they are, since they tell which samples a batch holds: transform them in
    `process_simulation_data` or in `collate_fn`.

    Raises:
        RuntimeError: it is iterated in a worker process, or by anything but that loader.
    """

    def __init__(self, samples: Iterator[Any]) -> None:
        super().__init__()
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise RuntimeError(IN_A_WORKER)
        return self._samples

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(IN_A_WORKER)
