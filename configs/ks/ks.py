"""The Kuramoto-Sivashinsky equation, u_t + u u_x + u_xx + ν u_xxxx = 0, on a periodic interval.

In the Fourier basis the linear terms are solved exactly and the product by a Runge-Kutta method of fourth order: ETDRK4
of Cox and Matthews, its coefficients by contour integrals (Kassam and Trefethen, SIAM J. Sci. Comput. 26, 2005).
"""

from collections.abc import Iterator, Mapping

import numpy as np

from stream_server.client_api import simulations

LENGTH = 32.0
NUM_NODES = 64
NUM_STEPS = 41
TIME_STEP = 0.5
NUM_SUBSTEPS = 10
NUM_WAVES = 15
NUM_CONTOUR_POINTS = 32


def initial_state(parameters: Mapping[str, float | np.ndarray], num_nodes: int = NUM_NODES) -> np.ndarray:
    """The sum of 15 waves, of which the parameters a1, b1, a2, b2, … are the amplitudes; long waves are higher."""
    x = 2 * np.pi * np.arange(num_nodes) / num_nodes
    return sum(
        (
            np.multiply.outer(parameters[f"a{wave}"], np.cos(wave * x))
            + np.multiply.outer(parameters[f"b{wave}"], np.sin(wave * x))
        )
        / np.sqrt(wave)
        for wave in range(1, NUM_WAVES + 1)
    )


class Etdrk4:
    """Steps of length `dt`, for Fourier coefficients of shape (…, num_nodes // 2 + 1) and viscosities of shape (…)."""

    def __init__(self, viscosity: np.ndarray, dt: float, num_nodes: int = NUM_NODES) -> None:
        modes = np.arange(num_nodes // 2 + 1)
        wave_numbers = 2 * np.pi * modes / LENGTH
        self.num_nodes = num_nodes
        # The product has modes that the grid does not; those above two thirds are cut off.
        self.derivative = np.where(modes < num_nodes / 3, -0.5j * wave_numbers, 0)
        self.linear = wave_numbers**2 - np.multiply.outer(viscosity, wave_numbers**4)
        self.whole, self.half = np.exp(dt * self.linear), np.exp(dt * self.linear / 2)
        angles = np.pi * (np.arange(NUM_CONTOUR_POINTS) + 0.5) / NUM_CONTOUR_POINTS
        z = dt * self.linear[..., None] + np.exp(1j * angles)
        ez = np.exp(z)

        def around(values: np.ndarray) -> np.ndarray:
            return dt * np.mean(values.real, axis=-1)

        self.to_half = around((np.exp(z / 2) - 1) / z)
        self.first = around((-4 - z + ez * (4 - 3 * z + z**2)) / z**3)
        self.second = around(2 * (2 + z + ez * (z - 2)) / z**3)
        self.third = around((-4 - 3 * z - z**2 + ez * (4 - z)) / z**3)

    def nonlinear(self, u_hat: np.ndarray) -> np.ndarray:
        return self.derivative * np.fft.rfft(np.fft.irfft(u_hat, self.num_nodes) ** 2)

    def step(self, u_hat: np.ndarray) -> np.ndarray:
        n_u = self.nonlinear(u_hat)
        a = self.half * u_hat + self.to_half * n_u
        n_a = self.nonlinear(a)
        b = self.half * u_hat + self.to_half * n_a
        n_b = self.nonlinear(b)
        c = self.half * a + self.to_half * (2 * n_b - n_u)
        n_c = self.nonlinear(c)
        return self.whole * u_hat + self.first * n_u + self.second * (n_a + n_b) + self.third * n_c


def solve(parameters: Mapping[str, float | np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """The field of one step after the other, of shape (nodes,); (n, nodes) if the parameters are of shape (n,)."""
    u_hat = np.fft.rfft(initial_state(parameters))
    solver = Etdrk4(np.asarray(parameters["viscosity"]), TIME_STEP / NUM_SUBSTEPS)
    for step in range(NUM_STEPS):
        if step:
            for _ in range(NUM_SUBSTEPS):
                u_hat = solver.step(u_hat)
        yield {"u": np.fft.irfft(u_hat, NUM_NODES)}


def main() -> None:
    for simulation in simulations():
        for step, fields in enumerate(solve(simulation.parameters)):
            if not simulation.send(step, **fields):
                break


if __name__ == "__main__":
    main()
