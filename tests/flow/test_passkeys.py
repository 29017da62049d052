"""Passkey step-up: what an authenticator signed is exactly what is decided, once, and it is verified again later."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hitl_guard import AsyncGuard, Guard, signing
from hitl_guard.cli import main
from hitl_guard.cli._common import Setup
from hitl_guard.errors import ConfigurationError, DecisionError, HitlGuardError, StoreRolledBackError
from hitl_guard.keyring import Key, Keyring
from hitl_guard.lifecycle import ask, assertions, editing, enrolment, ledger, passkeys
from hitl_guard.lifecycle.assertions import MAX_PART
from hitl_guard.lifecycle.credentials import Assertion, Challenge, Credential, key_of, owner_of, signed_row, verify_row
from hitl_guard.lifecycle.decide import Ballot, _vote
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import ApprovalRequest, Decision, Principal
from hitl_guard.render import request_json, request_text
from hitl_guard.rows import credential_record
from hitl_guard.store.sql import SQLStore
from tests.authenticator import ORIGIN, RP, UP, Authenticator, b64, unb64
from tests.databases import Database
from tests.support import ANA, BOB, CAROL, OPERATOR, World, document, ring, until
from tests.threats.gates import all_read, at_once, told

POLICY = """\
version: 1
name: passkeys
default: not_applicable
rules:
  - {id: step-up, tools: [wire, both], effect: require_approval, evidence: passkey, decide_within: 1h}
  - {id: pair, tools: [merge], effect: require_approval, evidence: passkey, quorum: 2}
  - {id: editable, tools: [mail], effect: require_approval, evidence: passkey, edit: true}
  - {id: plain, tools: [refund, both], effect: require_approval}
