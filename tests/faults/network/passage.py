"""One connection through the proxy, from its beginning to the end that its fault prepares for it."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.faults.network.faults import Close, Fault, HalfOpen, Way
from tests.faults.network.pump import Pump

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """One of the two sockets of a passage."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    @asynccontextmanager
    async def over(cls, connected: socket.socket) -> AsyncIterator["Stream"]:
        """That of a connected socket, which keeps nothing back; it ends with a RST if it has not ended before."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=connected)
        stream = cls(reader=reader, writer=writer)
        try:
            yield stream
        finally:
            stream.reset()

    def reset(self) -> None:
        """End with a RST, unless it has ended."""
        if not self.writer.is_closing():
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.writer.transport.abort()

    async def close(self) -> None:
        """End with a FIN behind all that was written."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def passage(
    fault: Fault, client: Stream, server: Stream, *, draw: random.Random, on_effect: Callable[[], None]
) -> None:
    """Pass on until one end is gone or the fault breaks the connection; `on_effect` is called when it is felt."""
    up, down = (Pump(way=way, fault=fault, draw=draw, on_effect=on_effect) for way in (Way.UP, Way.DOWN))
    flows = [
        asyncio.create_task(up.run(client.reader, server.writer)),
        asyncio.create_task(down.run(server.reader, client.writer)),
    ]
    try:
        done, _ = await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        outcomes = await asyncio.gather(*done, return_exceptions=True)
        await cancelled(flows)
        if True in outcomes:
            await _break(fault, client, server)
        elif False in outcomes:
            await asyncio.gather(client.close(), server.close())
    finally:
        await cancelled(flows)


async def _break(fault: Fault, client: Stream, server: Stream) -> None:
    """The way that a fault ends a connection; what is still open afterwards gets a RST."""
    match fault:
        case Close():
            await asyncio.gather(client.close(), server.close())
        case HalfOpen():
            server.reset()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), fault.heals_s)


async def cancelled(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel tasks and wait for their end; their errors are of no concern any more."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
