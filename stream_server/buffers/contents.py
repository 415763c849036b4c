"""What a buffer holds at one moment, for users to look at."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stream_server.buffers.slots import FieldArrays


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contents:
    """Copies of all samples that can be drawn, row by row; rows of a field that is not `present` are zero."""

    simulation_ids: npt.NDArray[np.int64]
    time_steps: npt.NDArray[np.int64]
    seen: npt.NDArray[np.uint32]
    fields: FieldArrays
    present: dict[str, npt.NDArray[np.bool_]]
