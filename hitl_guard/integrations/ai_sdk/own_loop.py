"""A loop of your own in a chat: what `Chat` and `chunks_of` need of it. (`AgentLoop` is the built-in agent's.)

A loop of your own implements `Loop`. Its methods yield events, ``{"type": …, "run_id": …, "payload": {…}}``, with the
payloads below; more keys, and other types, do no harm. All ids are strings, all values JSON data. An event that lacks
something ends the run in the chat, and the log says what it lacks.

=======================  ============================================================================================
type                     payload
=======================  ============================================================================================
``start``                ``messageId``: the new message's id. Once, first, in a new run alone.
``step-start``           nothing. Before each call of the model.
``text-delta``           ``id``: the text's; ``text``: what is added to it.
``text-end``             nothing.
``tool-call``            CALL; ``dynamic``: True where no definition is registered. When the model proposes a call.
                         ``clientSide``: True for a tool that the browser runs; then ``finish`` tells it to.
``tool-call-approval``   CALL; ``approvalId``: the request's id. The call waits for a person. What is shown and asked
                         is read from the request itself.
``tool-call-suspended``  CALL; ``suspensionId, suspendPayload, resumeSchema``: the tool itself asks something.
``tool-call-resumed``    CALL; ``kind``: ``approval``, with ``approvalId``; or ``suspension``, with what it was
                         suspended with. Optional; before the end of a call that waited.
``tool-result``          CALL; ``result``. The call ran. ``approval``: ``{"approvalId": …}``, with the request's id,
                         where a rule of the policy allowed it: that is shown (``isAutomatic``). The tool itself finds
                         the id in ``hitl_guard.current_permit().request_id``; where nothing asked, there is none.
``tool-error``           CALL; ``error``: ``{"name": …, "code": …}``, the latter where the guard has one. Of the
                         words of an exception nothing is shown.
``tool-output-denied``   CALL; ``approval``: ``{"reason": …}``, which is shown. A person or the policy said No.
``finish``               ``stepResult``: ``{"reason": "stop"}`` or another finish reason. Once, last. A run that waits
                         just ends without it. ``output``: ``{"toolCalls": [CALL, …]}``, what the browser runs now.
``error``                nothing. The run failed.
``tool-output``          ``output``: an event of a sub-agent. Its ``run_id``, under which its calls are asked for, is
                         ``{outer}.sub.{22 characters}`` (of ``A-Za-z0-9_-``, random). Only calls that wait are shown.
=======================  ============================================================================================

CALL is ``toolCallId, toolName, args``, and ``occurrence``: the call's index among the calls of its run with that id,
which may be left out where it is 0 (providers repeat ids). The rules:

1. Ask the guard for every call, with the run id that you were given, the chat's user and tenant, and the ``call_id``
   and ``occurrence`` of the events. An answer in the chat counts for exactly these.
2. Keep a waiting run before you yield its ``tool-call-approval``: the answer may come at once.
3. Going on, yield what is new: ends of calls, requests that were not told. A call that still waits needs no event.
4. What you raise is logged, and the client is told that the run failed. `AgentError` with ``code="run-busy"`` (another
   request or process is at it) ends the events and nothing else.
5. A run that is being told, from its start on, is not `ready`, and `go_on` refuses it: the user may leave and write
   again while its tools run, and nothing may run twice.

All of it, with a model that answers in the chat format::

    from dataclasses import dataclass, field
    from uuid import uuid4

    from hitl_guard import ApprovalRequired, AsyncGuard, HitlGuardError, ToolCall, canonical
    from hitl_guard.errors import (
        AgentError, ApprovalDeniedError, CanonicalizationError, PolicyDeniedError, RefusedError,
    )
    from hitl_guard.integrations.ai_sdk import request_of

    @dataclass
    class Run:
        id: str
        user: object
        messages: list
        open: list = field(default_factory=list)         # calls of the last turn that have not ended
        asked: dict = field(default_factory=dict)        # place of a call -> id of its request

        def event(self, kind, **payload):
            return {"type": kind, "run_id": self.id, "payload": payload}

    class OwnLoop:
        id = "own-loop"

        def __init__(self, guard, model, tools):
            # tools: [(ToolDefinition("pay", "Pays a bill.", {JSON Schema}), pay), …]
            self.guard, self.model = guard, model
            self.tools = {told.name: (told, function) for told, function in tools}
            self.waiting = {}                            # run id -> Run: in your database, if it is to survive
            self.busy = set()                            # runs that are being told

        async def start(self, turn):
            run = Run(turn.run_id, turn.chat.user, [*turn.messages])
            self.busy.add(run.id)
            try:
                yield run.event("start", messageId=uuid4().hex)
                async for event in self.steps(run):
                    yield event
            finally:
                self.busy.discard(run.id)

        async def go_on(self, chat, run_id):
            if run_id in self.busy or run_id not in self.waiting:
                raise AgentError("Somebody else goes on with this run.", code="run-busy")
            self.busy.add(run_id)
            try:
                async for event in self.steps(self.waiting[run_id]):
                    yield event
            finally:
                self.busy.discard(run_id)

        async def answer(self, chat, run_id, call_id, data):
            raise AgentError("No tool of this loop asks anything.", code="call-not-suspended")
            yield

        async def ready(self, chat):
            read, found = request_of(self.guard, tenant=chat.user.tenant), []
            for run in [*self.waiting.values()]:
                if chat.owns(run.id) and run.id not in self.busy:
                    requests = [await read(id) for id in run.asked.values()]
                    decided = any(request is None or request.state != "pending" for request in requests)
                    if decided or len(requests) < len(run.open):    # or it broke off before it had asked for all
                        found.append(run.id)
            return found

        def described(self):
            # what the model is told of the tools
            told = [one for one, _ in self.tools.values()]
            return [{"type": "function", "function": {
                "name": one.name, "description": one.description, "parameters": one.input_schema,
            }} for one in told]

        async def steps(self, run):
            while True:
                if not run.open:
                    yield run.event("step-start")
                    said = await self.model(run.messages, self.described(), {})
                    before = [call["id"] for one in run.messages for call in one.get("tool_calls") or ()]
                    run.messages.append({"role": "assistant", **said})
                    if said.get("content"):
                        yield run.event("text-delta", id="text", text=said["content"])
                        yield run.event("text-end")
                    for call in said.get("tool_calls") or ():
                        run.open.append(self.call(call, before.count(call["id"])))
                        before.append(call["id"])
                        yield run.event("tool-call", **run.open[-1]["named"])
                    if not run.open:
                        yield run.event("finish", stepResult={"reason": "stop"})
                        return
                    self.waiting[run.id] = run
                for call in [*run.open]:
                    kind, payload, text = await self.tried(run, call)
                    place = call["named"]["toolCallId"], call["named"]["occurrence"]
                    if kind == "tool-call-approval":
                        if run.asked.get(place) == payload["approvalId"]:
                            continue                     # it was told
                        run.asked[place] = payload["approvalId"]
                    else:
                        run.open.remove(call)
                        run.asked.pop(place, None)
                        run.messages.append({"role": "tool", "tool_call_id": place[0], "content": text})
                    yield run.event(kind, **call["named"], **payload)
                if run.open:
                    return                               # it waits
                del self.waiting[run.id]

        def call(self, call, occurrence):
            raw = call["function"]["arguments"]          # a text that the model wrote
            try:
                args = canonical.parse(raw)
            except CanonicalizationError:
                args = {}                                # the guard refuses the text itself
            name = call["function"]["name"]
            named = {"toolCallId": call["id"], "toolName": name, "args": args, "occurrence": occurrence}
            return {"raw": raw, "named": named}

        async def tried(self, run, call):
            # -> type and payload of the call's next event, and what the model is told
            name = call["named"]["toolName"]
            if name not in self.tools:
                return "tool-error", {"error": {"name": "UnknownTool"}}, "There is no such tool."
            definition, function = self.tools[name]
            asked = ToolCall(
                name, call["raw"], user=run.user, tenant=run.user.tenant, run_id=run.id, agent=self.id,
                call_id=call["named"]["toolCallId"], occurrence=call["named"]["occurrence"], definition=definition,
            )
            try:
                result = await AsyncGuard(guard=self.guard).run(asked, function)
            except ApprovalRequired as pause:
                return "tool-call-approval", {"approvalId": pause.request.id}, None
            except (ApprovalDeniedError, PolicyDeniedError) as error:
                return "tool-output-denied", {"approval": {"reason": error.reason}}, error.reason or str(error)
            except (RefusedError, CanonicalizationError) as error:
                return "tool-error", {"error": {"name": type(error).__name__, "code": error.code}}, str(error)
            except HitlGuardError:
                raise                                    # nobody can tell now: the call stays open
            except Exception as error:
                told = {"name": type(error).__name__, "code": "in-doubt"}
                return "tool-error", {"error": told}, f"It failed, nobody knows with what effect: {error!r}"
            return "tool-result", {"result": result}, str(result)

Serve it with ``Chat(OwnLoop(guard, model, tools), authenticate=…)``. A server with an endpoint of its own makes the
response of such events itself; who posts, and what the answers in the post are worth, it must then check
(`hitl_guard.asgi.ApprovalMiddleware`)::

    from hitl_guard.integrations.ai_sdk import UIMessageStream, UIMessageStreamResponse, chunks_of, request_of

    def response_of(guard, events, tenant="default", known=()):
        async def chunks():
            stream = UIMessageStream(known=known)        # known: the parts of the message that goes on
            async for chunk in chunks_of(events, stream, request_of=request_of(guard, tenant=tenant)):
                yield chunk
            for chunk in stream.end():
                yield chunk

        return UIMessageStreamResponse(chunks())
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...agent.events import Event
from ...errors import ConfigurationError, RefusedError
from ...guard import Guard
from ...lifecycle.threads import offload
from ...models import ApprovalRequest
from .events import RequestOf
from .messages import ChatId

__all__ = ["Event", "Loop", "RequestOf", "Turn", "check_loop", "request_of"]

_METHODS = ("start", "go_on", "answer", "ready")


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user said, for a loop that begins a new run.

    Attributes:
        chat: Whose chat it is: its ``user`` is whom the host's login names.
        run_id: The id that the run must have.
        messages: The whole conversation as the client tells it, in the chat format.
        new: What of it was said since the assistant's last message.
        context: The host's data for policies and tools, or None.
    """

    chat: ChatId
    run_id: str
    messages: Sequence[Mapping[str, Any]] = field(repr=False)
    new: Sequence[Mapping[str, Any]] = field(repr=False)
    context: Mapping[str, Any] | None = field(default=None, repr=False)


