"""The page's server answers a bounded number of connections, and reads nothing of whoever does not have its token."""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from tornado.httputil import HTTPHeaders, RequestStartLine
from tornado.web import Application, RequestHandler

from stream_server.dashboard import serving
from stream_server.dashboard.serving import Access
from stream_server.errors import ConfigError
from tests.needs import need

MOST = 3
WAIT_S = 20.0
ENDLESS = [b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nf4240\r\n"]

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Connection]]


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", MOST)


class Words(RequestHandler):
    """Answers what it was asked."""

    def get(self) -> None:
        self.write(b"words")


@pytest.fixture
def access() -> Access:
    return Access()


def attacked(access: Access, attack: Callable[[Connect], Awaitable[Any]], silence_s: float = 100.0) -> Any:
    """The answer of a server to an attack."""

    async def run() -> Any:
        application = Application([(f"{access.place}/", Words)])
        server = serving.GuardedServer(application, access=access, idle_connection_timeout=silence_s)
        sockets = serving.listening(0)
        server.add_sockets(sockets)
        place = sockets[0].getsockname()
        opened: list[asyncio.StreamWriter] = []

        async def connect() -> Connection:
            reader, writer = await asyncio.open_connection(*place)
            opened.append(writer)
            return reader, writer

        try:
            return await asyncio.wait_for(attack(connect), 3 * WAIT_S)
        finally:
            for writer in opened:
                writer.close()
            server.stop()
            await server.close_all_connections()

    return asyncio.run(run())


def path_of(access: Access) -> str:
    """The path that a browser requests, with the token, when it opens the link."""
    link = urlsplit(access.link(1))
    return f"{link.path}?{link.query}"


def cookie_of(access: Access) -> str:
    """The cookie that the link brings."""
    answer = access.answer(RequestStartLine("GET", path_of(access), "HTTP/1.1"), HTTPHeaders())
    assert answer is not None
    assert answer.status == 302
    return answer.headers["Set-Cookie"].partition(";")[0]


def head(access: Access, method: str = "GET", path: str | None = None) -> bytes:
    """The first lines of a request by who has the token."""
    place = f"{access.place}/" if path is None else path
    return f"{method} {place} HTTP/1.1\r\nHost: h\r\nCookie: {cookie_of(access)}\r\n".encode()


def test_connections_without_a_word_make_room_for_who_has_the_token(access: Access) -> None:
    async def attack(connect: Connect) -> tuple[bytes, list[bytes], bytes]:
        reader, writer = await connect()
        writer.write(head(access) + b"\r\n")
        first = await reader.readuntil(b"words")
        # Places are taken by one that is admitted, and by strangers, of whom the oldest goes.
        strangers = [await connect() for _ in range(2 * MOST)]
        gone = strangers[: 2 * MOST - (MOST - 1)]
        ends = [await asyncio.wait_for(it.read(), WAIT_S) for it, _ in gone]
        writer.write(head(access) + b"\r\n")
        return first, ends, await reader.readuntil(b"words")

    first, ends, second = attacked(access, attack)
    assert b" 200 " in first
    assert b" 200 " in second
    assert set(ends) == {b""}


def test_who_says_nothing_is_let_go_after_a_while(access: Access) -> None:
    async def attack(connect: Connect) -> list[bytes]:
        silent = [await connect() for _ in range(MOST)]
        silent[0][1].write(b"GET / HTTP/1.1\r\n")
        return [await asyncio.wait_for(reader.read(), WAIT_S) for reader, _ in silent]

    assert attacked(access, attack, silence_s=0.2) == [b""] * MOST


@pytest.mark.parametrize("body", ENDLESS, ids=["by its length", "in chunks"])
def test_a_stranger_is_refused_before_his_body_is_read(access: Access, body: bytes) -> None:
    async def attack(connect: Connect) -> bytes:
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\n" + body)
        return await asyncio.wait_for(reader.read(), WAIT_S)

    assert attacked(access, attack).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("body", ENDLESS, ids=["by its length", "in chunks"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_body_is_read_of_who_has_the_token(access: Access, method: str, body: bytes) -> None:
    async def attack(connect: Connect) -> bytes:
        reader, writer = await connect()
        writer.write(head(access, method) + body)
        return await asyncio.wait_for(reader.read(), WAIT_S)

    assert attacked(access, attack)[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 405 ")


def test_the_cookie_goes_to_a_path_that_nobody_else_knows(access: Access) -> None:
    answer = access.answer(RequestStartLine("GET", path_of(access), "HTTP/1.1"), HTTPHeaders())
    assert answer is not None
    assert f"; HttpOnly; Path={access.place}/;" in answer.headers["Set-Cookie"]
    assert answer.headers["Location"] == f"{access.place}/"
    assert len(access.place) > 16
    assert access.place != Access().place
    # Nor can another server of this host put a cookie of its own in its place.
    assert access.cookie != Access().cookie


@pytest.mark.parametrize("path", ["/", "{place}", "{place}x/", "/x{place}/", "{place}/?token=x", "//{place}/"])
def test_neither_place_nor_token_alone_admits_anybody(access: Access, path: str) -> None:
    path = path.format(place=access.place)
    cookie = cookie_of(access) if access.place + "/" not in path[:20] else "other=words"
    answer = access.answer(RequestStartLine("GET", path, "HTTP/1.1"), HTTPHeaders({"Cookie": cookie}))
    assert answer is not None
    assert answer.status == 403


@pytest.mark.parametrize("origin", ["http://[", "http://elsewhere", ""])
def test_a_page_of_another_origin_is_refused_whatever_it_says(access: Access, origin: str) -> None:
    headers = HTTPHeaders({"Origin": origin, "Host": "127.0.0.1:5000", "Cookie": cookie_of(access)})
    answer = access.answer(RequestStartLine("GET", f"{access.place}/", "HTTP/1.1"), headers)
    assert answer is not None
    assert answer.status == 403


def test_the_page_has_a_host_where_no_page_was_before(access: Access) -> None:
    """What other servers have left in the browser for 127.0.0.1 and a port is asked for nothing of another host."""
    name, _, top = (urlsplit(access.link(8787)).hostname or "").partition(".")
    assert top == "localhost"
    assert len(name) == 16
    assert name not in Access().host


def test_nobody_else_answers_for_its_host_by_the_other_version_of_the_protocol() -> None:
    need("IPv6")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} cannot be used"):
            serving.listening(port)
    opened = serving.listening(0)
    assert [it.getsockname()[0] for it in opened] == ["127.0.0.1", "::1"]
    assert len({it.getsockname()[1] for it in opened}) == 1
    for it in opened:
        it.close()


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_without_ipv6_one_address_is_enough(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    create = socket.create_server

    def refused(place: tuple[str, int], *, family: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(number, "no such thing here")
        return create(place, family=family)

    monkeypatch.setattr(socket, "create_server", refused)
    (only,) = serving.listening(0)
    only.close()
