"""Start-up checks: a report of tools that are not covered, and a canary that must not get through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from hitl_guard import ApprovalRequired, AsyncGuard
from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.keyring import Keyring
from hitl_guard.lifecycle.control import CANARY_TENANT, CANARY_TOOL
from hitl_guard.selfcheck import request_of
from tests.support import BOB, World

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


def check(world: World, kind: str, agent: Any = None) -> None:
    """Run the self-test of a guard, or of an asynchronous one."""
    if kind == "sync":
        world.guard.selftest(agent)
    else:
        asyncio.run(AsyncGuard(guard=world.guard).selftest(agent))


def left(world: World) -> int:
    """Return how many requests the self-test left open."""
    return len(world.guard.pending(tenant=None))


def delete_order(order: str) -> str:
    return order


def look_up(order: str) -> str:
    return order


# -- coverage ---------------------------------------------------------------------------------------------------------


class Agent:
    def __init__(self, tools: Any) -> None:
        self.tools = tools


class Named:
    name = "framework_tool"

    def __call__(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("shape", [dict, list, tuple, Agent], ids=lambda shape: shape.__name__)
def test_x19_tools_that_are_not_covered_are_named_at_start(world: World, shape: Any) -> None:
    guarded = world.guard.tool(delete_order)
    sealed = world.guard.sealed(look_up)
    tools = {"delete_order": guarded, "look_up": sealed, "print": print, "framework_tool": Named()}
    given = shape(tools if shape in (dict, Agent) else tools.values())

    report = world.guard.coverage(given)

    assert report.guarded == ("delete_order", "look_up")
    assert report.unguarded == ("framework_tool", "print")
    with pytest.raises(ConfigurationError, match=r"not guarded: framework_tool, print\."):
        world.guard.selftest(given)


def test_x19_a_sensitive_tool_called_around_the_guard_refuses(world: World) -> None:
    def refund(order: str) -> str:
        return world.tool(order=order)

    sealed = world.guard.sealed(refund)

    with world.refused("args-mismatch", "unguarded"):
        sealed("A-17")
    call, _ = world.grant(world.call(arguments={"order": "A-17"}))
    assert world.guard.run(call, sealed) == "done"


@dataclass
class Unhashable:
    """A tool as frameworks have them: compared by value, so without a hash."""

    name: str


@dataclass(frozen=True, slots=True)
class Narrow:
    """A tool without room for a weak reference."""

    name: str


def test_a_frameworks_tool_object_of_any_kind_is_reported(world: World) -> None:
    report = world.guard.coverage([Unhashable("charge"), Narrow("pay"), world.guard.tool(delete_order)])

    assert (report.guarded, report.unguarded) == (("delete_order",), ("charge", "pay"))


GIVEN = [None, 7, "refund", delete_order, object()]


@pytest.mark.parametrize("given", GIVEN, ids=["nothing", "number", "text", "function", "object"])
def test_what_holds_no_tools_is_no_agent(world: World, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="mapping or a list"):
        world.guard.coverage(given)


@KINDS
def test_a_set_up_whose_tools_are_all_guarded_may_start(world: World, kind: str) -> None:
    guarded = world.guard.tool(delete_order)

    check(world, kind, [guarded])
    check(world, kind, guarded)
    check(world, kind, {"delete_order": guarded})

    assert left(world) == 0


@KINDS
@pytest.mark.parametrize("tools", [{}, [], Agent([])], ids=["map", "list", "agent"])
def test_a_set_up_without_any_guarded_tool_does_not_start(world: World, kind: str, tools: Any) -> None:
    with pytest.raises(ConfigurationError, match="none at all"):
        check(world, kind, tools)


@KINDS
def test_an_asynchronous_guarded_function_is_no_dispatcher(world: World, kind: str) -> None:
    async def close(order: str) -> None:
        """Do nothing."""

    check(world, kind, world.guard.tool(close))
    check(world, kind, world.guard.sealed(close))


# -- the canary -------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("policy", ["not-applicable", "approved", "denied", False], ids=str)
def test_the_canary_needs_an_approval_whatever_the_policy_says(
    make_world: Callable[..., World], kind: str, policy: Any
) -> None:
    world = make_world(policy=policy)

    check(world, kind)
    check(world, kind)

    assert left(world) == 0
    assert [body["reason"] for body in world.audited("request:revoked")] == ["selftest", "selftest"]


def wrapped(world: World, kind: str, **options: Any) -> Any:
    def execute(name: str, args: Any, context: Any) -> Any:
        return world.tool()

    async def execute_async(name: str, args: Any, context: Any) -> Any:
        return world.tool()

    return world.guard.wrap(execute if kind == "sync" else execute_async, **options)


@KINDS
@pytest.mark.parametrize("pause", ["raise", "result"])
def test_a_wrapped_dispatcher_may_start_and_leaves_nothing_open(world: World, kind: str, pause: str) -> None:
    check(world, kind, wrapped(world, kind, pause=pause))

    assert (left(world), world.effects) == (0, [])


def answering(result: Any) -> Callable[..., Any]:
    return lambda name, args, context: result


def raising(error: BaseException) -> Callable[..., Any]:
    def execute(name: str, args: Any, context: Any) -> Any:
        raise error

    return execute


UNGATED = pytest.mark.parametrize(
    "execute",
    [
        answering("done"), answering(None), answering({"status": "approval-pending"}),
        answering({"status": "ok", "request_id": "x"}), answering({"status": "approval-pending", "request_id": 7}),
        raising(KeyError(CANARY_TOOL)), raising(TypeError("no such tool")),
    ],
    ids=["text", "none", "no request", "ran", "odd request", "unknown tool", "type error"],
)


@UNGATED
@KINDS
def test_a_dispatcher_that_is_not_guarded_does_not_start(world: World, kind: str, execute: Any) -> None:
    async def execute_async(name: str, args: Any, context: Any) -> Any:
        return execute(name, args, context)

    with pytest.raises(ConfigurationError, match="not guarded"):
        check(world, kind, execute if kind == "sync" else execute_async)


@KINDS
def test_a_dispatcher_that_another_guard_guards_or_that_only_says_so_does_not_start(
    world: World, kind: str, tmp_path: Any
) -> None:
    def lying(name: str, args: Any, context: Any) -> Any:
        return {"request_id": "x" * 22, "status": "approval-pending"}

    async def lying_async(name: str, args: Any, context: Any) -> Any:
        return lying(name, args, context)

    with pytest.raises(ConfigurationError, match="another guard"):
        check(world, kind, lying if kind == "sync" else lying_async)


@KINDS
def test_an_outage_is_not_taken_for_a_refusal_or_for_a_gap(world: World, kind: str) -> None:
    down = raising(StoreUnavailableError("The database does not answer."))

    async def down_async(name: str, args: Any, context: Any) -> Any:
        return down(name, args, context)

    with pytest.raises(StoreUnavailableError):
        check(world, kind, down if kind == "sync" else down_async)


def test_an_asynchronous_dispatcher_needs_the_asynchronous_self_test(world: World) -> None:
    with pytest.raises(ConfigurationError, match="AsyncGuard"):
        world.guard.selftest(wrapped(world, "async"))


def test_a_synchronous_dispatcher_may_be_tested_by_the_asynchronous_guard(world: World) -> None:
    check(world, "async", wrapped(world, "sync"))

    assert left(world) == 0


class Broken:
    """A guard one of whose answers is wrong."""

    def __init__(self, world: World, *, first: bool = False, later: BaseException | None = None) -> None:
        self._desk, self._guard, self._first, self._later = world.guard._desk, world.guard, first, later

    def authorize(self, call: Any, **options: Any) -> Any:
        if not options and not self._first:
            return self._guard.authorize(call)
        if self._later is not None:
            raise self._later
        return "a permit"

    def revoke(self, *args: Any, **options: Any) -> None:
        self._guard.revoke(*args, **options)


def test_a_guard_that_lets_the_canary_through_does_not_start(world: World) -> None:
    from hitl_guard.selfcheck import selftest

    for broken in (Broken(world, first=True), Broken(world)):
        with pytest.raises(ConfigurationError, match="Do not start"):
            selftest(broken)
    with pytest.raises(StoreUnavailableError):
        selftest(Broken(world, later=StoreUnavailableError("The database does not answer.")))


def test_the_self_test_goes_on_after_a_restored_backup(world: World) -> None:
    world.guard.selftest()
    world.guard.request(world.call())
    restored = world.another(keyring=Keyring(world.keyring.keys, epoch=2))

    restored.guard.selftest(wrapped(restored, "sync"))

    assert restored.guard._desk.read(CANARY_TENANT).control.restored is False
    with restored.refused("paused", "restored"):
        restored.guard.authorize(restored.call(call_id="later"))


def test_a_map_that_names_no_registered_tool_is_found_at_start(world: World) -> None:
    node = world.another(policy={"delete_ordr": "user-approval"})
    tools = [node.guard.tool(delete_order)]

    with pytest.raises(ConfigurationError, match="delete_ordr"):
        node.guard.selftest(tools)


def test_the_canary_is_an_ordinary_request_for_everybody_else(world: World) -> None:
    execute = wrapped(world, "sync")
    context = {"call_id": "canary", "run_id": "r", "tenant": CANARY_TENANT, "user": "somebody"}

    with pytest.raises(ApprovalRequired) as pause:
        execute(CANARY_TOOL, {}, context)

    with world.refused("invalid-approval", kind="decision:refused"):
        world.approve(pause.value.request, by=BOB)


@pytest.mark.parametrize("result", [None, "x", {}, {"request_id": "x"}, {"status": "approval-pending"}], ids=str)
def test_a_result_that_names_no_request_is_no_pause(result: Any) -> None:
    with pytest.raises(ConfigurationError):
        request_of(result)
