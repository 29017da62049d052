"""ApprovalMiddleware: in front of an existing chat endpoint, nothing forged in its posts reaches the app."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import canonical
from ..aio import AsyncGuard
from ..errors import (
    CanonicalizationError,
    ConfigurationError,
    HitlGuardError,
    InvalidApprovalError,
    RefusedError,
    UnavailableError,
)
from ..guard import Guard
from ..lifecycle.threads import offload
from ..models import Principal, check_text
from ..protocols import Calls, Claim, claims_in, may_claim
from ..protocols.verify import PostedApprovals, verify
from .body import BODY_TIMEOUT_S, SMALL_BODY, is_json, read_body, strict_json
from .identity import Authenticate, Doorkeeper
from .logs import failed, refused
from .problems import problem

T = TypeVar("T")

SCOPE_KEY = "hitl_guard"
"""Where the app finds a `hitl_guard.protocols.verify.PostedApprovals`: ``request.scope["hitl_guard"]``."""

MAX_BODY = 4_194_304
"""Bytes of a request's body, unless other things are said."""

MAX_CLAIMS = 200
"""Answered approvals in one body; each is a look into the store."""

AT_ONCE = 4
"""So many of them are looked up where the request is served; more go to a thread."""

MAX_NODES = 200_000
"""JSON values in one body."""

RunOf = Callable[[Request, Any], str | Awaitable[str]]
"""Gets the request and its parsed body, returns the run: whatever the guard's calls have as ``run_id``."""


