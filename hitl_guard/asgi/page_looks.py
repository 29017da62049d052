"""The pages that are looked at. Each is complete without its script, and looking changes nothing."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import NotAuthorisedError
from . import page_views as views
from .forms import Form, malformed
from .headers import IMMUTABLE
from .identity import Viewer
from .page_renderer import DONE, Handler, PageRenderer
from .sessions import NOTE_MS

PAGE_SIZE = 50
"""Requests on one page of the list."""

_WHAT = ("agent", "everything", "everywhere", "reason", "tool")
CONTROL_FORMS: dict[str, tuple[str, ...]] = {
    "pause": _WHAT, "resume": _WHAT, "resolve": views.FORMS["resolve"],
}
"""Form of the control page → its fields that are kept when it is refused; which pause a resumption means is among
them. A call in doubt is resolved on its own page."""

RUN_FIELDS = ("agent", "answer", "as", "call", "run")
"""Fields of a run's answer that are kept."""


async def the_list(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Show the requests that wait, or what the filters ask for."""
    asked = request.query_params
    names = ("state", "tool", "requester", "text", "cursor")
    given = {name: asked.get(name, "").strip() for name in names} | {"mine": asked.get("mine") == "1"}
    given["state"] = given["state"] or "pending"
    if given["state"] not in views.CHOICES:
        raise malformed("There is no such state.")
    listing = await renderer.inbox.list(
        viewer, states=views.CHOICES[str(given["state"])][1], tool=str(given["tool"]) or None,
        requester=str(given["requester"]) or None, mine=bool(given["mine"]), text=str(given["text"]) or None,
        limit=PAGE_SIZE, cursor=str(given["cursor"]) or None,
    )
    rows = [views.Row.of(one) for one in listing.items]
    waiting = sum(row.request.state == "pending" for row in rows)
    kept = {name: "1" if value is True else value for name, value in given.items() if value and name != "cursor"}
    context = {
        "choices": [(value, label) for value, (label, _) in views.CHOICES.items()], "damaged": listing.damaged,
        "filters": given, "first": urlencode(kept),
        "following": listing.next and urlencode({**kept, "cursor": listing.next}), "looked": listing.looked,
        "rows": rows, "waiting": f"{waiting}+" if waiting and listing.next else waiting,
    }
    return await renderer.page(request, viewer, "list.html", context, here="list")


async def the_request(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Show one request."""
    return await renderer.request(request, viewer)


async def the_passkeys(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Show the viewer's passkeys."""
    if not renderer.passkeys:
        raise HTTPException(404)
    keys = await renderer.inbox.passkeys(viewer)
    notice = renderer.notice(request, viewer, "removed")
    # The script that registers one cannot sign what it did, but the passkey itself is there.
    if request.query_params.get("done") == "registered" and any(viewer.now - one.created_at < NOTE_MS for one in keys):
        notice = DONE["registered"]
    return await renderer.page(request, viewer, "passkeys.html", {"keys": keys}, here="passkeys", notice=notice)


async def the_control(
    renderer: PageRenderer, request: Request, viewer: Viewer, error: BaseException | None = None,
    given: Form | None = None,
) -> Response:
    """Show what is paused and muted and what is in doubt; for operators."""
    control = await renderer.inbox.control(viewer)
    doubtful = await renderer.inbox.list(viewer, states=("in_doubt",), limit=PAGE_SIZE)
    context = {
        "control": control, "doubtful": [views.Row.of(one) for one in doubtful.items],
        "all_known": viewer.operator and not doubtful.items and not doubtful.damaged and doubtful.next is None,
        "damaged": doubtful.damaged, "looked": doubtful.looked,
        "more": doubtful.next and urlencode({"state": "in_doubt", "cursor": doubtful.next}),
        "input": views.typed(given, "" if given is None else given.first("change"), CONTROL_FORMS),
        "policy": renderer.inbox.guard.policy_version,
    }
    notice = renderer.notice(request, viewer, "changed")
    return await renderer.page(request, viewer, "control.html", context, here="control", error=error, notice=notice)


async def the_runs(
    renderer: PageRenderer, request: Request, viewer: Viewer, error: BaseException | None = None,
    slug: str | None = None, given: Form | None = None,
) -> Response:
    """Show the suspended runs of the viewer; an operator may look at another person's."""
    user = (request.query_params.get("user", "").strip() if given is None else given.first("user")) or None
    try:
        waiting = await renderer.inbox.runs(viewer, user=user)
    except NotAuthorisedError as refusal:
        waiting, error = await renderer.inbox.runs(viewer), refusal
    context = {
        "damaged": waiting.damaged, "input": views.typed(given, "answer", {"answer": RUN_FIELDS})["answer"],
        "own": viewer.principal.id, "runs": waiting.runs, "user": user or "",
    }
    notice = renderer.notice(request, viewer, "resumed")
    return await renderer.page(
        request, viewer, "runs.html", context, here="runs", error=error, slug=slug, notice=notice
    )


async def static(request: Request) -> Response:
    """Return a static file; there are few, and they hold nothing of anybody's."""
    name = request.path_params["name"]
    content = views.static_files().get(name)
    if content is None:
        raise HTTPException(404)
    current = request.url.query == views.static_version()
    return Response(content, headers={"cache-control": IMMUTABLE} if current else {}, media_type=views.STATIC[name])


LOOKS: dict[str, Handler] = {
    "/": the_list, "/control": the_control, "/passkeys": the_passkeys, "/requests/{request_id}": the_request,
    "/runs": the_runs,
}
"""Path → the page that is there."""
