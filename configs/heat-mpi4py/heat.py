"""The heat equation on a square plate, in parallel: u_t = D (u_xx + u_yy) on [0, 10] x [0, 10] with D = 1.

    mpirun -n 2 python -m mpi4py heat.py NODES STEPS INITIAL LEFT RIGHT BOTTOM TOP

The plate begins at one temperature, and each of its sides is kept at one. Space: NODES x NODES interior nodes, rows
from bottom to top, 5-point stencil. Time: backward Euler in steps of 0.01, each solved by conjugate gradients. Every
rank has some of the rows, and around them a frame one node wide for what its neighbours and the sides hold.
"""

import sys

import numpy as np
from mpi4py import MPI

from stream_server.client_api import connect

SIDE_LENGTH = 10.0
TIME_STEP = 0.01
TOLERANCE = 1e-12
INSIDE = np.s_[1:-1, 1:-1]


class Strip:
    """This rank's rows of the plate: `u` with its frame, from row `first` on."""

    def __init__(self, comm, nodes, initial, left, right, bottom, top):
        self.comm = comm
        self.below = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
        self.above = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
        self.ratio = TIME_STEP / (SIDE_LENGTH / (nodes + 1)) ** 2
        self.first = nodes * comm.rank // comm.size
        num_rows = nodes * (comm.rank + 1) // comm.size - self.first
        self.u = np.full((num_rows + 2, nodes + 2), initial)
        # The frame of a strip at the edge of the plate holds what its side is kept at.
        self.u[:, 0], self.u[:, -1], self.u[0], self.u[-1] = left, right, bottom, top
        self.direction = np.zeros_like(self.u)

    def advance(self):
        """One time step: conjugate gradients from the old temperatures.

        The sides enter with the first residual, through the frame of `u`; the frame of a direction is 0 there.
        """
        u, direction = self.u[INSIDE], self.direction[INSIDE]
        residual = u - self.apply(self.u)
        direction[:] = residual
        square, small = self.sum(residual**2), TOLERANCE**2 * self.sum(u**2)
        while square > small:
            image = self.apply(self.direction)
            length = square / self.sum(direction * image)
            u += length * direction
            residual -= length * image
            last, square = square, self.sum(residual**2)
            direction[:] = residual + square / last * direction

    def apply(self, v):
        """(1 - dt D Laplace) v"""
        self.comm.Sendrecv(v[1], self.below, recvbuf=v[-1], source=self.above)
        self.comm.Sendrecv(v[-2], self.above, recvbuf=v[0], source=self.below)
        neighbours = v[:-2, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:] + v[2:, 1:-1]
        return v[INSIDE] - self.ratio * (neighbours - 4 * v[INSIDE])

    def sum(self, v):
        """The sum over all nodes of the plate."""
        return self.comm.allreduce(float(v.sum()))


def main():
    if len(sys.argv) != 8:
        sys.exit("usage: heat.py NODES STEPS INITIAL LEFT RIGHT BOTTOM TOP")
    nodes, num_steps = map(int, sys.argv[1:3])
    comm = MPI.COMM_WORLD
    strip = Strip(comm, nodes, *map(float, sys.argv[3:]))

    with connect(rank=comm.rank, num_ranks=comm.size) as simulation:
        simulation.declare_field("temperature", shape=(nodes, nodes), offset=(strip.first, 0))
        for step in range(num_steps):
            strip.advance()
            wanted = simulation.send(step, temperature=strip.u[INSIDE])
            if not comm.allreduce(wanted, MPI.MIN):
                break

    mean = strip.sum(strip.u[INSIDE]) / nodes**2
    if comm.rank == 0:
        print(f"mean temperature {mean:.9f} K")


if __name__ == "__main__":
    main()
