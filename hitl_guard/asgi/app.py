"""`create_app`: inbox, API and live events as one ASGI app, to be mounted under any path or served by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..aio import AsyncGuard
from ..errors import HitlGuardError
from ..guard import Guard
from . import api, openapi
from .events import Pace
from .headers import SecurityHeaders
from .health import routes as health_routes
from .identity import Authenticate
from .problems import response_of, slug_of
from .schemes import logins_of
from .service import Inbox

if TYPE_CHECKING:
    from ..agent import Agent


def create_app(
    guard: Guard | AsyncGuard, *, authenticate: Authenticate | None = None, agents: Iterable[Agent] = (),
    origins: Iterable[str] = (), pace: Pace | None = None,
) -> Starlette:
    """Return the approvers' inbox: pages under ``/``, the API under ``/api``, ``/health`` and ``/ready``.

    It works under any mount path. A mounted app gets no lifespan events from Starlette: a host that mounts it calls
    ``await app.state.inbox.close()`` at its shutdown, which ends the live streams. A server that waits for open
    responses before it tells of its shutdown needs a limit for that (uvicorn: ``timeout_graceful_shutdown``).

    Args:
        authenticate: Says who is looking: a function from the request to a Principal, an `Identity` or None, sync or
            async (see `trusted_header`, `request_user`, `OidcLogin`). Your own login; the app has none. Its attribute
            ``security_schemes``, if it has one, says in the OpenAPI document which credentials it takes.
        agents: Agents whose suspended runs are listed and resumed here; they have this guard.
        origins: The origins under which browsers reach the app; when omitted, what the Host header says.
        pace: How live events are read and sent.

    Raises:
        ConfigurationError: there is no authenticator, or something else cannot be used.
    """
    from . import pages

    inbox = Inbox(guard, authenticate, agents=agents, origins=origins, pace=pace)
    login: list[BaseRoute] = list(getattr(authenticate, "routes", list)())
    shown = [*api.routes(inbox), *health_routes(inbox), *login, *pages.routes(inbox)]
    described = openapi.endpoint(
        shown, logins=logins_of(authenticate), public=[one.path for one in login if isinstance(one, Route)]
    )
    routes = [Route("/api/openapi.json", described, methods=["GET"]), *shown]
    app = Starlette(
        routes=routes, lifespan=_lifespan, middleware=[Middleware(SecurityHeaders)],
        exception_handlers={HTTPException: refused, HitlGuardError: refused, ClientDisconnect: gone},
    )
    # An address with a slash too many is another address: nothing redirects, least of all a form.
    app.router.redirect_slashes = False
    app.state.inbox = inbox
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await app.state.inbox.close()


async def gone(request: Request, error: Exception) -> Response:
    """Return what nobody gets: the client went away in the middle of its request, which is no error of ours."""
    return Response(status_code=400)


async def refused(request: Request, error: Exception) -> Response:
    """Return the answer to an error; raises the error again where it is none that a client may know of."""
    if slug_of(error) == "internal":
        raise error  # the headers' wrapper answers, and the server's log gets the error
    return response_of(error)
