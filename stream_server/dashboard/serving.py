"""The server of the page: on the loopback interface, with all that a browser needs, behind a token.

Why: docs/decisions/0084-who-may-look.md
"""

import asyncio
import errno
import hmac
import logging
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.core.validation import silence
from bokeh.core.validation.warnings import MISSING_RENDERERS
from bokeh.document import Document
from bokeh.resources import Resources
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.settings import settings
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine, parse_cookie
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream
from tornado.web import OutputTransform

from stream_server.dashboard.page import Page
from stream_server.dashboard.texts import TEMPLATE
from stream_server.dashboard.watch import Watch
from stream_server.errors import ConfigError
from stream_server.machine.signals import ThreadErrors

TOKEN = "token"  # noqa: S105 (the name of an argument in the URL)
METHODS = ("GET", "HEAD")

# A browser asks either of them for a name below localhost.
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_WITHOUT_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
PORT = 8787
# A port that is free at one address may be another user's at the other.
ANY_PORT = [0] * 20
# A browser has a few connections for each page. Who says nothing for a while is let go.
MAX_CONNECTIONS = 256
SILENCE_S = 10.0
MAX_HEADER_BYTES = 16 << 10
# No script but those of this server, and nothing from or to any other; styles are set by Bokeh on each element.
POLICIES = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src 'self' data: blob:; "
    "style-src 'self' 'unsafe-inline'; font-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The whole answer to a request that is not handed on."""

    status: int
    reason: str
    headers: dict[str, str] = field(default_factory=dict)


class Access:
    """Admits requests that carry the token, over HTTP and on the websocket; all others get 403.

    The link with the token leads to the page without it, so that it stays out of bookmarks and screenshots. A browser
    sends the cookies of 127.0.0.1 to all its ports, also to the server of another user: so the cookie is for a path
    that nobody can guess, which no other server can have asked for. What a server has left in the browser, such as a
    service worker, lives on for its host and port, and would run in the page of the next one there: so the link has a
    host that no page has ever had. Names below localhost are addresses of the browser's own machine (RFC 6761).
    """

    def __init__(self) -> None:
        self.host = f"{secrets.token_hex(8)}.localhost"
        self.place = f"/{secrets.token_urlsafe(12)}"
        self.cookie = f"stream-study-{secrets.token_urlsafe(12)}"
        self._token = secrets.token_urlsafe(24)

    def link(self, port: int) -> str:
        return f"http://{self.host}:{port}{self.place}/?{TOKEN}={self._token}"

    def answer(self, request: RequestStartLine, headers: HTTPHeaders) -> Answer | None:
        """The answer to a request that is refused or brings the token; None for an admitted one.

        It is asked before anything else is done for a request, and before its body is read. A browser sends its cookies
        to a websocket whichever page opens it: that must be a page of this server. Its address is the one that the
        browser used, which is another one at the end of a tunnel.
        """
        origin = headers.get("Origin")
        if origin is not None and _host_of(origin) != headers.get("Host", "").lower():
            return Answer(status=403, reason="A page of another origin may not connect")
        path, _, query = request.path.partition("?")
        is_here = _are_equal(path[: len(self.place)], self.place) and path[len(self.place) :].startswith("/")
        if is_here and _are_equal(parse_qs(query).get(TOKEN, [""])[0], self._token):
            cookie = f"{self.cookie}={self._token}; HttpOnly; Path={self.place}/; SameSite=Lax"
            return Answer(status=302, reason="Found", headers={"Set-Cookie": cookie, "Location": f"{self.place}/"})
        cookies = parse_cookie(headers.get("Cookie", ""))
        if not (is_here and _are_equal(cookies.get(self.cookie, ""), self._token)):
            reason = "Open the link that stream-study serve printed: its token is missing or wrong"
            return Answer(status=403, reason=reason)
        if request.method not in METHODS:
            return Answer(status=405, reason="Method Not Allowed")
        return None


