"""What every adapter stands on: who calls, the call as it is signed, the permit around the tool, the self-test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from hitl_guard.aio import AsyncGuard
from hitl_guard.errors import (
    ApprovalRequired,
    ArgsMismatchError,
    CanonicalizationError,
    ConfigurationError,
    ConsumedError,
    InDoubtError,
    PolicyDeniedError,
)
from hitl_guard.integrations.bridge import (
    Bridge,
    Canary,
    InnerCallError,
    earlier_of,
    occurrence_of,
    plain,
    request_facts,
)
from hitl_guard.models import Permit, ToolDefinition
from tests.flow.test_tool_calls import SUMS
from tests.support import World, document

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


def bridge(world: World, **options: Any) -> Bridge:
    return Bridge(world.guard, **({"scope": lambda _: {"user": "ana", "run_id": "r"}} | options))


def made(to: Bridge, tool: str = "refund", arguments: Any = None, **call: Any) -> Any:
    given = {"amount": 82} if arguments is None else arguments
    return to.call(tool, given, **({"framework": None, "call_id": "c1"} | call))


def run(to: Bridge, kind: str, call: Any, tool: Callable[..., Any]) -> Any:
    """Run a call as an adapter does, by either way."""
    if kind == "sync":
        return to.run_sync(call, lambda permit: tool(**permit.arguments))

    async def start(permit: Permit) -> Any:
        return tool(**permit.arguments)

    return asyncio.run(to.run(call, start))


# -- who calls --------------------------------------------------------------------------------------------------------


def test_the_facts_come_from_the_scope_function_then_from_the_context_then_from_the_framework(world: World) -> None:
    scoped = bridge(world, scope=lambda framework: {"user": framework, "agent": "bot"})
    with world.guard.context(user="ida", run_id="ambient", tenant="acme", call_id="never", token="never"):
        call = made(scoped, framework="ana", run_id="own", user="own")
        ambient = made(Bridge(world.guard), run_id="own", user="own")
    framework = made(Bridge(world.guard), run_id="own", user="own", agent="bot")

    assert (call.user, call.run_id, call.tenant, call.agent, call.call_id) == ("ana", "ambient", "acme", "bot", "c1")
    assert (ambient.user, ambient.run_id) == ("ida", "ambient")
    assert (framework.user, framework.run_id, framework.agent) == ("own", "own", "bot")


@pytest.mark.parametrize(("facts", "missing"), [({"run_id": "r"}, "user"), ({"user": "ana"}, "run_id"), ({}, "user")])
def test_a_call_for_nobody_or_in_no_run_is_a_set_up_fault(world: World, facts: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{missing}'.*scope"):
        made(bridge(world, scope=lambda _: facts))


@pytest.mark.parametrize("facts", [
    None, [], {"user": "ana", "run_id": "r", "usr": "x"}, {"call_id": "c"},
    {"user": "ana", "run_id": "r", "tenant": None},  # not the default tenant
], ids=str)
def test_a_scope_that_returns_something_else_is_a_set_up_fault(world: World, facts: Any) -> None:
    with pytest.raises(ConfigurationError, match="mapping"):
        made(bridge(world, scope=lambda _: facts))


@pytest.mark.parametrize("options", [
    {"guard": None}, {"scope": {"user": "ana"}}, {"pause": "never"}, {"pause": None}, {"effects": {"refund": "some"}},
], ids=str)
def test_wrong_options_are_told_at_the_start(world: World, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Bridge(**({"guard": world.guard} | options))


def test_an_async_guard_will_do(world: World) -> None:
    assert Bridge(AsyncGuard(guard=world.guard)).guard is world.guard


def test_deny_and_retry_binds_a_call_to_its_arguments(world: World) -> None:
    retry = made(bridge(world, pause="retry"), occurrence=3)
    without_id = made(bridge(world), call_id=None)

    assert (retry.call_id, retry.occurrence, without_id.call_id) == (None, 0, None)
    assert made(bridge(world), occurrence=3).occurrence == 3


# -- the call as it is signed -----------------------------------------------------------------------------------------


class Item(BaseModel):
    day: date
    count: int = 2


def test_validated_arguments_are_signed_as_the_json_data_that_they_stand_for(world: World) -> None:
    call = made(bridge(world), arguments={"items": [Item(day=date(2030, 1, 2))], "big": 2**70})

    assert call.arguments == {"items": [{"day": "2030-01-02", "count": 2}], "big": 2**70}


@pytest.mark.parametrize("value", [object(), b"\xff", float("nan"), "\ud800"], ids=["object", "bytes", "nan", "half"])
def test_what_has_no_json_form_is_refused(world: World, value: Any) -> None:
    to = bridge(world)
    with pytest.raises(CanonicalizationError):
        run(to, "sync", made(to, arguments={"value": value}), world.tool)
    assert world.effects == []


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CanonicalizationError):
        plain({"value": endless})


@KINDS
def test_raw_text_is_parsed_strictly(world: World, kind: str) -> None:
    to = bridge(world)
    with world.refused("unsupported-value", "duplicate"):
        run(to, kind, made(to, arguments='{"amount": 82, "amount": 820}'), world.tool)


def test_an_occurrence_counts_the_earlier_calls_of_one_id() -> None:
    assert [occurrence_of(turns, "a") for turns in (
        [], [["b"]], [["a"]], [["a"], ["a"]], [["a", "a"], ["b"], ["a"]], [["a"], ["a", "a"]], [["a"], ["b"]],
    )] == [0, 0, 0, 1, 2, 1, 0]


# -- the permit around the tool ---------------------------------------------------------------------------------------


@KINDS
def test_a_call_waits_runs_once_with_its_outcome_on_record_and_never_again(world: World, kind: str) -> None:
    to = bridge(world)
    with pytest.raises(ApprovalRequired) as pause:
        run(to, kind, made(to), world.tool)
    assert request_facts(pause.value.request)["request_id"] == pause.value.request.id
    world.approve(pause.value.request)

    assert run(to, kind, made(to), world.tool) == "done"
    assert (world.effects, world.state(pause.value.request)) == ([{"amount": 82}], "succeeded")
    with pytest.raises(ConsumedError):
        run(to, kind, made(to), world.tool)


@KINDS
def test_other_arguments_in_the_place_of_an_approved_call_are_refused(world: World, kind: str) -> None:
    to = bridge(world)
    world.grant(made(to))

    with world.refused("args-mismatch"):
        run(to, kind, made(to, arguments={"amount": 99}), world.tool)


@KINDS
@pytest.mark.parametrize("result", ["text", {"a": 1}, None], ids=str)
def test_the_model_is_told_with_the_result_that_a_person_changed_the_call(
    world: World, kind: str, result: Any
) -> None:
    to = bridge(world)
    request = world.ask(made(to, "mail"))
    world.approve(request, arguments={"amount": 83})

    def tool(**arguments: Any) -> Any:
        world.tool(**arguments)
        return result

    told = run(to, kind, made(to, "mail"), tool)

    assert world.effects == [{"amount": 83}]
    assert "A person changed this call" in str(told)
    assert str(result) in str(told)


@KINDS
@pytest.mark.parametrize(("effects", "state"), [({}, "in_doubt"), ({"refund": "idempotent"}, "failed")], ids=str)
def test_a_tool_that_raises_is_in_doubt_unless_its_effect_is_known(
    world: World, kind: str, effects: dict[str, str], state: str
) -> None:
    to = bridge(world, effects=effects)
    _, request = world.grant(made(to))

    def tool(**_: Any) -> Any:
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        run(to, kind, made(to), tool)
    assert world.state(request) == state


@KINDS
@pytest.mark.parametrize("stop", ["pause", "refusal"])
def test_what_stops_a_call_inside_a_tool_is_the_tools_own_error(world: World, kind: str, stop: str) -> None:
    to = bridge(world)
    _, request = world.grant(made(to))
    inner = world.ask(made(to, call_id="inner"))
    raised = ApprovalRequired(inner) if stop == "pause" else ArgsMismatchError("Inside.", detail="sealed")

    def tool(**arguments: Any) -> Any:
        world.tool(**arguments)
        raise raised

    with pytest.raises(InnerCallError) as stopped:
        run(to, kind, made(to), tool)

    assert stopped.value.error is raised
    assert (world.effects, world.state(request), world.state(inner)) == ([{"amount": 82}], "in_doubt", "pending")


@KINDS
def test_what_the_tools_own_seal_refuses_is_a_refusal_of_the_tool(world: World, kind: str) -> None:
    to = bridge(world)
    world.grant(made(to))

    def refund(amount: int) -> str:
        return world.tool(amount=amount)

    sealed = world.guard.sealed(refund)
    with world.refused("args-mismatch", "sealed"):
        run(to, kind, made(to), lambda amount: sealed(amount=99))


def test_the_policy_sees_the_calls_of_the_turn_that_the_framework_tells(world: World) -> None:
    to = bridge(world.another(policy=document(SUMS)))
    turn = [("a", "refund", {"amount": 20}), ("b", "refund", '{"amount": 20}'), ("c", "refund", {"amount": 20})]
    free = [made(to, call_id=call_id, arguments={"amount": 20}, turn=earlier_of(turn, call_id)) for call_id in "ab"]

    for call in free:
        assert run(to, "sync", call, world.tool) == "done"
    with pytest.raises(ApprovalRequired):
        run(to, "sync", made(to, call_id="c", arguments={"amount": 20}, turn=earlier_of(turn, "c")), world.tool)
    with pytest.raises(ApprovalRequired):  # nobody told
        run(to, "sync", made(to, call_id="d", arguments={"amount": 20}), world.tool)
    assert len(world.effects) == 2


def test_the_earlier_calls_of_a_turn_end_before_the_last_one_of_an_id() -> None:
    turn = [("a", "x", 1), ("b", "y", 2), ("a", "z", 3), ("c", "w", 4)]

    assert earlier_of(turn, "a") == [("x", 1), ("y", 2)]
    assert earlier_of(turn, "b") == [("x", 1)]
    assert earlier_of(turn, "d") is None
    assert earlier_of([], None) is None


@pytest.mark.parametrize("arguments", [
    {"amount": object()}, '{"amount": 1, "amount": 40}', {"amount": 1, "x": 1e400}, {"x": "\ud800"}, "[]",
], ids=["no JSON", "a name twice", "infinite", "half a character", "no object"])
def test_a_turn_with_a_call_that_only_a_framework_can_read_is_unknown(world: World, arguments: Any) -> None:
    to = bridge(world.another(policy=document(SUMS)))

    call = made(to, call_id="c", arguments={"amount": 20}, turn=[("refund", arguments)])

    with pytest.raises(ApprovalRequired):
        run(to, "sync", call, world.tool)


@pytest.mark.parametrize("error", [ConsumedError("x"), InDoubtError("x")], ids=lambda error: error.code)
def test_the_model_is_not_told_that_a_call_did_not_run_which_may_have_run(world: World, error: Any) -> None:
    assert bridge(world).told(error) == f"Refused ({error.code}): the call was started before. Do not repeat it."


def test_what_the_model_is_told_of_a_pause_and_of_a_refusal(world: World) -> None:
    to = bridge(world)
    request = world.ask(made(to))
    assert request.id in to.told(ApprovalRequired(request))
    world.deny(request, reason="Not today.")

    with pytest.raises(ApprovalRequired):  # another call
        run(to, "sync", made(to, call_id="c2"), world.tool)
    with pytest.raises(PolicyDeniedError) as denied:
        run(to, "sync", made(to, "drop_database", call_id="c3"), world.tool)
    assert to.told(denied.value) == "Never."
    refusal = ArgsMismatchError("secret words", detail="sealed")
    assert to.told(refusal) == "Refused (args-mismatch): the call was not run."


def test_a_changed_definition_voids_an_approval(world: World) -> None:
    to = bridge(world)
    world.grant(made(to, definition=ToolDefinition("refund", "Refunds.", {})))

    with pytest.raises(ApprovalRequired):  # asked anew
        run(to, "sync", made(to, definition=ToolDefinition("refund", "Ignore the amount.", {})), world.tool)
    assert world.effects == []


# -- the self-test ----------------------------------------------------------------------------------------------------


def through(to: Bridge, name: str, tool: Callable[[], str]) -> None:
    """Call a tool as a framework would, through a bridge."""
    with contextlib.suppress(ApprovalRequired):
        to.run_sync(to.call(name, {}, framework=None, call_id="x"), lambda permit: tool())


def test_a_canary_that_is_stopped_leaves_nothing_open(world: World) -> None:
    to = bridge(world, scope=lambda _: (_ for _ in ()).throw(AssertionError("not asked")))
    with to.canary() as canary:
        through(to, canary.name, canary.tool)

    assert (canary.ran, [world.guard.get(one.id, tenant=one.tenant).state for one in canary.requests]) == (
        False, ["revoked"],
    )


@pytest.mark.parametrize("how", ["runs", "is never called", "runs too"])
def test_a_canary_that_is_not_stopped_stops_the_start(world: World, how: str) -> None:
    to = bridge(world)
    def act(canary: Canary) -> None:
        if how == "runs too":
            through(to, canary.name, canary.tool)
        if how != "is never called":
            canary.tool()

    with pytest.raises(ConfigurationError, match="do not start"), to.canary() as canary:
        act(canary)


def test_a_canary_that_another_guard_stops_stops_the_start(world: World, open_store: Any, make_database: Any) -> None:
    to, other = bridge(world), bridge(World(open_store(make_database("sqlite"))))
    with pytest.raises(ConfigurationError, match="another guard"), to.canary() as canary:
        through(other, canary.name, canary.tool)


def test_what_the_block_raises_is_not_hidden_by_the_self_test(world: World) -> None:
    to = bridge(world)
    with pytest.raises(ConfigurationError, match="layers"), to.canary():
        raise ConfigurationError("layers")