class Loop(Protocol):
    """A loop that runs in a chat. Its calls must have the run ids that it is given (`ChatId.new_run`)."""

    @property
    def guard(self) -> Guard:
        """The guard that every call of the loop goes through."""

    @property
    def id(self) -> str:
        """The loop's name. Chats of two loops are two, whatever a client calls them."""

    def start(self, turn: Turn) -> AsyncIterator[Event]:
        """Begin a run; yield its events up to its first pause or its end. Nothing happens before they are read."""

    def go_on(self, chat: ChatId, run_id: str) -> AsyncIterator[Event]:
        """Go on with a run that is `ready`; yield its events up to its next pause or its end."""

    def answer(self, chat: ChatId, run_id: str, call_id: str | None, data: Any) -> AsyncIterator[Event]:
        """Answer a call that suspended itself; yield the events.

        Args:
            run_id: As the client says. It is one of this chat's, if there is such a run at all.
            call_id: The call's id, or that of its suspension; None for the only one that waits.
            data: The client's answer, JSON data. Check it against the tool's resume schema; it approves nothing.
        """

    async def ready(self, chat: ChatId) -> Sequence[str]:
        """Return the chat's runs that can go on, the oldest first: one of their requests is decided or over, wherever
        that happened, or the process that went on with them is gone. One that only waits is not among them, nor one
        that is being told.
        """