def _are_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _host_of(origin: str) -> str:
    """The host and port of an origin; "" if it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class GuardedServer(HTTPServer):
    """Answers nobody but who is admitted, and reads no body of theirs; has MAX_CONNECTIONS at most.

    Each costs this process a descriptor. Of those that come beyond that, the oldest that was not admitted goes, since
    an honest browser has shown its token at once.
    """

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        self._access: Access = kwargs.pop("access")
        super().initialize(*args, **{"max_body_size": 0, "max_header_size": MAX_HEADER_BYTES} | kwargs)
        # In the order in which they came, and whether they are admitted.
        self._streams: dict[IOStream, bool] = {}

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        self._streams = {each: is_admitted for each, is_admitted in self._streams.items() if not each.closed()}
        if len(self._streams) >= MAX_CONNECTIONS:
            oldest = next((each for each, is_admitted in self._streams.items() if not is_admitted), stream)
            oldest.close()
        if not stream.closed():
            self._streams[stream] = False
            super().handle_stream(stream, address)

    def start_request(self, server_conn: object, request_conn: Any) -> HTTPMessageDelegate:
        return _Gate(self, request_conn, super().start_request(server_conn, request_conn))

    def answer(self, connection: Any, request: RequestStartLine, headers: HTTPHeaders) -> Answer | None:
        """The answer to one that is not admitted, see `Access`; from then on the others are known to be."""
        answer = self._access.answer(request, headers)
        if answer is None:
            self._streams[connection.stream] = True
        return answer


class _Gate(HTTPMessageDelegate):
    """Passes on one request if it is admitted, and answers it otherwise; what comes after its head is not read then."""

    def __init__(self, server: GuardedServer, connection: Any, inner: HTTPMessageDelegate) -> None:
        self._server = server
        self._connection = connection
        self._inner = inner
        self._is_open = False

    def headers_received(self, start_line: Any, headers: HTTPHeaders) -> Awaitable[None] | None:
        answer = self._server.answer(self._connection, start_line, headers)
        if answer is None:
            self._is_open = True
            return self._inner.headers_received(start_line, headers)
        text = f"{answer.reason}\n".encode()
        headers = HTTPHeaders({"Content-Type": "text/plain", "Content-Length": str(len(text)), "Connection": "close"})
        headers.update(POLICIES | answer.headers)
        self._connection.write_headers(ResponseStartLine("HTTP/1.1", answer.status, answer.reason), headers, text)
        self._connection.finish()
        return None

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._inner.data_received(chunk) if self._is_open else None

    def finish(self) -> None:
        if self._is_open:
            self._inner.finish()

    def on_connection_close(self) -> None:
        if self._is_open:
            self._inner.on_connection_close()


class _Policies(OutputTransform):
    """Tells the browser what the page may do, whatever a text in it would make it do."""

    def __init__(self, nonce: str) -> None:
        self._script = f"script-src 'self' 'nonce-{nonce}'"

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        headers.update(POLICIES | {"Content-Security-Policy": f"{POLICIES['Content-Security-Policy']}; {self._script}"})
        return status_code, headers, chunk


class _Application(BokehTornado):
    """Bokeh's application, without those of its scripts that the page does not use: MathJax makes links of texts."""

    def resources(self, absolute_url: str | bool | None = None) -> Resources:
        return super().resources(absolute_url).clone(components=["bokeh", "bokeh-widgets"])


def serve(folder: Path, port: int | None, announce: Callable[[str], None]) -> None:
    """Serve the page over the runs in a folder until INT or TERM; `announce` is given its link.

    Without a `port` it is 8787, or any free one.

    Raises:
        ConfigError: there is no such folder, or the port is in use.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: give one with runs below it, or the output folder of a run")
    asyncio.run(_serve(folder, port, announce))


async def _serve(folder: Path, port: int | None, announce: Callable[[str], None]) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    with ThreadErrors(lambda error: loop.call_soon_threadsafe(over.set)) as errors:
        with Watch(folder) as watch, _running(watch, listening(port)) as link:
            announce(link)
            await over.wait()
        if errors.first is not None:
            raise errors.first


@contextmanager
def _running(watch: Watch, sockets: Sequence[socket.socket]) -> Iterator[str]:
    """A server in the loop of this thread; returns the link to its page."""
    # Whatever the environment of the user says: the browser may have no other way than to this server.
    settings.resources = "server"
    # Charts are empty at first, and Access looks at origins.
    silence(MISSING_RENDERERS)
    logging.getLogger("bokeh.server.util").setLevel(logging.ERROR)
    # A browser that left is no news.
    logging.getLogger("bokeh.server.views.ws").setLevel(logging.ERROR)
    access, nonce = Access(), secrets.token_urlsafe(16)
    tornado = _Application(
        {"/": Application(FunctionHandler(lambda document: _open(document, watch, nonce)))},
        prefix=access.place,
        transforms=[lambda request: _Policies(nonce)],
        extra_websocket_origins=["*"],
        # They would be within the page for its scripts to read.
        exclude_headers=["Cookie"],
        exclude_cookies=[access.cookie],
    )
    http = GuardedServer(tornado, access=access, idle_connection_timeout=SILENCE_S)
    http.add_sockets(sockets)
    server = BaseServer(IOLoop.current(), tornado, http)
    server.start()
    try:
        yield access.link(sockets[0].getsockname()[1])
    finally:
        server.unlisten()
        server.stop()


def _open(document: Document, watch: Watch, nonce: str) -> None:
    # Bokeh takes the text of a template, too.
    document.template = TEMPLATE  # type: ignore[assignment]
    document.template_variables["nonce"] = nonce
    Page(document, watch).open()


def listening(port: int | None) -> list[socket.socket]:
    """Sockets at one port of both loopback addresses; without a `port` at the usual one if it is free, or at any.

    Raises:
        ConfigError: it is in use, or cannot be used.
    """
    for wanted in [PORT, *ANY_PORT] if port is None else [port] if port else ANY_PORT:
        opened: list[socket.socket] = []
        try:
            for family, host in LOOPBACK.items():
                place = (host, opened[0].getsockname()[1] if opened else wanted)
                opened.append(socket.create_server(place, family=family))
                opened[-1].setblocking(False)
        except (OSError, OverflowError) as error:
            if not (opened and isinstance(error, OSError) and error.errno in _WITHOUT_IPV6):
                reason = error
                for server in opened:
                    server.close()
                continue
        return opened
    raise ConfigError(f"port {port} cannot be used: {reason}; without --port a free one is taken")
