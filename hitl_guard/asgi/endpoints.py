"""The table of the approval API's endpoints: what each takes, does and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..errors import HitlGuardError
from ..lifecycle.threads import offload
from . import bodies, views
from .event_stream import EventStream
from .identity import Viewer
from .logs import failed
from .problems import problem
from .query import Query
from .service import Answer, Inbox
from .sessions import is_no_browser


@dataclass(slots=True)
class Asked:
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
    handler: Callable[[Asked], Awaitable[Any]]
    summary: str
    result: str
    body: type[bodies.Body] | None = None
    query: tuple[Query, ...] = ()
    statuses: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.handler.__name__


async def _answered(make: Callable[[], Any]) -> Response:
    """Return what ``make`` returns as a response; both are made in a thread: a long one keeps nobody waiting."""
    return await offload(lambda: views.answer(make()))


# -- requests ----------------------------------------------------------------------------------------------------


async def list_requests(asked: Asked) -> Any:
    """List requests."""
    listing = await asked.inbox.list(asked.viewer, **asked.query)
    return await _answered(lambda: views.listing_view(listing, asked.viewer))


async def show_request(asked: Asked) -> Any:
    """Show one request with its history."""
    dossier = await asked.inbox.show(asked.viewer, asked.path("request_id"))
    return await _answered(lambda: views.dossier_view(dossier, asked.viewer))


def _answer(asked: Asked) -> Answer:
    body = asked.body
    evidence = getattr(body, "evidence", None)
    if evidence is not None:
        from ..lifecycle.credentials import Assertion

        evidence = Assertion(ticket=evidence.ticket, response=evidence.response)
    return Answer(
        approve=body.approve, fingerprint=body.fingerprint, reason=body.reason, arguments=body.arguments,
        respond=body.respond, execute_within=body.execute_within, mute=body.mute, evidence=evidence,
        channel=asked.channel,
    )


async def decide(asked: Asked) -> Any:
    """Approve, deny, edit, or respond for the tool."""
    made = await asked.inbox.decide(asked.viewer, asked.path("request_id"), _answer(asked))
    return await _answered(lambda: views.decision_view(made))


async def challenge(asked: Asked) -> Any:
    """Get what a passkey must sign for a decision."""
    made = await asked.inbox.challenge(asked.viewer, asked.path("request_id"), _answer(asked))
    return {"options": made.options, "ticket": made.ticket}


async def reveal(asked: Asked) -> Any:
    """Show one secret argument; that is audited."""
    value = await asked.inbox.reveal(asked.viewer, asked.path("request_id"), asked.body.pointer)
    return await _answered(lambda: {"value": value})


async def revoke(asked: Asked) -> Any:
    """Withdraw a request that did not run yet."""
    await asked.inbox.revoke(asked.viewer, asked.path("request_id"), asked.body.reason)
    return {"state": "revoked"}


async def resolve(asked: Asked) -> Any:
    """Say what happened to a call in doubt."""
    body = asked.body
    state = await asked.inbox.resolve(
        asked.viewer, asked.path("request_id"), body.outcome, body.reason, force=body.force
    )
    return {"state": state}


# -- runs --------------------------------------------------------------------------------------------------------


async def list_runs(asked: Asked) -> Any:
    """List suspended runs of one's own; for operators, of anybody."""
    found = await asked.inbox.runs(asked.viewer, **asked.query)
    return await _answered(lambda: views.runs_view(found))


async def resume_run(asked: Asked) -> Any:
    """Go on with a suspended run, to its next pause or its end."""
    body = asked.body
    data = (body.resume_data,) if "resume_data" in body.model_fields_set else ()
    try:
        result = await asked.inbox.resume(
            asked.viewer, asked.path("run_id"), agent=body.agent, user=body.user, tool_call_id=body.tool_call_id,
            data=data,
        )
    except HitlGuardError:
        raise
    except Exception as error:  # noqa: BLE001  the model's or a tool's own: the run is stored, what it says is secret
        failed("A run did not go on", error, run=asked.path("run_id"))
        return problem("run-failed")
    return await _answered(lambda: views.result_view(result))


# -- operators ---------------------------------------------------------------------------------------------------


async def show_control(asked: Asked) -> Any:
    """Show what is paused and muted."""
    return views.control_view(await asked.inbox.control(asked.viewer), asked.viewer.now)


async def pause(asked: Asked) -> Any:
    """Stop a tool, an agent, or everything; in the tenant, or everywhere."""
    await asked.inbox.pause(asked.viewer, **asked.body.target(), reason=asked.body.reason)
    return await show_control(asked)


async def unpause(asked: Asked) -> Any:
    """Take a pause away."""
    await asked.inbox.unpause(asked.viewer, **asked.body.target(), reason=asked.body.reason)
    return await show_control(asked)


async def unmute(asked: Asked) -> Any:
    """Take mutes away: an operator anybody's, anybody else their own."""
    body = asked.body
    await asked.inbox.unmute(asked.viewer, user=body.user, tool=body.tool, reason=body.reason)
    return {}


# -- the person --------------------------------------------------------------------------------------------------


async def show_session(asked: Asked) -> Any:
    """Show who one is, and to a browser the token for requests that change something."""
    who = asked.viewer
    token = None if is_no_browser(asked.request) else asked.inbox.sessions.token(asked.request, who)
    return {
        "display": who.display, "global_operator": asked.inbox.is_global_operator(who), "id": who.principal.id,
        "kind": who.principal.kind, "now": who.now, "operator": who.operator, "roles": list(who.principal.roles),
        "tenant": who.tenant, "token": token,
    }


async def list_passkeys(asked: Asked) -> Any:
    """List one's passkeys."""
    return {"passkeys": [views.passkey_view(one) for one in await asked.inbox.passkeys(asked.viewer)]}


async def passkey_options(asked: Asked) -> Any:
    """Get what the browser needs to make a passkey."""
    made = await asked.inbox.passkey_options(asked.viewer)
    return {"confirm": made.confirm, "options": made.options, "ticket": made.ticket}


async def register_passkey(asked: Asked) -> Any:
    """Register a passkey."""
    body = asked.body
    made = await asked.inbox.register_passkey(
        asked.viewer, ticket=body.ticket, response=body.response, name=body.name, confirm=body.confirm
    )
    return views.passkey_view(made)


async def remove_passkey(asked: Asked) -> Any:
    """Remove one of one's passkeys."""
    await asked.inbox.remove_passkey(asked.viewer, asked.path("credential_id"))
    return {}


async def events(asked: Asked) -> Response:
    """Follow changes of what one may see, as server-sent events."""
    since = asked.query["since"]
    position = asked.request.headers.get("last-event-id", None if since is None else str(since))
    stream = await asked.inbox.hub.open(asked.viewer, position)
    return EventStream(asked.inbox.hub, stream, asked.request)


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
_CHANGE = (400, 403, 404, 408, 409, 413, 415, 422)

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
    Endpoint("GET", "/api/control", show_control, "Show pauses and mutes", "Control", statuses=(403, 409)),
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
