"""What the adapters for MCP servers (`mcp` and `fastmcp`) have in common: one ``tools/call``, from its request to its
result.

A client of protocol 2026-07-28 that can open links pauses natively: the call is answered with an `InputRequiredResult`
that asks it to show the request's page in the inbox, and whose ``requestState`` names the request. The client makes the
call again with that state, which then spends this very request, once, or nothing. What it answers to the question
approves nothing. Every other client is told, in a tool result, that the call waits; the same call later, in the same
run, spends the approval.

A tool that runs under an approval hears nothing of its client: no answers come with the call, and it can ask for none.
What a client says there would be a part of the call that nobody has approved.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_REQUEST, ElicitRequest, ElicitRequestURLParams, InputRequiredResult, TextContent
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ..aio import AsyncGuard
from ..errors import (
    ApprovalDeniedError,
    ApprovalRequired,
    AuditUnavailableError,
    CanonicalizationError,
    ConfigurationError,
    InvalidApprovalError,
    NoEffect,
    RefusedError,
    UnavailableError,
)
from ..guard import Guard
from ..lifecycle import running
from ..lifecycle.record import to_request
from ..lifecycle.refusals import check_fingerprint, check_scope
from ..models import ApprovalRequest, Permit, ToolCall, ToolDefinition
from ..protocols.verify import _edited
from ..toolcalls import as_text, edit_notice, pending_result
from .bridge import Bridge, Facts, InnerCallError, Refusal, inner_calls
from .mcp_proxy.frames import UNAVAILABLE
from .mcp_proxy.gate import INTERNAL_ERROR
from .mcp_proxy.pausing import _MESSAGE, STATE, Pausing

IDENTIFIER = "io.github.hitl-guard/approvals"
"""The extension's name, as servers advertise it."""

MAX_SHOWN = 1_000
"""Requests whose link was shown lately; of older ones it may be shown again."""

_LOG = logging.getLogger("hitl_guard.mcp")
_NO_INPUT = "The tool asked for more input in the middle of an approved call: it was ended."


class Shapes(Protocol):
    """How a framework writes the results of tool calls."""

    def told(self, text: str, *, is_error: bool, structured: Mapping[str, Any] | None) -> Any:
        """Return a result with one text."""

    def asked(self, question: InputRequiredResult) -> Any:
        """Return a result that wants something of the client first."""

    def asks(self, result: Any) -> bool:
        """Whether a tool wants something of the client first."""

    def succeeded(self, result: Any) -> bool:
        """Whether this is a tool's whole result, and no error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One request of a client for a tool call.

    Attributes:
        framework: What ``scope`` gets.
        session: The SDK's ``ServerSession``, or None where no client called.
        state: The request's ``requestState``. The server has opened it; it is a hint all the same.
    """

    framework: Any
    session: Any
    tool: str
    arguments: Mapping[str, Any]
    state: str | None

    @property
    def run_id(self) -> str | None:
        """The transport's session, where there is one that outlives a request: no client of 2026-07-28 has any."""
        session_id = getattr(getattr(self.session, "_connection", None), "session_id", None)
        return session_id if isinstance(session_id, str) else None

    @property
    def takes_links(self) -> bool:
        """Whether the client speaks a protocol with pauses and can show its user a link."""
        if self.session is None or self.session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return False
        capabilities = self.session.client_capabilities
        elicitation = None if capabilities is None else capabilities.elicitation
        return elicitation is not None and elicitation.url is not None

    @property
    def ours(self) -> bool:
        """Whether the client goes on after a pause of ours."""
        return self.state is not None and self.state.startswith(STATE)


