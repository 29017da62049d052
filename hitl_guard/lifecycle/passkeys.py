"""Deciding with a passkey: the decision is put to it, and its answer is read and recorded, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..envelope import Evidence, Vote
from ..errors import ConfigurationError, InvalidApprovalError, InvalidSignatureError, NotAuthorisedError
from ..models import Principal
from ..store.base import Append, Step
from .assertions import CHALLENGE_MS, Answer, library, unproven, verify
from .credentials import Assertion, Challenge, Kept, of_owner, owner_of, rewritten
from .desk import Desk, new_id

CHALLENGE_TYPE = "hitl-challenge"


def relying_party(desk: Desk) -> str:
    """Return the domain that passkeys belong to.

    Raises:
        ConfigurationError: the settings name none, or the library is missing.
    """
    if desk.settings.rp_id is None:
        raise ConfigurationError("Passkeys need 'rp_id' and 'rp_origins' in the guard's settings.", detail="passkey")
    library()
    return desk.settings.rp_id


def person_of(principal: object) -> Principal:
    """Return a principal who may have passkeys.

    Raises:
        NotAuthorisedError: it is an agent or a service; ``detail`` kind.
        ConfigurationError: it is no principal.
    """
    if not isinstance(principal, Principal):
        raise ConfigurationError("A passkey belongs to a Principal.")
    if principal.kind != "human":
        raise NotAuthorisedError("Only a person has passkeys.", detail="kind")
    return principal


@dataclass(frozen=True, slots=True)
class Proof:
    """A ticket that verified, and an answer that has to be verified against the decision still.

    Attributes:
        request_id: Under which an edit stores its new request.
        nonce: The decision's. evidence: What is recorded if it verifies.
        kept: The passkey that answered; None while none did.
    """

    request_id: str
    nonce: str
    evidence: Evidence
    kept: Kept | None

    def spending(self, desk: Desk, vote: Vote, append: Append) -> list[Step]:
        """Verify that the authenticator signed exactly this decision; return the steps that record it, once.

        The digest that it signed is the event's spend key, unique in the whole store: neither a ticket nor an answer
        ever makes a second decision. Its passkey's row must be as it was read, and is counted up.

        Raises:
            NotAuthorisedError: it signed something else; ``detail`` evidence.
        """
        if self.kept is None:
            raise unproven()
        count = verify(
            vote, expected_rp=relying_party(desk), expected_origins=desk.settings.rp_origins,
            sign_count=self.kept.credential.sign_count,
        )
        spent = vote.challenge(self.evidence.at)
        step = replace(append, draft=replace(append.draft, spend_key=spent))
        return [rewritten(self.kept, desk.signer, vote.at, sign_count=count), step]


def announced(desk: Desk, now: int) -> Proof:
    """Return what stands for a proof in a decision that is only being put to a passkey. It verifies nowhere."""
    return Proof(new_id(), new_id(), Evidence(now, relying_party(desk), b"", b"", b"", b"", b""), None)


def challenged(
    desk: Desk, approver: Principal, asked: str, vote: Vote, terms: Mapping[str, Any], now: int
) -> Challenge:
    """Put a decision to the approver's passkeys: its digest is the challenge.

    Args:
        asked: The request that was decided on; with an edit the vote is on another one.
        terms: What the decision comes with and does not hold itself; the ballot must bring the same again.

    Raises:
        NotAuthorisedError: the person has no passkey; ``detail`` evidence.
    """
    rp = relying_party(desk)
    kept = of_owner(desk, approver.tenant, approver.id, now).kept
    if not kept:
        raise unproven("This needs a passkey: register one first.")
    fields = {
        "asked": asked, "end": now + CHALLENGE_MS, "nonce": vote.nonce, "owner": approver.id,
        "request": vote.request_id, "tenant": approver.tenant, "terms": dict(terms),
    }
    ticket = desk.signer.sign("session", CHALLENGE_TYPE, fields, now=now).decode()
    return Challenge(ticket, request_options(rp, vote.challenge(now), kept))


def proof(
    desk: Desk, approver: Principal, asked: str, assertion: Assertion, terms: Mapping[str, Any], now: int
) -> Proof:
    """Read an answer to a challenge: the ticket is verified here, the answer when the decision is complete.

    Raises:
        NotAuthorisedError: the ticket is not ours, another person's, another request's or over, or the passkey is not
            one of this person's; ``detail`` evidence.
    """
    if desk.settings.rp_id is None:
        raise unproven("No passkey counts here: the guard's settings name no domain for them.")
    rp = relying_party(desk)
    fields = opened(desk, assertion.ticket, CHALLENGE_TYPE, approver, now)
    if fields["asked"] != asked or fields["terms"] != dict(terms):
        raise unproven()
    answer = Answer.read(assertion.response, user=owner_of(approver.tenant, approver.id))
    kept = one_of(of_owner(desk, approver.tenant, approver.id, now).kept, answer.credential)
    evidence = Evidence(
        at=fields["issued_at"], rp=rp, credential=answer.credential, key=kept.credential.key,
        authenticator=answer.authenticator, client=answer.client, signature=answer.signature,
    )
    return Proof(fields["request"], fields["nonce"], evidence, kept)


def opened(desk: Desk, ticket: object, kind: str, person: Principal, now: int) -> dict[str, Any]:
    """Return what a ticket holds, if it is ours, of this type, this person's and neither over nor of the future.

    Raises:
        NotAuthorisedError: it is not; ``detail`` evidence.
    """
    try:
        fields = desk.signer.open(ticket, expected_purpose="session", expected_type=kind, now=now)
    except (InvalidApprovalError, InvalidSignatureError) as error:
        raise unproven("This is no ticket of ours, or its key counts no longer: start again.") from error
    if (fields["tenant"], fields["owner"]) != (person.tenant, person.id):
        raise unproven("This was prepared for another person: start again.")
    if not fields["issued_at"] <= now < fields["end"]:
        raise unproven("The time for the passkey is over: start again.")
    return fields


def one_of(kept: Sequence[Kept], credential: bytes) -> Kept:
    """Return the passkey with this id; raises `NotAuthorisedError` if it is none of them."""
    for one in kept:
        if one.credential.raw_id() == credential:
            return one
    raise unproven("This passkey is not registered for you.")


def request_options(rp: str, challenge: bytes, kept: Sequence[Kept]) -> dict[str, Any]:
    """Return what a browser needs to have one of these passkeys sign a challenge, the person verified."""
    webauthn = library()
    structs = webauthn.helpers.structs
    allowed = [
        structs.PublicKeyCredentialDescriptor(
            one.credential.raw_id(),
            transports=[structs.AuthenticatorTransport(hint) for hint in one.credential.transports] or None,
        )
        for one in kept
    ]
    options = webauthn.generate_authentication_options(
        rp_id=rp, challenge=challenge, timeout=CHALLENGE_MS, allow_credentials=allowed,
        user_verification=structs.UserVerificationRequirement.REQUIRED,
    )
    read: dict[str, Any] = webauthn.helpers.options_to_json_dict(options)
    return read
