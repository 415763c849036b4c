"""The sample buffer: policies choose slots, slots hold samples, and `Buffer` connects two threads.

Offers: batch_memory, buffer, pins, policy, redeal, row_copies, statics.
"""

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.fifo import Fifo
from stream_server.buffers.firo import Firo
from stream_server.buffers.frozen import Frozen, num_slots_to_load
from stream_server.buffers.pins import Draw
from stream_server.buffers.policy import Drawn, Policy, deal_evenly, policy_class
from stream_server.buffers.redeal import Dealt, redeal
from stream_server.buffers.reservoir import Reservoir, UniformReservoir
from stream_server.buffers.slots import Contents, Slots
from stream_server.buffers.window_buffer import WindowBuffer
from stream_server.buffers.windows import WindowShape

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
    "UniformReservoir",
    "WindowBuffer",
    "WindowShape",
    "deal_evenly",
    "num_slots_to_load",
    "policy_class",
    "redeal",
]
