"""Access to the page: by a token, which the link brings once and a cookie from then on."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from bokeh.server.auth_provider import AuthProvider, User
from tornado.web import HTTPError, RequestHandler

TOKEN = "token"  # noqa: S105 (the name of an argument in the URL)


class TokenAccess(AuthProvider):
    """Admits requests that carry the token, over HTTP and on the websocket; all others get 403.

    The link with the token leads to the page without it, so that it stays out of bookmarks and screenshots.
    """

    def __init__(self, token: str, cookie: str) -> None:
        self._token = token
        self._cookie = cookie
        super().__init__()

    @property
    def login_url(self) -> str:
        """The page itself, since there is no login page."""
        return "/"

    @property
    def get_user_async(self) -> Callable[[Any], Awaitable[User]]:
        return self._admit

    async def _admit(self, handler: RequestHandler) -> User:
        """Admit a request, before anything is done for it.

        A browser sends its cookies to a websocket whichever page opens it: that must be a page of this server. Its
        address is the one that the browser used, which is another one at the end of a tunnel.

        Raises:
            HTTPError: 403, it has no token, a wrong one, or comes from a page of somebody else.
        """
        origin = handler.request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != handler.request.host.lower():
            raise HTTPError(403, reason="A page of another origin may not connect")
        brought = handler.get_query_argument(TOKEN, default="")
        if brought and self._is_right(brought):
            handler.set_cookie(self._cookie, self._token, httponly=True, samesite="Lax", path="/")
            handler.redirect("/")
        elif not self._is_right(handler.get_cookie(self._cookie) or ""):
            raise HTTPError(403, reason="Open the link that stream-study serve printed: its token is missing or wrong")
        return User("operator")

    def _is_right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())
