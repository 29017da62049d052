"""The door of a server behind a proxy that ends TLS: nobody but the proxy comes in, and the scheme is the proxy's."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .identity import is_peer, networks_of


class BehindProxy:
    """Serves peers of the given networks only, as ``https``. No header of the proxy is believed here.

    Args:
        proxies: Networks of the proxies, e.g. ``["10.0.7.0/24"]``.

    Raises:
        ConfigurationError: there is none, one is no network, or it is the whole Internet.
    """

    def __init__(self, app: ASGIApp, proxies: Iterable[str]) -> None:
        self.app = app
        self._networks = networks_of(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            if not is_peer(scope, self._networks):
                await PlainTextResponse("Only the proxy may connect here.", 403)(scope, receive, send)
                return
            scope = {**scope, "scheme": "https"}
        await self.app(scope, receive, send)
