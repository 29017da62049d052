"""The approval API: one table of endpoints, from which the routes and the OpenAPI document are made.

Every endpoint but ``health``, ``ready`` and the document needs a login. GET and HEAD change nothing. Anything else
passes `Sessions.check` first; then a body must say that it is JSON, is read within a bound, and is parsed strictly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import HitlGuardError
from ..lifecycle.threads import offload
from . import bodies, views
from .body import SMALL_BODY, is_json, read_body
from .events import EventStream
from .identity import Viewer
from .problems import problem
from .query import Query, read_query
from .service import Answer, Inbox
from .sessions import is_no_browser

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


@dataclass(slots=True)
class Call:
    """One authenticated call of an endpoint: who, what was sent, and over which channel a decision comes."""

    inbox: Inbox
    request: Request
    viewer: Viewer
    body: Any
    query: dict[str, Any]
    channel: str

    def path(self, name: str) -> str:
        """Return a part of the path."""
        text: str = self.request.path_params[name]
        return text


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One line of the table.

    Attributes:
        statuses: What it may answer beside 200 and what every endpoint may.
        result: Name of its result's schema (see `openapi`).
    """

    method: str
    path: str
    handler: Callable[[Call], Awaitable[Any]]
    summary: str
    result: str
    body: type[bodies.Body] | None = None
    query: tuple[Query, ...] = ()
    statuses: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.handler.__name__.strip("_")


# -- requests ----------------------------------------------------------------------------------------------------


async def list_requests(call: Call) -> Any:
    """List requests."""
    listing = await call.inbox.list(call.viewer, **call.query)
    return views.listing_view(listing, call.viewer)


async def show_request(call: Call) -> Any:
    """Show one request with its history."""
    return views.dossier_view(await call.inbox.show(call.viewer, call.path("request_id")), call.viewer)


def _answer(call: Call) -> Answer:
    body = call.body
    evidence = getattr(body, "evidence", None)
    if evidence is not None:
        from ..lifecycle.credentials import Assertion

        evidence = Assertion(ticket=evidence.ticket, response=evidence.response)
    return Answer(
        approve=body.approve, fingerprint=body.fingerprint, reason=body.reason, arguments=body.arguments,
        respond=body.respond, execute_within=body.execute_within, mute=body.mute, evidence=evidence,
        channel=call.channel,
    )


async def decide(call: Call) -> Any:
    """Approve, deny, edit, or respond for the tool."""
    return views.decision_view(await call.inbox.decide(call.viewer, call.path("request_id"), _answer(call)))


async def challenge(call: Call) -> Any:
    """Get what a passkey must sign for a decision."""
    made = await call.inbox.challenge(call.viewer, call.path("request_id"), _answer(call))
    return {"options": made.options, "ticket": made.ticket}


async def reveal(call: Call) -> Any:
    """Show one secret argument; that is audited."""
    return {"value": await call.inbox.reveal(call.viewer, call.path("request_id"), call.body.pointer)}


async def revoke(call: Call) -> Any:
    """Withdraw a request that did not run yet."""
    await call.inbox.revoke(call.viewer, call.path("request_id"), call.body.reason)
    return {"state": "revoked"}


async def resolve(call: Call) -> Any:
    """Say what happened to a call in doubt."""
    body = call.body
    state = await call.inbox.resolve(
        call.viewer, call.path("request_id"), body.outcome, body.reason, force=body.force
    )
    return {"state": state}


# -- runs --------------------------------------------------------------------------------------------------------


async def list_runs(call: Call) -> Any:
    """List suspended runs of one's own; for operators, of anybody."""
    return views.runs_view(await call.inbox.runs(call.viewer, **call.query))


async def resume_run(call: Call) -> Any:
    """Go on with a suspended run, to its next pause or its end."""
    body = call.body
    data = (body.resume_data,) if "resume_data" in body.model_fields_set else ()
    try:
        result = await call.inbox.resume(
            call.viewer, call.path("run_id"), agent=body.agent, user=body.user, tool_call_id=body.tool_call_id,
            data=data,
        )
    except HitlGuardError:
        raise
    except Exception:  # noqa: BLE001  the model's or a tool's own: the run is stored, and what it says may be secret
        return problem("run-failed")
    return views.result_view(result)


