"""How approvals travel in others' formats: strict parsers, no I/O, and the check of what they claim.

One module a format (`ui_messages`, `model_messages`, `openai_responses`, `ag_ui`), each a function from a `Document` to
the claims in it. `claims_in` runs them all, because nobody but the app knows which format it reads. `verify` compares
claims with the store; it grants nothing.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

from ..errors import CanonicalizationError
from . import ag_ui, model_messages, openai_responses, ui_messages
from .calls import Calls
from .claims import Claim
from .document import Document

__all__ = ["Calls", "Claim", "Document", "claims_in", "may_claim"]


def may_claim(raw: bytes) -> bool:
    """Whether a body's text may hold an answered approval: a cheap look, so that most bodies are not walked.

    Every answer has a member or a type with one of these words in its name, in plain letters or behind an escape.
    """
    return b"approv" in raw or b"interrupt" in raw or b"\\u" in raw


def claims_in(body: Any, *, most: int = 1_000) -> tuple[list[Claim], Calls]:
    """Return every answered approval in a posted body, of any known format, and the tool calls that it states.

    Args:
        body: Plain JSON data from a strict parser.
        most: How many answered approvals there may be.

    Raises:
        InvalidApprovalError: something that is an answered approval is malformed, or states a call in two ways at once
            (``detail`` malformed).
        CanonicalizationError: there are too many (``too-large``, detail ``claims``).
    """
    document = Document(body)
    calls = Calls(document)
    found = chain(
        ui_messages.claims(document), model_messages.claims(document, calls), openai_responses.claims(document, calls),
        ag_ui.claims(document),
    )
    claims = list(islice(found, most + 1))
    if len(claims) > most:
        raise CanonicalizationError("There are too many approvals.", code="too-large", detail="claims")
    return claims, calls
