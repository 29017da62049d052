"""What the project adds, row by row: each row of this edition has its named test, here or elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hitl_guard import ApprovalRequired, Guard, Policy, ToolCall
from hitl_guard.policy.core import Status
from tests.support import World, document

ROOT = Path(__file__).resolve().parents[1]
ROWS = ("x01", "x02", "x03", "x04", "x05", "x07", "x09", "x14", "x19")


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_this_edition_has_a_test_named_after_it(row: str) -> None:
    found = [
        name
        for path in sorted(ROOT.rglob("test_*.py"))
        for name in re.findall(rf"^\s*(?:async )?def (test_{row}_\w+)", path.read_text("utf-8"), re.MULTILINE)
    ]

    assert found


# -- X03: the tool receives the arguments decoded from the signed bytes -----------------------------------------------


def mutated(arguments: dict[str, Any]) -> None:
    """Do what a hostile or careless host may do with the object that it handed in."""
    arguments["amount"] = 82_000
    arguments["items"].append({"order": "B-2"})
    arguments["items"][0]["order"] = "B-1"
    arguments["note"] = "added"


SIGNED = {"amount": 82, "items": [{"order": "A-1"}]}


@pytest.mark.parametrize("binding", ["call", "retry"])
def test_x03_changing_the_callers_object_while_waiting_changes_nothing(
    make_world: Callable[..., World], binding: str
) -> None:
    world = make_world()
    live: dict[str, Any] = {"amount": 82, "items": [{"order": "A-1"}]}
    call = world.call(arguments=live, call_id="c" if binding == "call" else None)
    request = world.guard.request(call)

    mutated(live)
    shown = world.guard.get(request.id).arguments
    world.approve(request)

    assert request.arguments == shown == SIGNED
    if binding == "call":
        with world.refused("args-mismatch"):
            world.run(call)
    with world.refused("args-mismatch"):
        world.run(call, request_id=request.id)
    assert world.run(world.call(arguments=SIGNED, call_id=call.call_id)) == "done"
    assert world.effects == [SIGNED]


def test_x03_changing_the_callers_object_after_the_permit_changes_nothing(world: World) -> None:
    live: dict[str, Any] = {"amount": 82, "items": [{"order": "A-1"}]}
    call, _ = world.grant(world.call(arguments=live))

    permit = world.guard.authorize(call)
    mutated(live)
    mutated(permit.arguments)

    assert permit.arguments == SIGNED


def test_x03_a_tool_that_changes_its_arguments_changes_nothing_that_was_signed(world: World) -> None:
    call, request = world.grant(world.call(arguments={"amount": 82, "items": [{"order": "A-1"}]}))
    seen: list[Any] = []

    def tool(**arguments: Any) -> None:
        seen.append(arguments)
        mutated(arguments)

    world.guard.run(call, tool)

    assert seen[0]["amount"] == 82_000
    assert world.guard.get(request.id).arguments == SIGNED


def test_x03_a_policy_function_gets_copies(world: World) -> None:
    def policy(info: Any) -> str:
        info.args["amount"] = 0
        for _, arguments in info.turn:
            arguments.clear()
        return "user-approval"

    node = world.another(policy=policy)
    earlier = world.call(arguments={"amount": 1})
    call = world.call(arguments={"amount": 82}, turn=(earlier,))
    request = node.guard.request(call)
    node.approve(request)

    assert node.run(call) == "done"
    assert node.effects == [{"amount": 82}]
    assert earlier.arguments == {"amount": 1}


def test_x03_an_object_that_lies_about_itself_is_refused(world: World) -> None:
    class Two(dict[str, Any]):
        """Says one thing the first time and another later."""

        asked = 0

        def __getitem__(self, key: str) -> Any:
            self.asked += 1
            return 82 if self.asked == 1 else 82_000

    with world.refused("unsupported-value"):
        world.guard.request(world.call(arguments=Two(amount=82)))


# -- X09: policy documents --------------------------------------------------------------------------------------------


DOCUMENT = """\
version: 1
name: payments
default: not_applicable
rules:
  - id: small
    tools: [refund]
    when: total.amount <= 50
    effect: allow
  - id: large
    tools: [refund]
    when: total.amount > 50
    effect: require_approval
    reason: More than 50 in one turn.
  - id: never
    tools: [refund]
    when: args.amount > 10000
    effect: deny
"""


def verdict(guard: Guard, arguments: dict[str, Any], *earlier: dict[str, Any]) -> Status:
    scope: dict[str, Any] = {"user": "ana", "run_id": "r", "call_id": "c"}
    turn = tuple(ToolCall("refund", one, **scope) for one in earlier)
    return guard.evaluate(ToolCall("refund", arguments, turn=turn, **scope)).status


def test_x09_the_most_restrictive_rule_of_a_document_wins(world: World) -> None:
    guard = world.another(policy=document(DOCUMENT)).guard

    assert verdict(guard, {"amount": 50}) is Status.APPROVED
    assert verdict(guard, {"amount": 51}) is Status.USER_APPROVAL
    assert verdict(guard, {"amount": 10_001}) is Status.DENIED


@pytest.mark.parametrize("arguments", [{}, {"amount": "50"}, {"amount": None}, {"amount": [1]}], ids=str)
def test_x09_a_condition_that_fails_never_opens_anything(make_world: Callable[..., World], arguments: Any) -> None:
    world = make_world(policy=document(DOCUMENT))

    assert verdict(world.guard, arguments) is Status.DENIED
    with world.refused("policy-denied"):
        world.run(world.call(arguments=arguments))


def test_x09_small_calls_of_one_turn_add_up(world: World) -> None:
    guard = world.another(policy=document(DOCUMENT)).guard

    assert verdict(guard, {"amount": 20}, {"amount": 20}) is Status.APPROVED
    assert verdict(guard, {"amount": 20}, {"amount": 20}, {"amount": 20}) is Status.USER_APPROVAL


def test_x09_code_never_lifts_what_a_document_demands(world: World) -> None:
    node = world.another(policy=Policy([document(DOCUMENT)], tool_approval={"refund": "approved"}))

    with pytest.raises(ApprovalRequired):
        node.guard.authorize(node.call(arguments={"amount": 51}))
    with node.refused("policy-denied"):
        node.guard.authorize(node.call(arguments={"amount": 10_001}))


def test_x09_a_policy_that_fails_when_it_is_asked_again_refuses_and_spends_nothing(world: World) -> None:
    answers = iter(["user-approval"])
    node = world.another(policy=lambda info: next(answers))
    call, request = node.grant()

    with node.refused("policy-denied", "policy-error"):
        node.run(call)

    assert node.state(request) == "approved"


def test_x09_a_policy_that_denies_when_it_is_asked_again_wins_over_the_approval(world: World) -> None:
    answers = iter(["user-approval", "denied", "user-approval"])
    node = world.another(policy=lambda info: next(answers))
    call, request = node.grant()

    with node.refused("policy-denied", "policy"):
        node.run(call)
    assert node.state(request) == "approved"
    assert node.run(call) == "done"
