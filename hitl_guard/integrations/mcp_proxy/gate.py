"""One tool call: from the client's frame, through the guard, to the server and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from ... import canonical
from ...errors import (
    ApprovalDeniedError,
    ApprovalRequired,
    AuditUnavailableError,
    CanonicalizationError,
    ConfigurationError,
    NoEffect,
    RefusedError,
    UnavailableError,
)
from ...guard import Guard
from ...lifecycle import running
from ...models import Permit, ToolCall, ToolDefinition
from ...permits import effect_of, known
from ...toolcalls import as_text, edit_notice, refusal_result
from . import frames
from .frames import Frame, Key
from .listing import Listing
from .pausing import META_KEYS, Pausing, is_ours, tool_result

INTERNAL_ERROR = -32603

_LOG = logging.getLogger("hitl_guard.mcp_proxy")

LegKey = tuple[str, bytes, Any]


class Server(Protocol):
    """The way to the server and back to the client, as `relay.Relay` offers it."""

    async def call(self, frame: Frame) -> Frame:
        """Send a request of the client's and return the answer.

        Raises:
            UnavailableError: it will never come.
        """

    async def ask(self, method: str, params: Mapping[str, Any]) -> Frame:
        """Send a request of our own and return the answer. Raises as `call` does."""

    async def reply(self, line: bytes, *, ends: Key | None = None) -> None:
        """Send the client a line. ``ends``: the request that it answers; the client may then use its id again."""


class ToolReportedError(Exception):
    """The server answered a call with an error: a signal inside this package, with the answer."""

    def __init__(self, answer: Frame) -> None:
        super().__init__("The server answered with an error.")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom calls are made, and in which run: what binds a retry to its approval, over restarts too."""

    user: str
    run_id: str
    tenant: str = "default"
    agent: str | None = None


class Gate:
    """Lets a call through to the server once its approval is spent, and records how it ended.

    Args:
        effects: What tools promise about their effect, by name; others are opaque. What the server itself says of its
            tools (annotations) counts for nothing.
    """

    def __init__(
        self, guard: Guard, caller: Caller, listing: Listing, pausing: Pausing, effects: Mapping[str, str],
    ) -> None:
        self._guard = guard
        self._caller = caller
        self._listing = listing
        self._pausing = pausing
        self._effects = {name: effect_of(effect, None) for name, effect in effects.items()}
        self._legs: dict[LegKey, list[asyncio.Future[Frame]]] = {}  # equal calls, the oldest first

    async def handle(self, frame: Frame, server: Server) -> None:
        """Answer one tool call. Cancelled before it was sent to the server, it never is."""
        key = _leg_key(frame)
        for leg in self._legs.get(key, ()) if key is not None else ():
            if not leg.done():
                leg.set_result(frame)  # it goes on with a call that runs already
                return
        started = _Started(frame, server)
        line = await self._answer(started)
        await server.reply(line, ends=started.frame.key)

    def hang_up(self) -> None:
        """The client is gone: calls that wait for its word end, in doubt."""
        for leg in [leg for legs in self._legs.values() for leg in legs]:
            leg.cancel()

    async def _answer(self, started: _Started) -> bytes:
        """Return the line for the client, whatever happens to the call."""
        try:
            return await self._decided(started)
        except ApprovalRequired as pause:
            # The next call of this tool may spend the approval: its definition is looked up again before.
            self._listing.forget(started.tool)
            return self._pausing.told(started.frame, pause.request)
        except ToolReportedError as reported:
            return started.noticed(reported.answer)
        except (RefusedError, CanonicalizationError, NoEffect) as error:
            return _refused(started.frame, error)
        except AuditUnavailableError as error:
            _LOG.error("%s [%s]", error, error.code)
            if isinstance(error.result, Frame):  # the tool ran; its result is not lost because its receipt is
                return started.noticed(error.result)
            return frames.error(started.frame.id, frames.UNAVAILABLE, f"{error} [{error.code}]")
        except (UnavailableError, ConfigurationError) as error:
            _LOG.error("%s [%s]", error, error.code)
            return frames.error(started.frame.id, frames.UNAVAILABLE, f"{error} [{error.code}]")
        except Exception as error:  # noqa: BLE001  whatever it is, the client is answered and the proxy goes on
            _LOG.error("A call ended by %s.", type(error).__name__)
            return frames.error(started.frame.id, INTERNAL_ERROR, "The proxy failed: look at its log and the inbox.")

    async def _decided(self, started: _Started) -> bytes:
        frame = started.frame
        meta = {name: frame.meta[name] for name in META_KEYS if name in frame.meta}
        definition = await self._listing.definition(started.tool, started.server.ask, meta)
        if definition is None:
            return frames.error(frame.id, frames.INVALID_PARAMS, "Unknown tool: the server does not list it.")
        check_spelling(definition, started.arguments)
        call = ToolCall(
            started.tool, started.raw, run_id=self._caller.run_id, call_id=None, user=self._caller.user,
            tenant=self._caller.tenant, agent=self._caller.agent, definition=definition,
        )

        async def start(permit: Permit) -> Frame:
            return await self._run(started, permit)

        permit = await running.permit_async(lambda: self._permit(call, definition), self._guard.settle)
        effect = effect_of(self._effects.get(started.tool), known(self._guard, started.tool))
        return started.noticed(await running.run_async(permit, start, effect, self._guard.settle))

    def _permit(self, call: ToolCall, definition: ToolDefinition) -> Permit:
        with self._guard._refusals(call):
            self._listing.check_known(definition)
        return self._guard.authorize(call)

    async def _run(self, started: _Started, permit: Permit) -> Frame:
        """Send a call and return its result.

        A server of 2026-07-28 may want something of the client first. The client then makes the call again with the
        server's own state: that goes on with this run of it, and spends nothing.

        Raises:
            ToolReportedError: the server answered with an error, or with something that is no end.
        """
        started.permit = permit
        while True:
            answer = await started.server.call(started.outgoing())
            state = _open_state(answer)
            if permit.request_id is None or state is None:
                break
            leg: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
            key = (started.tool, started.canonical, state[0])
            self._legs.setdefault(key, []).append(leg)
            try:
                await started.server.reply(answer.line, ends=started.frame.key)
                started.frame = await leg
            finally:
                self._legs[key].remove(leg)
                if not self._legs[key]:
                    del self._legs[key]
        if not _succeeded(answer) or "task" in started.frame.params:  # a task's end comes later, past the proxy
            raise ToolReportedError(answer)
        return answer


