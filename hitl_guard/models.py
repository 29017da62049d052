"""The frozen nouns of the project: what is called, who asks, who decides, what may run.

Arguments are plain JSON data (``dict, list, str, int, float, bool, None``) or raw JSON text. Nothing here is trusted
because of its type: the guard canonicalises, verifies and binds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal, NoReturn

from . import canonical
from .errors import CanonicalizationError, ConfigurationError

MAX_FIELD_BYTES = 512
"""Longest scope field or principal id, in UTF-8 bytes."""

MAX_REASON = 4096
"""Longest reason, in characters."""

Effect = Literal["none", "idempotent", "probeable", "opaque"]
EFFECTS: tuple[str, ...] = ("none", "idempotent", "probeable", "opaque")
"""What a tool promises about its effect; anything but ``none`` and ``idempotent`` leaves an exception in doubt."""

Binding = Literal["call", "retry"]
"""``call``: bound to a tool-call id. ``retry``: the same call again spends the grant (deny-and-retry)."""


def check_text(name: str, value: object) -> str:
    """Return ``value`` if it is usable as an id: a non-empty, well-formed string of at most 512 UTF-8 bytes.

    Raises:
        ConfigurationError: it is missing, empty or not a string.
        CanonicalizationError: it is too long or holds a lone surrogate.
    """
    if type(value) is not str or not value:
        raise ConfigurationError(f"'{name}' must be a non-empty string: give it where the call is made.")
    if value.isascii() and len(value) <= MAX_FIELD_BYTES:
        return value
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise CanonicalizationError(f"'{name}' is not well-formed Unicode.") from None
    if len(encoded) > MAX_FIELD_BYTES:
        raise CanonicalizationError(f"'{name}' is longer than {MAX_FIELD_BYTES} bytes.", code="too-large")
    return value


def check_optional(name: str, value: object) -> None:
    """Check ``value`` like `check_text`, None allowed."""
    if value is not None:
        check_text(name, value)


def check_reason(value: object) -> None:
    """Check what a person writes beside a decision: None, or a well-formed string of at most 4,096 characters.

    Raises:
        ConfigurationError: it is anything else.
    """
    if value is None:
        return
    if type(value) is not str or len(value) > MAX_REASON:
        raise ConfigurationError(f"A reason is a string of at most {MAX_REASON} characters, or None.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError("A reason must be well-formed Unicode.") from None


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who acts: a person, an agent or a service. Build it from what your authenticator knows.

    Attributes:
        id: Stable id, compared without regard to case when self-approval is looked for.
        kind: ``human``, ``agent`` or ``service``; only a human can decide.
        roles: Roles or groups, as authenticated now.
        aliases: Other ids of the same person (mail address, chat id), each one proven.
        unverified_aliases: What may be the person's too (a mail address that nobody verified): it keeps them from
            deciding what was asked under it, and lets them in nowhere.
        owner: Of an agent or a service: the person it belongs to.
    """

    id: str
    kind: Literal["human", "agent", "service"] = "human"
    tenant: str = field(default="default", kw_only=True)
    roles: tuple[str, ...] = field(default=(), kw_only=True)
    aliases: tuple[str, ...] = field(default=(), kw_only=True)
    unverified_aliases: tuple[str, ...] = field(default=(), kw_only=True)
    owner: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_text("id", self.id)
        check_text("tenant", self.tenant)
        check_optional("owner", self.owner)
        if self.kind not in ("human", "agent", "service"):
            raise ConfigurationError("A principal's kind is 'human', 'agent' or 'service'.")
        for name in ("roles", "aliases", "unverified_aliases"):
            group = getattr(self, name)
            if isinstance(group, str):
                raise ConfigurationError(f"'{name}' must be a list of strings, not one string.")
            object.__setattr__(self, name, tuple(check_text(name, item) for item in group))

    def names(self) -> tuple[str, ...]:
        """Return every id that stands for this principal, its owner's included."""
        return (self.id, *self.aliases, *(() if self.owner is None else (self.owner,)))

    def every_name(self) -> tuple[str, ...]:
        """Return `names` and what may be one: compared where somebody is kept out, never where somebody is let in."""
        return (*self.names(), *self.unverified_aliases)


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """What the model was told about a tool. Its digest is bound, so that a changed definition voids an approval.

    Attributes:
        input_schema: JSON Schema of the arguments object, or None when unknown.
        server: Identity of the server that offers the tool (MCP), or None.
    """

    name: str
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None
    server: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigurationError("A tool's name must be a string.")
        for name, text in (("description", self.description), ("server", self.server)):
            if text is not None and not isinstance(text, str):
                raise ConfigurationError(f"A tool's {name} must be a string, or None.")
        if self.input_schema is not None and not isinstance(self.input_schema, Mapping):
            raise ConfigurationError("A tool's input schema must be a JSON object, or None.")

    def to_json(self) -> dict[str, Any]:
        """Return the plain JSON object that is digested and stored."""
        schema = None if self.input_schema is None else dict(self.input_schema)
        return {"description": self.description, "input_schema": schema, "name": self.name, "server": self.server}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call that an agent proposes.

    Attributes:
        tool: Tool name, compared exactly.
        arguments: A JSON object as plain Python data, or its raw JSON text (``str`` or ``bytes``), which the guard
            parses strictly (duplicate names, NaN and lone surrogates are refused).
        run_id: Whatever is stable over a resume: conversation, thread, session.
        call_id: The provider's tool-call id, or None for deny-and-retry.
        user: Who the agent works for; a `Principal` brings aliases that cannot decide either.
        occurrence: The call's index among calls with an equal tool-call id in that run's history, from 0.
        agent: The agent's id or principal, or None.
        definition: What the model was told about the tool, or None.
        turn: The earlier calls of the same model turn, so that a policy sees them together. None: not known; rules
            that depend on it then stop the call.
        context: JSON data for policy conditions, from the host (never from the model), or None.
    """

    tool: str
    arguments: Mapping[str, Any] | str | bytes = field(repr=False)
    run_id: str = field(kw_only=True)
    call_id: str | None = field(kw_only=True)
    user: str | Principal = field(kw_only=True)
    tenant: str = field(default="default", kw_only=True)
    occurrence: int = field(default=0, kw_only=True)
    agent: str | Principal | None = field(default=None, kw_only=True)
    definition: ToolDefinition | None = field(default=None, kw_only=True)
    turn: tuple[ToolCall, ...] | None = field(default=None, kw_only=True, repr=False)
    context: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a grant counts; compared byte for byte. The tenant is compared first and answered like an unknown id."""

    tenant: str
    user: str
    run: str
    call_id: str | None
    occurrence: int

    def to_json(self) -> dict[str, Any]:
        """Return the signed form."""
        return {
            "call_id": self.call_id,
            "occurrence": self.occurrence,
            "run": self.run,
            "tenant": self.tenant,
            "user": self.user,
        }


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one policy rule demands before a call may run. All requirements of a request must be met.

    Attributes:
        approvers: Who may decide: ``role`` names, or ``user:ID``. Empty: any person of the tenant but the requester.
        quorum: How many distinct people must approve.
        self_approval: Whether the requester may decide.
        channels: Where a decision may come from (``api``, ``cli``, ``inbox``, ``chat`` …). Empty: anywhere.
        evidence: How a decision must be signed; ``hmac`` is the guard's own key.
        edit: Whether the approver may change the arguments.
        risk: A word for the approver (``low`` … ``critical``), or None.
        decide_within, execute_within: Windows in milliseconds, or None for the guard's defaults.
        recheck_approvers: Whether the approvers' roles are looked up again at the claim.
    """

    approvers: tuple[str, ...] = ()
    quorum: int = 1
    self_approval: bool = False
    channels: tuple[str, ...] = ()
    evidence: str = "hmac"
    edit: bool = False
    risk: str | None = None
    decide_within: int | None = None
    execute_within: int | None = None
    recheck_approvers: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the signed form."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Requirement:
        """Rebuild from the signed form; raises TypeError or KeyError on any other shape."""
        if set(data) != set(cls.__slots__):
            raise KeyError("requirement")
        values: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in data.items()}
        return cls(**values)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Decision:
    """One verified vote on a request. ``state`` is the request's state after it.

    ``evidence``: ``hmac`` (the guard's own signature), or ``passkey`` where the person's authenticator signed it too.
    """

    request_id: str
    tenant: str
    fingerprint: str
    policy_version: str
    approver: str
    roles: tuple[str, ...]
    channel: str
    approve: bool
    reason: str | None
    at: int
    nonce: str
    automatic: bool = False
    response: Any = None
    state: str = "pending"
    evidence: str = "hmac"


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A verified view of one request, as of the moment it was read. Times are epoch milliseconds of the database.

    Attributes:
        canonical: The exact argument bytes that were signed; show these (see `hitl_guard.render`), nothing else.
        fingerprint: 64 hex digits that stand for tool name and arguments; send back the one that was shown.
        token: The signed envelope as text.
        reason: Why the policy asks.
        execute_by: End of the execution window once approved, else None.
        version: Number of events of this request so far.
        requesters, agent_names: Every name of the requester's side and of the agent, folded for comparison
            (see `lifecycle.rights`).
        definition: What the model was told about the tool, or None; its schema says which arguments are secret.
        approvals: For each of ``requirements``, how many people's approvals count for it so far.
        voters: Every name of those who decided, folded likewise: none of them decides again.
    """

    id: str
    tenant: str
    user: str
    run_id: str
    call_id: str | None
    occurrence: int
    binding: Binding
    agent: str | None
    tool: str
    canonical: bytes = field(repr=False)
    fingerprint: str
    policy_version: str
    requirements: tuple[Requirement, ...]
    rules: tuple[str, ...]
    reason: str | None
    state: str
    issued_at: int
    decide_by: int
    execute_by: int | None
    key_id: str
    supersedes: str | None
    votes: tuple[Decision, ...]
    version: int
    token: str = field(repr=False)
    requesters: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    agent_names: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    definition: ToolDefinition | None = field(default=None, repr=False, compare=False)
    approvals: tuple[int, ...] = field(default=(), repr=False, compare=False)
    voters: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def input_schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the arguments that the model was told, or None."""
        return None if self.definition is None else self.definition.input_schema

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, decoded afresh from the signed bytes at each access."""
        decoded: dict[str, Any] = canonical.decode(self.canonical)
        return decoded


class Permit:
    """In-process proof that this one call may run now. Made by the guard only; it cannot be pickled or copied.

    Attributes:
        request_id, claim_id: What was spent, or None where the policy needs no approval.
        idempotency_key: Stable per approval; hand it to a service that honours one. None without an approval.
        edited: Whether a person changed the arguments that the model asked for.
        start_by: When the tool must have started, by this process's monotonic clock in milliseconds; None: any time.
            Later its call reads as in doubt, and somebody may have closed it.
    """

    __slots__ = ("_schema", "canonical", "claim_id", "edited", "fingerprint", "idempotency_key", "last", "lock",
                 "mismatch", "ran", "record_digest", "request_id", "scope", "sealed", "start_by", "tool", "version")

    def __init__(
        self, *, tool: str, canonical: bytes, fingerprint: str, scope: Scope, request_id: str | None = None,
        claim_id: str | None = None, version: int = 0, last: bytes = b"", record_digest: str = "",
        idempotency_key: str | None = None, edited: bool = False, start_by: int | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        self.tool = tool
        self.canonical = canonical
        self.fingerprint = fingerprint
        self.scope = scope
        self.request_id = request_id
        self.claim_id = claim_id
        self.version = version
        self.last = last
        self.record_digest = record_digest
        self.idempotency_key = idempotency_key
        self.edited = edited
        self.ran = False
        self.sealed = False
        self.mismatch = False
        self.start_by = start_by
        self.lock = Lock()
        self._schema = schema

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments to run with, decoded afresh from the signed bytes.

        ``1`` and ``1.0`` are one number: the tool gets an int unless its schema says ``number``.
        """
        decoded: dict[str, Any] = canonical.as_numbers(canonical.decode(self.canonical), self._schema)
        return decoded

    def __repr__(self) -> str:
        return f"<Permit tool={self.tool!r} request_id={self.request_id!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A permit proves something in this process only; it cannot be pickled or copied.")
