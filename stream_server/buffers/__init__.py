"""Where samples wait: policies choose, slots hold, and `Buffer` stands between two threads."""

from stream_server.buffers.buffer import Buffer, Contents, Draw
from stream_server.buffers.fifo import Fifo
from stream_server.buffers.firo import Firo
from stream_server.buffers.policy import Drawn, Policy
from stream_server.buffers.reservoir import Reservoir
from stream_server.buffers.slots import Slots

__all__ = ["Buffer", "Contents", "Draw", "Drawn", "Fifo", "Firo", "Policy", "Reservoir", "Slots"]
