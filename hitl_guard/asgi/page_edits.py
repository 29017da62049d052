"""Editing a call's arguments on a page: what would run is shown first, and nothing else can be decided from there.

The page that shows a change has the digest of it in its form. Whoever approves hands that in, and the server makes the
change anew from the form: where it comes to something else than what was shown, nothing is decided.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from .. import canonical
from ..errors import DecisionError
from ..lifecycle.bound import canonical_arguments
from ..lifecycle.settings import Settings
from ..lifecycle.toolspec import validate
from ..models import ApprovalRequest
from ..render.markup import laid
from ..render.secrets import masked, secret_pointers, secrets_of
from . import page_views as views
from .forms import Edited, Form, edited
from .views import STORED

SHOWN = "shown"
"""The field of the form that holds the digest of what was shown."""

_TAG = b"hitl-guard/shown-edit/v1\0"


@dataclass(frozen=True, slots=True)
class Change:
    """What a person makes of a request's arguments.

    Attributes:
        data: The canonical bytes that would run.
        masks: JSON pointers of what is secret in them or in the request's own.
        shown: The digest of the change: 64 hex digits. It is made of what the person sees and typed, and of the
            request's fingerprint, never of a secret that is in the request: it tells nobody whether a guess was right.
    """

    data: bytes
    masks: frozenset[str]
    shown: str


def read(asked: ApprovalRequest, form: Form) -> Edited:
    """Return what a form says of the arguments.

    Raises:
        DecisionError: they cannot be edited here.
    """
    made = views.form_of(asked)
    if not made:
        raise wrong("These arguments cannot be edited here.")
    return edited(made, asked.arguments, form)


def change(asked: ApprovalRequest, made: Edited, settings: Settings) -> Change:
    """Return the change that a form makes.

    Raises:
        DecisionError: a field is wrong, or nothing was changed.
        CanonicalizationError: the arguments are unusable, or do not fit the tool.
    """
    if made.arguments is None:
        raise wrong("The changed arguments are not right yet: look below.")
    data = canonical_arguments(made.arguments, settings)
    validate(asked.definition, data)
    # Where a secret was typed, this must not tell whether it is the one that is there already.
    if data == asked.canonical and not made.typed:
        raise wrong("Nothing was changed: approve the call as it is.")
    arguments = canonical.decode(data)
    masks = secrets_of(asked) | secret_pointers(asked.input_schema, arguments)
    # Each part is canonical JSON, in which no byte is 0: what is joined can be taken apart in one way only.
    parts = ([asked.id, asked.fingerprint, dict(made.typed)], sorted(masks), masked(arguments, masks))
    seen = b"\0".join(canonical.canonicalize(part, limits=STORED) for part in parts)
    return Change(data, masks, hashlib.sha256(_TAG + seen).hexdigest())


def check_shown(made: Change, form: Form) -> None:
    """Refuse a decision on another change than the one that was shown, or on one that never was.

    Raises:
        DecisionError: ``args-mismatch``, detail stale.
    """
    if form.one(SHOWN) != made.shown:
        raise DecisionError("This change is not the one that was shown: look at it once more.", code="args-mismatch",
                            detail="stale")


def context(asked: ApprovalRequest, made: Change, form: Form) -> dict[str, Any]:
    """Return the context of the page that shows a change."""
    row = views.Row.of(asked)
    return {
        "again": [pair for pair in form.all() if pair[0] not in ("answer", "back", SHOWN)],
        "differences": views.compared(asked.arguments, canonical.decode(made.data), made.masks),
        "laid": laid(made.data, masks=made.masks), "needed": row.needed, "passkey": row.passkey,
        "plain": made.data.decode(), "request": asked, "secret": bool(made.masks), "shown": made.shown,
        "size": len(made.data), "warnings": views.warned(made.data, made.masks),
    }


def wrong(message: str) -> DecisionError:
    """Return the error of a form that says nothing that can be decided."""
    return DecisionError(message, code="unsupported-value", detail="form")
