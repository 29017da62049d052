"""Calls of which nobody says what else is in the model's turn: they are asked for, and an approval counts, once."""

from __future__ import annotations

import pytest

from hitl_guard.errors import ApprovalRequired, ConsumedError
from tests.flow.test_tool_calls import SUMS
from tests.support import World, document


@pytest.fixture
def summed(world: World) -> World:
    return world.another(policy=document(SUMS))


def test_x09_a_call_of_an_unknown_turn_waits_and_its_approval_runs_it_once(summed: World) -> None:
    call = summed.call(arguments={"amount": 20})
    request = summed.ask(call)
    summed.approve(request)

    assert summed.run(call) == "done"
    with pytest.raises(ConsumedError):
        summed.run(call)
    assert summed.effects == [{"amount": 20}]


def test_what_a_request_holds_of_its_turn_is_none_an_empty_one_or_its_calls(summed: World) -> None:
    earlier = summed.call(arguments={"amount": 31})
    unknown = summed.ask(summed.call(arguments={"amount": 20}))
    known = summed.ask(summed.call(arguments={"amount": 20}, turn=(earlier,)))
    alone = summed.ask(summed.call(arguments={"amount": 60}, turn=()))

    turns = [summed.guard.dossier(one.id).turn for one in (unknown, known, alone)]
    assert turns == [None, (("refund", {"amount": 31}),), ()]
    assert unknown.reason is not None
    assert "not known here" in unknown.reason


def test_a_person_can_edit_a_call_of_an_unknown_turn(world: World) -> None:
    node = world.another(policy=document(SUMS + "    edit: true\n"))
    call = node.call(arguments={"amount": 20})
    request = node.ask(call)
    node.approve(request, arguments={"amount": 10})

    assert node.run(call) == "done"
    assert node.effects == [{"amount": 10}]


def test_x09_a_guarded_function_by_itself_does_not_slip_under_a_limit_call_by_call(summed: World) -> None:
    @summed.guard.tool(name="refund")
    def refund(amount: int) -> str:
        return summed.tool(amount=amount)

    for number in range(3):
        with (
            summed.guard.context(user="ana", run_id="r", call_id=f"c{number}"),
            pytest.raises(ApprovalRequired),
        ):
            refund(20)
    with summed.guard.context(user="ana", run_id="r", call_id="c9", turn=()):
        assert refund(20) == "done"
    assert summed.effects == [{"amount": 20}]
