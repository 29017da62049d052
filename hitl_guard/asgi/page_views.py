"""What the pages show, as plain values, and the templates that show it. Nothing here does I/O or decides anything."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as html

from .. import canonical
from ..lifecycle.rights import Parties, check_resolver, check_revoker, passes
from ..models import ApprovalRequest
from ..render import left, utc, warnings
from ..render.markup import Difference, Laid, differences, finalize, laid, shown, text, value_text
from ..render.request import requirement_text
from ..render.secrets import masked, secret_pointers, secrets_of
from .forms import Field, Form, fields
from .identity import Viewer
from .views import STORED
from .visibility import waits_for

if TYPE_CHECKING:
    from ..lifecycle.dossier import Dossier
    from ..lifecycle.settings import Settings

SCRIPTS = ("inbox.js", "list.js", "passkeys.js", "keys.js")
"""The scripts in the order in which a page runs them."""

STATIC = {"icon.svg": "image/svg+xml", "inbox.css": "text/css"} | dict.fromkeys(SCRIPTS, "text/javascript")
"""Every static file and its type."""

STATES: dict[str, str] = {
    "abandoned": "given up", "approved": "approved", "denied": "denied", "executing": "running", "expired": "expired",
    "failed": "failed", "in_doubt": "in doubt", "pending": "waits", "revoked": "revoked", "succeeded": "succeeded",
    "superseded": "replaced", "suspended": "asks back",
}
"""State → the page's word for it."""

HAPPENED: dict[str, str] = {
    "call:abandoned": "given up, outcome unknown", "call:failed": "failed", "call:in_doubt": "in doubt",
    "call:succeeded": "succeeded", "call:suspended": "the tool asks back", "grant:claimed": "the tool was started",
    "grant:resumed": "the tool was started again", "request:approved": "approved", "request:denied": "denied",
    "request:expired": "expired", "request:revoked": "revoked", "request:superseded": "replaced by another request",
    "request:voted": "one of several approvals",
}
"""Type of an event of a request → the page's word for it."""

CHOICES: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "pending": ("waits", ("pending",)),
    "open": ("open", ("pending", "approved", "executing", "suspended", "in_doubt")),
    "in_doubt": ("in doubt", ("in_doubt",)),
    "approved": ("approved or ran", ("approved", "executing", "suspended", "succeeded", "failed")),
    "denied": ("denied", ("denied",)),
    "ended": ("ended", ("abandoned", "denied", "expired", "failed", "revoked", "succeeded", "superseded")),
    "all": ("all", None),
}
"""Value of the state filter → its label and its states."""

MUTES = ((60, "an hour"), (1440, "a day"), (10_080, "a week"))
"""``(minutes, words)`` for which a denial may also refuse the same tool for the same requester."""

MAX_REVEALED = 100
"""Secret values that one form may reveal: each is written to the audit log."""

LISTED_BYTES = 200
"""Arguments of so many bytes are on the list as well; longer ones are on the request's own page alone."""

_GRANTED = frozenset({"abandoned", "approved", "executing", "failed", "in_doubt", "succeeded", "suspended"})
"""States that a request comes to only when it was approved."""

REVOCABLE = frozenset({"pending", "approved", "suspended"})
"""States in which a request can be withdrawn."""

FORMS: dict[str, tuple[str, ...]] = {
    "approve": ("reason", "within"), "deny": ("mute", "reason"), "edit": ("reason",),
    "resolve": ("force", "outcome", "reason"), "respond": ("as", "reason", "response"), "revoke": ("reason",),
}
"""Form of a request's page → its fields that are kept when it is refused."""

MINUTE_MS = 60_000


@functools.cache
def static_files() -> Mapping[str, bytes]:
    """Return the static files, by name."""
    folder = resources.files(__package__) / "static"
    return {name: (folder / name).read_bytes() for name in STATIC}


@functools.cache
def static_version() -> str:
    """Return a text that changes with the static files."""
    return hashlib.sha256(b"".join(static_files()[name] for name in sorted(STATIC))).hexdigest()[:16]