# -- operators ---------------------------------------------------------------------------------------------------


async def show_control(call: Call) -> Any:
    """Show what is paused and muted."""
    return views.control_view(await call.inbox.control(call.viewer), call.viewer.now)


async def pause(call: Call) -> Any:
    """Stop a tool, an agent, or everything of the tenant."""
    body = call.body
    await call.inbox.pause(call.viewer, tool=body.tool, agent=body.agent, reason=body.reason)
    return await show_control(call)


async def unpause(call: Call) -> Any:
    """Take a pause away."""
    body = call.body
    await call.inbox.unpause(call.viewer, tool=body.tool, agent=body.agent, reason=body.reason)
    return await show_control(call)


async def unmute(call: Call) -> Any:
    """Take mutes away: an operator anybody's, anybody else their own."""
    body = call.body
    await call.inbox.unmute(call.viewer, user=body.user, tool=body.tool, reason=body.reason)
    return {}


# -- the person --------------------------------------------------------------------------------------------------


async def show_session(call: Call) -> Any:
    """Show who one is, and to a browser the token for requests that change something."""
    who = call.viewer
    token = None if is_no_browser(call.request) else call.inbox.sessions.token(call.request, who)
    return {
        "display": who.display, "id": who.principal.id, "kind": who.principal.kind, "now": who.now,
        "operator": who.operator, "roles": list(who.principal.roles), "tenant": who.tenant,
        "token": token,
    }


async def list_passkeys(call: Call) -> Any:
    """List one's passkeys."""
    return {"passkeys": [views.passkey_view(one) for one in await call.inbox.passkeys(call.viewer)]}


async def passkey_options(call: Call) -> Any:
    """Get what the browser needs to make a passkey."""
    made = await call.inbox.passkey_options(call.viewer)
    return {"confirm": made.confirm, "options": made.options, "ticket": made.ticket}


async def register_passkey(call: Call) -> Any:
    """Register a passkey."""
    body = call.body
    made = await call.inbox.register_passkey(
        call.viewer, ticket=body.ticket, response=body.response, name=body.name, confirm=body.confirm
    )
    return views.passkey_view(made)


async def remove_passkey(call: Call) -> Any:
    """Remove one of one's passkeys."""
    await call.inbox.remove_passkey(call.viewer, call.path("credential_id"))
    return {}


async def events(call: Call) -> Response:
    """Follow changes of what one may see, as server-sent events."""
    since = call.query["since"]
    position = call.request.headers.get("last-event-id", None if since is None else str(since))
    stream = await call.inbox.hub.open(call.viewer, position)
    return EventStream(call.inbox.hub, stream, call.request)


_LIST = (
    Query("states", "state", "state", "Several may be given; all when there is none.", many=True),
    Query("tool", "tool", "text", "Only calls of this tool."),
    Query("requester", "requester", "text", "Only requests for this user."),
    Query("run", "run", "text", "Only requests of this run."),
    Query("mine", "mine", "flag", "Only what waits for one's own decision.", default=False),
    Query("text", "text", "text", "Only what has this text in it."),
    Query("limit", "limit", "limit", "Most requests on a page.", default=50),
    Query("cursor", "cursor", "cursor", "The page's `next` before this one."),
)
_RUNS = (
    Query("agent", "agent", "text", "Only runs of this agent."),
    Query("user", "user", "text", "Whose runs; other people's are for operators."),
    Query("thread_id", "thread_id", "text", "Only runs of this conversation."),
    Query("resource_id", "resource_id", "text", "Only runs of this resource."),
    Query("from_date", "from", "time", "Only runs that began then or later."),
    Query("to_date", "to", "time", "Only runs that began then or earlier."),
    Query("per_page", "per_page", "count", "Runs of each agent on a page; only together with `page`."),
    Query("page", "page", "number", "Number of the page, from 0."),
)
_SINCE = (Query("since", "since", "time", "The time of what is on the page: what changed since then is sent first."),)
_ONE = (404, 409)
_CHANGE = (400, 403, 404, 409, 413, 415, 422)

