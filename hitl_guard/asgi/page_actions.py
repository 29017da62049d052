"""What the pages' forms do. Each needs a login, the session's token and a request from this very site.

After it was done the browser is sent to a page, so that loading it again does nothing. What is refused is told on the
page where the person was, with what they had written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .. import canonical
from ..errors import CanonicalizationError, DecisionError, HitlGuardError, NotAuthorisedError
from ..lifecycle.threads import offload
from ..models import MAX_REASON
from . import page_edits
from . import page_views as views
from .body import SMALL_BODY, read_body
from .forms import MAX_BYTES, Edited, Form, malformed, parse
from .identity import Viewer
from .logs import failed, untold
from .page_looks import the_control, the_runs
from .page_renderer import Handler, PageRenderer, address, base_of, see, told
from .problems import slug_of
from .seen import proven
from .service import Answer
from .sessions import FIELD

MAX_BULK = 100
"""Requests that one bulk decision may be about."""

_AWAY = frozenset({"forbidden", "not-found", "unauthenticated"})
_FORM = "application/x-www-form-urlencoded"


async def form_of(renderer: PageRenderer, request: Request, viewer: Viewer) -> Form:
    """Return what was posted, once it is certain that it came from a page of ours.

    Raises:
        NotAuthorisedError: it did not. HTTPException, CanonicalizationError, DecisionError: it is no form.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HTTPException(415)
    body = await read_body(request.receive, limit=MAX_BYTES, headers=request.scope["headers"])
    form = parse(body) if len(body) <= SMALL_BODY else await offload(lambda: parse(body))
    if await renderer.inbox.sessions.check(request, viewer, {FIELD: form.one(FIELD)}) != "inbox":
        raise NotAuthorisedError("Forms are for people's browsers: use the API.", detail="channel")
    return form