"""
SETTINGS = Settings(rp_id=RP, rp_name="Approvals", rp_origins=(ORIGIN,))
DAVE = Principal("dave", roles=("b", "a"))


@dataclass
class Scene:
    """A guard whose policy demands passkeys, and people who have one each."""

    world: World
    database: Database
    bob: Authenticator
    carol: Authenticator

    @property
    def guard(self) -> Guard:
        return self.world.guard

    def enrol(
        self, person: Principal, key: Authenticator, *, by: Authenticator | None = None, **bent: Any
    ) -> Credential:
        started = self.guard.passkey_registration(person)
        confirm = None if by is None or started.confirm is None else by.get(started.confirm)
        return self.guard.register_passkey(
            person, ticket=started.ticket, response=key.create(started.options, **bent), name="phone", confirm=confirm
        )

    def asked(self, tool: str = "wire", arguments: Any = None) -> ApprovalRequest:
        return self.guard.request(self.world.call(tool, arguments))

    def challenge(
        self, request: ApprovalRequest, by: Principal = BOB, *, approve: bool = True, **ballot: Any
    ) -> Challenge:
        return self.guard.challenge(
            request.id, approver=by, approve=approve, fingerprint=request.fingerprint, **ballot
        )

    def decide(
        self, request: ApprovalRequest, evidence: Assertion | None, by: Principal = BOB, *, approve: bool = True,
        **ballot: Any,
    ) -> Decision:
        return self.guard.decide(
            request.id, approver=by, approve=approve, evidence=evidence,
            **{"fingerprint": request.fingerprint, "channel": "inbox", **ballot},
        )

    def answer(self, made: Challenge, key: Authenticator | None = None, **bent: Any) -> Assertion:
        return Assertion(made.ticket, (key or self.bob).get(made.options, **bent))

    def another(self, **changed: Any) -> Scene:
        """Return the same people at another node."""
        return replace(self, world=self.world.another(**{"settings": SETTINGS} | changed))

    def step_up(self, request: ApprovalRequest, by: Principal = BOB, **ballot: Any) -> Decision:
        key = self.carol if by == CAROL else self.bob
        return self.decide(request, self.answer(self.challenge(request, by, **ballot), key), by, **ballot)

    @contextmanager
    def refused(self, detail: str = "evidence", code: str = "not-authorised") -> Iterator[None]:
        """Demand that the block is refused with this code and detail, and that the refusal is audited."""
        before = len(self.world.audited("decision:refused"))
        with pytest.raises(DecisionError) as caught:
            yield
        assert (caught.value.code, caught.value.detail) == (code, detail)
        assert len(self.world.audited("decision:refused")) == before + 1

    def rows(self) -> list[tuple[bytes, bytes, bytes]]:
        found = self.database.execute("SELECT credential, owner, body FROM hitl_guard_credentials")
        return [(bytes(key), bytes(owner), bytes(body)) for key, owner, body in found]

    def findings(self, **options: Any) -> list[tuple[str, str]]:
        report = ledger.verify(self.guard._desk, **options)
        return [(finding.where.split()[0], finding.code) for finding in report.findings]


@pytest.fixture
def make_scene(
    make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
) -> Callable[..., Scene]:
    def make(kind: str = "sqlite", **options: Any) -> Scene:
        database = make_database(kind)
        given: dict[str, Any] = {"policy": document(POLICY), "settings": SETTINGS} | options
        scene = Scene(World(open_store(database), **given), database, Authenticator(), Authenticator())
        scene.enrol(BOB, scene.bob)
        scene.enrol(CAROL, scene.carol)
        return scene

    return make


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    return make_scene()


# -- the way it is meant ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_x10_a_decision_that_a_passkey_signed_counts_and_runs(make_scene: Callable[..., Scene], kind: str) -> None:
    scene = make_scene(kind)
    call = scene.world.call("wire")
    request = scene.guard.request(call)

    decision = scene.step_up(request, reason="fine")

    assert (decision.state, decision.evidence, decision.reason) == ("approved", "passkey", "fine")
    assert scene.world.run(call) == "done"
    assert scene.findings() == scene.findings(origins=[ORIGIN]) == []


def test_x10_a_request_says_that_a_passkey_proved_its_vote(scene: Scene) -> None:
    request = scene.asked()
    scene.step_up(request)
    shown = scene.guard.get(request.id)

    assert request_json(shown)["votes"][0]["evidence"] == "passkey"
    assert "proven with a passkey" in request_text(shown, now=scene.world.store.now())


def test_x10_the_options_name_the_domain_the_passkeys_and_demand_verification(scene: Scene) -> None:
    request = scene.asked()

    options = scene.challenge(request).options

    assert (options["rpId"], options["userVerification"]) == (RP, "required")
    assert options["allowCredentials"] == [
        {"id": b64(scene.bob.id), "type": "public-key", "transports": ["internal", "usb"]}
    ]


def test_x10_what_is_signed_is_the_digest_of_the_decision_that_is_recorded(scene: Scene) -> None:
    request = scene.asked()
    challenge = scene.challenge(request)
    scene.decide(request, scene.answer(challenge))
    (vote,) = scene.guard._desk.find("default", request.id)[1].votes

    assert vote.evidence is not None
    assert vote.challenge(vote.evidence.at) == unb64(challenge.options["challenge"])
    assert vote.challenge(vote.evidence.at) != replace(vote, nonce="x").challenge(vote.evidence.at)
    assert vote.challenge(vote.evidence.at) != vote.challenge(vote.evidence.at + 1)


def test_x10_a_passkey_decides_where_no_rule_demands_it_too(scene: Scene) -> None:
    request = scene.asked("refund")

    assert scene.step_up(request).evidence == "passkey"


def test_x10_a_mute_comes_with_the_denial_that_was_signed(scene: Scene) -> None:
    request = scene.asked("refund")
    evidence = scene.answer(scene.challenge(request, approve=False, mute=60_000))
    for other in (None, 60_001):
        with scene.refused():
            scene.decide(request, evidence, approve=False, mute=other)

    assert scene.decide(request, evidence, approve=False, mute=60_000).evidence == "passkey"


def test_x10_a_mute_needs_the_passkey_that_a_plain_denial_does_not(scene: Scene) -> None:
    request = scene.asked()
    with scene.refused():
        scene.decide(request, None, approve=False, mute=60_000)
    assert (scene.world.state(request), scene.guard.control().mutes) == ("pending", ())

    evidence = scene.answer(scene.challenge(request, approve=False, mute=60_000))
    scene.decide(request, evidence, approve=False, mute=60_000)

    assert [mute.by for mute in scene.guard.control().mutes] == ["bob"]
    with scene.world.refused("denied", "muted"):
        scene.asked()
    assert scene.decide(scene.asked("merge"), None, approve=False).state == "denied"


def test_x10_a_mute_without_a_passkey_does_not_reach_what_a_rule_demands_one_for(scene: Scene) -> None:
    call, plain = scene.world.call, scene.another(policy="user-approval")
    plain.decide(plain.guard.request(call("wire")), None, approve=False, mute=60_000)

    with plain.world.refused("denied", "muted"):
        plain.guard.request(call("wire"))
    assert scene.guard.request(call("wire")).state == "pending"


def test_x10_the_same_decision_again_is_no_second_one(scene: Scene) -> None:
    request = scene.asked()
    evidence = scene.answer(scene.challenge(request))
    first = scene.decide(request, evidence)

    assert scene.decide(request, evidence) == first
    assert scene.guard.get(request.id).version == 1


def test_x10_roles_may_come_in_another_order(scene: Scene) -> None:
    key = Authenticator()
    scene.enrol(DAVE, key)
    request = scene.asked()
    evidence = scene.answer(scene.challenge(request, DAVE), key)

    assert scene.decide(request, evidence, replace(DAVE, roles=("a", "b"))).state == "approved"


def test_x10_a_plain_denial_needs_no_passkey(scene: Scene) -> None:
    request = scene.asked()

    assert scene.decide(request, None, approve=False, reason="no").evidence == "hmac"
    assert scene.world.state(request) == "denied"


def test_x10_an_answer_in_place_of_the_tool_needs_one(scene: Scene) -> None:
    request = scene.asked()
    with scene.refused():
        scene.decide(request, None, approve=False, respond={"paid": True})

    decision = scene.step_up(request, approve=False, respond={"paid": False})

    assert (decision.response, decision.evidence) == ({"paid": False}, "passkey")


def test_x10_a_quorum_of_two_needs_two_passkeys(scene: Scene) -> None:
    call = scene.world.call("merge")
    request = scene.guard.request(call)
    assert scene.step_up(request).state == "pending"
    with scene.refused():
        scene.decide(request, None, CAROL)

    assert scene.step_up(request, CAROL).state == "approved"
    assert scene.world.run(call) == "done"
    assert scene.findings() == []


def test_x10_edited_arguments_are_what_the_passkey_signs(scene: Scene) -> None:
    call = scene.world.call("mail", {"amount": 9500})
    request = scene.guard.request(call)
    edit: dict[str, Any] = {"arguments": {"amount": 1500}}

    decision = scene.step_up(request, **edit)

    assert decision.request_id != request.id
    assert (decision.state, decision.evidence) == ("approved", "passkey")
    scene.world.run(call)
    assert scene.world.effects == [{"amount": 1500}]
    assert scene.findings() == []


async def test_x10_the_asynchronous_guard_does_the_same(scene: Scene) -> None:
    guard, request, key = AsyncGuard(guard=scene.guard), scene.asked(), Authenticator()
    started = await guard.passkey_registration(DAVE)
    made = await guard.register_passkey(
        DAVE, ticket=started.ticket, response=key.create(started.options), name="laptop"
    )
    assert await guard.passkeys(DAVE) == (made,)
    challenge = await guard.challenge(request.id, approver=DAVE, approve=True, fingerprint=request.fingerprint)
    decision = await guard.decide(
        request.id, approver=DAVE, approve=True, fingerprint=request.fingerprint, channel="inbox",
        evidence=scene.answer(challenge, key),
    )
    await guard.remove_passkey(made.id, by=OPERATOR, owner="dave")

    assert decision.evidence == "passkey"
    assert await guard.passkeys(DAVE) == ()


# -- what does not count ---------------------------------------------------------------------------------------------


def test_x10_a_vote_without_a_passkey_does_not_count(scene: Scene) -> None:
    with scene.refused():
        scene.decide(scene.asked(), None)


def test_x10_nor_where_it_would_count_for_another_rule(scene: Scene) -> None:
    # Bob could never come back with his passkey.
    request = scene.asked("both")
    with scene.refused():
        scene.decide(request, None)

    assert scene.step_up(request).state == "approved"


@pytest.mark.parametrize(
    "changed",
    [
        {"approve": False}, {"reason": "other"}, {"reason": None}, {"channel": "api"}, {"execute_within": 2_000},
        {"execute_within": None}, {"respond": 1, "approve": False},
    ],
    ids=str,
)
def test_x10_whatever_differs_from_what_was_signed_is_refused(scene: Scene, changed: dict[str, Any]) -> None:
    request = scene.asked("refund")
    signed: dict[str, Any] = {"reason": "fine", "execute_within": 1_000}
    evidence = scene.answer(scene.challenge(request, **signed))

    with scene.refused():
        scene.decide(request, evidence, **signed | changed)
    assert scene.world.state(request) == "pending"


def test_x10_1500_signed_and_9500_decided_is_refused(scene: Scene) -> None:
    request = scene.asked("mail", {"amount": 1500})
    other = scene.asked("mail", {"amount": 9500})
    evidence = scene.answer(scene.challenge(request))
    edited = scene.answer(scene.challenge(request, arguments={"amount": 1400}))

    with scene.refused("stale", "args-mismatch"):
        scene.decide(request, evidence, fingerprint=other.fingerprint)
    with scene.refused():
        scene.decide(other, evidence)
    with scene.refused():
        scene.decide(request, evidence, arguments={"amount": 9500})
    with scene.refused():
        scene.decide(request, edited, arguments={"amount": 9500})
    with scene.refused():
        scene.decide(request, edited)
    assert scene.world.state(request) == scene.world.state(other) == "pending"


BENT: dict[str, dict[str, Any]] = {
    "another challenge": {"challenge": b64(bytes(32))},
    "another origin": {"origin": "https://evil.example"},
    "a neighbour of the origin": {"origin": "https://other.example.org"},
    "a registration": {"type": "webauthn.create"},
    "an embedded page": {"crossOrigin": True},
    "another signature": {"sign": lambda _: b"x" * 70},
    "another key": {"sign": lambda data: Authenticator().key.sign(data, _es256())},
    "another person's handle": {"user": owner_of("default", "carol")},
}


def _es256() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    return ec.ECDSA(SHA256())


@pytest.mark.parametrize("what", sorted(BENT))
def test_x10_an_answer_that_is_bent_is_refused(scene: Scene, what: str) -> None:
    request = scene.asked()
    challenge = scene.challenge(request)

    with scene.refused():
        scene.decide(request, scene.answer(challenge, **BENT[what]))

    assert scene.decide(request, scene.answer(challenge, user=owner_of("default", "bob"))).state == "approved"


@pytest.mark.parametrize("changed", [{"flags": UP}, {"flags": 0}, {"rp": "evil.example"}], ids=str)
def test_x10_an_authenticator_that_saw_nobody_or_is_for_another_domain_is_refused(
    scene: Scene, changed: dict[str, Any]
) -> None:
    request = scene.asked()
    with scene.refused():
        scene.decide(request, scene.answer(scene.challenge(request), replace(scene.bob, **changed)))


@pytest.mark.parametrize(
    "response",
    [
        None, [], "text", {}, {"id": "AA"}, {"id": "AA", "rawId": "AA"}, {"id": 7, "rawId": 7},
        {"id": "A" * (MAX_PART + 4), "rawId": "x"}, {"id": "ä", "rawId": "ä"}, {"id": "", "rawId": ""},
    ],
    ids=lambda value: repr(value)[:40],
)
def test_x10_an_answer_of_another_shape_is_refused(scene: Scene, response: Any) -> None:
    request = scene.asked()
    with scene.refused():
        scene.decide(request, Assertion(scene.challenge(request).ticket, response))


@pytest.mark.parametrize("member", ["authenticatorData", "clientDataJSON", "signature"])
@pytest.mark.parametrize("value", [None, "", "AA==", "AA", 7], ids=repr)
def test_x10_a_part_that_is_missing_or_unreadable_is_refused(scene: Scene, member: str, value: Any) -> None:
    request = scene.asked()
    evidence = scene.answer(scene.challenge(request))
    evidence.response["response"][member] = value

    with scene.refused():
        scene.decide(request, evidence)


@pytest.mark.parametrize("changes", [{"rawId": "AAAA"}, {"type": "password"}, {"response": None}], ids=str)
def test_x10_an_answer_that_contradicts_itself_is_refused(scene: Scene, changes: dict[str, Any]) -> None:
    request = scene.asked()
    evidence = scene.answer(scene.challenge(request))

    with scene.refused():
        scene.decide(request, Assertion(evidence.ticket, {**evidence.response, **changes}))


def test_x10_the_passkey_of_another_person_is_refused(scene: Scene) -> None:
    request = scene.asked()
    with scene.refused():
        scene.decide(request, scene.answer(scene.challenge(request), scene.carol))


def test_x10_the_ticket_of_another_person_is_refused(scene: Scene) -> None:
    request = scene.asked()
    challenge = scene.challenge(request, CAROL)
    with scene.refused():
        scene.decide(request, scene.answer(challenge, scene.bob))
    with scene.refused():
        scene.decide(request, scene.answer(challenge, scene.carol))


@pytest.mark.parametrize("ticket", ["", "x", "a.b", None, 7])
def test_x10_what_is_no_ticket_is_refused(scene: Scene, ticket: Any) -> None:
    request = scene.asked()
    challenge = scene.challenge(request)
    with scene.refused():
        scene.decide(request, Assertion(ticket, scene.bob.get(challenge.options)))


def test_x10_a_ticket_of_another_kind_is_refused(scene: Scene) -> None:
    request, started = scene.asked(), scene.guard.passkey_registration(BOB)
    with scene.refused():
        scene.decide(request, Assertion(started.ticket, scene.bob.get(scene.challenge(request).options)))


def test_x10_a_ticket_lives_five_minutes_by_the_databases_clock(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    assert assertions.CHALLENGE_MS == 300_000
    monkeypatch.setattr(passkeys, "CHALLENGE_MS", 1)
    request = scene.asked()
    evidence = scene.answer(scene.challenge(request))
    until(scene.world.store, scene.world.store.now() + 2)

    with scene.refused():
        scene.decide(request, evidence)


def test_x10_a_ticket_of_the_future_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    request = scene.asked()
    evidence = scene.answer(scene.challenge(request))
    started = scene.world.store.now() - 60_000
    record = scene.guard._desk.find("default", request.id)[1]

    with pytest.raises(HitlGuardError) as caught:
        passkeys.proof(scene.guard._desk, BOB, record.row.id, evidence, {}, started)

    assert (caught.value.code, caught.value.detail) == ("not-authorised", "evidence")


def test_x10_a_ticket_makes_no_second_decision_after_an_edit(scene: Scene) -> None:
    request = scene.asked("mail", {"amount": 82})
    evidence = scene.answer(scene.challenge(request, CAROL), scene.carol)
    edited = scene.step_up(request, arguments={"amount": 83})
    new = scene.guard.get(edited.request_id)

    with scene.refused(code="superseded", detail=None):  # type: ignore[arg-type]
        scene.decide(request, evidence, CAROL)
    with scene.refused():
        scene.decide(new, evidence, CAROL)


def test_x10_an_edits_ticket_supersedes_once(scene: Scene) -> None:
    request = scene.asked("mail", {"amount": 82})
    edit: dict[str, Any] = {"arguments": {"amount": 83}}
    evidence = scene.answer(scene.challenge(request, **edit))
    scene.decide(request, evidence, **edit)

    with scene.refused(code="superseded", detail=None):  # type: ignore[arg-type]
        scene.decide(request, evidence, **edit)


def test_x10_a_challenge_is_spent_in_the_whole_store(scene: Scene) -> None:
    """Even a vote that a holder of the key makes with an answer that was used is not written."""
    request = scene.asked("merge")
    scene.step_up(request)
    desk = scene.guard._desk
    _, record = desk.find("default", request.id)
    (vote,) = record.votes
    assert vote.evidence is not None
    step = ask.vote_step(
        desk, replace(vote, approver="eve", names=("eve",)), record.row, record.digest, kind="request:approved",
        version=2, last=record.last, now=desk.store.now(),
    )
    step.draft.spend_key = vote.challenge(vote.evidence.at)

    assert desk.store.write([step], desk.sealer) is None


def test_x10_an_approver_without_a_passkey_is_told_so(scene: Scene) -> None:
    with scene.refused():
        scene.challenge(scene.asked(), DAVE)


def test_at50_a_challenge_is_not_made_for_who_may_not_decide(scene: Scene) -> None:
    request = scene.asked()
    with scene.refused("self-approval"):
        scene.challenge(request, ANA)
    with scene.refused("kind"):
        scene.challenge(request, Principal("bob", "service"))


def test_x10_a_challenge_is_not_made_of_what_is_decided_or_stale(scene: Scene) -> None:
    request = scene.asked()
    with scene.refused("stale", "args-mismatch"):
        scene.challenge(replace(request, fingerprint="0" * 64))
    scene.step_up(request)
    with scene.refused("approved", "already-decided"):
        scene.challenge(request, CAROL)


@pytest.mark.parametrize("evidence", ["x", {"ticket": "t", "response": {}}, 7], ids=repr)
def test_x10_evidence_is_an_assertion_or_nothing(scene: Scene, evidence: Any) -> None:
    with scene.refused("malformed", "invalid-approval"):
        scene.decide(scene.asked(), evidence)


def test_x10_a_credential_is_not_named_beside_the_evidence(scene: Scene) -> None:
    request = scene.asked()
    with scene.refused("malformed", "invalid-approval"):
        scene.decide(request, scene.answer(scene.challenge(request)), credential="session-7")


def test_x10_a_window_that_ended_before_the_passkey_answered_is_over(scene: Scene) -> None:
    request, other = scene.asked("mail"), scene.asked("mail")
    evidence = scene.answer(scene.challenge(request, execute_within=1))
    edit: dict[str, Any] = {"arguments": {"amount": 1}, "execute_within": 1}
    edited = scene.answer(scene.challenge(other, **edit))
    until(scene.world.store, scene.world.store.now() + 3)

    with scene.refused("execute-by", "expired"):
        scene.decide(request, evidence, execute_within=1)
    with scene.refused("execute-by", "expired"):
        scene.decide(other, edited, **edit)


# -- counting --------------------------------------------------------------------------------------------------------


def test_x10_a_count_that_goes_back_is_refused(scene: Scene) -> None:
    key = Authenticator(counts=True)
    scene.enrol(DAVE, key)
    copied = replace(key)
    first, second, third = scene.asked(), scene.asked(), scene.asked()
    scene.decide(first, scene.answer(scene.challenge(first, DAVE), key), DAVE)

    with scene.refused():
        scene.decide(second, scene.answer(scene.challenge(second, DAVE), copied), DAVE)

    assert scene.decide(third, scene.answer(scene.challenge(third, DAVE), key), DAVE).state == "approved"
    assert scene.guard.passkeys(DAVE)[0].sign_count == 2


def test_x10_a_use_is_noted(scene: Scene) -> None:
    assert scene.guard.passkeys(BOB)[0].used_at is None
    before = scene.world.store.now()
    scene.step_up(scene.asked())

    used_at = scene.guard.passkeys(BOB)[0].used_at

    assert used_at is not None
    assert before <= used_at <= scene.world.store.now()


# -- the claim -------------------------------------------------------------------------------------------------------


def forge(scene: Scene, request: ApprovalRequest, evidence: Any = None) -> None:
    """Record an approval as a holder of the keys could, past every check of the decision."""
    desk = scene.guard._desk
    reading, record = desk.find("default", request.id)
    ballot = Ballot(request.id, BOB, True, request.fingerprint, None, None, None, "inbox", None, None)
    vote = replace(_vote(ballot, record, reading.now, desk), evidence=evidence)
    step = ask.vote_step(
        desk, vote, record.row, record.digest, kind="request:approved", version=1, last=None, now=reading.now
    )
    step.draft.spend_key = None if evidence is None else vote.challenge(evidence.at)
    assert desk.store.write([step], desk.sealer) is not None


def test_x10_a_vote_that_was_forged_without_evidence_spends_nothing(scene: Scene) -> None:
    call = scene.world.call("wire")
    forge(scene, scene.guard.request(call))

    with scene.world.refused("not-authorised", "evidence"):
        scene.world.run(call)


@pytest.mark.parametrize("what", ["another decision's", "another domain's", "an old one"])
def test_x10_a_vote_that_was_forged_with_other_evidence_spends_nothing(scene: Scene, what: str) -> None:
    proven = scene.asked()
    scene.step_up(proven)
    evidence = scene.guard._desk.find("default", proven.id)[1].votes[0].evidence
    assert evidence is not None
    if what == "another domain's":
        evidence = replace(evidence, rp="evil.example")
    elif what == "an old one":
        evidence = replace(evidence, at=evidence.at - 300_001)
    call = scene.world.call("wire")
    forge(scene, scene.guard.request(call), evidence)

    with scene.world.refused("not-authorised", "evidence"):
        scene.world.run(call)
    assert ("request", "not-authorised") in scene.findings()


def test_x10_a_stored_vote_whose_evidence_is_anothers_is_not_read(scene: Scene) -> None:
    proven = scene.asked()
    scene.step_up(proven)
    desk, request = scene.guard._desk, scene.asked()
    evidence = desk.find("default", proven.id)[1].votes[0].evidence
    reading, record = desk.find("default", request.id)
    ballot = Ballot(request.id, BOB, True, request.fingerprint, None, None, None, "inbox", None, None)
    vote = replace(_vote(ballot, record, reading.now, desk), evidence=evidence)
    step = ask.vote_step(
        desk, vote, record.row, record.digest, kind="request:approved", version=1, last=None, now=reading.now
    )
    assert desk.store.write([step], desk.sealer) is not None

    with pytest.raises(HitlGuardError) as caught:
        scene.guard.get(request.id)

    assert (caught.value.code, caught.value.detail) == ("invalid-approval", "decision")


def test_x10_too_few_proven_votes_are_a_missing_quorum(scene: Scene) -> None:
    call = scene.world.call("merge")
    request = scene.guard.request(call)
    desk = scene.guard._desk
    challenge = scene.challenge(request)
    reading, record = desk.find("default", request.id)
    answer = scene.answer(challenge)
    proof = passkeys.proof(desk, BOB, request.id, answer, {}, reading.now)
    ballot = Ballot(request.id, BOB, True, request.fingerprint, None, None, None, "inbox", None, None)
    vote = _vote(ballot, record, reading.now, desk, proof)
    step = ask.vote_step(
        desk, vote, record.row, record.digest, kind="request:approved", version=1, last=None, now=reading.now
    )
    assert desk.store.write(proof.spending(desk, vote, step), desk.sealer) is not None

    with scene.world.refused("not-authorised", "quorum"):
        scene.world.run(call)


def test_x10_what_is_only_announced_proves_nothing(scene: Scene) -> None:
    desk, request = scene.guard._desk, scene.asked()
    reading, record = desk.find("default", request.id)
    ballot = Ballot(request.id, BOB, True, request.fingerprint, None, None, None, "inbox", None, None)
    proof = passkeys.announced(desk, reading.now)
    vote = _vote(ballot, record, reading.now, desk, proof)
    step = ask.vote_step(
        desk, vote, record.row, record.digest, kind="request:approved", version=1, last=None, now=reading.now
    )

    with pytest.raises(HitlGuardError) as caught:
        proof.spending(desk, vote, step)

    assert (caught.value.code, caught.value.detail) == ("not-authorised", "evidence")


def test_x10_a_vote_that_never_had_a_window_is_not_recorded(scene: Scene) -> None:
    vote = scene.guard._desk.find("default", scene.world.grant(scene.world.call("refund"))[1].id)[1].votes[0]

    with pytest.raises(HitlGuardError) as caught:
        editing.check_window(replace(vote, execute_by=None))

    assert caught.value.code == "expired"


# -- registering -----------------------------------------------------------------------------------------------------


def test_x10_a_registration_is_audited_and_listed(scene: Scene) -> None:
    (passkey,) = scene.guard.passkeys(BOB)
    bodies = scene.world.audited("credential:registered")

    assert (passkey.owner, passkey.name, passkey.id, passkey.tenant) == ("bob", "phone", b64(scene.bob.id), "default")
    assert [body["owner"] for body in bodies] == ["bob", "carol"]
    assert bodies[0]["credential"] == passkey.id
    assert "key" not in repr(passkey)


def test_x10_the_options_of_a_registration_demand_verification(scene: Scene) -> None:
    started = scene.guard.passkey_registration(BOB)

    assert started.options["rp"] == {"id": RP, "name": "Approvals"}
    assert started.options["authenticatorSelection"]["userVerification"] == "required"
    assert started.options["excludeCredentials"] == [{"id": b64(scene.bob.id), "type": "public-key"}]
    assert unb64(started.options["user"]["id"]) == owner_of("default", "bob")
    assert started.ticket not in repr(started)


@pytest.mark.parametrize(
    "bent",
    [{"challenge": b64(bytes(32))}, {"origin": "https://evil.example"}, {"type": "webauthn.get"}], ids=str,
)
def test_x10_a_bent_registration_is_refused(scene: Scene, bent: dict[str, Any]) -> None:
    with scene.refused():
        scene.enrol(DAVE, Authenticator(), **bent)


@pytest.mark.parametrize("changed", [{"flags": UP}, {"rp": "evil.example"}], ids=str)
def test_x10_a_registration_without_verification_or_for_another_domain_is_refused(
    scene: Scene, changed: dict[str, Any]
) -> None:
    with scene.refused():
        scene.enrol(DAVE, Authenticator(**changed))
    assert scene.guard.passkeys(DAVE) == ()


@pytest.mark.parametrize("response", [None, "x", {}, {"response": None}, {"id": "AA", "response": {}}], ids=repr)
def test_x10_a_registration_of_another_shape_is_refused(scene: Scene, response: Any) -> None:
    started = scene.guard.passkey_registration(DAVE)
    with scene.refused():
        scene.guard.register_passkey(DAVE, ticket=started.ticket, response=response, name="x")


@pytest.mark.parametrize("hints", [None, "usb", [7], ["smoke-signals"]], ids=repr)
def test_x10_hints_that_nobody_knows_are_left_out(scene: Scene, hints: Any) -> None:
    started, key = scene.guard.passkey_registration(DAVE), Authenticator()
    response = key.create(started.options)
    response["response"]["transports"] = hints

    made = scene.guard.register_passkey(DAVE, ticket=started.ticket, response=response, name="x")

    assert made.transports == ()
    assert "transports" not in scene.challenge(scene.asked(), DAVE).options["allowCredentials"][0]


def test_x10_a_registration_is_used_once(scene: Scene) -> None:
    started = scene.guard.passkey_registration(DAVE)
    first, second = Authenticator(), Authenticator()
    scene.guard.register_passkey(DAVE, ticket=started.ticket, response=first.create(started.options), name="x")
    (made,) = scene.guard.passkeys(DAVE)
    scene.guard.remove_passkey(made.id, by=OPERATOR, owner="dave")

    for key in (first, second):
        with scene.refused():
            scene.guard.register_passkey(DAVE, ticket=started.ticket, response=key.create(started.options), name="x")
    assert scene.guard.passkeys(DAVE) == ()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
@pytest.mark.parametrize("one_ticket", [False, True])
def test_x10_of_two_first_passkeys_at_once_exactly_one_is_kept(
    make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, kind: str, one_ticket: bool
) -> None:
    """Whoever stole a login adds theirs in the moment in which the owner adds the first one."""
    scene, keys = make_scene(kind), (Authenticator(), Authenticator())
    tickets = [scene.guard.passkey_registration(DAVE) for _ in keys]
    if one_ticket:
        tickets[1] = tickets[0]
    everybody, real, seen = all_read(2), enrolment._made, threading.local()

    def made(*given: Any) -> Credential:
        if not getattr(seen, "passed", False):
            seen.passed = True
            everybody()
        return real(*given)

    monkeypatch.setattr(enrolment, "_made", made)
    outcomes = at_once([
        partial(told, partial(
            scene.guard.register_passkey, DAVE, ticket=started.ticket, response=key.create(started.options), name="x"
        ))
        for started, key in zip(tickets, keys, strict=True)
    ])

    assert sorted(outcomes) == ["not-authorised", "ok"]
    assert [one.id for one in scene.guard.passkeys(DAVE)] == [b64(keys[outcomes.index("ok")].id)]
    assert scene.findings() == []


def test_x10_after_an_operator_removed_the_last_one_a_first_one_is_registered_again(scene: Scene) -> None:
    old = scene.guard.passkey_registration(DAVE)
    for _ in range(3):
        made = scene.enrol(DAVE, Authenticator())
        scene.guard.remove_passkey(made.id, by=OPERATOR, owner="dave")

    # A ticket of the time before any of them is over, whatever its end says.
    with scene.refused():
        scene.guard.register_passkey(
            DAVE, ticket=old.ticket, response=Authenticator().create(old.options), name="x"
        )
    assert scene.guard.passkeys(DAVE) == ()


def test_x10_a_ticket_counts_for_the_passkeys_that_were_there_when_it_was_made(scene: Scene) -> None:
    key, first, second = Authenticator(), scene.guard.passkey_registration(DAVE), scene.guard.passkey_registration(BOB)
    scene.enrol(DAVE, key)
    scene.guard.remove_passkey(b64(scene.bob.id), by=OPERATOR, owner="bob")
    assert second.confirm is not None

    for person, started, confirm in ((DAVE, first, None), (BOB, second, scene.bob.get(second.confirm))):
        with scene.refused():
            scene.guard.register_passkey(
                person, ticket=started.ticket, response=Authenticator().create(started.options), name="x",
                confirm=confirm,
            )
    assert [len(scene.guard.passkeys(person)) for person in (DAVE, BOB)] == [1, 0]


def test_x10_a_passkey_is_registered_once_whoever_does_it(scene: Scene) -> None:
    with scene.refused("registered"):
        scene.enrol(DAVE, replace(scene.bob))
    (passkey,) = scene.guard.passkeys(BOB)
    scene.guard.remove_passkey(passkey.id, by=OPERATOR, owner="bob")
    with scene.refused("registered"):
        scene.enrol(BOB, scene.bob)


def test_x10_the_ticket_of_another_persons_registration_is_refused(scene: Scene) -> None:
    started = scene.guard.passkey_registration(DAVE)
    for person in (BOB, replace(DAVE, tenant="other")):
        with scene.refused():
            scene.guard.register_passkey(
                person, ticket=started.ticket, response=Authenticator().create(started.options), name="x"
            )


def test_x10_another_passkey_is_added_with_the_one_that_is_there(scene: Scene) -> None:
    second, third = Authenticator(), Authenticator()
    with scene.refused():
        scene.enrol(BOB, second)
    with scene.refused():
        scene.enrol(BOB, second, by=scene.carol)

    scene.enrol(BOB, second, by=scene.bob)
    scene.enrol(BOB, third, by=second)

    assert [one.id for one in scene.guard.passkeys(BOB)] == [b64(key.id) for key in (scene.bob, second, third)]
    assert scene.findings() == []


def test_x10_a_decisions_answer_does_not_confirm_a_registration(scene: Scene) -> None:
    started = scene.guard.passkey_registration(BOB)
    with scene.refused():
        scene.guard.register_passkey(
            BOB, ticket=started.ticket, response=Authenticator().create(started.options), name="x",
            confirm=scene.answer(scene.challenge(scene.asked())).response,
        )


def test_x10_a_person_has_a_limited_number(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "MAX_PASSKEYS", 1)
    with scene.refused("limit"):
        scene.enrol(BOB, Authenticator(), by=scene.bob)


@pytest.mark.parametrize("name", ["", "x" * 101, 7, None])
def test_x10_a_passkey_has_a_name(scene: Scene, name: Any) -> None:
    started = scene.guard.passkey_registration(DAVE)
    with scene.refused("malformed", "invalid-approval"):
        scene.guard.register_passkey(
            DAVE, ticket=started.ticket, response=Authenticator().create(started.options), name=name
        )


@pytest.mark.parametrize("kind", ["agent", "service"])
def test_at53_only_a_person_has_passkeys(scene: Scene, kind: Any) -> None:
    with scene.refused("kind"):
        scene.guard.passkey_registration(Principal("bob", kind))
    with pytest.raises(HitlGuardError, match="Only a person"):
        scene.guard.passkeys(Principal("bob", kind))


def test_x10_a_passkey_belongs_to_a_principal(scene: Scene) -> None:
    with pytest.raises(ConfigurationError):
        scene.guard.passkey_registration("bob")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        scene.guard.remove_passkey("x", by="bob")  # type: ignore[arg-type]


def test_x10_a_race_that_is_lost_for_ever_is_unavailable(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    started = scene.guard.passkey_registration(DAVE)
    (passkey,) = scene.guard.passkeys(BOB)
    monkeypatch.setattr(scene.world.store, "write", lambda steps, seal: None)

    for action in (
        lambda: enrolment.register(
            scene.guard._desk, DAVE, ticket=started.ticket, response=Authenticator().create(started.options), name="x"
        ),
        lambda: enrolment.remove(scene.guard._desk, passkey.id, OPERATOR, "bob"),
    ):
        with pytest.raises(HitlGuardError) as caught:
            action()
        assert caught.value.detail == "busy"


# -- removing --------------------------------------------------------------------------------------------------------


def test_x10_the_owner_removes_any_but_the_last(scene: Scene) -> None:
    second = Authenticator()
    made = scene.enrol(BOB, second, by=scene.bob)
    scene.guard.remove_passkey(b64(scene.bob.id), by=BOB)
    with scene.refused("role"):
        scene.guard.remove_passkey(made.id, by=BOB)

    scene.guard.remove_passkey(made.id, by=OPERATOR, owner="bob")

    assert scene.guard.passkeys(BOB) == ()
    assert [body["by"] for body in scene.world.audited("credential:removed")] == ["bob", "olga"]
    assert scene.findings() == []


@pytest.mark.parametrize(
    ("by", "owner"),
    [
        (CAROL, "bob"), (CAROL, None), (OPERATOR, None), (replace(OPERATOR, tenant="other"), "bob"),
        (Principal("bob", "service"), None), (Principal("x", "agent", roles=("operator",)), "bob"),
    ],
    ids=str,
)
def test_x10_nobody_else_removes_one(scene: Scene, by: Principal, owner: str | None) -> None:
    with scene.refused("unknown"):
        scene.guard.remove_passkey(b64(scene.bob.id), by=by, owner=owner)


@pytest.mark.parametrize("by", [
    replace(BOB, roles=("operator",)), Principal("BOB", roles=("operator",)),
    Principal("x", aliases=("bob",), roles=("operator",)),
], ids=["same", "case", "alias"])
def test_x10_an_operator_is_none_over_passkeys_of_their_own(scene: Scene, by: Principal) -> None:
    with scene.refused("role" if by.id == "bob" else "unknown"):
        scene.guard.remove_passkey(b64(scene.bob.id), by=by, owner="bob")
    assert len(scene.guard.passkeys(BOB)) == 1


def test_x10_a_passkey_that_is_removed_between_challenge_and_answer_proves_nothing(scene: Scene) -> None:
    request = scene.asked()
    evidence = scene.answer(scene.challenge(request))
    scene.guard.remove_passkey(b64(scene.bob.id), by=OPERATOR, owner="bob")

    with scene.refused():
        scene.decide(request, evidence)


def test_x10_a_removal_and_a_use_at_once_do_not_both_succeed(scene: Scene) -> None:
    request = scene.asked()
    desk, evidence = scene.guard._desk, scene.answer(scene.challenge(request))
    reading, record = desk.find("default", request.id)
    proof = passkeys.proof(desk, BOB, request.id, evidence, {}, reading.now)
    scene.guard.remove_passkey(b64(scene.bob.id), by=OPERATOR, owner="bob")
    ballot = Ballot(request.id, BOB, True, request.fingerprint, None, None, None, "inbox", None, None)
    vote = _vote(ballot, record, reading.now, desk, proof)
    step = ask.vote_step(
        desk, vote, record.row, record.digest, kind="request:approved", version=1, last=None, now=reading.now
    )

    assert desk.store.write(proof.spending(desk, vote, step), desk.sealer) is None


# -- rows that somebody touched --------------------------------------------------------------------------------------


def replaced(scene: Scene, key: Authenticator, **columns: bytes) -> None:
    for name, value in columns.items():
        scene.database.execute(
            f"UPDATE hitl_guard_credentials SET {name} = :value WHERE credential = :key",
            {"value": value, "key": key_of(key.id)},
        )


def test_x10_a_moved_row_is_nobodys_passkey(scene: Scene) -> None:
    request = scene.asked()
    challenge = scene.challenge(request)
    replaced(scene, scene.carol, owner=owner_of("default", "bob"))

    with scene.refused():
        scene.decide(request, scene.answer(challenge, scene.carol))
    assert [one.id for one in scene.guard.passkeys(BOB)] == [b64(scene.bob.id)]
    assert scene.findings() == [("passkey", "invalid-signature")]


@pytest.mark.parametrize("what", ["another's body", "a changed byte", "no text", "a control row"])
def test_x10_an_edited_row_is_nobodys_passkey(scene: Scene, what: str) -> None:
    request, desk = scene.asked(), scene.guard._desk
    challenge = scene.challenge(request)
    bodies = {key: body for key, _, body in scene.rows()}
    body = {
        "another's body": bodies[key_of(scene.carol.id)], "a changed byte": bodies[key_of(scene.bob.id)][:-1] + b"_",
        "no text": b"\0", "a control row": desk.signer.sign("control", "hitl-control", {"x": 1}, now=desk.store.now()),
    }[what]
    replaced(scene, scene.bob, body=body)

    with scene.refused():
        scene.decide(request, scene.answer(challenge))
    # Nor does it make room for somebody else's: an operator has to look.
    with scene.refused():
        scene.enrol(BOB, Authenticator())
    assert [where for where, _ in scene.findings()] == ["passkey"]


def test_x10_a_row_of_other_fields_is_refused_under_the_real_key(scene: Scene) -> None:
    desk = scene.guard._desk
    body = desk.signer.sign("credential", "hitl-credential", {"owner": "bob"}, now=desk.store.now())
    replaced(scene, scene.bob, body=body)

    assert scene.guard.passkeys(BOB) == ()
    assert scene.findings() == [("passkey", "invalid-signature")]


def test_x10_a_row_with_another_key_than_was_registered_is_a_finding(scene: Scene) -> None:
    desk = scene.guard._desk
    (passkey,) = scene.guard.passkeys(BOB)
    (other,) = scene.guard.passkeys(CAROL)
    row = signed_row(replace(passkey, key=other.key), desk.signer, desk.store.now())
    replaced(scene, scene.bob, body=row.body)

    assert scene.findings() == [("passkey", "invalid-signature")]


def test_x10_a_removed_passkey_that_is_put_back_proves_nothing(scene: Scene) -> None:
    request = scene.asked()
    challenge = scene.challenge(request)
    (row,) = [row for row in scene.rows() if row[0] == key_of(scene.bob.id)]
    scene.guard.remove_passkey(b64(scene.bob.id), by=OPERATOR, owner="bob")
    scene.database.execute(
        "INSERT INTO hitl_guard_credentials (credential, owner, body) VALUES (:a, :b, :c)",
        dict(zip("abc", row, strict=True)),
    )

    with scene.refused():
        scene.decide(request, scene.answer(challenge))
    assert scene.guard.passkeys(BOB) == ()
    assert scene.findings() == [("passkey", "store-rolled-back")]


@pytest.mark.parametrize("known", ["it removed it", "it met it"])
def test_x10_a_removal_that_the_store_lost_is_noticed_by_whoever_knows_of_it(scene: Scene, known: str) -> None:
    request = scene.asked()
    evidence = scene.answer(scene.challenge(request))
    (row,) = [row for row in scene.rows() if row[0] == key_of(scene.bob.id)]
    node, stranger = (scene.another() for _ in range(2))
    scene.guard.remove_passkey(b64(scene.bob.id), by=OPERATOR, owner="bob")
    scene.database.execute(
        "INSERT INTO hitl_guard_credentials (credential, owner, body) VALUES (:a, :b, :c)",
        dict(zip("abc", row, strict=True)),
    )
    if known == "it met it":
        assert node.guard.passkeys(BOB) == ()
    scene.decide(scene.asked("mail"), None, CAROL, approve=False)  # a later event of the same chain
    scene.database.execute("DELETE FROM hitl_guard_events WHERE type = :type", {"type": b"credential:removed"})

    knowing = scene if known == "it removed it" else node

    for _ in range(2):
        with pytest.raises(StoreRolledBackError) as caught:
            knowing.decide(request, evidence)
        assert caught.value.detail == "memory"
    with pytest.raises(StoreRolledBackError):
        knowing.guard.passkeys(BOB)
    assert knowing.world.state(request) == "pending"
    assert scene.findings() == [("chain", "gap")]
    assert [one.id for one in stranger.guard.passkeys(BOB)] == [b64(scene.bob.id)]


def test_x10_a_removal_while_passkeys_are_read_is_no_loss(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    read, id_ = scene.guard._desk.store.credentials, b64(scene.bob.id)

    def overtaken(**chosen: Any) -> Any:
        rows = read(**chosen)
        with monkeypatch.context() as honest:
            honest.setattr(scene.guard._desk.store, "credentials", read)
            scene.guard.remove_passkey(id_, by=OPERATOR, owner="bob")
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(scene.guard._desk.store, "credentials", overtaken)
        assert [one.id for one in scene.guard.passkeys(BOB)] == [id_]
    assert scene.guard.passkeys(BOB) == ()


def test_x10_a_deleted_row_and_deleted_events_are_findings(scene: Scene) -> None:
    scene.database.execute("DELETE FROM hitl_guard_credentials WHERE credential = :key", {"key": key_of(scene.bob.id)})
    assert scene.findings() == [("passkey", "missing")]
    scene.database.execute(
        "DELETE FROM hitl_guard_events WHERE request_id = :id",
        {"id": credential_record(key_of(scene.carol.id)).encode()},
    )
    assert scene.findings() == [("passkey", "invalid-signature"), ("passkey", "missing")]
    assert scene.guard.passkeys(CAROL) == ()


def test_x10_a_gap_in_a_passkeys_events_is_a_finding(scene: Scene) -> None:
    scene.guard.remove_passkey(b64(scene.bob.id), by=OPERATOR, owner="bob")
    scene.database.execute(
        "DELETE FROM hitl_guard_events WHERE request_id = :id AND version = 1",
        {"id": credential_record(key_of(scene.bob.id)).encode()},
    )

    assert ("passkey", "gap") in scene.findings()


def test_x10_a_tampered_assertion_is_found_offline(scene: Scene) -> None:
    """Also by the keys' holder: the authenticator's signature covers the decision, whatever the MACs say."""
    good = scene.asked()
    scene.step_up(good)
    evidence = scene.guard._desk.find("default", good.id)[1].votes[0].evidence
    assert evidence is not None
    (other,) = scene.guard.passkeys(CAROL)
    forge(scene, scene.asked(), replace(evidence, signature=b"x" + evidence.signature[1:]))
    forge(scene, scene.asked(), replace(evidence, credential=scene.carol.id, key=other.key))
    forge(scene, scene.asked(), replace(evidence, credential=b"unknown"))
    forge(scene, scene.asked(), replace(evidence, client=b"no json"))
    forge(scene, scene.asked(), replace(evidence, client=b'{"origin":7,"type":1,"challenge":""}'))

    assert scene.findings() == [("request", "not-authorised")] * 5
    assert scene.findings(origins=["https://else.example.org"]) == [("request", "not-authorised")] * 6


def test_x10_what_a_revoked_key_registered_counts_no_longer_and_makes_room(scene: Scene) -> None:
    old = scene.world.keyring
    new = ring(age=60_000)
    keys = [old.keys[0].changed(state="compromised"), *new.keys]
    later = scene.another(keyring=Keyring(keys))

    assert later.guard.passkeys(BOB) == ()
    later.enrol(BOB, Authenticator())
    assert len(later.guard.passkeys(BOB)) == 1
    assert [where for where, code in later.findings() if code != "missing"] == []


def test_x10_a_passkey_of_a_key_that_is_unknown_here_proves_nothing_and_makes_no_room(scene: Scene) -> None:
    """A node whose key ring is behind must not take it for a person's first one."""
    (old,), (new,) = scene.world.keyring.keys, ring(age=60_000).keys
    behind = scene.another(keyring=Keyring([new]))
    ticket = behind.guard.passkey_registration(DAVE)
    scene.enrol(DAVE, Authenticator())

    with behind.refused():
        behind.guard.passkey_registration(BOB)
    with behind.refused():
        behind.guard.register_passkey(
            DAVE, ticket=ticket.ticket, response=Authenticator().create(ticket.options), name="x"
        )

    assert behind.guard.passkeys(BOB) == behind.guard.passkeys(DAVE) == ()
    assert len(scene.another(keyring=Keyring([old, new])).guard.passkeys(DAVE)) == 1


