"""The approval API's routes, made from the table of `endpoints`.

Every endpoint but ``health``, ``ready`` and the document needs a login. GET and HEAD change nothing. Anything else
passes `Sessions.check` first; then a body must say that it is JSON, is read within a bound, and is parsed strictly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import HitlGuardError
from ..lifecycle.threads import offload
from . import bodies, views
from .body import SMALL_BODY, is_json, read_body
from .endpoints import ENDPOINTS, Asked, Endpoint
from .identity import Viewer
from .logs import untold
from .query import read_query
from .service import Inbox

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


def routes(inbox: Inbox) -> list[BaseRoute]:
    """Return the routes of all `ENDPOINTS`."""
    return [Route(one.path, _served(inbox, one), methods=[one.method], name=one.name) for one in ENDPOINTS]


def _served(inbox: Inbox, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        viewer: Viewer | None = None
        try:
            viewer = await inbox.viewer(request)
            if viewer is None:
                raise HTTPException(401)
            return await answer(request, viewer)
        except HitlGuardError as error:
            untold(
                error, f"{endpoint.method} {endpoint.path}", who=None if viewer is None else viewer.principal,
                request=request.path_params.get("request_id"), run=request.path_params.get("run_id"),
            )
            raise

    async def answer(request: Request, viewer: Viewer) -> Response:
        body, channel = None, "api"
        if endpoint.method != "GET":
            channel = await inbox.sessions.check(request, viewer)
        if endpoint.body is not None:
            body = await _read(request, endpoint.body)
        asked = Asked(inbox, request, viewer, body, read_query(request, endpoint.query), channel)
        result = await endpoint.handler(asked)
        return result if isinstance(result, Response) else views.answer(result)

    return serve


async def _read(request: Request, model: type[bodies.Body]) -> bodies.Body:
    headers = request.scope["headers"]
    if not is_json(headers):
        raise HTTPException(415)
    raw = await read_body(request.receive, limit=bodies.LIMITS.max_bytes, headers=headers)
    return bodies.read(model, raw) if len(raw) <= SMALL_BODY else await offload(lambda: bodies.read(model, raw))
