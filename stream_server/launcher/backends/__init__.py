"""Backends, which run jobs: their protocol, the local one, those of batch schedulers, mpirun, the environment of a simulation.

Offers: backend, environment, local, mpirun, registry.
May import: config, machine.
"""
