"""The data that a user's server class receives: one sample, or a batch of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.ragged import is_ragged, row_of


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationData:
    """One sample: one time step of one simulation, or with `samples.window` in study.json several of them.

    `parameters` has shape (P,), float64, in the order of study.json. The arrays are read-only views, valid until
    the batch is formed: copy what must live longer. An optional field is in `fields` only when it was sent.

    A field that is sent once per simulation is in `fields` of each of its samples. One that differs in size, from step
    to step or from simulation to simulation, has the shape that was sent.

    Of a window the arrays in `fields` have shape (length, …), but for those that are sent once per simulation;
    `time_steps` has shape (length,), and `time_step` is the first of them. An optional field is there only if it was
    sent in all of these steps. A field that differs from step to step is an array of `length` arrays, of dtype object.
    `time_steps` is None where a sample is one time step.
    """

    simulation_id: int
    time_step: int
    parameters: NDArray[np.float64]
    fields: dict[str, NDArray[Any]]
    time_steps: NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationBatch:
    """B samples, stacked along a first axis; `len()` is B. The arrays are the batch's own: write into them at will.

    `time_steps` has shape (B,), of windows (B, length); the arrays in `fields` have this shape before that of the
    field, those of fields that are sent once per simulation (B,). `present` says for each field, in the same shape,
    where it was sent; it is zero elsewhere.

    A field that differs in size is an array of B arrays, of dtype object, which is indexed and gone through as a list
    is; of windows (B, length) arrays if it is sent with each step. Where it was not sent it has no rows.
    `stream_server.pack` and `stream_server.pad` make one array of it.
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
        return self._rows(read_only)

    def own_samples(self) -> Iterator[SimulationData]:
        """The rows one by one, as views that may be written into."""
        return self._rows(lambda array: array)

    def _rows(self, view: Callable[[NDArray[Any]], NDArray[Any]]) -> Iterator[SimulationData]:
        parameters = view(self.parameters)
        fields = {name: _view(array, view) for name, array in self.fields.items()}
        time_steps = view(self.time_steps)
        is_window = time_steps.ndim > 1
        for row in range(len(self)):
            yield SimulationData(
                simulation_id=int(self.simulation_ids[row]),
                time_step=int(time_steps[row, 0] if is_window else time_steps[row]),
                parameters=parameters[row],
                fields={name: row_of(array, row) for name, array in fields.items() if self.present[name][row].all()},
                time_steps=time_steps[row] if is_window else None,
            )


def _view(array: NDArray[Any], view: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """A view of an array; of an array of arrays one of views."""
    if not is_ragged(array):
        return view(array)
    views = np.empty_like(array)
    for place, element in np.ndenumerate(array):
        views[place] = view(element)
    return view(views)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view of `array`, rows of which cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view
