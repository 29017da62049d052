"""How a page is made for one viewer: a login first, one frame around all, every refusal with its status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ..errors import HitlGuardError
from ..lifecycle.threads import offload
from ..models import ApprovalRequest
from . import page_views as views
from .forms import Field, Form
from .identity import Viewer
from .logs import untold
from .problems import PROBLEMS, said_of, slug_of
from .seen import proof
from .service import Inbox

DONE = {
    "changed": "Done.", "registered": "The passkey is registered.", "removed": "The passkey is removed.",
    "resumed": "The run went on.",
}
"""What was done → what the page says then. (Of a request, `page_views.deed` says it.)"""

ROUTE = "hitl_guard.route"
"""Key of the ASGI scope under which the path of the page's route is, as the table of pages has it."""

Handler = Callable[["PageRenderer", Request, Viewer], Awaitable[Response]]


class PageRenderer:
    """Renders pages for one app.

    Args:
        inbox: The operations; whatever a viewer may not see comes from there as unknown.
    """

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.passkeys = inbox.guard.settings.rp_id is not None

    def endpoint(self, path: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a route: a login first, and every refusal as a page with its status."""
        async def endpoint(request: Request) -> Response:
            viewer: Viewer | None = None
            request.scope[ROUTE] = path
            try:
                viewer = await self.inbox.viewer(request)
                if viewer is None:
                    return await self._nobody(request)
                return await handler(self, request, viewer)
            except (HitlGuardError, HTTPException) as error:
                return await self.problem(request, viewer, error)

        endpoint.__name__, endpoint.__doc__ = handler.__name__, handler.__doc__
        return endpoint

    async def _nobody(self, request: Request) -> Response:
        login = self.inbox.login_path
        if login is not None and request.method in ("GET", "HEAD"):
            return RedirectResponse(f"{base_of(request)}/{login.lstrip('/')}", status_code=303)
        return await self.problem(request, None, HTTPException(401))

    async def page(
        self, request: Request, viewer: Viewer | None, template: str, context: Mapping[str, Any], *, here: str = "",
        error: BaseException | None = None, headers: Mapping[str, str] | None = None, slug: str | None = None,
        notice: str | None = None,
    ) -> Response:
        """Return a page, made in a worker thread; with an error in it, its status is that of the error.

        Args:
            slug: The error's class, where it is none that `slug_of` knows; whoever knows it has logged the error.
            notice: What was done, if that is certain; beside an error it is left out.
        """
        if error is not None and slug is None:
            slug = slug_of(error)
            self._log(request, viewer, error)
        common: dict[str, Any] = {
            "base": base_of(request), "error": None if error is None else told(error, slug),
            "global_operator": viewer is not None and self.inbox.is_global_operator(viewer), "here": here,
            "notice": None if error is not None else notice,
            "now": 0 if viewer is None else viewer.now, "operator": viewer is not None and viewer.operator,
            "passkeys": self.passkeys and viewer is not None, "seen": "", "static": views.static_version(),
            "token": "" if viewer is None else self.inbox.sessions.token(request, viewer),
            "who": None if viewer is None else viewer.display,
        }
        status = 200 if slug is None else PROBLEMS[slug][0]

        def made() -> Response:
            text = views.templates().get_template(template).render(**(common | dict(context)))
            return HTMLResponse(text, status, headers)

        return await offload(made)

    async def problem(self, request: Request, viewer: Viewer | None, error: BaseException) -> Response:
        """Return a page that says what is wrong, as coarsely as the API does."""
        self._log(request, viewer, error)
        status, title = PROBLEMS[slug_of(error)]
        headers = {"retry-after": "5"} if status == 503 else {}
        context = {"title": title, "said": said_of(error), "damaged": slug_of(error) == "damaged"}
        response = await self.page(request, viewer, "problem.html", context, headers=headers)
        response.status_code = status
        return response

    def _log(self, request: Request, viewer: Viewer | None, error: BaseException) -> None:
        """Log what the page does not tell. No server sees this error: it ends here."""
        untold(
            error, f"{request.method} {request.scope.get(ROUTE)}", who=None if viewer is None else viewer.principal,
            request=request.path_params.get("request_id"),
        )

    async def request(
        self, request: Request, viewer: Viewer, *, error: BaseException | None = None, given: Form | None = None,
        revealed: Collection[str] = (), made: tuple[Field, ...] | None = None, answer: str = "",
    ) -> Response:
        """Return a request's page; the other arguments are those of `page_views.detail`."""
        dossier = await self.inbox.show(viewer, request.path_params["request_id"])
        context = await offload(lambda: views.detail(
            dossier, viewer, self.inbox.guard.settings, revealed=revealed, given=given, made=made, answer=answer
        ))
        asked = dossier.request
        more: dict[str, Any] = {"self_url": address(request, asked), "seen": proof(self.inbox.guard, viewer, asked)}
        # The address is anybody's to write: it says that something was done, the request what that was.
        notice = views.deed(dossier, viewer) if "done" in request.query_params else None
        return await self.page(request, viewer, "request.html", context | more, error=error, notice=notice)

    def notice(self, request: Request, viewer: Viewer, word: str) -> str | None:
        """Return the sentence for what this very browser did a moment ago, if it was that (see `done_at`)."""
        text = request.query_params.get("done")
        return DONE[word] if self.inbox.sessions.noted(request, viewer, text, word) else None

    def done_at(self, request: Request, viewer: Viewer, path: str, word: str) -> Response:
        """Return the redirect to a page of the inbox that says what was done: one of `DONE`."""
        return see(f"{base_of(request)}{path}", self.inbox.sessions.note(request, viewer, word))


def told(error: BaseException, slug: str | None = None) -> dict[str, str | None]:
    """Return what a person is told of an error."""
    by = getattr(error, "decided_by", None)
    return {"title": PROBLEMS[slug or slug_of(error)][1], "said": said_of(error), "by": by}


def base_of(request: Request) -> str:
    """Return the path under which the inbox is mounted, without a slash at its end."""
    return quote(str(request.scope.get("root_path", "")).rstrip("/"), safe="/")


def address(request: Request, of: ApprovalRequest) -> str:
    """Return the permanent path of a request."""
    return f"{base_of(request)}/requests/{quote(of.id, safe='')}"


def see(path: str, done: str = "yes") -> Response:
    """Return the redirect after something was done, so that loading the page again does not do it twice."""
    return RedirectResponse(f"{path}?done={quote(done, safe='')}", status_code=303)