def check_loop(loop: object) -> None:
    """Refuse what is no `Loop`, before a chat is served with it.

    Raises:
        ConfigurationError: it has no guard, no id, or lacks a method; the message names what is missing.
    """
    if not isinstance(getattr(loop, "guard", None), Guard):
        raise ConfigurationError("Give the chat an Agent, or a Loop that has a Guard.")
    if not isinstance(id_ := getattr(loop, "id", None), str) or not id_:
        raise ConfigurationError("A Loop needs an 'id': a name that is not empty, and the same in every process.")
    missing = [name for name in _METHODS if not callable(getattr(loop, name, None))]
    if missing:
        raise ConfigurationError(f"A Loop needs the methods {', '.join(_METHODS)}; missing: {', '.join(missing)}.")


def request_of(guard: Guard, *, tenant: str = "default") -> RequestOf:
    """Return how `chunks_of` reads the requests of a guard, off the event loop.

    What it returns gives a request by its id, verified, in whatever state; None where it is unknown, foreign, or counts
    no more (its key is gone). It raises `UnavailableError` where nobody can tell now.

    Args:
        tenant: The tenant of the chat's user.
    """
    async def read(request_id: str) -> ApprovalRequest | None:
        try:
            return await offload(lambda: guard.get(request_id, tenant=tenant))
        except RefusedError:
            return None

    return read
