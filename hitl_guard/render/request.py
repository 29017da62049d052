"""A whole request for an approver: the arguments first, then who, where, why and until when."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any

from .. import canonical
from ..models import ApprovalRequest, Decision, Requirement
from .characters import escape, quoted, visible
from .layout import arguments, warnings
from .secrets import masked, secrets_of

_LAST_DATE_MS = 253_402_300_799_999  # the end of the year 9999, where calendars of programs end


def utc(time: int) -> str:
    """Return epoch milliseconds as ISO 8601 in UTC, to the second."""
    if not 0 <= time <= _LAST_DATE_MS:
        return f"{time} ms"
    return datetime.fromtimestamp(time // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def left(until: int, now: int) -> str:
    """Return how long it is from ``now`` to ``until`` (epoch milliseconds), in words."""
    if until <= now:
        return "over"
    minutes, seconds = divmod((until - now) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return "in " + " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2])


_STORED = canonical.Limits(max_bytes=2**40, max_depth=200, max_nodes=2**31, max_digits=4_300)


def request_text(request: ApprovalRequest, *, now: int, revealed: Collection[str] = ()) -> str:
    """Return everything that an approver needs of one request, for a terminal: the arguments first, and complete but
    for the secret ones, which are masked.

    Args:
        now: The database's clock, epoch milliseconds.
        revealed: JSON pointers of secret values that may be shown, since that is in the audit log (`Guard.reveal`).
    """
    size, masks = len(request.canonical), secrets_of(request) - set(revealed)
    data = masked_data(request.canonical, masks)
    complete = "complete but for what is masked" if masks else "complete"
    lines = [f"Arguments, {complete}, as they were signed ({size} bytes):", arguments(data)]
    lines += [f"  masked: {escape(place) or 'everything'}" for place in sorted(masks)]
    lines += [f"  ! {warning}" for warning in warnings(data)]
    lines.append("")
    lines += [f"{name:<13}{value}" for name, value in _fields(request, now)]
    return "\n".join(lines) + "\n"


def _fields(request: ApprovalRequest, now: int) -> Iterator[tuple[str, str]]:
    yield "Tool", escape(request.tool)
    yield "For user", escape(request.user)
    yield "Agent", _or_none(request.agent)
    yield "Run", escape(request.run_id)
    yield "Tool call", "any (deny and retry)" if request.call_id is None else escape(request.call_id)
    yield "Occurrence", str(request.occurrence)
    yield "Tenant", escape(request.tenant)
    yield "Request", escape(request.id)
    if request.supersedes is not None:
        yield "Replaces", escape(request.supersedes)
    yield "State", escape(request.state)
    yield "Rules", ", ".join(map(escape, request.rules)) or "none"
    if request.reason is not None:
        yield "Policy says", f"{quoted(request.reason)} (words, checked by nobody)"
    for need in request.requirements:
        yield "Needs", requirement_text(need)
    yield "Asked", utc(request.issued_at)
    yield "Decide by", f"{utc(request.decide_by)} ({left(request.decide_by, now)})"
    if request.execute_by is not None:
        yield "Run by", f"{utc(request.execute_by)} ({left(request.execute_by, now)})"
    for vote in request.votes:
        yield "Decision", _vote_text(vote)
    yield "Policy", request.policy_version
    yield "Key", escape(request.key_id)
    yield "Fingerprint", request.fingerprint


def _or_none(text: str | None) -> str:
    return "none" if text is None else escape(text)


def requirement_text(need: Requirement) -> str:
    """Return what one policy rule demands, as a sentence."""
    people = "one person" if need.quorum == 1 else f"{need.quorum} different people"
    parts = [f"{people} of {', '.join(map(escape, need.approvers)) or 'the tenant'}"]
    parts.append("the requester too" if need.self_approval else "never the requester")
    if need.channels:
        parts.append(f"only over: {', '.join(map(escape, need.channels))}")
    if need.evidence != "hmac":
        parts.append(f"evidence: {escape(need.evidence)}")
    if need.edit:
        parts.append("arguments may be edited")
    if need.recheck_approvers:
        parts.append("rights are looked up again before the call")
    if need.risk is not None:
        parts.append(f"risk: {escape(need.risk)}")
    return "; ".join(parts)


def _vote_text(vote: Decision) -> str:
    verb = "approved" if vote.approve else "denied"
    who = "the policy itself" if vote.automatic else escape(vote.approver)
    roles = f" as {', '.join(map(escape, vote.roles))}" if vote.roles else ""
    text = f"{verb} by {who}{roles} over {escape(vote.channel)} at {utc(vote.at)}"
    if vote.evidence != "hmac":
        text += f", proven with a {escape(vote.evidence)}"
    if vote.reason is not None:
        text += f", saying {quoted(vote.reason)}"
    if vote.response is not None:
        text += f", answering for the tool {visible(json.dumps(vote.response, ensure_ascii=False))}"
    return text


def masked_data(data: bytes, masks: Collection[str]) -> bytes:
    """Return canonical arguments with each secret value masked (see `secrets.masked`).

    Args:
        masks: JSON pointers of the secret values.
    """
    return canonical.canonicalize(masked(canonical.decode(data), masks), limits=_STORED) if masks else data


def request_json(request: ApprovalRequest, *, revealed: Collection[str] = ()) -> dict[str, Any]:
    """Return the same facts as plain JSON data, times in epoch milliseconds.

    ``canonical`` is the exact JSON text that was signed, ``arguments`` its value. ``secrets`` are the JSON pointers of
    the arguments that are masked; where there are any, ``canonical`` is None. Whoever prints this escapes everything
    beyond ASCII (``json.dumps`` does) or renders each text as `escape` does.

    Args:
        revealed: As for `request_text`.
    """
    masks = secrets_of(request) - set(revealed)
    shown = request.arguments if not masks else {} if "" in masks else masked(request.arguments, masks)
    return request_line(request) | {
        "arguments": shown, "canonical": None if masks else request.canonical.decode(), "secrets": sorted(masks),
        "warnings": list(warnings(masked_data(request.canonical, masks))),
    }


def request_line(request: ApprovalRequest) -> dict[str, Any]:
    """Return `request_json` without what is as large as the arguments, and takes as long: for lists."""
    names = (
        "agent", "binding", "call_id", "decide_by", "execute_by", "fingerprint", "id", "issued_at", "key_id",
        "occurrence", "policy_version", "reason", "run_id", "state", "supersedes", "tenant", "tool", "user", "version",
    )
    return {name: getattr(request, name) for name in names} | {
        "requirements": [need.to_json() for need in request.requirements],
        "rules": list(request.rules),
        "votes": [_vote_json(vote) for vote in request.votes],
    }


def _vote_json(vote: Decision) -> dict[str, Any]:
    names = ("approve", "approver", "at", "automatic", "channel", "evidence", "fingerprint", "reason", "response")
    return {name: getattr(vote, name) for name in names} | {"roles": list(vote.roles)}
