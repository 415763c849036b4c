"""Where samples wait: policies choose, slots hold, and `Buffer` stands between two threads."""

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.contents import Contents
from stream_server.buffers.fifo import Fifo
from stream_server.buffers.firo import Firo
from stream_server.buffers.frozen import Frozen, num_slots_to_load
from stream_server.buffers.pins import Draw
from stream_server.buffers.policy import Drawn, Policy
from stream_server.buffers.redeal import Dealt, redeal
from stream_server.buffers.reservoir import Reservoir
from stream_server.buffers.slots import Slots

__all__ = [
    "Buffer",
    "Contents",
    "Dealt",
    "Draw",
    "Drawn",
    "Fifo",
    "Firo",
    "Frozen",
    "Policy",
    "Reservoir",
    "Slots",
    "num_slots_to_load",
    "redeal",
]
