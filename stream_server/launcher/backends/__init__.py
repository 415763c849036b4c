"""Backends, which run jobs: their protocol, the local one, those of schedulers, mpirun, the environment of a job.

Offers: backend, environment, local, mpirun, registry.
May import: config, machine.
"""
