"""The data that a user's server class receives: one sample, or a batch of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationData:
    """One time step of one simulation.

    `parameters` has shape (P,), float64, in the order of study.json. The arrays are read-only views, valid until
    the batch is formed: copy what must live longer. An optional field is in `fields` only when it was sent.
    """

    simulation_id: int
    time_step: int
    parameters: NDArray[np.float64]
    fields: dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationBatch:
    """B time steps, stacked along a first axis; `len()` is B. The arrays are the batch's own: write into them at will.

    `present` says for each field in which rows it was sent; the other rows are zero.
    """

    simulation_ids: NDArray[np.int64]
    time_steps: NDArray[np.int64]
    parameters: NDArray[np.float64]
    fields: dict[str, NDArray[Any]]
    present: dict[str, NDArray[np.bool_]]

    def __len__(self) -> int:
        return len(self.simulation_ids)

    def samples(self) -> Iterator[SimulationData]:
        """The rows one by one, as read-only views."""
        parameters = read_only(self.parameters)
        fields = {name: read_only(array) for name, array in self.fields.items()}
        for row in range(len(self)):
            yield SimulationData(
                simulation_id=int(self.simulation_ids[row]),
                time_step=int(self.time_steps[row]),
                parameters=parameters[row],
                fields={name: array[row, ...] for name, array in fields.items() if self.present[name][row]},
            )


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view of `array`, rows of which cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view
