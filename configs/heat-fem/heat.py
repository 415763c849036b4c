"""Heat in an L-shaped plate by scikit-fem: linear elements, backward Euler, one file in VTK for each time step.

python heat.py --initial 300 --wall 100 writes out/heat_0000.vtk and so on, with the temperatures of the nodes as `u`.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.sparse.linalg import splu
from skfem import Basis, ElementTriP1, MeshTri
from skfem.models.poisson import laplace, mass

TIME_STEP = 0.002


def solve(initial, wall, num_steps, refined):
    """The mesh, and the temperatures of its nodes after each time step; those on the edge stay at `wall`."""
    mesh = MeshTri.init_lshaped().refined(refined)
    basis = Basis(mesh, ElementTriP1())
    inner = basis.complement_dofs(basis.get_dofs())
    masses = mass.assemble(basis)[inner][:, inner]
    conduction = laplace.assemble(basis)[inner][:, inner]
    one_step = splu((masses + TIME_STEP * conduction).tocsc())

    def steps():
        u = np.full(basis.N, wall)
        u[inner] = initial
        for _ in range(num_steps):
            # Above the temperature of the wall the equation has no further term.
            u[inner] = wall + one_step.solve(masses @ (u[inner] - wall))
            yield u

    return mesh, steps()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--initial", type=float, required=True)
    parser.add_argument("--wall", type=float, required=True)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--refined", type=int, default=3)
    options = parser.parse_args()
    Path("out").mkdir(exist_ok=True)
    mesh, steps = solve(options.initial, options.wall, options.steps, options.refined)
    for step, u in enumerate(steps):
        mesh.save(f"out/heat_{step:04d}.vtk", point_data={"u": u})


if __name__ == "__main__":
    main()