@functools.cache
def templates() -> Environment:
    """Return the templates. What they print is markup of ours, or text without hidden characters, escaped."""
    made = Environment(
        loader=PackageLoader("hitl_guard.asgi"), autoescape=True, undefined=StrictUndefined, finalize=finalize,
        trim_blocks=True, lstrip_blocks=True,
    )
    made.filters.update({"raw": html, "shown": shown, "t": text, "value": value_text})
    made.globals.update(
        lay=lay, ms=epoch_ms, mutes=MUTES, one_line=one_line, remaining=remaining, scripts=SCRIPTS, since=since,
        utc=utc, words=STATES,
    )
    return made


def remaining(until: int, now: int) -> str:
    """Return how much time there is until something (epoch milliseconds), in words."""
    return f"{left(until, now).removeprefix('in ')} left" if until > now else "no time left"


def since(then: int, now: int) -> str:
    """Return how long ago something was (epoch milliseconds), in words."""
    return left(now + max(1, now - then), now).removeprefix("in ") + " ago"


def lay(value: Any) -> Markup:
    """Return any plain JSON data, laid out."""
    return laid(canonical.canonicalize(value, limits=STORED)).lines


def one_line(request: ApprovalRequest) -> Markup | None:
    """Return a request's arguments for its line in a list, in full but for the masks; None where they are too long."""
    if len(request.canonical) > LISTED_BYTES:
        return None  # cut, they would look like all there is
    return laid(request.canonical, masks=secrets_of(request)).raw


