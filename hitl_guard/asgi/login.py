"""Login links for a server that has no login yet: each logs one person in, once, in the process that printed it.

A link is a credential. It is printed where only its person reads it, and never put into a notification. Opening it
changes nothing, since chat clients and mail scanners open links too: the page has a button, and the button's POST
spends the link. A restart ends every link and every login.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from threading import Lock
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..errors import NotAuthorisedError, RefusedError
from ..guard import Guard
from ..lifecycle.threads import offload
from ..models import Principal
from ..render import escape
from .headers import SecurityHeaders
from .identity import Identity
from .schemes import cookie_scheme
from .sessions import Sessions, cookie_of, set_cookie

LINK_MS = 15 * 60_000
"""How long a link can be used, in milliseconds."""

LOGIN_MS = 12 * 3_600_000
"""How long a login lasts, in milliseconds."""

_LINK, _LOGIN = "hitl-login-link", "hitl-login"


class LoginLinks:
    """Makes links, spends them, and is the authenticator of whoever used one.

    Args:
        guard: Its keys sign the links and the logins.
        home: Path to go to after the login.
    """

    security_schemes = cookie_scheme("login")

    def __init__(self, guard: Guard, *, home: str = "/") -> None:
        self._desk = guard._desk
        self._home = home
        self._sessions = Sessions(guard)
        self._process = secrets.token_urlsafe(16)
        self._spent: set[str] = set()
        self._lock = Lock()

    def link(self, person: Principal, base: str) -> str:
        """Return a link for one person. Blocks.

        Args:
            base: The server's own address, e.g. ``http://localhost:8080``.
        """
        now = self._desk.store.now()
        fields = self._fields(person) | {"link": secrets.token_urlsafe(16), "until": now + LINK_MS}
        token = self._desk.signer.sign("link", _LINK, fields, now=now).decode("ascii")
        return f"{base.rstrip('/')}/login/{token}"

    def app(self) -> ASGIApp:
        """Return the app behind the links; mount it at ``/login``."""
        return SecurityHeaders(Starlette(routes=[
            Route("/{token}", self._shown, methods=["GET"]), Route("/{token}", self._used, methods=["POST"]),
        ]))

    async def __call__(self, request: HTTPConnection) -> Identity | None:
        """Return who has logged in here; the `authenticate` of the inbox."""
        cookie = cookie_of(request, "login")
        if not cookie:
            return None
        now = await offload(self._desk.store.now)
        try:
            fields = self._opened(cookie, "session", _LOGIN, now)
        except RefusedError:
            return None
        return Identity(_principal(fields), method="link", at=fields["issued_at"], until=fields["until"])

    async def _shown(self, request: Request) -> Response:
        now = await offload(self._desk.store.now)
        try:
            fields = self._opened(request.path_params["token"], "link", _LINK, now)
        except RefusedError:
            return _page(None)
        return _page(fields["id"])

    async def _used(self, request: Request) -> Response:
        if not self._sessions.is_same_origin(request):
            return _page(None)
        now = await offload(self._desk.store.now)
        try:
            fields = self._opened(request.path_params["token"], "link", _LINK, now)
            self._spend(fields["link"])
        except RefusedError:
            return _page(None)
        login = self._fields(_principal(fields)) | {"until": now + LOGIN_MS}
        token = self._desk.signer.sign("session", _LOGIN, login, now=now).decode("ascii")
        set_cookie(request, "login", token, max_age_s=LOGIN_MS // 1000)
        return RedirectResponse(self._home, status_code=303)

    def _fields(self, person: Principal) -> dict[str, Any]:
        return {
            "aliases": list(person.aliases), "id": person.id, "kind": person.kind, "process": self._process,
            "roles": list(person.roles), "tenant": person.tenant, "unverified": list(person.unverified_aliases),
        }

    def _opened(self, token: str, purpose: str, kind: str, now: int) -> Mapping[str, Any]:
        fields = self._desk.signer.open(token, expected_purpose=purpose, expected_type=kind, now=now)
        spent = fields.get("link") in self._spent
        if fields.get("process") != self._process or spent or not now < fields["until"]:
            raise NotAuthorisedError("This link or login is over.", detail="login")
        return fields

    def _spend(self, link: str) -> None:
        with self._lock:
            if link in self._spent:
                raise NotAuthorisedError("This link was used.", detail="login")
            self._spent.add(link)


def _principal(fields: Mapping[str, Any]) -> Principal:
    return Principal(
        fields["id"], kind=fields["kind"], tenant=fields["tenant"], roles=tuple(fields["roles"]),
        aliases=tuple(fields["aliases"]), unverified_aliases=tuple(fields["unverified"]),
    )


def _page(who: str | None) -> Response:
    html = _TEMPLATES.get_template("login.html").render(who=None if who is None else escape(who))
    return HTMLResponse(html, status_code=200 if who else 403)


_TEMPLATES = Environment(loader=PackageLoader("hitl_guard.asgi"), autoescape=True, undefined=StrictUndefined)
