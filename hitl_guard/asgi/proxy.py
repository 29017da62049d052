"""The door of a server behind a proxy that ends TLS: nobody but the proxy comes in, and the scheme is the proxy's."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ConfigurationError


class BehindProxy:
    """Serves peers of the given networks only, as ``https``. No header of the proxy is believed here.

    Args:
        proxies: Networks of the proxies, e.g. ``["10.0.7.0/24"]``.

    Raises:
        ConfigurationError: there is none, or one is no network.
    """

    def __init__(self, app: ASGIApp, proxies: Iterable[str]) -> None:
        self.app = app
        try:
            self._networks = [ipaddress.ip_network(network) for network in proxies]
        except ValueError as error:
            raise ConfigurationError("A proxy is given as a network, e.g. 10.0.7.0/24 or 10.0.7.1.") from error
        if not self._networks:
            raise ConfigurationError("Name the networks of your proxies.")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            if not self._is_proxy(scope):
                await PlainTextResponse("Only the proxy may connect here.", 403)(scope, receive, send)
                return
            scope = {**scope, "scheme": "https"}
        await self.app(scope, receive, send)

    def _is_proxy(self, scope: Scope) -> bool:
        client = scope.get("client")
        try:
            address = ipaddress.ip_address(client[0] if client else "")
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)
