"""Protection of what changes state against other sites: where a request comes from, and a token bound to the session.

The session is a random cookie that says nothing about who somebody is: the host's login does. The token is a signed
text (purpose ``session``) over that cookie, tenant, principal and an end. `Sessions.check` demands, in this order:

1. that the browser says the request comes from this very origin (``Sec-Fetch-Site``, ``Origin``); 2. the cookie;
3. a token that was made for it and for this principal, and is not over.

A client without any mark of a browser (no cookie, no ``Origin``, no ``Sec-Fetch-Site``) that sends credentials of its
own in ``Authorization`` needs no token: no other site can make a browser send that.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from ..errors import ConfigurationError, NotAuthorisedError, RefusedError
from ..guard import Guard
from ..lifecycle.threads import offload
from .identity import Viewer

FIELD = "csrf_token"
"""The form field that carries the token."""

HEADER = "x-csrf-token"
"""The header that carries it in requests of scripts."""

TOKEN_MS = 12 * 3_600_000
"""How long a token counts, in milliseconds."""

NOTE_MS = 60_000
"""How long a page may say what was done, in milliseconds."""

COOKIES = "hitl_guard.cookies"
"""Key of the ASGI scope under which ``Set-Cookie`` values wait for the response."""

_TYPE, _NOTE = "hitl-session", "hitl-note"
_AMBIENT = frozenset({"basic", "digest", "negotiate", "ntlm"})
"""Schemes of ``Authorization`` that a browser repeats by itself."""


class Sessions:
    """Makes and checks the tokens of one app.

    Args:
        origins: The app's own origins, e.g. ``["https://inbox.example"]``. When omitted it is what the request's Host
            header says, which is right wherever a proxy hands that on.
    """

    def __init__(self, guard: Guard, *, origins: Iterable[str] = ()) -> None:
        self._desk = guard._desk
        if isinstance(origins, str):
            raise ConfigurationError("'origins' is a list of origins.")
        self._origins = frozenset(map(_checked_origin, origins))
        self._hosts = frozenset(urlsplit(origin).netloc for origin in self._origins)

    def token(self, request: HTTPConnection, viewer: Viewer) -> str:
        """Return a token for the forms of a page; the response sets the cookie if the browser has none yet."""
        name = cookie_name("session", request)
        cookie = cookie_of(request, "session")
        if not cookie:
            waiting = request.scope.setdefault(COOKIES, {})
            if name not in waiting:
                cookie = secrets.token_urlsafe(32)
                waiting[name] = (cookie, cookie_header(name, cookie))
            cookie = waiting[name][0]
        return self._signed(_TYPE, self._bound(cookie, viewer), viewer, TOKEN_MS)

    def note(self, request: HTTPConnection, viewer: Viewer, word: str) -> str:
        """Return a text that tells the next page of this very browser what was done; see `noted`."""
        fields = self._bound(cookie_of(request, "session") or "", viewer) | {"word": word}
        return self._signed(_NOTE, fields, viewer, NOTE_MS)

    def noted(self, request: HTTPConnection, viewer: Viewer, text: str | None, word: str) -> bool:
        """Return whether a text is one of `note` for this browser, person and word: an address is anyone's to write."""
        cookie = cookie_of(request, "session")
        return bool(cookie and text) and self._is_bound(_NOTE, text, cookie or "", viewer, word=word)

    def _signed(self, kind: str, fields: dict[str, Any], viewer: Viewer, lasts: int) -> str:
        signed = self._desk.signer.sign("session", kind, fields | {"until": viewer.now + lasts}, now=viewer.now)
        return signed.decode("ascii")

    async def check(self, request: HTTPConnection, viewer: Viewer, form: Mapping[str, Any] | None = None) -> str:
        """Return over which channel a request comes that may change state: ``inbox``, or ``api`` without a browser.

        Args:
            form: The fields of a form, if it is one; else the token is in the header.

        Raises:
            NotAuthorisedError: it may not (``detail`` cross-site or token); that is audited.
        """
        if is_no_browser(request):
            return "api"
        refusal = self._refusal(request, viewer, form)
        if refusal is not None:
            await offload(lambda: self._audited(refusal, viewer))
        return "inbox"

    def _refusal(self, request: HTTPConnection, viewer: Viewer, form: Mapping[str, Any] | None) -> RefusedError | None:
        if not self.is_same_origin(request):
            return NotAuthorisedError(
                "This did not come from a page of this site: open the page here. A program sends its credentials in "
                "'Authorization', and no cookies.", detail="cross-site",
            )
        cookie = cookie_of(request, "session")
        token = request.headers.get(HEADER) if form is None else form.get(FIELD)
        if cookie and token and self._is_bound(_TYPE, token, cookie, viewer):
            return None
        return NotAuthorisedError("The page is too old, or another login's. Reload it, then try again.", detail="token")

    def _audited(self, refusal: RefusedError, viewer: Viewer) -> None:
        with self._desk.refusals("decision:refused", tenant=viewer.tenant, by=viewer.principal.id, request=None):
            raise refusal

    def is_same_origin(self, request: HTTPConnection) -> bool:
        """Return whether the browser says that a request comes from a page of this very origin."""
        sites, origins = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
        if len(sites) > 1 or len(origins) > 1 or not (sites or origins):
            return False
        host = request.headers.get("host", "").lower()
        if (self._hosts and host not in self._hosts) or (sites and sites[0] != "same-origin"):
            return False
        if not origins:
            return True
        if origins[0] == "null":
            return bool(sites)  # under our own no-referrer policy our forms say so
        own = self._origins or {f"{request.scope.get('scheme', 'http')}://{host}", f"https://{host}"}
        return origins[0].lower() in own

    def _is_bound(self, kind: str, token: object, cookie: str, viewer: Viewer, **more: str) -> bool:
        try:
            fields = self._desk.signer.open(token, expected_purpose="session", expected_type=kind, now=viewer.now)
        except RefusedError:
            return False
        until = fields.get("until")
        bound = self._bound(cookie, viewer) | more
        return type(until) is int and viewer.now < until and all(fields.get(name) == bound[name] for name in bound)

    @staticmethod
    def _bound(cookie: str, viewer: Viewer) -> dict[str, Any]:
        digest = hashlib.sha256(b"hitl-guard/session-cookie/v1\0" + cookie.encode()).hexdigest()
        return {"cookie": digest, "principal": viewer.principal.id, "tenant": viewer.tenant}


