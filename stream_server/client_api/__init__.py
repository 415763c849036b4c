"""The client API, which a simulation imports. It needs NumPy, ZeroMQ and msgspec alone.

Offers: none.
May import: messages.
"""

from stream_server.client_api.client import connect, simulations
from stream_server.client_api.simulation import Simulation

__all__ = ["Simulation", "connect", "simulations"]
