"""Access to the page: by a token, which the link brings once and a cookie from then on, at a place of its own."""

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tornado.httputil import HTTPHeaders, RequestStartLine, parse_cookie

TOKEN = "token"  # noqa: S105 (the name of an argument in the URL)
METHODS = ("GET", "HEAD")


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
        """The link to the page of a server at a port."""
        return f"http://{self.host}:{port}{self.place}/?{TOKEN}={self._token}"

    def answer(self, request: RequestStartLine, headers: HTTPHeaders) -> Answer | None:
        """The answer to a request that is not admitted, or that brings the token; None for one that is admitted.

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
