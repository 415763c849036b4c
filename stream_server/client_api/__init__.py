"""What a simulation imports. NumPy and ZeroMQ are all it needs."""

from stream_server.client_api.client import connect, simulations
from stream_server.client_api.simulation import Simulation

__all__ = ["Simulation", "connect", "simulations"]
