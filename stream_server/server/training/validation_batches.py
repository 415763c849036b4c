"""The batches of a validation set: where they come from, how many samples they hold, whether ranks can share them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.simulation_data import SimulationBatch
from stream_server.server.validation_store import ValidationStore


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutSamples:
    """Calling it gives all samples of this rank of the complete held-out simulations, with their parameters."""

    store: ValidationStore
    parameters_of: Callable[[int], NDArray[np.float64]]

    def __call__(self) -> SimulationBatch | None:
        stacked = self.store.stacked()
        if stacked is None:
            return None
        return SimulationBatch(
            simulation_ids=stacked.simulation_ids,
            time_steps=stacked.time_steps,
            parameters=np.stack([self.parameters_of(simulation) for simulation in stacked.simulation_ids.tolist()]),
            fields=stacked.fields,
            present=stacked.present,
        )


def num_samples(batch: Any) -> int:
    """The number of samples of a user's batch: the length of the first array in it, 1 if there is none."""
    return _first_length(batch) or 1


def _first_length(batch: Any) -> int | None:
    if isinstance(batch, SimulationBatch):
        return len(batch)
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else None
    items = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((length for item in items if (length := _first_length(item)) is not None), None)


def check_loader(name: str, loader: Any, num_ranks: int) -> None:
    """Refuse what cannot be gone through again and again, in the same order on every rank.

    Raises:
        UserCodeError: it is no iterable of batches, or one that ends for good.
        ConfigError: it shuffles, and there are several ranks.
    """
    where = f"val_dataloader()[{name!r}]" if name else "val_dataloader()"
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise UserCodeError(f"{where} must give an iterable of batches, but gave a {type(loader).__name__}")
    if isinstance(loader, Iterator):
        raise UserCodeError(f"{where} gave a {type(loader).__name__}, which can be gone through only once; give a list")
    if num_ranks > 1 and type(getattr(loader, "sampler", None)).__name__ == "RandomSampler":
        raise ConfigError(
            f"{where} shuffles, so the ranks would not share out its batches but take some twice and others never: "
            "use shuffle=False"
        )


def slices(num: int, size: int) -> list[slice]:
    """The rows of the batches of `size` samples that `num` samples make; the last one may be shorter."""
    return [slice(start, start + size) for start in range(0, num, size)]


def take(batch: SimulationBatch, rows: slice) -> SimulationBatch:
    """Some rows of a batch, as a copy that its reader may write into."""
    return SimulationBatch(
        simulation_ids=batch.simulation_ids[rows].copy(),
        time_steps=batch.time_steps[rows].copy(),
        parameters=batch.parameters[rows].copy(),
        fields={name: array[rows].copy() for name, array in batch.fields.items()},
        present={name: array[rows].copy() for name, array in batch.present.items()},
    )
