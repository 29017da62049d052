"""`Chat`: the endpoint of an unmodified ``useChat`` front end; the server's records are the authority, not its posts.

A post is read strictly, and every approval in it is compared with the store before anything happens. Answers become
decisions of whoever is logged in. Then the run goes on, or a new one begins, and its events stream back.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ... import canonical
from ...agent import Agent
from ...agent.events import Event
from ...asgi.body import is_json, read_body, strict_json
from ...asgi.identity import Authenticate, Doorkeeper, Viewer
from ...asgi.logs import failed
from ...asgi.problems import problem
from ...errors import (
    AgentError,
    CanonicalizationError,
    ConfigurationError,
    DecisionError,
    HitlGuardError,
    InvalidApprovalError,
    LimitError,
    RefusedError,
    UnavailableError,
)
from ...guard import Guard
from ...lifecycle.threads import offload
from ...models import ApprovalRequest
from .answers import CHANNEL, Told, taken
from .chunks import UIMessageStream
from .events import call_id_of, chunks_of, with_withheld
from .loop import AgentLoop, Loop, Turn
from .messages import ChatId, Post, chat_messages, read_post
from .parts import rebuilt
from .response import UIMessageStreamResponse
from .streams import Streams

MAX_BODY = 4_194_304
"""Bytes of a post, unless other things are said."""

MAX_NODES = 200_000
"""JSON values in one post."""

CLOSED = {
    "approved": "The approval is on record, the call has not run yet.",
    "denied": "The call was denied.",
    "executing": "The call is running already, or was started and has not ended.",
    "expired": "The approval expired, the call did not run. Ask again.",
    "failed": "The approval was used already: the call ran and failed. It does not run again.",
    "in_doubt": "The call was started, and nobody knows whether it had an effect. It does not run again.",
    "revoked": "The approval was withdrawn, the call did not run.",
    "succeeded": "The approval was used already: the call ran. It does not run again.",
    "superseded": "Another request took this one's place. Look at the newest one.",
}
"""What a person is told who answers a call that is over, by the state of its request."""

_GONE = "This approval counts no more: its key is gone. The call did not run; ask again."


@dataclass(slots=True)
class _Plan:
    """What a post comes to: answers that were taken, runs that go on, perhaps a new run."""

    chat: ChatId
    post: Post
    context: Mapping[str, Any] | None
    told: list[Told] = field(default_factory=list)
    goes_on: list[str] = field(default_factory=list)
    begins: bool = False


class Chat:
    """Serves a loop to ``useChat``: ``POST path``, and ``GET path/{chat id}/stream`` for a client that reconnects.

    ::

        chat = Chat(agent, authenticate=principal_of)
        app = Starlette(routes=chat.routes("/api/chat"), lifespan=…)   # at shutdown: await chat.close()

    With FastAPI: ``app.routes.extend(chat.routes())``. A server that waits for open answers before it ends the app
    (uvicorn) needs a limit for that (``timeout_graceful_shutdown``).

    By default nobody decides what was asked for them, so the chat shows who can, and the inbox decides. A policy rule
    with ``self_approval: true`` and ``channels: [chat]`` lets the chat's own user confirm.

    Args:
        loop: An agent, or a `Loop` of your own.
        authenticate: From the request to a `Principal` (or `hitl_guard.asgi.Identity`), or None for nobody. Its id is
            the user of the runs, and who decides in the chat.
        context_of: From the request and its parsed body to the context of a new run (JSON data), or None; sync or
            async. The body is the client's: policies believe the context, so take what matters from your login.
        max_body: Bytes of a post.
        streams: Where running streams are kept for clients that reconnect.

    Raises:
        ConfigurationError: something is missing or unusable.
    """

    def __init__(
        self, loop: Loop | Agent, *, authenticate: Authenticate,
        context_of: Callable[[Request, Mapping[str, Any]], Any] | None = None,
        max_body: int = MAX_BODY, streams: Streams | None = None,
    ) -> None:
        if type(max_body) is not int or max_body < 1:
            raise ConfigurationError("'max_body' is a number of bytes.")
        self.loop: Loop = AgentLoop(loop) if isinstance(loop, Agent) else loop
        if not isinstance(getattr(self.loop, "guard", None), Guard):
            raise ConfigurationError("Give the chat an Agent, or a Loop that has a Guard.")
        self.streams = Streams() if streams is None else streams
        self._guard = self.loop.guard
        self._guard._desk.check_names()
        self._door = Doorkeeper(self._guard, authenticate)
        self._context_of = context_of
        self._max_body = max_body
        self._limits = canonical.Limits(max_bytes=max_body, max_depth=200, max_nodes=MAX_NODES)

    def routes(self, path: str = "/api/chat") -> list[Route]:
        """Return the two routes, for a Starlette or FastAPI app."""
        return [
            Route(path, self._post, methods=["POST"]),
            Route(f"{path}/{{chat_id}}/stream", self._resume, methods=["GET"]),
        ]

    async def close(self) -> None:
        """End the running streams. A host calls it at its own shutdown."""
        await self.streams.close()

    # -- serving -------------------------------------------------------------------------------------------------

    async def _post(self, request: Request) -> Response:
        try:
            viewer = await self._door.viewer(request)
            if viewer is None:
                return problem("unauthenticated")
            body = await read_body(request.receive, limit=self._max_body, headers=request.headers.raw)
            if not is_json(request.headers.raw):
                return problem("unsupported-media-type")
            value, post = await self._read(body, viewer)
            context = await self._context(request, value)
            chat = ChatId(post.chat, viewer.principal, self.loop.id)
            beside = post.message_id is None  # a run that a client left goes on by itself when a new message comes
            self.streams.check_free(chat, beside=beside)
            plan = await self._planned(chat, post, context)
            before = await offload(lambda: rebuilt(post.known))
            chunks = self.streams.begin(chat, partial(self._chunks, plan), before=before, beside=beside)
        except ClientDisconnect:
            return Response(status_code=400)
        except HitlGuardError as error:
            return _refused(error)
        return UIMessageStreamResponse(chunks)

    async def _read(self, body: bytes, viewer: Viewer) -> tuple[Any, Post]:
        """Return a body as JSON, and read. A malformed answer is audited like any other refusal."""
        value = await offload(lambda: strict_json(body, self._limits))

        def read() -> Post:
            who = viewer.principal
            with self._guard._desk.refusals("call:refused", tenant=who.tenant, user=who.id, channel=CHANNEL):
                return read_post(value)

        return value, await offload(read)

    async def _resume(self, request: Request) -> Response:
        try:
            viewer = await self._door.viewer(request)
        except HitlGuardError as error:
            return _refused(error)
        if viewer is None:
            return problem("unauthenticated")
        chat = ChatId(request.path_params["chat_id"], viewer.principal, self.loop.id)
        try:
            chunks = None if request.method == "HEAD" else self.streams.again(chat)
        except HitlGuardError as error:
            return _refused(error)
        if chunks is None:
            return Response(status_code=204)
        return UIMessageStreamResponse(chunks)

    async def _context(self, request: Request, body: Any) -> Mapping[str, Any] | None:
        if self._context_of is None:
            return None
        try:
            given = self._context_of(request, body)
            found: Mapping[str, Any] | None = await given if inspect.isawaitable(given) else given
        except HitlGuardError:
            raise
        except Exception as error:
            failed("'context_of' of a chat failed", error)
            raise UnavailableError("The chat's context cannot be told; try again.", detail="context") from error
        return found

    # -- what a post comes to ------------------------------------------------------------------------------------

    async def _planned(self, chat: ChatId, post: Post, context: Mapping[str, Any] | None) -> _Plan:
        """Verify the post and hand its answers to the guard; everything after this only carries out."""
        plan = _Plan(chat, post, context)
        if post.resume is not None and not chat.owns(post.resume[0]):
            raise AgentError("There is no such run in this chat.")
        if post.claims:
            plan.told = await offload(
                lambda: taken(self._guard, chat, post, owns=chat.owns, call_id_of=call_id_of), must_end=True
            )
        # What is answered in an earlier message belongs to a part that the client moves no more.
        known = {part.get("toolCallId") for part in post.known}
        plan.told = [one for one in plan.told if one.call_id in known]
        plan.goes_on = [run for run in await self.loop.ready(chat) if post.resume is None or run != post.resume[0]]
        plan.begins = post.message_id is None or not (plan.told or plan.goes_on or post.resume)
        return plan

    async def _chunks(self, plan: _Plan) -> AsyncIterator[dict[str, Any]]:
        post = plan.post
        stream = UIMessageStream(known=post.known)
        resumed = [] if post.resume is None else [self.loop.answer(plan.chat, *post.resume)]
        earlier = [*resumed, *(self.loop.go_on(plan.chat, run_id) for run_id in plan.goes_on)]
        if post.message_id is None:
            # Above a new message of the user: the client cannot be told of it any more.
            for events in earlier:
                await _drained(events)
        else:
            for chunk in stream.start(post.message_id):
                yield chunk
            for events in earlier:
                async with aclosing(self._told(stream, events, plan)) as told:
                    async for chunk in told:
                        yield chunk
            for chunk in self._left(stream, plan.told):
                yield chunk
        if plan.begins:
            said = await offload(lambda: [*chat_messages(post.messages)])
            turn = Turn(plan.chat, plan.chat.new_run(), said, post.new, plan.context)
            async with aclosing(self._told(stream, self.loop.start(turn), plan)) as told:
                async for chunk in told:
                    yield chunk
        for chunk in stream.end():
            yield chunk

    async def _told(
        self, stream: UIMessageStream, events: AsyncIterator[Event], plan: _Plan
    ) -> AsyncGenerator[dict[str, Any], None]:
        request_of = partial(self._request, plan.chat.user.tenant)
        async with aclosing(chunks_of(events, stream, request_of=request_of)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _request(self, tenant: str, request_id: str) -> ApprovalRequest | None:
        """Return a request for the stream, or None where it cannot be read."""
        try:
            return await offload(lambda: self._guard.get(request_id, tenant=tenant))
        except RefusedError:
            return None

    @staticmethod
    def _left(stream: UIMessageStream, told: list[Told]) -> list[dict[str, Any]]:
        """Return what moves every answered part on that its run has not moved: no answer is met with silence."""
        chunks: list[dict[str, Any]] = []
        for one in told:
            if stream.moved(one.call_id):
                continue
            if one.request is None:
                chunks += stream.output_error(one.call_id, _GONE)
            elif one.waits:
                chunks += stream.approval(one.request, call_id=one.call_id, note=one.note)
            else:
                chunks += stream.decision(one.request, call_id=one.call_id)
                chunks += stream.denied(one.call_id) if one.request.state == "denied" else stream.output_error(
                    one.call_id, CLOSED.get(one.request.state, CLOSED["executing"])
                )
        return chunks


async def _drained(events: AsyncIterator[Event]) -> None:
    """Carry out what was decided where the client cannot be told any more. A failure is no new message's fault."""
    try:
        async with aclosing(with_withheld(events)) as source:
            async for _ in source:
                pass
    except Exception as error:  # noqa: BLE001  a model or a tool may raise anything
        failed("A run of a chat did not go on", error)


def _refused(error: HitlGuardError) -> Response:
    """Return the problem of a post that was refused as a whole. What exactly was wrong is in the audit log."""
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
    if isinstance(error, (RefusedError, DecisionError)):
        return problem("refused")
    failed("A chat could not be served", error)
    return problem("internal")
