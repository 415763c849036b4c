"""The server of the page: on the loopback interface, with all that a browser needs, behind a token."""

import asyncio
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.core.validation import silence
from bokeh.core.validation.warnings import MISSING_RENDERERS
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.settings import settings
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets

from stream_server.dashboard.access import TOKEN, TokenAccess
from stream_server.dashboard.page import Page
from stream_server.dashboard.watch import Watch
from stream_server.errors import ConfigError

HOST = "127.0.0.1"
PORT = 8787
# A browser has a few connections for each page. Who says nothing for a while is let go.
MAX_CONNECTIONS = 256
SILENCE_S = 10.0


class BoundedHTTPServer(HTTPServer):
    """Closes what comes while it has MAX_CONNECTIONS, each of which costs this process a descriptor."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self._streams: list[IOStream] = []

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        self._streams = [it for it in self._streams if not it.closed()]
        if len(self._streams) >= MAX_CONNECTIONS:
            stream.close()
            return
        self._streams.append(stream)
        super().handle_stream(stream, address)


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
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    with Watch(folder) as watch, _running(watch, _free_port(port)) as link:
        announce(link)
        await over.wait()


@contextmanager
def _running(watch: Watch, port: int) -> Iterator[str]:
    """A server in the loop of this thread; gives the link to its page."""
    # Whatever the environment of the user says: the browser may have no other way than to this server.
    settings.resources = "server"
    # Charts are empty at first, and TokenAccess looks at origins.
    silence(MISSING_RENDERERS)
    logging.getLogger("bokeh.server.util").setLevel(logging.ERROR)
    # A browser that left is no news.
    logging.getLogger("bokeh.server.views.ws").setLevel(logging.ERROR)
    token = secrets.token_urlsafe(24)
    application = Application(FunctionHandler(lambda document: Page(document, watch).open()))
    tornado = BokehTornado(
        {"/": application},
        auth_provider=TokenAccess(token, f"stream-study-{port}"),
        extra_websocket_origins=["*"],
        # They would be within the page for its scripts to read.
        exclude_headers=["Cookie"],
        exclude_cookies=[f"stream-study-{port}"],
    )
    http = BoundedHTTPServer(tornado, idle_connection_timeout=SILENCE_S)
    http.add_sockets(bind_sockets(port, HOST))
    server = BaseServer(IOLoop.current(), tornado, http)
    server.start()
    try:
        yield f"http://{HOST}:{port}/?{TOKEN}={token}"
    finally:
        server.unlisten()
        server.stop()


def _free_port(port: int | None) -> int:
    """The port if it is free; without one the usual one if that is free, otherwise any.

    Raises:
        ConfigError: it is in use, or cannot be used.
    """
    for wanted in [PORT, 0] if port is None else [port]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, wanted))
            except (OSError, OverflowError) as error:
                reason = error
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"port {port} cannot be used: {reason}; without --port a free one is taken")