class _Started:
    """One call on its way. ``frame`` is the client's latest one for it."""

    def __init__(self, frame: Frame, server: Server) -> None:
        self.frame = frame
        self.server = server
        self.permit: Permit | None = None
        self.tool: str = frame.params["name"]
        self.arguments: Any = frame.params.get("arguments", {})
        self.raw = _raw_arguments(frame)

    @property
    def canonical(self) -> bytes:
        """The bytes of what the client asked for."""
        return _canonical(self.arguments)

    def outgoing(self) -> Frame:
        """Return what the server gets: the client's own line, but for a person's edits and the answer to our pause.

        Raises:
            NoEffect: the edited frame cannot be sent.
        """
        new: dict[str, str | None] = {}
        if is_ours(self.frame):
            new |= {"inputResponses": None, "requestState": None}
        if self.permit is not None and self.permit.edited:
            new["arguments"] = self.permit.canonical.decode()
        if not new:
            return self.frame
        made = frames.read(frames.changed(self.frame.line, "params", new), frames.CLIENT_LIMITS)
        if not isinstance(made, Frame):
            raise NoEffect("The edited call is too large to send.")
        return made

    def noticed(self, answer: Frame) -> bytes:
        """Return the server's line; where a person changed the call, with the notice that says so."""
        if self.permit is None or not self.permit.edited or type(answer.data.get("result")) is not dict:
            return answer.line
        notice = orjson.dumps({"text": edit_notice(self.permit).strip(), "type": "text"}).decode()
        text = answer.line.decode()
        place = frames.span(text, "result", "content")
        old = [text[at:end] for at, end in frames.items(text, place[0])] if place and text[place[0]] == "[" else []
        return frames.changed(answer.line, "result", {"content": "[" + ",".join([notice, *old]) + "]"})


def check_spelling(definition: ToolDefinition, arguments: Any) -> None:
    """Refuse an argument whose name is another one's, or a declared one's, in other cases; inside arguments too.

    A policy reads ``amount``; a server whose parser does not mind case would take ``Amount`` for it.

    Raises:
        CanonicalizationError: there is one.
    """
    left: list[tuple[Any, Any]] = [(arguments, definition.input_schema)]
    while left:
        value, schema = left.pop()
        declared = schema if isinstance(schema, dict) else {}
        if isinstance(value, list):
            left += [(item, declared.get("items")) for item in value]
        elif isinstance(value, dict):
            properties = declared.get("properties")
            named = properties if isinstance(properties, dict) else {}
            if len({name.casefold() for name in value}) < len(value) or frames.misspelt(value, frozenset(named)):
                raise CanonicalizationError("Two arguments' names differ in case alone.", detail="key")
            left += [(item, named.get(name)) for name, item in value.items()]


def _raw_arguments(frame: Frame) -> str:
    """Return the arguments as they stand in the client's line."""
    text = frame.line.decode()
    place = frames.span(text, "params", "arguments")
    return "{}" if place is None else text[place[0] : place[1]]


def _canonical(arguments: Any) -> bytes:
    return canonical.canonicalize(arguments, limits=frames.CLIENT_LIMITS)


def _leg_key(frame: Frame) -> LegKey | None:
    """Return what a call goes on with, where it says that it does."""
    if is_ours(frame) or not {"inputResponses", "requestState"} & frame.params.keys():
        return None
    return frame.params["name"], _canonical(frame.params.get("arguments", {})), _hashable(frame.params)


def _hashable(data: Mapping[str, Any]) -> str | None:
    state = data.get("requestState")
    return state if isinstance(state, str) else None


def _open_state(answer: Frame) -> tuple[str | None] | None:
    """Return the state with which a call goes on, where the server wants something first."""
    return (_hashable(answer.result),) if answer.result.get("resultType") == "input_required" else None


def _succeeded(answer: Frame) -> bool:
    result = answer.data.get("result")
    ended = isinstance(result, dict) and result.get("resultType", "complete") == "complete"
    return ended and answer.result.get("isError", False) is False


def _refused(frame: Frame, error: Exception) -> bytes:
    """Return what a client is told of a call that was refused: a person's words, or a coarse reason."""
    if isinstance(error, NoEffect):
        return frames.answer(frame.id, tool_result(frame, str(error), is_error=True))
    if not isinstance(error, (RefusedError, CanonicalizationError)):
        raise error
    text = as_text(refusal_result(error))
    if isinstance(error, CanonicalizationError):
        text = f"{text} {error}"
    response = error.response if isinstance(error, ApprovalDeniedError) else None
    result = tool_result(frame, text, is_error=response is None)
    return frames.answer(frame.id, result | ({"structuredContent": response} if isinstance(response, dict) else {}))
