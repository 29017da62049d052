"""`Chat`: the endpoint of an unmodified ``useChat`` front end; the server's records are the authority, not its posts.

A post is read strictly, and every approval in it is compared with the store before anything happens. Answers become
decisions of whoever is logged in. Then the run goes on, or a new one begins, and its events stream back.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
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
from ...asgi.body import is_json, read_body
from ...asgi.identity import Authenticate, Doorkeeper, Viewer
from ...asgi.logs import failed
from ...asgi.problems import problem
from ...errors import (
    AgentError,
    ConfigurationError,
    HitlGuardError,
    UnavailableError,
)
from ...lifecycle.threads import offload
from ...models import ApprovalRequest, Principal, Scope
from .answers import CHANNEL, Told, taken
from .chunks import UIMessageStream
from .conversation import asked_again, ran_there, results, stored, suspended
from .door import check_site, refusal_of
from .event_forms import with_withheld
from .events import asks, call_id_of, chunks_of, parts_told, tells
from .halves import read_json
from .loop import AgentLoop
from .messages import ChatId, Post, chat_messages, read_post, told_results
from .own_loop import Loop, Turn, check_loop, request_of
from .parts import rebuilt
from .response import UIMessageStreamResponse
from .streams import Streams
from .texts import CLOSED, KEY_GONE

MAX_BODY = 4_194_304
"""Bytes of a post, unless other things are said."""

MAX_NODES = 200_000
"""JSON values in one post."""


@dataclass(slots=True)
class _Plan:
    """What a post comes to: answers that were taken, runs that go on, perhaps a new run.

    Attributes:
        new: What a new run hears that the server's own conversation lacks.
        results: What is stored of calls that ran, by their requests' ids.
    """

    chat: ChatId
    post: Post
    context: Mapping[str, Any] | None
    told: list[Told] = field(default_factory=list)
    goes_on: list[str] = field(default_factory=list)
    new: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
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

    What came of a decision behind the user's back (the inbox decided, or an answer came with a new message) is shown
    under the user's next message, before its answer: calls with their ends, what the model said, what is asked next.
    ``sendMessage()`` without a text asks for it at once. What ran elsewhere is told with its result where an agent with
    ``memory`` has it. An answer is made anew (``regenerate``) beside the old one in such a conversation: nothing that
    is stored is taken back.

    Args:
        loop: An agent, or a `Loop` of your own.
        authenticate: From the request to a `Principal` (or `hitl_guard.asgi.Identity`), or None for nobody. Its id is
            the user of the runs, and who decides in the chat.
        context_of: From the request and its parsed body to the context of a new run (JSON data), or None; sync or
            async. The body is the client's: policies believe the context, so take what matters from your login.
        max_body: Bytes of a post.
        allow_cross_site: Whether pages of other sites may post, which the host's CORS then names. Without it a post
            that the browser marks as one of another site (``Sec-Fetch-Site``) is refused, whatever its cookies say.
        streams: Where running streams are kept for clients that reconnect.

    Raises:
        ConfigurationError: something is missing or unusable.
    """

    def __init__(
        self, loop: Loop | Agent, *, authenticate: Authenticate,
        context_of: Callable[[Request, Mapping[str, Any]], Any] | None = None,
        max_body: int = MAX_BODY, allow_cross_site: bool = False, streams: Streams | None = None,
    ) -> None:
        if not callable(authenticate):
            raise ConfigurationError(
                "The chat needs to know who posts: give 'authenticate', a function from the request to a Principal, or "
                "None for nobody."
            )
        if type(max_body) is not int or max_body < 1:
            raise ConfigurationError("'max_body' is a number of bytes.")
        self.loop: Loop = AgentLoop(loop) if isinstance(loop, Agent) else loop
        check_loop(self.loop)
        self.streams = Streams() if streams is None else streams
        self._guard = self.loop.guard
        self._guard._desk.check_names()
        self._door = Doorkeeper(self._guard, authenticate)
        self._context_of = context_of
        self._max_body = max_body
        self._allow_cross_site = allow_cross_site
        self._path = "/api/chat"
        self._limits = canonical.Limits(max_bytes=max_body, max_depth=200, max_nodes=MAX_NODES)

    def routes(self, path: str = "/api/chat") -> list[Route]:
        """Return the two routes, for a Starlette or FastAPI app.

        Raises:
            ConfigurationError: the path does not begin with a slash, or ends with one.
        """
        if type(path) is not str or not path.startswith("/") or path.endswith("/"):
            raise ConfigurationError("The path of a chat begins with a slash and does not end with one: '/api/chat'.")
        self._path = path
        return [
            Route(path, self._post, methods=["POST"]),
            Route(f"{path}/{{chat_id}}/stream", self._resume, methods=["GET"]),
        ]

    async def close(self) -> None:
        """End the running streams. A host calls it at its own shutdown."""
        await self.streams.close()

    # -- serving -------------------------------------------------------------------------------------------------

    async def _post(self, request: Request) -> Response:
        viewer: Viewer | None = None
        try:
            viewer = await self._door.viewer(request)
            if viewer is None:
                return problem("unauthenticated")
            await self._check_site(request, viewer.principal)
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
            return refusal_of(error, f"POST {self._path}", viewer)
        return UIMessageStreamResponse(chunks)

    async def _check_site(self, request: Request, who: Principal) -> None:
        """See `check_site`; what it refuses is audited."""
        if self._allow_cross_site:
            return

        def check() -> None:
            with self._guard._desk.refusals("call:refused", tenant=who.tenant, user=who.id, channel=CHANNEL):
                check_site(request)

        await offload(check)

    async def _read(self, body: bytes, viewer: Viewer) -> tuple[Any, Post]:
        """Return a body as JSON, and read. A malformed answer is audited like any other refusal."""
        value = await offload(lambda: read_json(body, self._limits))

        def read() -> Post:
            who = viewer.principal
            with self._guard._desk.refusals("call:refused", tenant=who.tenant, user=who.id, channel=CHANNEL):
                return read_post(value)

        return value, await offload(read)

    async def _resume(self, request: Request) -> Response:
        viewer: Viewer | None = None
        try:
            viewer = await self._door.viewer(request)
            if viewer is None:
                return problem("unauthenticated")
            chat = ChatId(request.path_params["chat_id"], viewer.principal, self.loop.id)
            chunks = None if request.method == "HEAD" else self.streams.again(chat)
        except HitlGuardError as error:
            return refusal_of(error, f"GET {self._path}/{{chat_id}}/stream", viewer)
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
        shown = post.shown
        plan.told = [one for one in plan.told if (one.call_id, one.approval_id) in shown]
        ready = [*await self.loop.ready(chat)]
        # A run that waits for something else, too, tells what has ended in it meanwhile.
        over = [one.run_id for one in plan.told if one.run_id is not None and not one.waits]
        ready += await suspended(self.loop, chat, [run for run in over if run not in ready])
        plan.goes_on = [run for run in ready if post.resume is None or run != post.resume[0]]
        plan.begins = post.message_id is None or not (plan.told or plan.goes_on or post.resume)
        continues = plan.begins and post.message_id is not None
        kept: list[dict[str, Any]] = []
        if continues or post.regenerates or any(one.is_done for one in plan.told):
            kept = await stored(self.loop, chat)
        plan.results = results(kept)
        if post.regenerates:
            plan.new = await offload(lambda: asked_again(self.loop, post.new, kept))
        else:
            plan.new = post.new
        if continues and not plan.new:
            plan.new = await offload(lambda: ran_there(told_results(post.known), kept))
        return plan

    async def _chunks(self, plan: _Plan) -> AsyncIterator[dict[str, Any]]:
        post = plan.post
        stream = UIMessageStream(known=post.known)
        stream.fails_last = True  # one run that cannot go on must not silence the others
        resumed = [] if post.resume is None else [(post.resume[0], self.loop.answer(plan.chat, *post.resume))]
        earlier = [*resumed, *((run_id, self.loop.go_on(plan.chat, run_id)) for run_id in plan.goes_on)]
        before: list[Event] = []
        after: list[Event] = []
        if post.message_id is None:
            # Above a new message of the user nothing can be told any more: what came of it is told below.
            held, ended = await offload(lambda: (post.held, post.ended))
            for _, events in earlier:
                drained = await _drained(events)
                before += [event for event in drained if tells(event, ended)]
                after += [event for event in drained if asks(event, held)]
        else:
            await self._told_apart(stream, plan)
            for chunk in stream.start(post.message_id):
                yield chunk
            broken: list[str] = []
            for run_id, events in earlier:
                before_it = stream.failures
                async with aclosing(self._told(stream, events, plan)) as told:
                    async for chunk in told:
                        yield chunk
                broken += [run_id] if stream.failures > before_it else []
            for chunk in self._left(stream, plan, broken):
                yield chunk
        if plan.begins:
            said = await offload(lambda: _said(post, before))
            turn = Turn(plan.chat, plan.chat.new_run(), said, plan.new, plan.context)
            async with aclosing(self._told(stream, self.loop.start(turn), plan, before, after)) as told:
                async for chunk in told:
                    yield chunk
        for chunk in stream.end():
            yield chunk

    async def _told_apart(self, stream: UIMessageStream, plan: _Plan) -> None:
        """Note of which run each waiting part is: another run of the chat may have a call of the same id."""
        if not plan.goes_on and plan.post.resume is None:
            return
        read = request_of(self._guard, tenant=plan.chat.user.tenant)
        for part, approval_id in stream.waiting().items():
            request = await read(approval_id)
            if request is not None and plan.chat.owns(request.run_id):
                stream.takes(part, request.run_id)

    async def _told(
        self, stream: UIMessageStream, events: AsyncIterator[Event], plan: _Plan, before: Sequence[Event] = (),
        after: Sequence[Event] = (),
    ) -> AsyncGenerator[dict[str, Any], None]:
        read = request_of(self._guard, tenant=plan.chat.user.tenant)
        async with aclosing(chunks_of(
            events, stream, request_of=read, before=before, after=after, differs=partial(_differs, plan.chat)
        )) as chunks:
            async for chunk in chunks:
                yield chunk

    @staticmethod
    def _left(stream: UIMessageStream, plan: _Plan, broken: Sequence[str]) -> list[dict[str, Any]]:
        """Return what moves every answered part on that its run has not moved: no answer is met with silence.

        Args:
            broken: Runs that failed here. Of their calls the error is told: they may go on later.
        """
        chunks: list[dict[str, Any]] = []
        for one in plan.told:
            if stream.moved(one.call_id) or any(f"{one.run_id}.".startswith(f"{run}.") for run in broken):
                continue
            if one.request is None:
                chunks += stream.void(one.call_id, one.note or KEY_GONE)
            elif one.waits:
                chunks += stream.approval(one.request, call_id=one.call_id, note=one.note)
            else:
                chunks += stream.decision(one.request, call_id=one.call_id)
                if one.request.state == "denied":
                    chunks += stream.denied(one.call_id)
                elif one.is_done and one.request.id in plan.results:
                    chunks += stream.output(one.call_id, plan.results[one.request.id])
                else:
                    chunks += stream.output_error(one.call_id, CLOSED.get(one.request.state, CLOSED["executing"]))
        return chunks


