"""From a request to what a client is asked, and from its answer to a decision: what all formats have in common.

An answer decides nothing by itself. The app reads it with `claims_in`, takes those that are `live`, loads the request
that each names, and gives `decision` to `Guard.decide`, with the principal of its own login.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from .. import canonical
from ..errors import ArgsMismatchError, CanonicalizationError, ConfigurationError, ConsumedError, InvalidApprovalError
from ..models import ApprovalRequest
from ..render import layout
from ..render.characters import escape
from ..render.request import masked_data
from ..render.secrets import secrets_of
from .claims import Claim

OPENAI: Final = "openai-responses"
_PLACES: Final = {"ag-ui": re.compile(r"/resume/\d+"), OPENAI: re.compile(r"/input/\d+")}
"""Format → where its answers stand, as a JSON pointer."""


def question(request: ApprovalRequest) -> str:
    """Return what a person is asked, as plain text: the tool, and the arguments whole but for the secret ones."""
    data = masked_data(request.canonical, secrets_of(request))
    warnings = "".join(f"\n! {warning}" for warning in layout.warnings(data))
    return f"Run the tool '{escape(request.tool)}' with these arguments?\n{layout.arguments(data)}{warnings}"


def live(claims: Iterable[Claim], *, format: str) -> list[Claim]:
    """Return the answers that still have to decide something, in their order; what history repeats is left out.

    Call it before the first decision, so that a body that says both yes and no decides nothing. Only what stands where
    the format has its answers is one: models and servers write other parts of a body, which clients send back.

    Args:
        format: What the app speaks: ``ag-ui`` or ``openai-responses``.

    Raises:
        ConfigurationError: it is another format.
        ConsumedError: one request is answered twice (``detail`` repeated), be it in the same way.
    """
    if format not in _PLACES:
        raise ConfigurationError(f"'format' is one of: {', '.join(_PLACES)}.")
    answers = [
        claim for claim in claims
        if claim.outcome == "none" and claim.format == format and _PLACES[format].fullmatch(claim.path)
    ]
    # A tool-call id names a request only in formats without an id of ours: models repeat tool-call ids.
    named = {(one.request_id, one.call_id if one.request_id is None else None) for one in answers}
    if len(named) != len(answers):
        raise ConsumedError("One approval is answered twice.", detail="repeated")
    return answers


def decision(claim: Claim, request: ApprovalRequest) -> dict[str, Any]:
    """Return the arguments of `Guard.decide` that an answer stands for: approve, fingerprint, reason and arguments.

    Args:
        claim: From `claims_in`.
        request: The one that it names, as the guard returns it: `Guard.get` for a request id, `Guard.pending` of the
            app's own run for a tool-call id (models repeat those in other runs).

    Raises:
        InvalidApprovalError: it is no answer to this request, it has been used, or it does not say to which arguments
            it is one.
        ArgsMismatchError: it is one to other arguments, or to another tool.
    """
    named = (claim.request_id, request.id), (claim.call_id, request.call_id), (claim.token, request.token)
    if any(theirs not in (None, ours) for theirs, ours in named) or claim.request_id is claim.call_id is None:
        raise InvalidApprovalError("The answer is one to another request.", detail="unknown")
    if claim.outcome != "none":
        raise InvalidApprovalError("The answer has been used: its call has a result.", detail="malformed")
    if claim.format == OPENAI and claim.tool is None:
        raise InvalidApprovalError("The item that was answered is missing.", detail="malformed")
    edited = claim.arguments if claim.tool is None else None
    if claim.tool is not None and not (claim.tool == request.tool and _same(claim.arguments, request)):
        raise ArgsMismatchError("The answer is one to another tool or other arguments.")
    if edited is not None and not claim.approved:
        raise InvalidApprovalError("A denial has no arguments.", detail="malformed")
    made = {"approve": claim.approved, "fingerprint": request.fingerprint, "reason": claim.reason}
    return made | ({} if edited is None else {"arguments": edited})


def _same(arguments: Any, request: ApprovalRequest) -> bool:
    """Whether arguments are exactly the signed ones: here they come back as the text that was handed out."""
    try:
        return canonical.canonicalize(arguments, exact=True) == request.canonical
    except CanonicalizationError:
        return False
