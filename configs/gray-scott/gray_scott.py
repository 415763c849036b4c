"""The Gray-Scott equations on a periodic square of 32 × 32 cells: two substances that react and spread.

u_t = D_u Δu - u v² + F (1 - u),  v_t = D_v Δv + u v² - (F + k) v, with the five-point stencil and Heun's method. Where
feed F and removal k are such that spots and stripes grow, patterns fill the square; elsewhere v dies out
(J. E. Pearson, Science 261, 1993).
"""

from collections.abc import Iterator, Mapping

import numpy as np

from stream_server.client_api import simulations

NUM_NODES = 32
NUM_STEPS = 31
TIME_STEP = 40.0
NUM_SUBSTEPS = 40
DIFFUSION_U, DIFFUSION_V = 0.16, 0.08
NUM_SPOTS = 4
SPOT_RADIUS = 2.5

State = tuple[np.ndarray, np.ndarray]


def initial_state(parameters: Mapping[str, float | np.ndarray]) -> State:
    """Spots of v, at places that are parts of the square's side, in a square that is full of u."""
    cells = np.arange(NUM_NODES)
    v = 0.0
    for spot in range(1, NUM_SPOTS + 1):
        squares = []
        for axis in ("x", "y"):
            distance = np.abs(np.subtract.outer(NUM_NODES * np.asarray(parameters[f"{axis}{spot}"]), cells))
            squares.append(np.minimum(distance, NUM_NODES - distance) ** 2)
        away = squares[0][..., :, None] + squares[1][..., None, :]
        strength = np.asarray(parameters[f"strength{spot}"])[..., None, None]
        v = v + 0.5 * strength * np.exp(-away / (2 * SPOT_RADIUS**2))
    v = np.minimum(v, 0.5)
    return 1 - v, v


def laplacian(field: np.ndarray) -> np.ndarray:
    around = sum(np.roll(field, shift, axis) for axis in (-2, -1) for shift in (-1, 1))
    return around - 4 * field


def rates(u: np.ndarray, v: np.ndarray, feed: np.ndarray, removal: np.ndarray) -> State:
    reaction = u * v**2
    return (
        DIFFUSION_U * laplacian(u) - reaction + feed * (1 - u),
        DIFFUSION_V * laplacian(v) + reaction - (feed + removal) * v,
    )


def heun(u: np.ndarray, v: np.ndarray, feed: np.ndarray, removal: np.ndarray, dt: float) -> State:
    """A step of second order."""
    first_u, first_v = rates(u, v, feed, removal)
    second_u, second_v = rates(u + dt * first_u, v + dt * first_v, feed, removal)
    return u + dt / 2 * (first_u + second_u), v + dt / 2 * (first_v + second_v)


def solve(parameters: Mapping[str, float | np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """The fields of one step after the other, of shape (32, 32); (n, 32, 32) if the parameters are of shape (n,)."""
    u, v = initial_state(parameters)
    feed, removal = (np.asarray(parameters[name])[..., None, None] for name in ("feed", "removal"))
    for step in range(NUM_STEPS):
        if step:
            for _ in range(NUM_SUBSTEPS):
                u, v = heun(u, v, feed, removal, TIME_STEP / NUM_SUBSTEPS)
        yield {"u": u, "v": v}


def main() -> None:
    for simulation in simulations():
        for step, fields in enumerate(solve(simulation.parameters)):
            if not simulation.send(step, **fields):
                break


if __name__ == "__main__":
    main()