async def decision(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Approve, deny, approve with other arguments, or answer for the tool."""
    form = await form_of(renderer, request, viewer)
    kind = form.one("answer")
    made: Edited | None = None
    try:
        asked = await renderer.inbox.get(viewer, request.path_params["request_id"])
        if kind == "edit":
            made = edit = await offload(lambda: page_edits.read(asked, form))
            settings = renderer.inbox.guard.settings
            change = await offload(lambda: page_edits.change(asked, edit, settings))
            page_edits.check_shown(change, form)
        answer = await offload(lambda: _answer(form, kind, made))  # a long result takes long to read
        done = await renderer.inbox.decide(viewer, asked.id, answer)
    except (HitlGuardError, HTTPException) as error:
        return await _told(renderer, request, viewer, error, form, made, kind)
    return see(f"{base_of(request)}/requests/{done.request_id}")


def _answer(form: Form, kind: str, made: Edited | None) -> Answer:
    """Return what the form says.

    Raises:
        DecisionError: it says nothing that can be decided.
    """
    common: dict[str, Any] = {"fingerprint": form.one("fingerprint"), "reason": _reason(form)}
    if kind == "approve":
        return Answer(approve=True, execute_within=_minutes(form, "within"), **common)
    if kind == "edit":
        if made is None:
            raise malformed()
        return Answer(approve=True, arguments=made.arguments, execute_within=_minutes(form, "within"), **common)
    if kind == "deny":
        return Answer(approve=False, mute=_minutes(form, "mute"), **common)
    if kind == "respond":
        return Answer(approve=False, respond=_response(form), **common)
    raise malformed()


def _reason(form: Form) -> str | None:
    reason = form.one("reason").strip()
    if len(reason) > MAX_REASON:
        raise page_edits.wrong(f"A reason has at most {MAX_REASON} characters.")
    return reason or None


def _minutes(form: Form, name: str) -> int | None:
    text = form.one(name).strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text)):
        raise page_edits.wrong("A time is a whole number of minutes.")
    return int(text) * views.MINUTE_MS


def _response(form: Form) -> Any:
    text = form.one("response")
    if form.one("as") != "json":
        return text
    try:
        value = canonical.parse(text)
    except CanonicalizationError as error:
        raise page_edits.wrong(f"The result is no strict JSON: {error}") from None
    if value is None:
        raise page_edits.wrong("null is no answer: deny instead.")
    return value


async def preview(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Show what an edit changes, before it is approved. This changes nothing. (See `page_edits`.)"""
    form = await form_of(renderer, request, viewer)
    made: Edited | None = None
    try:
        asked = await renderer.inbox.get(viewer, request.path_params["request_id"])
        made = edit = await offload(lambda: page_edits.read(asked, form))
        if form.one("back"):
            return await renderer.request(request, viewer, given=form, made=edit.fields, answer="edit")
        settings = renderer.inbox.guard.settings
        context = await offload(lambda: page_edits.context(asked, page_edits.change(asked, edit, settings), form))
    except (HitlGuardError, HTTPException) as error:
        return await _told(renderer, request, viewer, error, form, made, "edit")
    return await renderer.page(request, viewer, "preview.html", context | {"self_url": address(request, asked)})


async def _told(
    renderer: PageRenderer, request: Request, viewer: Viewer, error: BaseException, form: Form, made: Edited | None,
    kind: str,
) -> Response:
    """Show the request as it is now, with what went wrong and what the person had written."""
    if slug_of(error) in ("not-found", "unavailable"):
        return await renderer.problem(request, viewer, error)
    return await renderer.request(
        request, viewer, error=error, given=form, made=None if made is None else made.fields, answer=kind
    )


async def reveal(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Show secret values. Each is written to the audit log before the page is made."""
    form = await form_of(renderer, request, viewer)
    places = list(dict.fromkeys(form.every("place")))
    if len(places) > views.MAX_REVEALED:
        raise malformed(f"Reveal at most {views.MAX_REVEALED} values at once.")
    for place in places:
        await renderer.inbox.reveal(viewer, request.path_params["request_id"], place)
    return await renderer.request(request, viewer, revealed=places)


async def revoke(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Withdraw a request."""
    form = await form_of(renderer, request, viewer)
    return await _changed(renderer, request, viewer, form, "revoke", lambda asked: renderer.inbox.revoke(
        viewer, asked, _reason(form)
    ))


async def resolve(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Close a call whose outcome nobody knows."""
    form = await form_of(renderer, request, viewer)

    async def close(asked: str) -> None:
        outcome, reason = form.one("outcome"), _reason(form)
        if outcome not in ("succeeded", "failed", "abandoned"):
            raise malformed()
        if reason is None:
            raise page_edits.wrong("Say how you know what happened.")
        await renderer.inbox.resolve(viewer, asked, outcome, reason, force=form.one("force") == "1")

    return await _changed(renderer, request, viewer, form, "resolve", close)


async def _changed(
    renderer: PageRenderer, request: Request, viewer: Viewer, form: Form, kind: str,
    action: Callable[[str], Awaitable[Any]],
) -> Response:
    request_id = request.path_params["request_id"]
    try:
        await action(request_id)
    except HitlGuardError as error:
        return await _told(renderer, request, viewer, error, form, None, kind)
    try:
        asked = await renderer.inbox.get(viewer, request_id)
    except HitlGuardError as error:
        if slug_of(error) != "not-found":
            raise
        return RedirectResponse(f"{base_of(request)}/", status_code=303)  # it was done, and is out of sight by now
    return see(address(request, asked))


async def bulk(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Deny several requests, or approve several that this person opened. Each is decided by itself."""
    form = await form_of(renderer, request, viewer)
    kind = form.one("answer")
    picks = list(dict.fromkeys(form.every("pick")))
    if kind not in ("approve", "deny") or not 0 < len(picks) <= MAX_BULK:
        raise malformed(f"Select from 1 to {MAX_BULK} requests first.")
    opened = proven(renderer.inbox.guard, viewer, form.every("seen")) if kind == "approve" else frozenset()
    reason = _reason(form)
    results = [await _one_of_many(renderer, viewer, kind, pick, opened, reason) for pick in picks]
    return await renderer.page(request, viewer, "bulk.html", {
        "done": sum(one["good"] for one in results), "results": results,
        "verb": "approved" if kind == "approve" else "denied",
    })


async def _one_of_many(
    renderer: PageRenderer, viewer: Viewer, kind: str, pick: str, opened: frozenset[tuple[str, str]], reason: str | None
) -> dict[str, Any]:
    request_id, _, fingerprint = pick.partition(" ")
    try:
        if kind == "approve":
            asked = await renderer.inbox.get(viewer, request_id)
            if views.Row.of(asked).single:
                raise DecisionError("This one needs more than one person or a passkey: approve it by itself.",
                                    code="not-authorised", detail="bulk")
            if (asked.id, fingerprint) not in opened:
                raise DecisionError("Open this one before you approve it.", code="not-authorised", detail="bulk")
        await renderer.inbox.decide(
            viewer, request_id, Answer(approve=kind == "approve", fingerprint=fingerprint, reason=reason)
        )
    except HitlGuardError as error:
        untold(error, "POST /bulk", who=viewer.principal, request=request_id)
        return {"good": False, "id": request_id, **told(error)}
    return {"good": True, "id": request_id}


async def passkey_removal(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Remove one of the viewer's passkeys."""
    form = await form_of(renderer, request, viewer)
    await renderer.inbox.remove_passkey(viewer, form.one("credential"))
    return renderer.done_at(request, viewer, "/passkeys", "removed")


async def control(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Pause, resume or unmute; for operators."""
    form = await form_of(renderer, request, viewer)
    what: dict[str, Any] = {
        "tool": form.one("tool").strip() or None, "agent": form.one("agent").strip() or None,
        "everything": form.one("everything") == "1", "everywhere": form.one("everywhere") == "1",
    }
    try:
        reason = _reason(form)
        match form.one("change"):
            case "pause":
                await renderer.inbox.pause(viewer, **what, reason=reason)
            case "resume":
                await renderer.inbox.unpause(viewer, **what, reason=reason)
            case "unmute":
                user, tool = form.one("user"), form.one("tool")
                if not user or not tool:
                    raise malformed()
                await renderer.inbox.unmute(viewer, user=user, tool=tool, reason=reason)
            case _:
                raise malformed()
    except HitlGuardError as error:
        if slug_of(error) in _AWAY:
            raise
        return await the_control(renderer, request, viewer, error, form)
    return renderer.done_at(request, viewer, "/control", "changed")


async def run(renderer: PageRenderer, request: Request, viewer: Viewer) -> Response:
    """Go on with a suspended run: with an answer, or with what was decided elsewhere."""
    form = await form_of(renderer, request, viewer)
    given = form.one("answer")
    try:
        data = (await offload(lambda: _answered(form, given)),) if given.strip() else ()
        await renderer.inbox.resume(
            viewer, form.one("run"), agent=form.one("agent") or None, user=form.one("user") or None,
            tool_call_id=form.one("call") or None, data=data,
        )
    except HitlGuardError as error:
        if slug_of(error) == "not-found":
            raise
        return await the_runs(renderer, request, viewer, error, given=form)
    except Exception as error:  # noqa: BLE001  the model's own: the run is stored, and what it says may be secret
        failed("A run did not go on", error, run=form.one("run"))
        return await the_runs(renderer, request, viewer, error, "run-failed", form)
    return renderer.done_at(request, viewer, "/runs", "resumed")


def _answered(form: Form, given: str) -> Any:
    if form.one("as") == "text":
        return given
    try:
        return canonical.parse(given)
    except CanonicalizationError as error:
        raise page_edits.wrong(f"The answer is no strict JSON: {error}") from None


ACTIONS: dict[str, Handler] = {
    "/bulk": bulk, "/control": control, "/passkeys/remove": passkey_removal,
    "/requests/{request_id}/decision": decision, "/requests/{request_id}/preview": preview,
    "/requests/{request_id}/resolve": resolve, "/requests/{request_id}/reveal": reveal,
    "/requests/{request_id}/revoke": revoke, "/runs": run,
}
"""Path → what its form does."""
