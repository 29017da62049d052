"""The headers of every response under the mount, its errors and the unexpected ones included. Pure ASGI."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import response_of
from .sessions import COOKIES

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'"
)

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Lower-case name → value."""

IMMUTABLE = "public, max-age=31536000, immutable"
"""What a static file may say of itself in place of ``no-store``: its address changes with its content."""

_CACHED = (b"cache-control", IMMUTABLE.encode())
_FIXED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_NAMES = frozenset(name for name, _ in _FIXED)


class SecurityHeaders:
    """Wraps an app: each response gets `HEADERS` in place of its own of these names, and the cookies that wait.

    What the app raises becomes a problem without any detail, and goes on to the server, which logs it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything but HTTP goes through untouched."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own = list(message.get("headers", []))
                kept = [pair for pair in own if pair[0].lower() not in _NAMES]
                fixed = [_CACHED if _CACHED in own and pair[0] == _CACHED[0] else pair for pair in _FIXED]
                cookies = [(b"set-cookie", text.encode()) for _, text in scope.get(COOKIES, {}).values()]
                message = {**message, "headers": [*kept, *fixed, *cookies]}
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:
            if not started:
                await response_of(error)(scope, receive, sending)
            raise
