"""The MPI ranks of the server, and the only door to MPI.

Offers: collectives, communicator.
May import: machine.
"""
