"""Login with an OpenID Connect provider: code flow with PKCE, state and nonce; the login is a signed cookie of ours.

Needs the extra ``hitl-guard[oidc]``. What the provider's ID token says is signed into the cookie; the provider is not
asked again until that ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ..aio import AsyncGuard
from ..errors import ConfigurationError, HitlGuardError, NotAuthorisedError, RefusedError
from ..guard import Guard
from ..lifecycle.threads import offload
from ..models import Principal, check_text
from .identity import Identity
from .logs import LOGGER
from .provider import Provider
from .schemes import cookie_scheme
from .sessions import Sessions, cookie_of, set_cookie

LOGIN_MS = 8 * 3_600_000
"""How long a login lasts by default, in milliseconds."""

FLOW_MS = 600_000
"""How long a person may take at the provider, in milliseconds."""

NAMES = ("sub", "email", "preferred_username", "upn")
"""Claims that may name a person. What is unverified among them keeps somebody from deciding the own request, and lets
nobody in."""

MAX_DISPLAY = 200
"""Longest name that is shown, in characters; of a longer one the id is shown."""

MAX_TIME_S = 2**40
"""Seconds since 1970 that no login was at."""

MAX_COOKIE = 3_800
"""Bytes of a cookie that every browser keeps."""

_FLOW, _LOGIN = "hitl-oidc-flow", "hitl-oidc-login"


class OidcLogin:
    """The authenticator, and the routes ``/login``, ``/login/callback`` and ``/logout`` of the inbox.

    Args:
        guard: Its keys sign the cookies.
        issuer: The provider's issuer, exactly as it names itself; its discovery document is below it.
        client_id, client_secret: As the provider registered this app; no secret for a public client (PKCE is used
            either way).
        redirect_uri: The callback's full address as registered, e.g. ``https://inbox.example/login/callback``. When
            omitted it is worked out from the request, which is wrong behind a proxy that ends TLS and does not say so.
        tenant: The tenant of everybody who logs in here.
        roles_claim: The claim that lists a person's groups.
        roles: Group → our role; groups that are not in it are left out. None: every group is a role, but for those
            that make operators (`Settings.operator_roles`).
        scopes: What is asked for.
        id_claim: The claim that is the principal's id. ``sub`` is stable; a mail address may change hands.
        login_ms: How long a login lasts, in milliseconds.

    Raises:
        ConfigurationError: a package is missing, or a value cannot be used.
    """

    login_path = "login"
    security_schemes = cookie_scheme("oidc")

    def __init__(
        self, guard: Guard | AsyncGuard, *, issuer: str, client_id: str, client_secret: str | None = None,
        redirect_uri: str | None = None, tenant: str = "default", roles_claim: str = "groups",
        roles: Mapping[str, str] | None = None, scopes: str = "openid profile email", id_claim: str = "sub",
        login_ms: int = LOGIN_MS,
    ) -> None:
        inner = guard.guard if isinstance(guard, AsyncGuard) else guard
        self._desk = inner._desk
        self._sessions = Sessions(inner)
        self._provider = Provider(issuer, client_id, client_secret, scopes)
        for name, value in (("tenant", tenant), ("roles_claim", roles_claim), ("id_claim", id_claim)):
            check_text(name, value)
        if type(login_ms) is not int or login_ms < 1:
            raise ConfigurationError("'login_ms' is a positive number of milliseconds.")
        if "openid" not in scopes.split():
            raise ConfigurationError("'scopes' must hold 'openid'.")
        self._redirect_uri, self._tenant, self._login_ms = redirect_uri, tenant, login_ms
        self._roles_claim, self._roles, self._id_claim = roles_claim, None if roles is None else dict(roles), id_claim

    def routes(self) -> list[BaseRoute]:
        """Return the routes, relative to the mount of the inbox."""
        return [
            Route("/login", self._begun, methods=["GET"], name="login"),
            Route("/login/callback", self._returned, methods=["GET"], name="login_callback"),
            Route("/logout", self._ended, methods=["POST"], name="logout"),
        ]

    async def __call__(self, request: HTTPConnection) -> Identity | None:
        """Return who has logged in with this browser."""
        cookie = cookie_of(request, "oidc")
        if not cookie:
            return None
        fields = await self._opened(cookie, _LOGIN)
        # A cookie of a version that did not note unverified names must not let anybody decide their own request.
        if fields is None or fields.get("client") != self._provider.client_id or "unverified" not in fields:
            return None
        who = Principal(
            fields["id"], tenant=fields["tenant"], roles=tuple(fields["roles"]), aliases=tuple(fields["aliases"]),
            unverified_aliases=tuple(fields["unverified"]),
        )
        return Identity(who, fields["display"], "oidc", fields["at"], fields["until"])

    # -- the flow ------------------------------------------------------------------------------------------------

    async def _begun(self, request: Request) -> Response:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        address = await self._provider.authorization_url(
            redirect_uri=self._callback(request), state=state, nonce=nonce, verifier=verifier
        )
        fields = {
            "next": _inside(request, request.query_params.get("next")), "nonce": nonce, "state": state,
            "verifier": verifier,
        }
        set_cookie(request, "oidc_flow", await self._signed(_FLOW, fields, FLOW_MS), max_age_s=FLOW_MS // 1000)
        return RedirectResponse(address, status_code=303)

    async def _returned(self, request: Request) -> Response:
        cookie = cookie_of(request, "oidc_flow")
        flow = None if not cookie else await self._opened(cookie, _FLOW)
        given = request.query_params
        code, state = given.get("code"), given.get("state")
        if flow is None or not code or not state or len(given.getlist("state")) > 1:
            raise _failed()
        if not secrets.compare_digest(state.encode(), flow["state"].encode()):
            raise _failed()
        now = await offload(self._desk.store.now)
        claims = await self._provider.claims(
            code=code, issuer=given.get("iss"), redirect_uri=self._callback(request), verifier=flow["verifier"],
            nonce=flow["nonce"], now=now,
        )
        said = self._said(claims, now)
        token = await self._signed(_LOGIN, said, self._login_ms)
        if len(token) > MAX_COOKIE:
            LOGGER.warning("A login did not fit into a cookie: %d roles, %d bytes.", len(said["roles"]), len(token))
            raise _unreadable("You are in too many groups for a login here: an administrator must map those that "
                              "matter in 'roles', or have the provider send fewer.")
        set_cookie(request, "oidc", token, max_age_s=self._login_ms // 1000)
        set_cookie(request, "oidc_flow", "", max_age_s=0)
        return RedirectResponse(flow["next"], status_code=303)

    async def _ended(self, request: Request) -> Response:
        if not self._sessions.is_same_origin(request):
            raise HTTPException(403)
        set_cookie(request, "oidc", "", max_age_s=0)
        return RedirectResponse(_home(request), status_code=303)

    def _callback(self, request: Request) -> str:
        if self._redirect_uri is not None:
            return self._redirect_uri
        return f"{request.url.scheme}://{request.url.netloc}{_home(request)}login/callback"

    def _said(self, claims: Mapping[str, Any], now: int) -> dict[str, Any]:
        """Return what is kept of an ID token."""
        groups = claims.get(self._roles_claim, [])
        if isinstance(groups, str):
            groups = [groups]
        if not isinstance(groups, list) or not all(isinstance(one, str) for one in groups):
            raise _unreadable("The provider's groups cannot be read: an administrator must look at the claim.")
        mail = claims.get("email") if claims.get("email_verified") is True else None
        if self._id_claim == "email" and mail is None:
            raise _failed("The provider has not verified your mail address: verify it there first.")
        proven = (mail,) if isinstance(mail, str) and mail else ()
        names = [claims.get(name) for name in NAMES]
        try:
            who = Principal(
                claims.get(self._id_claim, ""), tenant=self._tenant, roles=tuple(dict.fromkeys(self._mapped(groups))),
                aliases=proven,
                unverified_aliases=tuple(one for one in names if isinstance(one, str) and one.strip()),
            )
        except HitlGuardError:
            raise _unreadable(
                "The provider does not say who you are: an administrator must look at the claims."
            ) from None
        known = set(who.names())
        return {
            "aliases": list(who.aliases), "at": _time(claims.get("auth_time"), now), "client": self._provider.client_id,
            "display": _display(claims.get("name")) or who.id, "id": who.id, "roles": list(who.roles),
            "tenant": who.tenant, "unverified": [one for one in who.unverified_aliases if one not in known],
        }

    def _mapped(self, groups: list[str]) -> list[str]:
        """Return the roles of groups. Whoever may name groups at the provider makes no operators of this guard."""
        if self._roles is None:
            return [one for one in groups if one not in self._desk.settings.operator_roles]
        return [self._roles[one] for one in groups if one in self._roles]

    # -- the cookies ---------------------------------------------------------------------------------------------

    async def _signed(self, kind: str, fields: dict[str, Any], lasts: int) -> str:
        desk = self._desk

        def signed() -> str:
            now = desk.store.now()
            return desk.signer.sign("session", kind, fields | {"until": now + lasts}, now=now).decode("ascii")

        return await offload(signed)

    async def _opened(self, cookie: str, kind: str) -> dict[str, Any] | None:
        """Return the fields of a cookie of ours that is not over, or None."""
        desk = self._desk

        def opened() -> dict[str, Any] | None:
            now = desk.store.now()
            try:
                fields = desk.signer.open(cookie, expected_purpose="session", expected_type=kind, now=now)
            except RefusedError:
                return None
            return fields if now < fields["until"] else None

        return await offload(opened)


def _failed(message: str = "The login was not completed: log in again.") -> NotAuthorisedError:
    return NotAuthorisedError(message, detail="login")


def _unreadable(message: str) -> NotAuthorisedError:
    """Return the error for claims that nobody can log in with until somebody changes them; the log tells too."""
    LOGGER.warning("A login was refused. %s", message)
    return _failed(message)


def _time(at: object, now: int) -> int:
    """Return the time of a login, epoch milliseconds: what the provider says in seconds, or now."""
    return int(at) * 1000 if isinstance(at, (int, float)) and 0 < at < MAX_TIME_S else now


def _display(name: object) -> str | None:
    """Return a name to show, if it is one."""
    if not isinstance(name, str) or len(name) > MAX_DISPLAY:
        return None
    return name.encode(errors="replace").decode()


def _home(request: HTTPConnection) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/") + "/"


def _inside(request: HTTPConnection, wanted: str | None) -> str:
    """Return where to go after the login: a path of this app, whatever a link asks for."""
    home = _home(request)
    plain = wanted is not None and wanted.startswith(home) and wanted.isascii() and wanted.isprintable()
    return wanted if plain and wanted is not None and not {"\\", " "} & set(wanted) and "//" not in wanted else home
