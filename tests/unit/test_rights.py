"""Who counts as whom, whose vote counts for what, and when the votes are enough."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.envelope import Vote
from hitl_guard.errors import NotAuthorisedError, UnavailableError
from hitl_guard.lifecycle.rights import Parties, check_decisions, entitled, folded, met, objection, parties
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import Principal, Requirement

WHO = Parties(frozenset({"ana"}), frozenset({"bot"}))
ANYBODY = Requirement()
LEADS = Requirement(approvers=("lead",))


def vote(approver: str = "bob", *names: str, **changes: Any) -> Vote:
    made = Vote(
        tenant="default", request_id="r", fingerprint="f", policy_version="p", approver=approver, kind="human",
        names=(approver, *names), roles=(), channel="api", credential=None, approve=True, automatic=False, reason=None,
        response=None, nonce="n",
    )
    return replace(made, **changes)


class Directory:
    def __init__(self, **roles: Any) -> None:
        self._roles = roles

    def roles_of(self, tenant: str, principal_id: str) -> Sequence[str] | None:
        found: Sequence[str] | None = self._roles.get(principal_id)
        return found


# -- names -----------------------------------------------------------------------------------------------------------


@given(st.text(max_size=12))
def test_a_name_meets_itself_in_every_spelling(name: str) -> None:
    spellings = [name, f" {name}\t", unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)]

    assert len(folded(spellings)) == 1


@given(st.text(max_size=12))
def test_a_folded_name_stays_as_it_is(name: str) -> None:
    once = folded([name])

    assert folded(once) == once


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ana", "ANA"), ("ana", " Ana "), ("ana", "\uff41\uff4e\uff41"), ("stra\u00dfe", "STRASSE"), ("\ufb01x", "FIX"),
        ("\u212a", "k"), ("\u03c3", "\u03c2"), ("\u1fb7", "\u0391\u0342\u0399"), ("\u0390", "\u1fd3"),
        ("\u03aa\u0301", "\u1fd3"), ("\u1e9e", "ss"), ("e\u0301", "\u00c9"), ("\u00b5", "\u03bc"),
        ("an a", "an\xa0a"), ("an a", "An\u3000A"),
        *(("ana", f"a{unseen}na{unseen}") for unseen in (
            "\u200b", "\u202e", "\ufe0f", "\u034f", "\u3164", "\uffa0", "\u2800", "\u115f", "\u180b", "\U000e0100",
            "\x00", "\x7f", "\u2028", "\ue000", "\u1680", "\u20dd", "\U00013441",
        )),
    ],
)
def test_spellings_of_one_name_are_one(one: str, other: str) -> None:
    assert folded([one]) == folded([other])


@pytest.mark.parametrize(
    ("one", "other"), [("ana", "anna"), ("ana", "an a"), ("i", "\u0131"), ("a", "\u0430"), ("1", "l")]
)
def test_different_names_stay_different(one: str, other: str) -> None:
    assert folded([one]) != folded([other])


@pytest.mark.parametrize(
    ("user", "agent", "requester", "own"),
    [
        ("Ana", None, {"ana"}, set()),
        (Principal("Ana", aliases=("a@x",)), None, {"ana", "a@x"}, set()),
        (Principal("svc", kind="service", owner="Bob"), None, {"svc", "bob"}, set()),
        ("ana", "Bot", {"ana"}, {"bot"}),
        ("ana", Principal("Bot", kind="agent", aliases=("b2",)), {"ana"}, {"bot", "b2"}),
        ("ana", Principal("Bot", kind="agent", owner="Bob"), {"ana", "bob"}, {"bot"}),
    ],
)
def test_who_asked_is_the_user_and_the_agents_owner_and_the_agent_is_itself(
    user: Any, agent: Any, requester: set[str], own: set[str]
) -> None:
    assert parties(user, agent) == Parties(frozenset(requester), frozenset(own))


# -- one vote --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "one", "slug"),
    [
        (ANYBODY, vote(), None),
        (ANYBODY, vote(automatic=True), "automatic"),
        (ANYBODY, vote(kind="agent"), "kind"),
        (ANYBODY, vote(kind="service"), "kind"),
        (ANYBODY, vote("ana"), "self-approval"),
        (ANYBODY, vote("x", "ana"), "self-approval"),
        (ANYBODY, vote("bot"), "self-approval"),
        (Requirement(self_approval=True), vote("ana"), None),
        (Requirement(self_approval=True), vote("bot"), "self-approval"),
        (Requirement(self_approval=True), vote("ana", "bot"), "self-approval"),
        (LEADS, vote(), "role"),
        (LEADS, vote(roles=("lead",)), None),
        (LEADS, vote(roles=("Lead",)), "role"),
        (LEADS, vote("lead"), "role"),
        (Requirement(approvers=("user:bob",)), vote(), None),
        (Requirement(approvers=("user:bob",)), vote("carol", roles=("user:bob",)), "role"),
        (Requirement(approvers=("user:bob", "lead")), vote("carol", roles=("lead",)), None),
        (Requirement(channels=("inbox",)), vote(), "channel"),
        (Requirement(channels=("inbox", "api")), vote(), None),
        (Requirement(approvers=("lead",), channels=("inbox",)), vote(), "role"),
    ],
)
def test_a_vote_counts_or_there_is_an_objection(need: Requirement, one: Vote, slug: str | None) -> None:
    assert objection(need, WHO, one) == slug


def refusal(needs: Sequence[Requirement], one: Vote) -> str | None:
    with pytest.raises(NotAuthorisedError) as caught:
        entitled(needs, WHO, one)
    return caught.value.detail


def test_who_counts_for_one_requirement_may_decide() -> None:
    entitled([LEADS, ANYBODY], WHO, vote())
    entitled([LEADS, Requirement(approvers=("legal",))], WHO, vote(roles=("legal",)))


def test_who_counts_for_none_may_not() -> None:
    assert refusal([LEADS, Requirement(approvers=("legal",))], vote()) == "role"
    assert refusal([Requirement(channels=("inbox",)), LEADS], vote()) == "channel"


def test_the_requester_may_not_even_if_one_of_the_rules_would_let_them() -> None:
    assert refusal([Requirement(self_approval=True), ANYBODY], vote("ana")) == "self-approval"


def test_nobody_may_decide_where_nothing_is_required() -> None:
    assert refusal([], vote()) == "role"


# -- enough votes ----------------------------------------------------------------------------------------------------

TWO = Requirement(quorum=2)


@pytest.mark.parametrize(
    ("needs", "votes", "enough"),
    [
        ([], [vote()], False),
        ([ANYBODY], [], False),
        ([ANYBODY], [vote()], True),
        ([ANYBODY], [vote(approve=False)], False),
        ([ANYBODY], [vote("ana")], False),
        ([TWO], [vote()], False),
        ([TWO], [vote(), vote()], False),
        ([TWO], [vote(), vote("carol")], True),
        ([TWO], [vote("bob", "b@x"), vote("robert", "b@x")], False),
        ([TWO], [vote(), vote("carol", approve=False)], False),
        ([TWO], [vote(), vote("carol", automatic=True)], False),
        ([TWO], [vote(), vote("carol", kind="service")], False),
        ([TWO], [vote(), vote("ana"), vote("bot")], False),
        ([LEADS, Requirement(approvers=("legal",))], [vote(roles=("lead",))], False),
        ([LEADS, Requirement(approvers=("legal",))], [vote(roles=("lead", "legal"))], True),
        ([LEADS, Requirement(approvers=("legal",))], [vote(roles=("lead",)), vote("carol", roles=("legal",))], True),
        ([replace(LEADS, quorum=2)], [vote(roles=("lead",)), vote("carol")], False),
    ],
)
def test_votes_are_enough_when_every_requirement_has_its_distinct_people(
    needs: list[Requirement], votes: list[Vote], enough: bool
) -> None:
    assert met(needs, WHO, votes) is enough


@given(st.lists(st.sampled_from(["bob", "carol", "dora"]), max_size=8), st.integers(1, 4))
def test_a_quorum_counts_people_and_not_votes(people: list[str], quorum: int) -> None:
    assert met([Requirement(quorum=quorum)], WHO, [vote(person) for person in people]) is (len(set(people)) >= quorum)


# -- once more, at the claim -----------------------------------------------------------------------------------------


def checked(needs: Sequence[Requirement], *votes: Vote, directory: Any = None) -> None:
    check_decisions(needs, WHO, votes, directory=directory, settings=Settings())


def claim_refusal(needs: Sequence[Requirement], *votes: Vote, **options: Any) -> str | None:
    with pytest.raises(NotAuthorisedError) as caught:
        checked(needs, *votes, **options)
    return caught.value.detail


def test_an_automatic_decision_is_nobodys_vote() -> None:
    automatic = vote("policy", kind="service", automatic=True)

    assert claim_refusal([ANYBODY], automatic) == "quorum"
    assert claim_refusal([TWO], automatic, vote()) == "quorum"
    checked([ANYBODY], automatic, vote())


def test_too_few_votes_are_refused() -> None:
    assert claim_refusal([TWO], vote()) == "quorum"
    assert claim_refusal([ANYBODY]) == "quorum"
    assert claim_refusal([], vote()) == "quorum"


RECHECKED = replace(LEADS, recheck_approvers=True)
LEAD = vote(roles=("lead",))


def test_a_recheck_goes_by_the_directory_and_not_by_the_roles_of_the_decision() -> None:
    checked([RECHECKED], LEAD, directory=Directory(bob=("other", "lead")))
    assert claim_refusal([RECHECKED], LEAD, directory=Directory(bob=("other",))) == "role"
    assert claim_refusal([RECHECKED], LEAD, directory=Directory(bob=())) == "role"
    assert claim_refusal([RECHECKED], LEAD, directory=Directory()) == "role"
    assert claim_refusal([RECHECKED], LEAD) == "role"


def test_a_new_right_does_not_make_an_old_vote_count() -> None:
    assert claim_refusal([RECHECKED], vote(), directory=Directory(bob=("lead",))) == "quorum"


def test_one_rule_that_rechecks_has_every_voter_looked_up() -> None:
    needs = [RECHECKED, replace(TWO)]
    carol = vote("carol")

    checked(needs, LEAD, carol, directory=Directory(bob=("lead",), carol=()))
    assert claim_refusal(needs, LEAD, carol, directory=Directory(bob=("lead",))) == "role"


@pytest.mark.parametrize("answer", [7, [7], [""], [None], "\ud800"], ids=repr)
def test_a_directory_that_answers_with_anything_else_is_unavailable(answer: Any) -> None:
    with pytest.raises(UnavailableError) as caught:
        checked([RECHECKED], LEAD, directory=Directory(bob=answer))

    assert caught.value.detail == "directory"


def test_what_the_directory_raises_is_kept_as_the_cause() -> None:
    class Broken(Directory):
        def roles_of(self, tenant: str, principal_id: str) -> Sequence[str] | None:
            raise OSError("no route to the directory")

    with pytest.raises(UnavailableError) as caught:
        checked([RECHECKED], LEAD, directory=Broken())

    assert isinstance(caught.value.__cause__, OSError)
