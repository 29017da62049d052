"""Verdicts and how they combine: denied > user-approval > approved > not-applicable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..models import Requirement


class Status(StrEnum):
    """The four verdicts (the AI SDK's names). ``not-applicable``: run, nothing is recorded."""

    NOT_APPLICABLE = "not-applicable"
    APPROVED = "approved"
    USER_APPROVAL = "user-approval"
    DENIED = "denied"


_STRICTNESS = {Status.NOT_APPLICABLE: 0, Status.APPROVED: 1, Status.USER_APPROVAL: 2, Status.DENIED: 3}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the policy says about one call.

    Attributes:
        requirements: Of every part that asked for a person; all must be met. Empty unless ``user-approval``.
        rules: Ids of the rules that matched with the deciding status, for the approver and the audit.
        errors: Ids of the parts that failed to answer. The status already accounts for them; at `authorize` any
            error refuses.
    """

    status: Status
    reason: str | None = None
    requirements: tuple[Requirement, ...] = ()
    rules: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """What a policy may look at. All values are fresh plain JSON data; nothing here is the caller's own object.

    Attributes:
        turn: ``(tool, arguments)`` of the earlier calls of the same model turn; None: nobody said which there are.
        context: The host's data for conditions.
        dynamic: Whether the tool has no registered definition.
    """

    tool: str
    arguments: dict[str, Any]
    user: str
    tenant: str
    run_id: str
    call_id: str | None
    agent: str | None
    turn: tuple[tuple[str, dict[str, Any]], ...] | None = None
    context: Mapping[str, Any] | None = None
    dynamic: bool = False


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine verdicts: the strictest status wins, with the reasons and rules of those that have it.

    Requirements of every ``user-approval`` part are kept side by side, errors of all. Nothing at all is
    ``not-applicable``.
    """
    parts = tuple(verdicts)
    status = max((part.status for part in parts), key=_STRICTNESS.__getitem__, default=Status.NOT_APPLICABLE)
    deciding = tuple(part for part in parts if part.status is status)
    reasons = tuple(dict.fromkeys(part.reason for part in deciding if part.reason))
    requirements = tuple(dict.fromkeys(need for part in deciding for need in part.requirements))
    if status is Status.USER_APPROVAL and not requirements:
        requirements = (Requirement(),)
    return Verdict(
        status=status,
        reason=" · ".join(reasons) or None,
        requirements=requirements,
        rules=tuple(dict.fromkeys(rule for part in deciding for rule in part.rules)),
        errors=tuple(error for part in parts for error in part.errors),
    )
