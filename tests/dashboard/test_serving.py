"""The page's server has a bounded number of connections."""

import asyncio

import pytest
from tornado.netutil import bind_sockets
from tornado.web import Application

from stream_server.dashboard import serving

MOST = 3


def test_connections_without_a_word_are_bounded_and_make_room_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", MOST)

    async def attack() -> tuple[list[bytes], bytes]:
        server = serving.BoundedHTTPServer(Application(), idle_connection_timeout=0.5)
        sockets = bind_sockets(0, serving.HOST)
        server.add_sockets(sockets)
        port = sockets[0].getsockname()[1]
        try:
            pairs = [await asyncio.open_connection(serving.HOST, port) for _ in range(2 * MOST)]
            # None of them says a word: some are closed at once, and the others then.
            ends = [await asyncio.wait_for(reader.read(), 20) for reader, _ in pairs]
            reader, writer = await asyncio.open_connection(serving.HOST, port)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            answer = await asyncio.wait_for(reader.readline(), 20)
            for _, it in [*pairs, (reader, writer)]:
                it.close()
            return ends, answer
        finally:
            server.stop()
            await server.close_all_connections()

    ends, answer = asyncio.run(attack())
    assert ends == [b""] * 2 * MOST
    assert b"404" in answer
