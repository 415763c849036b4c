"""One way of a connection: reads here, writes there, and does on the way what a fault says."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.network.faults import Fault, Flip, Silence, Slow, Way

READ_BYTES = 2**16


@dataclass(eq=False, kw_only=True, slots=True)
class Pump:
    """Passes bytes on until the sender closes, or until as many have passed as the `fault` allows this `way`.

    `on_effect` is called whenever bytes are changed, held back or kept.
    """

    way: Way
    fault: Fault
    draw: random.Random
    on_effect: Callable[[], None]
    num_bytes: int = 0

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pump, with at most READ_BYTES in the hand; returns whether it is the fault that ended it.

        Raises:
            OSError: one of the two ends is gone.
        """
        while data := await reader.read(READ_BYTES):
            passing = self._passing(data)
            await self._pass_on(passing, writer)
            if len(passing) < len(data):
                self.on_effect()
                return not isinstance(self.fault, Silence) or await _swallow(reader, self.fault.heals_s)
        return False

    def _passing(self, data: bytes) -> bytes:
        """The part that gets through, and how it looks then."""
        fault = self.fault
        if isinstance(fault, Slow) or fault.way is not self.way:
            return data
        if isinstance(fault, Flip):
            return self._flipped(data, fault.at_byte - self.num_bytes, fault.bit)
        return data[: max(0, fault.after_bytes - self.num_bytes)]

    def _flipped(self, data: bytes, at: int, bit: int) -> bytes:
        if not 0 <= at < len(data):
            return data
        self.on_effect()
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        slow = self.fault if isinstance(self.fault, Slow) else Slow()
        if slow != Slow():
            self.on_effect()
        for start in range(0, len(data), slow.piece_bytes):
            piece = data[start : start + slow.piece_bytes]
            pause_s = slow.delay_s + self.draw.uniform(0, slow.jitter_s)
            if slow.bytes_per_s is not None:
                pause_s += len(piece) / slow.bytes_per_s
            # Also without a pause: otherwise the pieces would leave as one.
            await asyncio.sleep(pause_s)
            writer.write(piece)
            await writer.drain()
            self.num_bytes += len(piece)


async def _swallow(reader: asyncio.StreamReader, limit_s: float | None) -> bool:
    """Read what comes and keep it; returns whether that lasted `limit_s`, and not only until the sender closed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while await reader.read(READ_BYTES):
                pass
            return False
    return True
