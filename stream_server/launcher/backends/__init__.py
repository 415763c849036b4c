"""Backends, which run jobs: their protocol, the local one, those of schedulers, mpirun, the environment of a job, and
the allocation in which we are.

Offers: allocation, backend, environment, local, mpirun, ranks_here, registry, scheduler.
May import: config, machine, storage.
"""
