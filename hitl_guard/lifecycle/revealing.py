"""Revealing a secret argument: the audit log has who saw it before anybody sees it."""

from __future__ import annotations

from typing import Any

from .. import audit, canonical
from ..errors import ConfigurationError
from ..models import Principal
from ..render.secrets import secret_pointers, steps
from ..rows import Draft
from ..store.base import Append
from .desk import ROUNDS, Desk, busy, unknown
from .rights import may_see, operates


def reveal(desk: Desk, request_id: str, pointer: str, by: Principal) -> Any:
    """Return one secret argument of a request, after that was written to the audit log.

    Args:
        pointer: Its JSON pointer (RFC 6901), one of those that `render.secrets.secret_pointers` finds.

    Raises:
        InvalidApprovalError: there is no such request in the principal's tenant, the principal does not see it, or it
            has no such secret (``detail`` unknown): nobody can tell them apart.
        UnavailableError: it could not be written to the audit log; nothing is told then.
    """
    if not isinstance(by, Principal):
        raise ConfigurationError("'by' must be a Principal.")
    _, record = desk.find(by.tenant, request_id)
    details, arguments = record.details, canonical.decode(record.row.arguments)
    schema = None if details.definition is None else details.definition.input_schema
    seen = may_see(
        details.requirements, details.parties, by, user=record.envelope.scope.user,
        voters=[vote.approver for vote in record.votes if not vote.automatic],
        operator=operates(by, desk.settings.operator_role),
    )
    if not seen or pointer not in secret_pointers(schema, arguments):
        raise unknown()
    body = audit.body(by=by.id, fingerprint=record.envelope.fingerprint, place=pointer, request=record.row.id)
    for _ in range(ROUNDS):
        draft = Draft("argument:revealed", by.tenant, desk.store.now(), body)
        if desk.store.write([Append(draft)], desk.sealer) is not None:
            return at(arguments, pointer)
    raise busy()


def at(value: Any, pointer: str) -> Any:
    """Return what a JSON pointer that was found in this very value leads to."""
    for name in steps(pointer):
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value