def epoch_ms(moment: datetime) -> int:
    """Return a moment as epoch milliseconds."""
    return int(moment.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Row:
    """A request in the list.

    Attributes:
        risk: The rules' words for the risk, or "".
        given, needed: Of the rule that lacks most: people whose approval counts, and how many it needs.
        passkey: Whether a decision needs a passkey.
        single: Why it cannot be approved together with others, or "".
    """

    request: ApprovalRequest
    risk: str
    given: int
    needed: int
    passkey: bool
    single: str

    @classmethod
    def of(cls, request: ApprovalRequest) -> Row:
        """Return the row of a request."""
        needs = request.requirements
        risks = dict.fromkeys(need.risk for need in needs if need.risk)
        progress = [(need.quorum, count) for need, count in zip(needs, request.approvals, strict=True)]
        needed, given = max(progress, key=lambda one: (one[0] - one[1], one[0]), default=(1, 0))
        passkey = needs_passkey(request)
        single = "passkey" if passkey else "quorum" if any(need.quorum > 1 for need in needs) else ""
        return cls(request, ", ".join(risks), given, needed, passkey, single)


def needs_passkey(request: ApprovalRequest) -> bool:
    """Return whether a decision on this request needs a passkey."""
    return any(need.evidence == "passkey" for need in request.requirements)


def form_of(request: ApprovalRequest) -> tuple[Field, ...]:
    """Return the form for the arguments; empty where the rules let nobody edit them, or where it would show secrets."""
    if not request.requirements or not all(need.edit for need in request.requirements):
        return ()
    schema, secrets = request.input_schema, secrets_of(request)
    if secrets and needs_passkey(request):
        return ()  # the script that talks to the passkey would need the secrets in the page
    named = (schema or {}).get("properties")
    every = {**dict.fromkeys(named if isinstance(named, Mapping) else ()), **request.arguments}
    return fields(schema, request.arguments, secrets | secret_pointers(schema, every))


def warned(data: bytes, masks: Collection[str]) -> tuple[str, ...]:
    """Return the warnings about canonical arguments; what is masked is not looked at."""
    if masks:
        data = canonical.canonicalize(masked(canonical.decode(data), masks), limits=STORED)
    return warnings(data)


def compared(before: Any, after: Any, masks: Collection[str]) -> list[Difference]:
    """Return where two calls' arguments differ. What is secret is named whenever a side has it, the same or not: to
    tell would be to tell a guess from a miss.
    """
    return differences(masked(before, masks, mask="before"), masked(after, masks, mask="after"), masks=masks)


@dataclass(frozen=True, slots=True)
class Earlier:
    """The attempt before, and how this one differs. ``secret``: values of theirs are masked, and not compared."""

    request: ApprovalRequest
    differences: list[Difference]
    secret: bool


@dataclass(frozen=True, slots=True)
class TurnCall:
    """An earlier call of the same model turn; ``laid`` is None for another tool, whose secrets are not known here."""

    tool: str
    laid: Laid | None


def detail(
    dossier: Dossier, viewer: Viewer, settings: Settings, *, revealed: Collection[str] = (), given: Form | None = None,
    made: tuple[Field, ...] | None = None, answer: str = "",
) -> dict[str, Any]:
    """Return the context of a request's page.

    Args:
        settings: The guard's.
        revealed: JSON pointers of secret values that may be shown, since that is in the audit log by now.
        given: What the person had posted, to be kept. made: The form as the person left it.
        answer: Which form it was, one of `FORMS`.
    """
    request = dossier.request
    secrets = secrets_of(request)
    masks = secrets - set(revealed)
    row = Row.of(request)
    who, operator = Parties(request.requesters, request.agent_names), {"operator_role": settings.operator_role}
    return {
        "context": dossier.context and laid(canonical.canonicalize(dict(dossier.context))),
        "description": request.definition and request.definition.description,
        "editing": made is not None, "posted": answer,
        "fields": form_of(request) if made is None else made,
        "given": row.given, "history": [_happened(one) for one in dossier.history],
        "input": typed(given, answer, FORMS), "laid": laid(request.canonical, masks=masks),
        "may_decide": waits_for(request, viewer),
        "may_resolve": request.state == "in_doubt" and passes(check_resolver, who, viewer.principal, **operator),
        "may_revoke": request.state in REVOCABLE and passes(
            check_revoker, request.requirements, who, viewer.principal, user=request.user, **operator
        ),
        "most_revealed": MAX_REVEALED, "needed": row.needed, "needs": _needs(dossier), "passkey": row.passkey,
        "previous": _earlier(dossier, secrets), "request": request, "size": len(request.canonical),
        "turn": [_turn_call(request, tool, arguments, secrets) for tool, arguments in dossier.turn or ()],
        "warnings": warned(request.canonical, masks),
    }


def typed(given: Form | None, which: str, forms: Mapping[str, Collection[str]]) -> dict[str, dict[str, str]]:
    """Return what stands in each form of a page: in the one that was posted what the person had typed, else nothing.

    Two forms may have fields of one name. What was meant for the one must not be posted with the other.

    Args:
        which: The form that was posted. forms: Form → the names of its fields that are kept.
    """
    return {
        form: {name: given.first(name) if given is not None and form == which else "" for name in names}
        for form, names in forms.items()
    }


def deed(dossier: Dossier, viewer: Viewer) -> str | None:
    """Return what the viewer was the last to do with a request, as a sentence; None: nothing."""
    request, me = dossier.request, viewer.principal.id
    last = next((one for one in reversed(dossier.history) if one.by == me), None)
    if last is not None and last.type == "request:revoked":
        return "Revoked."
    if last is not None and last.type.startswith("call:"):
        return "Resolved."
    vote = next((one for one in request.votes if one.approver == me and not one.automatic), None)
    if vote is None:
        return None
    if not vote.approve:
        return "Denied." if vote.response is None else "Answered."
    if request.state == "pending":
        return "Your approval is recorded; others are still needed."
    return "Approved." if request.state in _GRANTED else "Your decision is recorded."


def _happened(one: Any) -> dict[str, Any]:
    return {
        "at": one.at, "by": one.by, "detail": getattr(one, "detail", None), "reason": one.reason,
        "word": HAPPENED.get(one.type, one.type),
    }


def _needs(dossier: Dossier) -> list[dict[str, str]]:
    needs = dossier.request.requirements
    waits = dossier.request.state == "pending"
    return [
        {"text": requirement_text(need), "missing": _missing(count) if waits else ""}
        for need, count in zip(needs, dossier.missing_each, strict=True)
    ]


def _missing(count: int) -> str:
    return f"{count} more {'person is' if count == 1 else 'people are'} needed" if count else "enough people approved"


def _earlier(dossier: Dossier, secrets: Collection[str]) -> Earlier | None:
    before = dossier.previous
    if before is None:
        return None
    # Secret is what either side says: a definition may have changed in between.
    masks = {*secrets, *secrets_of(before)}
    return Earlier(before, compared(before.arguments, dossier.request.arguments, masks), bool(masks))


def _turn_call(request: ApprovalRequest, tool: str, arguments: Any, secrets: Collection[str]) -> TurnCall:
    if tool != request.tool:
        return TurnCall(tool, None)
    secret = secret_pointers(request.input_schema, arguments)
    return TurnCall(tool, laid(canonical.canonicalize(arguments), masks=secret))
