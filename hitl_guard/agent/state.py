"""What a run is made of between two calls of the model: the run, the calls of its current turn, how they ended.

A run is a tree: a call that was delegated to a sub-agent holds the sub-agent's run. Everything here is plain data; the
snapshot of a suspended run is its canonical JSON. The conversation is not part of it, only a digest of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..models import Principal
from ..toolcalls import as_text

FORMAT = 1
"""Version of the snapshot's layout; another one is refused."""


@dataclass(slots=True)
class Outcome:
    """How one call ended.

    Attributes:
        kind: ``result``, ``denied``, ``error``, or ``client`` for a call that the client runs.
        value: The result; for an error ``{"name", "message"}`` and, of ours, ``code``; for a denial the reason.
        said: What the model is told, where that is another text than the value's own.
        approval: ``{"id", "approved", "reason"}`` where a person or the policy decided, else None.
        args: The arguments that ran, where a person changed them, else None.
        hook: ``{"name", "message"}`` of what the hook after the tool raised, else None.
    """

    kind: str
    value: Any
    said: str | None = None
    approval: dict[str, Any] | None = None
    args: dict[str, Any] | None = None
    hook: dict[str, Any] | None = None

    @property
    def told(self) -> str:
        """What the model is told."""
        return as_text(self.value) if self.said is None else self.said

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Call:
    """One tool call of the current turn.

    Attributes:
        args: As the model gave them; None where it wrote no JSON object.
        occurrence: Its index among calls of the run with an equal tool-call id.
        request_id: The request it waits for, or whose grant it spent.
        asked: Whether a person must decide it: it then never runs without its request.
        edited: What its request asks for, where a person changed the arguments.
        claim_id: Of a gated call that suspended itself: the start which did.
        suspension: ``{"id", "payload", "taken"}`` of a call that suspended itself, or None. ``taken`` is the lease of
            the process that starts it again with an answer, with what the user ``said``; or None.
        child: The sub-agent's run, where the call is a delegation that has begun.
        outcome: How it ended, or None.
    """

    id: str
    name: str
    args: dict[str, Any] | None
    occurrence: int
    request_id: str | None = None
    fingerprint: str | None = None
    asked: bool = False
    edited: dict[str, Any] | None = None
    claim_id: str | None = None
    suspension: dict[str, Any] | None = None
    child: Run | None = None
    outcome: Outcome | None = None

    @property
    def pause_id(self) -> str | None:
        """Id of what the call itself waits for: a suspension's answer, or a request's decision."""
        return self.request_id if self.suspension is None else str(self.suspension["id"])

    @property
    def waits(self) -> bool:
        """Whether the call itself (not one inside its sub-agent) waits for somebody."""
        return self.outcome is None and self.child is None and (self.request_id or self.suspension) is not None

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "args": self.args, "asked": self.asked, "child": None if self.child is None else self.child.to_json(),
            "claim_id": self.claim_id, "edited": self.edited, "fingerprint": self.fingerprint, "id": self.id,
            "name": self.name, "occurrence": self.occurrence,
            "outcome": None if self.outcome is None else self.outcome.to_json(), "request_id": self.request_id,
            "suspension": self.suspension,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Call:
        """Read the stored form."""
        child, outcome = data["child"], data["outcome"]
        return cls(**{
            **data, "child": None if child is None else Run.from_json(child),
            "outcome": None if outcome is None else Outcome(**outcome),
        })