def test_x10_a_passkey_of_a_destroyed_key_makes_room(scene: Scene) -> None:
    (old,), (new,) = scene.world.keyring.keys, ring(age=60_000).keys
    destroyed = Key(old.id, None, activates_at=old.activates_at, state="destroyed")
    later = scene.another(keyring=Keyring([destroyed, new]))

    later.enrol(BOB, Authenticator())

    assert len(later.guard.passkeys(BOB)) == 1


def test_x10_another_restore_epoch_voids_what_was_registered(scene: Scene) -> None:
    later = scene.another(keyring=Keyring(scene.world.keyring.keys, 2))

    assert later.guard.passkeys(BOB) == ()
    later.enrol(BOB, Authenticator())
    assert len(later.guard.passkeys(BOB)) == 1
    assert later.findings() == []


def test_x10_passkeys_of_another_domain_count_no_longer(scene: Scene) -> None:
    origins: Any = ["https://example.net"]
    moved = scene.another(settings=Settings(rp_id="example.net", rp_origins=origins))

    assert moved.guard.passkeys(BOB) == ()


def test_x10_a_row_tells_what_was_registered(scene: Scene) -> None:
    desk = scene.guard._desk
    (passkey,) = scene.guard.passkeys(BOB)
    row = signed_row(passkey, desk.signer, desk.store.now())

    assert verify_row(row, signer=desk.signer, now=desk.store.now()) == passkey
    assert row.body.startswith(signing.encode(b'{"alg"'[:6]))


