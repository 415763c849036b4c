"""A TCP proxy in user space that breaks connections as it is told."""

import asyncio
import contextlib
import random
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from tests.faults.network.faults import CLEAR, Fault
from tests.faults.network.passage import Stream, cancelled, passage

LOOPBACK = "127.0.0.1"


class Proxy:
    """Stands in front of a server's address, on a thread of its own, while the block lasts.

    The connection number i gets `course[i]`, and later ones CLEAR: the network has healed. For the first `refuses_s`
    nobody can connect. `num_connections` counts those that were let in; `draw` is what jitter is drawn from.
    """

    def __init__(
        self,
        server: str,
        course: Sequence[Fault] = (),
        *,
        refuses_s: float = 0.0,
        at: tuple[str, int] = (LOOPBACK, 0),
        draw: random.Random | None = None,
    ) -> None:
        host, port = server.removeprefix("tcp://").rsplit(":", 1)
        self.num_connections = 0
        self._struck: defaultdict[str, set[int]] = defaultdict(set)
        self._server = host, int(port)
        self._course = tuple(course)
        self._refuses_s = refuses_s
        self._at = at
        self._draw = draw or random.Random(0)

    @property
    def address(self) -> str:
        """The address to which clients connect instead of the server's."""
        host, port = self._listener.getsockname()
        return f"tcp://{host}:{port}"

    @property
    def struck(self) -> Counter[str]:
        """On how many connections which kind of fault has had an effect."""
        return Counter({kind: len(numbers) for kind, numbers in list(self._struck.items()) if numbers})

    def __enter__(self) -> Self:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Bound but not listening, it refuses.
        self._listener.bind(self._at)
        self._listener.setblocking(False)
        if not self._refuses_s:
            self._listener.listen()
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="network-proxy")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()
            self._listener.close()

    async def _serve(self) -> None:
        passages: set[asyncio.Task[None]] = set()
        healing = asyncio.create_task(self._listen(passages))
        await self._stopped.wait()
        await cancelled([healing])
        self._loop.remove_reader(self._listener)
        # Each passage begins, and so closes what it was given.
        await asyncio.sleep(0)
        await cancelled(passages)
        # Transports end in the turn after that in which they are told to.
        await asyncio.sleep(0)

    async def _listen(self, passages: set["asyncio.Task[None]"]) -> None:
        if self._refuses_s:
            await asyncio.sleep(self._refuses_s)
            self._struck["Refusal"].add(0)
            self._listener.listen()
        self._loop.add_reader(self._listener, self._let_in, passages)

    def _let_in(self, passages: set["asyncio.Task[None]"]) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            # It has gone away again.
            return
        fault = self._course[self.num_connections] if self.num_connections < len(self._course) else CLEAR
        on_effect = partial(self._struck[type(fault).__name__].add, self.num_connections)
        self.num_connections += 1
        client.setblocking(False)
        task = self._loop.create_task(self._pass(client, fault, on_effect))
        passages.add(task)
        task.add_done_callback(passages.discard)

    async def _pass(self, connected: socket.socket, fault: Fault, on_effect: Callable[[], None]) -> None:
        with socket.socket() as upstream, connected, contextlib.suppress(OSError):
            upstream.setblocking(False)
            await self._loop.sock_connect(upstream, self._server)
            async with Stream.over(connected) as client, Stream.over(upstream) as server:
                await passage(fault, client, server, draw=self._draw, on_effect=on_effect)