@dataclass(slots=True)
class Run:
    """One run of one agent.

    Attributes:
        thread: Key (hex) of the conversation. private: Whether it belongs to this run alone and ends with it.
        first, base: The conversation's segments with ``first <= seq < base`` were there before the run; of their
            messages the model does not get the first ``skipped``.
        digest: Digest (hex) over the conversation as the run sees it, so far as it is stored.
        stored: How many segments of its own the run has stored.
        text: What the model wrote in the current turn. calls: Its calls, in order; empty between turns.
        lease: ``{"id", "until"}`` of the process that goes on with the run after a turn, or None.
    """

    id: str
    agent: str
    message_id: str
    thread: str
    private: bool
    first: int = 0
    base: int = 0
    skipped: int = 0
    digest: str = ""
    stored: int = 0
    step: int = 0
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    lease: dict[str, Any] | None = None

    @property
    def settled(self) -> bool:
        """Whether every call of the turn has ended."""
        return all(call.outcome is not None for call in self.calls)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return plain | {"calls": [call.to_json() for call in self.calls]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """Read the stored form."""
        return cls(**{**data, "calls": [Call.from_json(call) for call in data["calls"]]})

    def tree(self) -> Iterator[Run]:
        """Yield this run and every run inside it, outermost first."""
        yield self
        for call in self.calls:
            if call.child is not None:
                yield from call.child.tree()

    def placed(self, resource: str) -> Iterator[tuple[Run, str]]:
        """Yield this run and every run inside it, each with its resource: a sub-agent's adds its id to the outer's."""
        yield self, resource
        for call in self.calls:
            if call.child is not None:
                yield from call.child.placed(f"{resource}-{call.child.agent}")

    def waiting(self, around: tuple[tuple[Run, Call], ...] = ()) -> Iterator[Way]:
        """Yield, in order, the way to each call that waits: ``(run, call)`` from the outermost to the call itself."""
        for call in self.calls:
            way = (*around, (self, call))
            if call.waits:
                yield list(way)
            elif call.child is not None:
                yield from call.child.waiting(way)

    def find(self, run_id: str) -> Run | None:
        """Return the run of this tree with an id."""
        return next((run for run in self.tree() if run.id == run_id), None)


Way = list[tuple[Run, Call]]
"""``(run, call)`` from the outermost run to the call that is meant."""


def by_age(ways: Iterable[Way], since: Mapping[str, int]) -> list[Way]:
    """Return the ways to pauses, the most recent last; those of one moment in the order of their calls."""
    return sorted(ways, key=lambda way: since.get(way[-1][1].pause_id or "", 0))


@dataclass(slots=True)
class Owner:
    """For whom a run works, and where it is found.

    Attributes:
        user: The person the agent works for, aliases included: none of them may approve.
        thread_id: The conversation's name as the host knows it, or None. resource_id: Whose conversation it is.
        context: The host's data for policies and tools, as JSON.
    """

    tenant: str
    user: Principal
    thread_id: str | None
    resource_id: str
    context: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        user = {name: getattr(self.user, name) for name in ("id", "kind", "owner")}
        user |= {"aliases": list(self.user.aliases), "roles": list(self.user.roles)}
        if self.user.unverified_aliases:
            user["unverified_aliases"] = list(self.user.unverified_aliases)
        return {
            "context": self.context, "resource_id": self.resource_id, "tenant": self.tenant,
            "thread_id": self.thread_id, "user": user,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Owner:
        """Read the stored form."""
        return cls(**{**data, "user": Principal(**data["user"], tenant=data["tenant"])})


@dataclass(slots=True)
class Options:
    """What was asked of a run and must not drift when it goes on elsewhere.

    Attributes:
        require_approval: True, False, or ``name@version`` of a function policy. A function without a name cannot be
            stored: it is True.
        lost: Whether it is such a function.
        hooks: Whether the request had hooks of its own. They cannot be stored either.
        max_steps: The most calls of the model.
        settings: Handed to the model; stored as they are, so no place for secrets.
    """

    require_approval: bool | str = False
    lost: bool = False
    hooks: bool = False
    max_steps: int = 50
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Snapshot:
    """A suspended run with everything inside it, and what resuming it needs. Times are epoch milliseconds.

    Attributes:
        since: Pause id → the version of the snapshot that was the first with this pause.
        said: Messages of the user that answered pauses of the turn at hand; they follow its results.
    """

    root: Run
    owner: Owner
    options: Options
    created_at: int
    suspended_at: int
    since: dict[str, int] = field(default_factory=dict)
    said: list[dict[str, Any]] = field(default_factory=list)

    def waiting(self, run: Run | None = None) -> list[Way]:
        """Return the way to each call that waits (of one run of the tree), the most recent pause last."""
        return by_age((run or self.root).waiting(), self.since)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "created_at": self.created_at, "format": FORMAT, "options": self.options.to_json(),
            "owner": self.owner.to_json(), "root": self.root.to_json(), "said": self.said, "since": self.since,
            "suspended_at": self.suspended_at,
        }

    def put(self, run: Run) -> None:
        """Put a run in the place of the one with its id; where there is none, nothing is done."""
        if self.root.id == run.id:
            self.root = run
        for outer in self.root.tree():
            for call in outer.calls:
                if call.child is not None and call.child.id == run.id:
                    call.child = run

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Snapshot:
        """Read the stored form; raises KeyError or TypeError on any other layout."""
        if data["format"] != FORMAT:
            raise KeyError("format")
        return cls(
            Run.from_json(data["root"]), Owner.from_json(data["owner"]), Options(**data["options"]),
            data["created_at"], data["suspended_at"], data["since"], data["said"],
        )