# -- setting it up ---------------------------------------------------------------------------------------------------


def test_x10_a_policy_that_demands_passkeys_needs_a_relying_party(scene: Scene) -> None:
    with pytest.raises(ConfigurationError) as caught:
        scene.world.another(settings=Settings())

    assert caught.value.detail == "passkey"


def test_x10_without_the_library_the_extra_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.step_up(scene.asked())
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "webauthn":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)

    for action in (
        lambda: scene.another(), lambda: scene.guard.passkey_registration(BOB), lambda: scene.findings(),
        lambda: scene.challenge(scene.asked()),
    ):
        with pytest.raises(ConfigurationError, match=r"hitl-guard\[passkey\]"):
            action()


def test_x10_without_passkeys_nothing_asks_for_the_library(world: World) -> None:
    request = world.guard.request(world.call())
    with pytest.raises(ConfigurationError, match="rp_id"):
        world.guard.challenge(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)
    with pytest.raises(ConfigurationError, match="rp_id"):
        world.guard.passkey_registration(BOB)
    assert world.guard.passkeys(BOB) == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"rp_id": "Example.org", "rp_origins": (ORIGIN,)}, {"rp_id": "", "rp_origins": (ORIGIN,)},
        {"rp_id": 7, "rp_origins": (ORIGIN,)}, {"rp_id": "https://example.org", "rp_origins": (ORIGIN,)},
        {"rp_id": "a" * 254, "rp_origins": (ORIGIN,)}, {"rp_id": RP}, {"rp_id": RP, "rp_origins": ()},
        {"rp_id": RP, "rp_origins": ORIGIN}, {"rp_id": RP, "rp_origins": ("http://example.org",)},
        {"rp_id": RP, "rp_origins": (ORIGIN, "https://evilexample.org")}, {"rp_id": RP, "rp_origins": (f"{ORIGIN}/",)},
        {"rp_id": RP, "rp_origins": ("https://evil.org/.example.org",)}, {"rp_id": RP, "rp_origins": (7,)},
        {"rp_id": RP, "rp_origins": ("ftp://example.org",)}, {"rp_id": RP, "rp_origins": ("https://example.org:x",)},
        {"rp_id": RP, "rp_origins": (ORIGIN,), "rp_name": ""}, {"rp_name": "x"}, {"rp_origins": (ORIGIN,)},
    ],
    ids=str,
)
def test_x10_a_relying_party_that_no_browser_would_take_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Settings(**settings)


