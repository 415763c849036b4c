"""Backends, which run jobs: their protocol, the local one and those of Slurm, mpirun, the environment of a simulation,
and the allocation in which we are.

Offers: allocation, backend, environment, local, mpirun, registry.
May import: config, machine, storage.
"""
