"""Backends, which run jobs: their protocol, the local one and those of Slurm, mpirun, the environment of a simulation.

Offers: backend, environment, local, mpirun, registry.
May import: config, machine, storage.
"""
