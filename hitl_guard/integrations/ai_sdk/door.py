"""Who may post to a chat at all, and what a refused post is answered."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...asgi.identity import Viewer
from ...asgi.logs import failed, refused
from ...asgi.problems import problem
from ...errors import (
    AgentError,
    CanonicalizationError,
    DecisionError,
    HitlGuardError,
    InvalidApprovalError,
    LimitError,
    NotAuthorisedError,
    RefusedError,
    UnavailableError,
)

_OWN_SITES = frozenset({"none", "same-origin", "same-site"})


def check_site(request: Request) -> None:
    """Refuse a post that a browser sends from a page of another site: a login that comes with it proves nothing.

    A client without a mark (``Sec-Fetch-Site``) is no browser of today; an older one may not post JSON to another site
    unless the host's CORS lets it.

    Raises:
        NotAuthorisedError: it is one (``detail`` cross-site).
    """
    sites = request.headers.getlist("sec-fetch-site")
    if len(sites) > 1 or not _OWN_SITES.issuperset(sites):
        raise NotAuthorisedError("This did not come from a page of this site.", detail="cross-site")


def refusal_of(error: HitlGuardError, where: str, viewer: Viewer | None) -> Response:
    """Return the problem of a post that was refused as a whole. What exactly was wrong is in both logs.

    Args:
        where: Method and route. viewer: Who posted, or None where nobody knows.
    """
    if isinstance(error, (AgentError, DecisionError, LimitError, RefusedError)):
        refused(error, where, who=None if viewer is None else viewer.principal)
    if isinstance(error, CanonicalizationError):
        slug = {"bytes": "too-large", "timeout": "too-slow", "post": "malformed"}.get(error.detail or "", "malformed")
        return problem("too-large" if error.code == "too-large" else slug, detail=str(error))
    if isinstance(error, LimitError):
        return problem("limited", detail=str(error))
    if isinstance(error, UnavailableError):
        return problem("unavailable")
    if isinstance(error, InvalidApprovalError) and error.detail in ("malformed", "repeated"):
        return problem("malformed", detail=str(error))
    if isinstance(error, AgentError):
        return problem("busy" if error.code == "run-busy" else "not-found")
    if isinstance(error, NotAuthorisedError) and error.detail == "cross-site":
        return problem("forbidden", detail=str(error))
    if isinstance(error, (RefusedError, DecisionError)):
        return problem("refused")
    failed("A chat could not be served", error)
    return problem("internal")
