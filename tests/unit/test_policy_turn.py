"""A turn that nobody knows: rules that depend on it stop the call, and a person's approval counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hitl_guard.policy.code import CallInfo
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.core import PolicyInput, Status
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.policy.golden import call_input, explain

UNKNOWN = PolicyInput("refund", {"amount": 20}, "ana", "default", "run", "c1", None)
FIRST = replace(UNKNOWN, turn=())
Build = Callable[[str, str], PolicyDocument]


def ruled(effect: str, when: str, default: str = "not_applicable") -> PolicyDocument:
    text = (
        f"version: 1\nname: turns\ndefault: {default}\nrules:\n"
        f"  - id: one\n    tools: [refund]\n    effect: {effect}\n    reason: Ours.\n    when: {when!r}\n"
    )
    return PolicyDocument.from_source(text.encode(), "turns.yaml")


READS = ["total.amount > 50", "count > 3", "turn.size() > 0", "turn.exists(one, one.tool == 'x')"]


@pytest.mark.parametrize("when", READS)
@pytest.mark.parametrize(
    ("effect", "status"), [("require_approval", Status.USER_APPROVAL), ("deny", Status.DENIED)], ids=str
)
def test_x09_a_rule_that_depends_on_an_unknown_turn_stops_the_call(effect: str, status: Status, when: str) -> None:
    document = ruled(effect, when)

    verdict = document.evaluate(UNKNOWN)

    assert (verdict.status, verdict.rules, verdict.errors) == (status, ("one",), ())
    assert verdict.reason == "Ours. This rule looks at the other calls of the model's turn, which are not known here."
    assert document.evaluate(FIRST).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("when", ["total.amount <= 50", "count <= 3", "turn.size() == 0", "!turn.exists(one, true)"])
def test_x09_an_unknown_turn_lets_nothing_through(when: str) -> None:
    document = ruled("allow", when, "require_approval")

    assert document.evaluate(UNKNOWN).rules == ("default",)
    assert document.evaluate(FIRST).status is Status.APPROVED


def test_x09_an_error_that_has_nothing_to_do_with_the_turn_stays_one() -> None:
    document = ruled("require_approval", "total.amount > 50")

    verdict = document.evaluate(replace(UNKNOWN, arguments={"amount": "20"}))

    assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("one",))


def test_x09_an_error_in_what_is_judged_without_the_turn_stays_one() -> None:
    document = ruled("require_approval", "turn_known ? total.amount > 50 : args.limit > 1")

    assert document.evaluate(UNKNOWN).errors == ("one",)
    assert document.evaluate(replace(UNKNOWN, arguments={"amount": 1, "limit": 2})).errors == ()


@pytest.mark.parametrize(("amount", "status"), [(20, Status.NOT_APPLICABLE), (51, Status.USER_APPROVAL)])
def test_a_condition_can_judge_a_call_of_an_unknown_turn_by_itself(amount: int, status: Status) -> None:
    document = ruled("require_approval", "args.amount > 50 || (turn_known && total.amount > 50)")

    assert document.evaluate(replace(UNKNOWN, arguments={"amount": amount})).status is status
    earlier = (("refund", {"amount": 40}),)
    assert document.evaluate(replace(FIRST, turn=earlier)).status is Status.USER_APPROVAL


def test_a_rule_that_does_not_look_at_the_turn_does_not_mind() -> None:
    assert ruled("deny", "args.amount > 50").evaluate(UNKNOWN).status is Status.NOT_APPLICABLE


def test_a_function_is_told_that_the_turn_is_unknown_and_stops_the_call_where_it_reads_on() -> None:
    seen: list[Any] = []

    def asks(info: CallInfo) -> bool:
        seen.append(info.turn)
        return len(info.turn) > 3  # type: ignore[arg-type]

    verdict = Policy(require_approval=asks).evaluate(UNKNOWN)

    assert (seen, verdict.status, len(verdict.errors)) == ([None], Status.USER_APPROVAL, 1)


def test_explain_and_golden_cases_know_a_turn_that_is_unknown() -> None:
    policy = Policy.of(ruled("require_approval", "total.amount > 50"))

    unknown = explain(policy, call_input("refund", {"amount": 20}, turn=None))
    first = explain(policy, call_input("refund", {"amount": 20}))

    assert (unknown.verdict.status, first.verdict.status) == (Status.USER_APPROVAL, Status.NOT_APPLICABLE)
    assert [(one.outcome, one.detail) for one in unknown.answers] == [("failed-matched", "turn")]
