"""Who is looking: the host's own login, asked anew for each request. There is no login of our own and no default."""

from __future__ import annotations

import inspect
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from ..errors import ConfigurationError, HitlGuardError, UnavailableError
from ..guard import Guard
from ..lifecycle.rights import folded, operates
from ..lifecycle.running import is_async
from ..lifecycle.threads import offload
from ..models import Principal, check_optional, check_text
from . import logs
from .schemes import header_scheme


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody whom the host authenticated, and how.

    Attributes:
        display: A name to show, or None for the id.
        method: How it was done (``oidc``, ``header`` …), or None.
        at: When, epoch milliseconds, or None.
        until: When it ends, epoch milliseconds of the database's clock, or None: as long as `authenticate` says so.
        unmapped: Whether the roles are groups as somebody else names them, and nobody said which of them are roles
            here: those that make operators (`Settings.operator_roles`) are then dropped.
    """

    principal: Principal
    display: str | None = None
    method: str | None = None
    at: int | None = None
    until: int | None = None
    unmapped: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.principal, Principal):
            raise ConfigurationError("An identity needs a Principal.")
        check_optional("method", self.method)


Authenticate = Callable[[Any], "Principal | Identity | Awaitable[Principal | Identity | None] | None"]
"""Gets the Starlette request, returns who it is, or None for nobody. It may be asynchronous; if it is not, it runs in a
worker thread, so that it may block."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """An authenticated principal at one moment: what every operation of the inbox takes.

    Attributes:
        now: The database's clock when the request was authenticated, epoch milliseconds.
        operator: Whether the principal has the operator's role and is no agent.
        names: Every id of the principal, also what may be one, folded: for comparison where somebody is kept out.
    """

    principal: Principal
    now: int
    operator: bool
    names: frozenset[str]
    display: str
    method: str | None = None
    at: int | None = None

    @property
    def tenant(self) -> str:
        """The tenant; nothing of another one is ever shown."""
        return self.principal.tenant


class Doorkeeper:
    """Asks the host's `authenticate` and returns a `Viewer`. Whatever goes wrong, nobody gets in.

    Raises:
        ConfigurationError: there is no authenticator.
    """

    def __init__(self, guard: Guard, authenticate: Authenticate | None) -> None:
        if not callable(authenticate):
            raise ConfigurationError(
                "The inbox needs to know who is looking: give 'authenticate', a function from the request to a "
                "Principal or None (see trusted_header, request_user and OidcLogin)."
            )
        self._guard = guard
        self._authenticate = authenticate
        self._awaits = is_async(authenticate)

    async def viewer(self, request: HTTPConnection) -> Viewer | None:
        """Return who is looking, or None for nobody.

        Raises:
            UnavailableError: the authenticator or the store failed to answer.
        """
        identity = await self._identity(request)
        if identity is None:
            return None
        who, desk = identity.principal, self._guard._desk
        now = await offload(desk.store.now)
        if identity.until is not None and now >= identity.until:
            return None
        operator = operates(who, desk.settings.operator_role)
        return Viewer(
            who, now, operator, folded(who.every_name()), identity.display or who.id, identity.method, identity.at
        )

    async def _identity(self, request: HTTPConnection) -> Identity | None:
        try:
            found: Any = await self._asked(request)
            if inspect.isawaitable(found):
                found = await found
        except HTTPException as error:
            if error.status_code in (401, 403):
                return None  # a framework's own way of saying: nobody
            raise _failed(error) from error
        except HitlGuardError:
            raise
        except Exception as error:
            raise _failed(error) from error
        if found is None:
            return None
        if isinstance(found, Identity):
            return self._without_operators(found) if found.unmapped else found
        if isinstance(found, Principal):
            return Identity(found)
        raise ConfigurationError("'authenticate' must return a Principal, an Identity or None.")

    def _without_operators(self, identity: Identity) -> Identity:
        who, operators = identity.principal, self._guard._desk.settings.operator_roles
        return replace(
            identity, principal=replace(who, roles=tuple(role for role in who.roles if role not in operators))
        )

    async def _asked(self, request: HTTPConnection) -> Any:
        if self._awaits:
            return self._authenticate(request)
        # Host code that takes as long as it likes, like a tool: the threads of the guard's checks are not for it.
        return await offload(lambda: self._authenticate(request), tool=True)


def _failed(error: Exception) -> UnavailableError:
    logs.failed("The authenticator failed, nobody was let in", error)
    return UnavailableError("The authenticator did not answer; try again.", detail="authenticator")


# -- recipes -----------------------------------------------------------------------------------------------------


def request_user(principal_of: Callable[[Any], Principal | None] | None = None) -> Authenticate:
    """Return an authenticator that goes by Starlette's ``request.user`` (`AuthenticationMiddleware`).

    Args:
        principal_of: Turns your user into a Principal. When omitted the user must be a Principal, or have one as its
            attribute ``principal``; a user who is not authenticated is nobody.
    """

    def authenticate(request: HTTPConnection) -> Identity | None:
        if "user" not in request.scope:
            raise ConfigurationError("There is no request.user here: add Starlette's AuthenticationMiddleware.")
        user = request.scope["user"]
        if not isinstance(user, Principal) and getattr(user, "is_authenticated", False) is not True:
            return None
        if principal_of is not None:
            found = principal_of(user)
        else:
            found = user if isinstance(user, Principal) else getattr(user, "principal", None)
        if found is None:
            return None
        return Identity(found, getattr(user, "display_name", None) or None, "request.user")

    return authenticate


def trusted_header(
    *, header: str, proxies: Iterable[str], roles_header: str | None = None, tenant: str = "default",
    roles: Mapping[str, str] | None = None,
) -> Authenticate:
    """Return an authenticator that believes a header, but only from your own proxy, which must replace what clients
    send in it.

    Args:
        header: The header with the person's id, e.g. ``x-forwarded-user``. Two of them, or a comma in it, count as
            nobody: that is how a client's own header and the proxy's look together.
        proxies: Networks of the proxies, e.g. ``["10.0.7.0/24"]``. The peer is the ASGI server's ``client`` address; a
            server that rewrites it from other headers (uvicorn's ``--proxy-headers``) must be told not to.
        roles_header: The header with groups, separated by commas; None for no roles.
        roles: Group → our role; groups that are not in it are left out. None: every group is a role, but for those
            that make operators (`Settings.operator_roles`): whoever may name groups at a provider makes no operators
            of this guard. To have operators, map a group of yours to their role.

    Raises:
        ConfigurationError: no proxies are named, a network, header or role cannot be used, or there are ``roles``
            without ``roles_header``.
    """
    names = [_header_name(header)] + ([] if roles_header is None else [_header_name(roles_header)])
    networks = networks_of(proxies)
    check_text("tenant", tenant)
    if roles is not None and (roles_header is None or not isinstance(roles, Mapping)):
        raise ConfigurationError("'roles' is a mapping from each group in the 'roles_header' to a role of ours.")
    mapped = None if roles is None else {check_text("group", one): check_text("role", roles[one]) for one in roles}

    def authenticate(request: HTTPConnection) -> Identity | None:
        if not is_peer(request.scope, networks):
            return None
        values = [_single(request, name) for name in names]
        who, *listed = values
        if who is None or "," in who or None in values:
            return None
        groups = [one.strip() for text in listed for one in (text or "").split(",") if one.strip()]
        own = groups if mapped is None else dict.fromkeys(mapped[one] for one in groups if one in mapped)
        try:
            return Identity(Principal(who, tenant=tenant, roles=tuple(own)), method="header", unmapped=mapped is None)
        except HitlGuardError:
            return None  # too long, or blank

    authenticate.security_schemes = header_scheme(names[0].decode())  # type: ignore[attr-defined]
    return authenticate


def _header_name(name: object) -> bytes:
    text = check_text("header", name).lower()
    if not text.isascii() or not text.replace("-", "").isalnum():
        raise ConfigurationError("A header's name has letters, digits and dashes.")
    return text.encode()


def networks_of(proxies: Iterable[str]) -> list[Any]:
    """Return the networks of proxies.

    Raises:
        ConfigurationError: there is none, one is no network, or it is the whole Internet.
    """
    try:
        networks = [] if isinstance(proxies, str) else [ipaddress.ip_network(network) for network in proxies]
    except ValueError as error:
        raise ConfigurationError("'proxies' is a list of networks, e.g. ['10.0.7.0/24'].") from error
    if not networks or any(network.prefixlen == 0 for network in networks):
        raise ConfigurationError("Name the networks of your proxies: what anybody can send proves nothing.")
    return networks


def is_peer(scope: Mapping[str, Any], networks: list[Any]) -> bool:
    """Return whether a connection's peer, as the ASGI server says, is in one of these networks."""
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def _single(request: HTTPConnection, name: bytes) -> str | None:
    """Return a header's value: empty when there is none, None when there are several or it is no plain text."""
    values = [value for key, value in request.scope["headers"] if key.lower() == name]
    if len(values) > 1:
        return None
    try:
        text: str = values[0].decode().strip() if values else ""
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
