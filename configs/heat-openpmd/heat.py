"""The heat equation on a square plate, written as an openPMD series: a code that knows nothing of a study.

u_t = Δu on [0, 1]², with four sides and a beginning of one temperature each; explicit steps on N × N interior nodes.

    python heat.py heat.sst 24 10 300 100 200 300 400
"""

import sys
from collections.abc import Iterator

import numpy as np
import openpmd_api as openpmd

NUM_SUBSTEPS = 20
RATIO = 0.2  # of the time step to the square of the spacing; more than 0.25 is unstable
# A writer that waits for its reader holds two steps. Without these lines it would keep all that were not read yet.
STREAM = '{"adios2": {"engine": {"parameters": {"QueueLimit": "2", "QueueFullPolicy": "Block"}}}}'


def solve(nodes: int, initial: float, left: float, right: float, bottom: float, top: float) -> Iterator[np.ndarray]:
    """Yield the temperatures after each time step; rows run from bottom to top, columns from left to right."""
    u = np.full((nodes + 2, nodes + 2), initial)
    u[:, 0], u[:, -1], u[0], u[-1] = left, right, bottom, top
    while True:
        for _ in range(NUM_SUBSTEPS):
            inner = u[1:-1, 1:-1]
            inner += RATIO * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * inner)
        yield u[1:-1, 1:-1].copy()


def write(name: str, nodes: int, num_steps: int, *temperatures: float) -> None:
    is_stream = name.endswith(".sst")
    series = openpmd.Series(name, openpmd.Access_Type.create, STREAM if is_stream else "{}")
    for step, u in zip(range(num_steps), solve(nodes, *temperatures), strict=False):
        iteration = series.write_iterations()[step]
        iteration.time = step * NUM_SUBSTEPS * RATIO / (nodes + 1) ** 2
        mesh = iteration.meshes["temperature"]
        mesh.axis_labels = ["y", "x"]
        mesh.grid_spacing = [1 / (nodes + 1)] * 2
        mesh.unit_dimension = {openpmd.Unit_Dimension.theta: 1}
        record = mesh[openpmd.Mesh_Record_Component.SCALAR]
        record.reset_dataset(openpmd.Dataset(u.dtype, u.shape))
        record.store_chunk(u)
        iteration.close()
    series.close()


if __name__ == "__main__":
    name, nodes, num_steps, *temperatures = sys.argv[1:]
    write(name, int(nodes), int(num_steps), *map(float, temperatures))