class Gate:
    """Lets a call through once its approval is spent, and records how it ended.

    Args:
        inbox: Where the inbox is (``https://approvals.example``), or None: no links, and no native pause.
        scope, pause, effects: See `hitl_guard.integrations.bridge.Bridge`.

    Raises:
        ConfigurationError: one of these is none.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, shapes: Shapes, *, scope: Callable[[Any], Facts] | None, inbox: str | None,
        pause: str, effects: Mapping[str, str] | None,
    ) -> None:
        if inbox is not None and not (isinstance(inbox, str) and inbox.startswith(("https://", "http://"))):
            raise ConfigurationError("'inbox' is the inbox's address (https://…), or None.")
        self.bridge = Bridge(guard, scope=scope, pause=pause, effects=effects)
        self._shapes = shapes
        self._pausing = Pausing(inbox)
        self._shown: dict[str, None] = {}

    async def handle(
        self, leg: Leg, definition: Callable[[], Awaitable[ToolDefinition | None]],
        start: Start,
    ) -> Any:
        """Return a call's result, or what is told instead of one.

        Args:
            definition: Looks the tool up; None: the server has no such tool.
            start: Runs the tool with the permit's arguments, and returns its result.

        Raises:
            MCPError: nobody can tell whether the call may run, or the set-up is wrong. The tool did not run.
        """
        run = Run(start, self._shapes)
        nested = running.current_permit() is not None  # a call inside a tool: the state and the client are the tool's
        try:
            call = await self._call(leg, definition)
            if call is None:
                return self._told("Refused: there is no such tool.")
            named = leg.state.removeprefix(STATE) if leg.state is not None and leg.ours and not nested else None
            await self._spend(call, named, run)
        except InnerCallError as inner:
            raise inner.error from inner.error.__cause__  # what the tool raised, as any other
        except ApprovalRequired as pause:
            return self._waits(pause.request, native=leg.takes_links and not leg.ours and not nested)
        except _ReportedError:
            return run.result
        except NoEffect as error:
            return self._told(str(error))
        except Refusal as error:
            return self._refused(error)
        except (UnavailableError, ConfigurationError) as error:
            _LOG.error("%s [%s]", error, error.code)
            if not run.ended or not isinstance(error, AuditUnavailableError):
                raise MCPError(UNAVAILABLE, f"{error} [{error.code}]") from error
        except Exception as error:
            if run.permit is None:
                _failed(error)
            raise  # the tool's own, as the framework has it
        return run.noticed()

    async def _call(
        self, leg: Leg, definition: Callable[[], Awaitable[ToolDefinition | None]]
    ) -> ToolCall | None:
        found = await definition()
        if found is None:
            return None
        token = get_access_token()
        # There is no tool-call id: the approval is bound to the arguments, so that a client without state finds it too.
        return self.bridge.call(
            leg.tool, leg.arguments, framework=leg.framework, call_id=None, run_id=leg.run_id,
            user=None if token is None else token.subject, definition=found,
        )

    async def _spend(self, call: ToolCall, named: str | None, run: Run) -> None:
        """Run a call under its approval; where the client names the request, under that one or not at all.

        So a state that is sent twice runs nothing the second time, and asks nobody again.
        """
        if named is None:
            await self.bridge.run(call, run.started)
            return
        guard = self.bridge.guard
        permit = await running.permit_async(lambda: _permit(guard, call, named), guard.settle)
        await running.run_async(permit, run.started, self.bridge._effect(call), guard.settle)

    def _waits(self, request: ApprovalRequest, *, native: bool) -> Any:
        link = self._pausing.link(request)
        if link is None or not native or self.bridge.pause != "native" or request.id in self._shown:
            facts = pending_result(request) | ({} if link is None else {"link": link})
            return self._told(as_text(facts))
        self._shown[request.id] = None
        while len(self._shown) > MAX_SHOWN:
            del self._shown[next(iter(self._shown))]
        state = f"{STATE}{request.id}"
        question = ElicitRequest(params=ElicitRequestURLParams(message=_MESSAGE, url=link))
        return self._shapes.asked(InputRequiredResult(input_requests={state: question}, request_state=state))

    def _told(self, text: str) -> Any:
        return self._shapes.told(text, is_error=True, structured=None)

    def _refused(self, error: RefusedError | CanonicalizationError) -> Any:
        """Return what a client is told of a call that was refused: a person's words, or a coarse reason."""
        text = self.bridge.told(error)
        if isinstance(error, CanonicalizationError):
            text = f"{text} {error}"
        response = error.response if isinstance(error, ApprovalDeniedError) else None
        if response is None:
            return self._told(text)
        # Both SDKs write a result that is no object so, and their clients miss it where a tool has an output schema.
        structured = response if isinstance(response, dict) else {"result": response}
        return self._shapes.told(text, is_error=False, structured=structured)


def _permit(guard: Guard, call: ToolCall, named: str) -> Permit:
    """Return the permit of a call under the request that its client was told of, or under the edit in its place.

    Raises:
        ApprovalRequired: nobody has decided yet.
    """
    desk, edited = guard._desk, None
    with suppress(InvalidApprovalError):  # none, or another call's: `authorize` refuses it, and the audit log has that
        found = desk.find(call.tenant, named)[1]
        edited = _edited(desk, found)
        newest = edited or found
        if newest.state == "pending":
            bound = desk.bind(call)
            check_scope(bound, newest)
            check_fingerprint(bound, newest)
            raise ApprovalRequired(to_request(newest))
    return guard.authorize(call, request_id=named if edited is None else edited.row.id)


class Run:
    """A tool that is started at most once, and what became of it."""

    def __init__(self, start: Start, shapes: Shapes) -> None:
        self._start = start
        self._shapes = shapes
        self._asked = False
        self.permit: Permit | None = None
        self.result: Any = None
        self.ended = False

    async def started(self, permit: Permit) -> Any:
        """Run the tool.

        Raises:
            _ReportedError: its result is an error, or no end.
        """
        self.permit = permit
        with inner_calls(permit):
            try:
                self.result = await self._start(permit, self)
            except Exception:
                if not self._asked:
                    raise
        approved = permit.request_id is not None
        if approved and (self._shapes.asks(self.result) or (self._asked and not self._shapes.succeeded(self.result))):
            # Its answer would come with a call of its own, whose approval this one cannot be: it is spent.
            self.result = self._shapes.told(_NO_INPUT, is_error=True, structured=None)
        self.ended = True
        if not self._shapes.succeeded(self.result):
            raise _ReportedError
        return self.result

    def quiet(self, session: Any) -> Any:
        """Return a session of the SDK's by which a tool can tell its client things, and ask for none."""
        async def refuse(*_: Any, **__: Any) -> NoReturn:
            self._asked = True
            raise MCPError(INVALID_REQUEST, _NO_INPUT)

        made = copy.copy(session)
        made.send_request = refuse  # each of its questions goes by here
        return made

    def noticed(self) -> Any:
        """Return the result; where a person changed the call, with the notice that says so."""
        if self.permit is None or not self.permit.edited:
            return self.result
        notice = TextContent(type="text", text=edit_notice(self.permit).strip())
        return self.result.model_copy(update={"content": [notice, *self.result.content]})


Start = Callable[[Permit, Run], Awaitable[Any]]
"""Runs a tool with the permit's arguments."""


class _ReportedError(Exception):
    """The tool's result is an error: a signal in here, so that its outcome is on record."""


def _failed(error: Exception) -> NoReturn:
    """What an app's own function raised may hold anything: the client hears nothing of it."""
    if isinstance(error, MCPError):
        raise error
    _LOG.error("A call ended by %s before its tool ran.", type(error).__name__)
    raise MCPError(INTERNAL_ERROR, "The guard failed: look at the server's log and the inbox.") from error