ENDPOINTS = (
    Endpoint("GET", "/api/requests", list_requests, "List requests", "Listing", query=_LIST, statuses=(400, 409)),
    Endpoint("GET", "/api/requests/{request_id}", show_request, "Show one request", "Dossier", statuses=_ONE),
    Endpoint("POST", "/api/requests/{request_id}/decision", decide, "Decide on a request", "Decision",
             bodies.DecisionBody, statuses=(*_CHANGE, 429)),
    Endpoint("POST", "/api/requests/{request_id}/challenge", challenge, "Get a passkey's challenge for a decision",
             "Ceremony", bodies.ChallengeBody, statuses=_CHANGE),
    Endpoint("POST", "/api/requests/{request_id}/reveal", reveal, "Show a secret argument", "Revealed",
             bodies.RevealBody, statuses=_CHANGE),
    Endpoint("POST", "/api/requests/{request_id}/revoke", revoke, "Withdraw a request", "State", bodies.RevokeBody,
             statuses=_CHANGE),
    Endpoint("POST", "/api/requests/{request_id}/resolve", resolve, "Close a call in doubt", "State",
             bodies.ResolveBody, statuses=_CHANGE),
    Endpoint("GET", "/api/runs", list_runs, "List suspended runs", "Runs", query=_RUNS, statuses=(400, 403, 404)),
    Endpoint("POST", "/api/runs/{run_id}/resume", resume_run, "Go on with a run", "Result", bodies.ResumeBody,
             statuses=(*_CHANGE, 429, 502)),
    Endpoint("GET", "/api/control", show_control, "Show pauses and mutes", "Control", statuses=(403,)),
    Endpoint("POST", "/api/control/pause", pause, "Pause", "Control", bodies.PauseBody, statuses=_CHANGE),
    Endpoint("POST", "/api/control/resume", unpause, "Resume", "Control", bodies.PauseBody, statuses=_CHANGE),
    Endpoint("POST", "/api/control/unmute", unmute, "Unmute", "Empty", bodies.UnmuteBody, statuses=_CHANGE),
    Endpoint("GET", "/api/session", show_session, "Show who one is", "Session"),
    Endpoint("GET", "/api/passkeys", list_passkeys, "List one's passkeys", "Passkeys", statuses=(403, 404, 409)),
    Endpoint("POST", "/api/passkeys/options", passkey_options, "Begin with a passkey", "Ceremony", bodies.EmptyBody,
             statuses=_CHANGE),
    Endpoint("POST", "/api/passkeys", register_passkey, "Register a passkey", "Passkey", bodies.PasskeyBody,
             statuses=_CHANGE),
    Endpoint("DELETE", "/api/passkeys/{credential_id}", remove_passkey, "Remove a passkey", "Empty",
             statuses=_CHANGE),
    Endpoint("GET", "/api/events", events, "Follow changes", "Events", query=_SINCE, statuses=(400, 429)),
)
"""Every endpoint that needs a login."""


def routes(inbox: Inbox) -> list[BaseRoute]:
    """Return the routes of all `ENDPOINTS`."""
    return [Route(one.path, _served(inbox, one), methods=[one.method], name=one.name) for one in ENDPOINTS]


def _served(inbox: Inbox, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        viewer = await inbox.viewer(request)
        if viewer is None:
            raise HTTPException(401)
        body, channel = None, "api"
        if endpoint.method != "GET":
            channel = await inbox.sessions.check(request, viewer)
        if endpoint.body is not None:
            body = await _read(request, endpoint.body)
        call = Call(inbox, request, viewer, body, read_query(request, endpoint.query), channel)
        result = await endpoint.handler(call)
        return result if isinstance(result, Response) else views.answer(result)

    return serve


async def _read(request: Request, model: type[bodies.Body]) -> bodies.Body:
    headers = request.scope["headers"]
    if not is_json(headers):
        raise HTTPException(415)
    raw = await read_body(request.receive, limit=bodies.LIMITS.max_bytes, headers=headers)
    return bodies.read(model, raw) if len(raw) <= SMALL_BODY else await offload(lambda: bodies.read(model, raw))