class ApprovalMiddleware:
    """Checks every approval in what is posted to a chat endpoint, before the app sees a byte. Pure ASGI.

    An app that takes its conversation from the client (AI SDK UI and model messages, OpenAI's Responses items, AG-UI)
    would believe whatever stands there. Behind this every *answered* approval in a post is one that the guard's store
    knows, of this tenant, user and run, for this tool call with these arguments, and decided as the client says: one
    that has not run is approved, unspent and in time, one that carries its result did run. All else is refused with
    one problem (RFC 9457): 401 nobody, 400 not strict JSON or a malformed answer, 413 too large, 415 not JSON, 403
    forged, altered, replayed or foreign, 503 when nobody can tell. Which of these a 403 is, the client is not told: the
    exact code is in the audit log, and in the log ``hitl_guard.asgi`` (a warning) with route, user and run.

    It grants nothing. The app runs an approved call with ``guard.run(call, tool)``, which checks everything again and
    spends the grant; a post that passed here twice still runs once. What a client posts as the *result* of a call is
    its own word: nothing of it is in the store.

    ::

        app = ApprovalMiddleware(
            app, guard, authenticate=principal_of, run_of=lambda request, body: body["id"], paths=["/api/chat"]
        )

    Args:
        app: The ASGI app behind.
        guard: A `Guard` or `AsyncGuard`.
        authenticate: From the request to a `Principal` (or `hitl_guard.asgi.Identity`), or None for nobody; it may be
            asynchronous. It is asked before anything is read. Its id is the ``user`` of the guard's calls.
        run_of: From the request and its parsed body to the run; it may be asynchronous. It is asked only where there
            is an approval. The body is the client's: let it name a run, never a user.
        paths: Starlette path patterns (``/api/chat``, ``/chats/{id}/messages``); at least one. All else goes through
            untouched, as do WebSockets and other methods.
        max_body: Bytes of a body. body_timeout: Seconds that a client may take to send it.
        methods: The methods that are guarded.

    Raises:
        ConfigurationError: something is missing or unusable.
    """

    def __init__(
        self, app: ASGIApp, guard: Guard | AsyncGuard, authenticate: Authenticate, run_of: RunOf, paths: Iterable[str],
        *, max_body: int = MAX_BODY, body_timeout: float = BODY_TIMEOUT_S, methods: Iterable[str] = ("POST",),
    ) -> None:
        guard = guard.guard if isinstance(guard, AsyncGuard) else guard
        if not isinstance(guard, Guard) or not callable(run_of):
            raise ConfigurationError("ApprovalMiddleware needs a guard, and 'run_of', a function to a body's run.")
        if type(max_body) is not int or max_body < 1 or type(body_timeout) not in (int, float) or body_timeout < 0:
            raise ConfigurationError("'max_body' is a number of bytes, 'body_timeout' a number of seconds.")
        self.app = app
        self._desk = guard._desk
        self._door = Doorkeeper(guard, authenticate)
        self._run_of = run_of
        self._patterns = _patterns(paths)
        self._methods = frozenset(method.upper() for method in _names("methods", methods))
        self._max_body, self._timeout = max_body, body_timeout
        self._limits = canonical.Limits(max_bytes=max_body, max_depth=200, max_nodes=MAX_NODES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["method"].upper() not in self._methods or self._route(scope) is None:
            await self.app(scope, receive, send)
            return
        try:
            answer = await self._checked(scope, receive)
        except ClientDisconnect:
            return
        if isinstance(answer, Response):
            await answer(scope, receive, send)
            return
        body, posted = answer
        await self.app({**scope, SCOPE_KEY: posted}, _replayed(body, receive), send)

    def _route(self, scope: Scope) -> str | None:
        """Return which of the guarded paths this is, as the server sees it or as the app does below its mount point."""
        path, root = scope["path"], scope.get("root_path", "")
        paths = {path, path[len(root):]} if root and path.startswith(root) else {path}
        matching = (said for said, pattern in self._patterns.items() if any(map(pattern.match, paths)))
        return next(matching, None)

    async def _checked(self, scope: Scope, receive: Receive) -> tuple[bytes, PostedApprovals] | Response:
        """Return the body and what is verified in it, or the refusal."""
        request = Request(scope)  # without its body: nobody but us may read that
        try:
            principal = await self._principal(request)
            if principal is None:
                return problem("unauthenticated")
            body = await read_body(
                receive, limit=self._max_body, headers=scope["headers"], timeout_s=self._timeout
            )
            if body and not is_json(scope["headers"]):
                return problem("unsupported-media-type")
            posted = await self._posted(request, principal, body)
            return posted if isinstance(posted, Response) else (body, posted)
        except CanonicalizationError as error:
            return _malformed(error)
        except RefusedError as error:
            return self._refused(error, scope, None)
        except UnavailableError:
            return problem("unavailable")
        except ConfigurationError as error:
            failed("The approvals in a post cannot be checked", error)
            return problem("internal")

    def _refused(self, error: RefusedError, scope: Scope, who: Principal | None, **ids: str | None) -> Response:
        refused(error, f"{scope['method']} {self._route(scope)}", who=who, **ids)
        return problem("refused")

    async def _principal(self, request: Request) -> Principal | None:
        identity = await self._door._identity(request)
        if identity is None:
            return None
        ended = identity.until is not None and await offload(self._desk.store.now) >= identity.until
        return None if ended else identity.principal

    async def _posted(self, request: Request, principal: Principal, body: bytes) -> PostedApprovals | Response:
        """Return what is verified in a body, or why it cannot be read. One without approvals asks nobody."""
        if not body:
            return PostedApprovals(principal)
        try:
            value = await _aside(body, lambda: strict_json(body, self._limits))
            if not may_claim(body):
                return PostedApprovals(principal)
            claims, calls = await _aside(body, lambda: claims_in(value, most=MAX_CLAIMS))
            run = await self._run(request, value) if claims else ""
        except (CanonicalizationError, InvalidApprovalError) as error:
            refusal = error
            await offload(lambda: self._audit(principal, refusal))
            return _malformed(refusal)
        if not claims:
            return PostedApprovals(principal)
        if len(claims) <= AT_ONCE and self._desk.store.reads_at_once:
            # A thread would cost more than the check; a refusal is written, and that waits for others.
            with suppress(HitlGuardError):
                return self._verified(claims, calls, principal, run, audited=False)
        try:
            return await offload(lambda: self._verified(claims, calls, principal, run))
        except RefusedError as error:
            named = claims[0].request_id if len(claims) == 1 else None  # of several nobody says which it was
            return self._refused(error, request.scope, principal, run=run, request=named)

    async def _run(self, request: Request, body: Any) -> str:
        """Return the run of a body. What the host's function makes of a hostile body is the client's fault.

        It may be the host's own as well: what a body lacks is told to the client alone, all else is logged too.
        """
        try:
            run: Any = self._run_of(request, body)
            if inspect.isawaitable(run):
                run = await run
        except (LookupError, ValueError):
            run = None
        except (ArithmeticError, AttributeError, TypeError) as error:
            failed("'run_of' failed on a body", error)
            run = None
        if type(run) is not str or not run:
            raise CanonicalizationError("The request names no run.", detail="run")
        return check_text("run", run)

    def _verified(
        self, claims: list[Claim], calls: Calls, principal: Principal, run: str, *, audited: bool = True
    ) -> PostedApprovals:
        verified = verify(self._desk, claims, calls, principal=principal, run=run, audited=audited)
        return PostedApprovals(principal, run, verified)

    def _audit(self, principal: Principal, refusal: CanonicalizationError | InvalidApprovalError) -> None:
        """Write a refusal to the audit log; raise only if that fails."""
        with suppress(type(refusal)), self._desk.refusals(
            "call:refused", tenant=principal.tenant, user=principal.id
        ):
            raise refusal


async def _aside(body: bytes, work: Callable[[], T]) -> T:
    """Run what a large body makes slow in a thread: nobody else waits for it."""
    return work() if len(body) <= SMALL_BODY else await offload(work)


def _malformed(error: CanonicalizationError | InvalidApprovalError) -> Response:
    slug = {"bytes": "too-large", "timeout": "too-slow"}.get(error.detail or "", "malformed")
    return problem(slug, detail=str(error))


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that hands the body over once, as it came, and then what the server says."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


def _patterns(paths: Iterable[str]) -> dict[str, re.Pattern[str]]:
    """Return each path's pattern, which matches as Starlette's routes do; a slash at the end makes no difference."""
    try:
        return {
            path: re.compile(compile_path(path.rstrip("/") or "/")[0].pattern.removesuffix("$") + "/?$")
            for path in _names("paths", paths)
        }
    except (AssertionError, ValueError) as error:
        raise ConfigurationError("'paths' are Starlette path patterns, e.g. '/api/chat'.") from error


def _names(what: str, names: Iterable[str]) -> list[str]:
    given = [] if isinstance(names, str) else list(names)
    if not given or not all(type(name) is str and name for name in given):
        raise ConfigurationError(f"'{what}' must be a list of strings, and not empty.")
    if what == "paths" and not all(name.startswith("/") for name in given):
        raise ConfigurationError("A path starts with '/'.")
    return given