def _differs(chat: ChatId, request: ApprovalRequest, call_id: str) -> str | None:
    """Return what of a request is not this chat's, so that an answer to it would be refused; None for nothing."""
    scope = Scope(request.tenant, request.user, request.run_id, request.call_id, request.occurrence)
    if (scope.tenant, scope.user) != (chat.user.tenant, chat.user.id):
        return "user or tenant"
    if not chat.owns(scope.run):
        return "run id"
    return None if call_id_of(scope, call_id) == call_id else "call id or occurrence"


def _said(post: Post, before: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the whole conversation in the chat format, with what came of earlier runs ahead of the new message."""
    said, new = [*chat_messages(post.messages)], len(post.new)
    came = chat_messages([{"parts": parts_told(before), "role": "assistant"}])
    return [*said[: len(said) - new], *came, *said[len(said) - new :]]


async def _drained(events: AsyncIterator[Event]) -> list[Event]:
    """Carry out what was decided above a new message; return what is to be told. A failure is not that message's."""
    found: list[Event] = []
    try:
        async with aclosing(with_withheld(events)) as source:
            async for event in source:
                if tells(event) or asks(event):
                    found.append(event)
    except Exception as error:  # noqa: BLE001  a model or a tool may raise anything
        failed("A run of a chat did not go on", error)
    return found