def test_x10_one_origin_is_a_list_too() -> None:
    with pytest.raises(ConfigurationError, match=r"is a list .*\['https://"):
        Settings(rp_id=RP, rp_origins=ORIGIN)  # type: ignore[arg-type]


def test_x10_localhost_may_do_without_https() -> None:
    settings = Settings(rp_id="localhost", rp_origins=("http://localhost:8000", "http://localhost"))

    assert settings.rp_origins == ("http://localhost:8000", "http://localhost")


def test_x10_the_command_line_denies_what_only_a_passkey_approves(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.setattr(Setup, "keyring", lambda _: scene.world.keyring)
    guard = Setup(scene.database.url, policies=(str(tmp_path / "policy.yaml"),)).guard(scene.world.store, deciding=True)
    request = scene.asked()
    with pytest.raises(DecisionError) as caught:
        guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint, channel="cli")

    guard.decide(request.id, approver=BOB, approve=False, fingerprint=request.fingerprint, channel="cli")

    assert caught.value.detail == "evidence"
    assert scene.world.state(request) == "denied"


def test_x10_the_audit_on_the_command_line_verifies_what_passkeys_signed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Setup, "keyring", lambda _: scene.world.keyring)
    scene.step_up(scene.asked())
    command = ["audit", "verify", "--store", scene.database.url]

    assert CliRunner().invoke(main, command).exit_code == 0
    assert CliRunner().invoke(main, [*command, "--origin", ORIGIN]).exit_code == 0
    elsewhere = CliRunner().invoke(main, [*command, "--origin", "https://else.example.org"])

    assert elsewhere.exit_code == 1
    assert "not-authorised" in elsewhere.output
