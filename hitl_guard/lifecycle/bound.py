"""A call bound to bytes: strict parse, limits, canonical form, fingerprint, scope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from .. import canonical, fingerprint
from ..errors import CanonicalizationError, ConfigurationError, ToolChangedError
from ..models import Principal, Scope, ToolCall, ToolDefinition, check_text
from ..policy.core import PolicyInput
from .control import Control
from .rights import Parties, parties
from .settings import Settings
from .toolspec import ToolSpec, validate


class Asked(Protocol):
    """What is compared with a request: of a whole call (`Bound`), or of what a client says about one."""

    @property
    def scope(self) -> Scope:
        """Where it is to count."""

    @property
    def fingerprint(self) -> str:
        """What stands for tool and arguments."""


@dataclass(slots=True)
class Bound:
    """A call as bytes: nothing of the caller's objects is left in it."""

    tool: str
    canonical: bytes
    fingerprint: str
    scope: Scope
    identity: bytes
    definition: ToolDefinition | None
    agent: str | None
    agents: tuple[str, ...]
    who: Parties | tuple[str | Principal, str | Principal | None]
    turn: tuple[tuple[str, bytes], ...] | None
    context: bytes | None
    spec: ToolSpec | None
    _tool_digest: str | None = None

    @property
    def tool_digest(self) -> str:
        """Digest of the tool's definition; worked out when it is first asked for."""
        if self._tool_digest is None:
            self._tool_digest = fingerprint.tool_digest(self.definition or ToolDefinition(self.tool))
        return self._tool_digest

    @property
    def parties(self) -> Parties:
        """Who stands behind the call; worked out when it is first asked for, since most calls need nobody."""
        if not isinstance(self.who, Parties):
            self.who = parties(*self.who)
        return self.who

    @property
    def spend_key(self) -> bytes | None:
        """What its claim spends; None for deny-and-retry, whose key is over a request."""
        return None if self.scope.call_id is None else fingerprint.spend_key_of_call(self.identity)

    def check_control(self, control: Control, policy_version: str, *asked_by: str | None) -> None:
        """Raise `PausedError` or `PolicyChangedError` as the control row says of the tool, the agent, and every agent
        that it works for.
        """
        agents = {self.agent, *asked_by, *self.agents} if asked_by or self.agents else (self.agent,)
        for agent in agents:
            control.check(tool=self.tool, agent=agent, policy_version=policy_version)

    def check_definition(self) -> None:
        """Raise `ToolChangedError` if the call brings another tool's definition, or not the registered one."""
        given = self.definition
        if given is not None and (given.name != self.tool or (self.spec is not None and self.spec.definition != given)):
            raise ToolChangedError("The call brings another definition than the tool's; load the tool anew.")

    def turn_decoded(self) -> tuple[tuple[str, dict[str, Any]], ...] | None:
        """Return the earlier calls of the model's turn, decoded afresh; None: not known."""
        return None if self.turn is None else tuple((tool, canonical.decode(given)) for tool, given in self.turn)

    def policy_input(self) -> PolicyInput:
        """Return what the policy may look at, decoded afresh."""
        return PolicyInput(
            tool=self.tool, arguments=canonical.decode(self.canonical), user=self.scope.user, tenant=self.scope.tenant,
            run_id=self.scope.run, call_id=self.scope.call_id, agent=self.agent,
            turn=self.turn_decoded(),
            context=None if self.context is None else canonical.decode(self.context), dynamic=self.spec is None,
        )


def bind(call: ToolCall, spec: ToolSpec | None, settings: Settings) -> Bound:
    """Return the call as bytes.

    Raises:
        CanonicalizationError: the arguments have no canonical form, exceed a limit or break the tool's schema.
        ConfigurationError: a part of the scope is missing or contradicts another.
    """
    tool = check_text("tool", call.tool)
    definition = _definition(call, spec)
    raw = canonical_arguments(call.arguments, settings)
    validate(definition, raw)
    scope = Scope(
        check_text("tenant", call.tenant), _id("user", call.user, call.tenant), check_text("run_id", call.run_id),
        None if call.call_id is None else check_text("call_id", call.call_id), _count(call.occurrence),
    )
    print_ = fingerprint.fingerprint(tool, raw)
    return Bound(
        tool=tool, canonical=raw, fingerprint=print_, scope=scope, identity=fingerprint.identity(scope, print_),
        definition=definition,
        agent=None if call.agent is None else _id("agent", call.agent, call.tenant),
        agents=call.agent.aliases if isinstance(call.agent, Principal) else (),
        who=(call.user, call.agent),
        turn=_turn(call.turn, settings),
        context=None if call.context is None else canonical_value(_plain(call.context), settings), spec=spec,
    )


def _id(name: str, who: object, tenant: str) -> str:
    if not isinstance(who, Principal):
        return check_text(name, who)
    if who.tenant != tenant:
        raise ConfigurationError("Principal and call are of different tenants: give the call its tenant.")
    return who.id


def canonical_arguments(arguments: Mapping[str, Any] | str | bytes, settings: Settings) -> bytes:
    """Return the canonical bytes of an arguments object, given as plain data or as raw JSON text."""
    value: Any = arguments
    if isinstance(arguments, (str, bytes)):
        value = canonical.parse(arguments, limits=settings.limits)
    if type(value) is not dict:
        raise CanonicalizationError("A tool's arguments must be one JSON object.", detail="type")
    return canonical_value(value, settings)


def canonical_value(value: Any, settings: Settings) -> bytes:
    """Return canonical bytes under the guard's limits; no two different values share them."""
    return canonical.canonicalize(value, limits=settings.limits, exact=True, big_integers=settings.big_integers)


def _turn(turn: object, settings: Settings) -> tuple[tuple[str, bytes], ...] | None:
    """Return the earlier calls of a turn as bytes. They are stored with each request, so they have one call's limit."""
    if turn is None or (type(turn) is tuple and not turn):
        return turn
    earlier = tuple(_earlier(_calls(turn), settings))
    if sum(len(arguments) for _, arguments in earlier) > settings.limits.max_bytes:
        raise CanonicalizationError(
            "The earlier calls of the turn are too large together: let the model make fewer calls at once.",
            code="too-large", detail="turn",
        )
    return earlier


def _earlier(calls: Iterable[ToolCall], settings: Settings) -> Iterator[tuple[str, bytes]]:
    """Yield them one by one. One that has no canonical form never runs, so it never counts."""
    for one in calls:
        with suppress(CanonicalizationError):
            yield check_text("tool", one.tool), canonical_arguments(one.arguments, settings)


def _definition(call: ToolCall, spec: ToolSpec | None) -> ToolDefinition | None:
    """Return the definition that is bound: the call's, else the registered tool's."""
    known, given = None if spec is None else spec.definition, call.definition
    if given is None:
        return known
    if not isinstance(given, ToolDefinition):
        raise ConfigurationError("'definition' must be a ToolDefinition.")
    return given


def _calls(turn: object) -> tuple[ToolCall, ...]:
    if not isinstance(turn, (tuple, list)) or not all(isinstance(one, ToolCall) for one in turn):
        raise CanonicalizationError("A call's turn must be a tuple of tool calls.", detail="type")
    return tuple(turn)


def _plain(context: object) -> dict[str, Any]:
    if not isinstance(context, Mapping):
        raise CanonicalizationError("A call's context must be a mapping.", detail="type")
    return dict(context)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise CanonicalizationError("'occurrence' must be an integer from 0.", detail="type")
    return value