def _checked_origin(origin: object) -> str:
    parts = urlsplit(origin) if isinstance(origin, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query:
        raise ConfigurationError("An origin looks like 'https://inbox.example' or 'http://localhost:8000'.")
    return f"{parts.scheme}://{parts.netloc}".lower()


def is_no_browser(request: HTTPConnection) -> bool:
    """Return whether a request has credentials of its own and no mark of a browser."""
    headers = request.headers
    scheme = headers.get("authorization", "").partition(" ")[0].lower()
    marked = "cookie" in headers or "origin" in headers or "sec-fetch-site" in headers
    return bool(scheme) and scheme not in _AMBIENT and not marked


def is_local(request: HTTPConnection) -> bool:
    """Return whether this is plain HTTP on this machine, where cookies cannot be ``Secure``."""
    host = request.url.hostname or ""
    local = host in ("127.0.0.1", "::1", "localhost") or host.endswith(".localhost")
    return local and request.url.scheme in ("http", "ws")


def cookie_name(name: str, request: HTTPConnection) -> str:
    """Return the full name of one of our cookies: with ``__Host-``, which no other host of the domain can set."""
    return f"hitl_{name}" if is_local(request) else f"__Host-hitl_{name}"


def cookie_of(request: HTTPConnection, name: str) -> str | None:
    """Return the value of one of our cookies, or None: there is none, or there are two, or it is none of our making.

    The name is compared byte for byte. Lenient readers drop odd bytes around a name, so that a cookie which any host of
    the domain may set would be read as one with ``__Host-``.
    """
    wanted = cookie_name(name, request).encode()
    values = [
        value
        for header, line in request.scope["headers"] if header.lower() == b"cookie"
        for found, _, value in (part.lstrip(b" ").partition(b"=") for part in line.split(b";")) if found == wanted
    ]
    return values[0].decode() if len(values) == 1 and values[0].isascii() else None


def cookie_header(name: str, value: str, *, max_age_s: int | None = None) -> str:
    """Return a ``Set-Cookie`` value: for this host alone, out of reach of scripts, not sent with other sites' POSTs."""
    secure = "; Secure" if name.startswith("__Host-") else ""
    age = "" if max_age_s is None else f"; Max-Age={max_age_s}"
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Lax{secure}{age}"


def set_cookie(request: HTTPConnection, name: str, value: str, *, max_age_s: int | None = None) -> None:
    """Set one of our cookies with the response to this request; an age of 0 seconds removes it."""
    full = cookie_name(name, request)
    request.scope.setdefault(COOKIES, {})[full] = (value, cookie_header(full, value, max_age_s=max_age_s))
