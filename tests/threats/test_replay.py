"""One grant runs once: in the same process, in another one, after a restart, and when 64 want it at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from hitl_guard.models import ApprovalRequest, Principal, ToolCall
from hitl_guard.store.sql import SQLStore
from tests.support import BOB, CAROL, World
from tests.threats.gates import GatedStore, all_read, at_once, told
from tests.threats.processes import Processes, facts_of, started

processes = pytest.fixture(scope="module")(started)

MakeWorld = Callable[..., World]
CLAIMS = 64
CHILDREN = 8
ONE_SUCCESS = Counter({"ok": 1, "consumed": CLAIMS - 1})


def types_of(world: World, request: ApprovalRequest) -> list[str]:
    """Return what happened to a request, in order, as its stored events say."""
    return [event.type for event in world.store.load(request.tenant, request_id=request.id).events]


def spent_once(world: World, call: ToolCall, request: ApprovalRequest) -> None:
    """Demand that the grant was spent exactly once, that every loser is on record, and that nothing spends it again."""
    assert types_of(world, request) == ["request:approved", "grant:claimed", "call:succeeded"]
    assert Counter(event["code"] for event in world.audited()) == Counter({"consumed": CLAIMS - 1})
    with world.refused("consumed", "succeeded"):
        world.run(call, request_id=request.id)


def test_at23_a_spent_grant_is_refused_in_the_same_process(make_world: MakeWorld) -> None:
    world = make_world()
    call, request = world.grant()
    assert world.run(call) == "done"

    with world.refused("consumed", "succeeded"):
        world.run(call)
    with world.refused("consumed", "succeeded"):
        world.run(call, request_id=request.id)
    with world.refused("consumed", "succeeded"):
        world.run(call, token=request.token)
    with world.refused("consumed", "succeeded"):
        world.guard.request(call)

    assert len(world.effects) == 1


def test_at23_a_permit_starts_one_tool_once(world: World) -> None:
    call, _ = world.grant()
    permit = world.guard.authorize(call)

    with world.refused("consumed", "executing"):
        world.guard.authorize(call)

    assert world.guard.get(permit.request_id or "").state == "executing"


def test_at24_a_spent_grant_is_refused_after_a_restart(make_world: MakeWorld, database: Any) -> None:
    world = make_world()
    call, request = world.grant()
    world.run(call)
    world.store.close()

    restarted = world.another(store=SQLStore(database.url))
    with restarted.refused("consumed"):
        restarted.run(call, request_id=request.id)
    with restarted.refused("consumed"):
        restarted.run(call)
    restarted.store.close()

    assert len(world.effects) == 1


def test_at24_a_spent_grant_is_refused_in_another_process(
    make_world: MakeWorld, database: Any, processes: Processes
) -> None:
    """A process with its own connections stands for another host as well: the database is all that they share."""
    world = make_world()
    call, request = world.grant()
    world.run(call)

    child = processes.start(
        "race", world, database.url, call=facts_of(call), request=request.id, threads=1, gated=False
    )
    assert child.hear() == "ready"
    child.say("go")

    assert child.hear() == [["consumed"], 0]
    assert [event["code"] for event in world.audited()] == ["consumed"]
    assert len(world.effects) == 1


@pytest.mark.parametrize("gated", [True, False], ids=["all-have-read", "plain-load"])
def test_at25_of_64_threads_exactly_one_spends_a_grant(make_world: MakeWorld, gated: bool) -> None:
    world = make_world()
    call, request = world.grant()
    meet = all_read(CLAIMS)
    store: Any = GatedStore(world.store, meet) if gated else world.store
    node = world.another(store=store)

    def claim() -> str:
        if not gated:
            meet()
        return told(lambda: node.run(call, request_id=request.id))

    codes = at_once([claim] * CLAIMS)

    assert Counter(codes) == ONE_SUCCESS
    assert len(world.effects) == 1
    spent_once(world, call, request)


@pytest.mark.parametrize("gated", [True, False], ids=["all-have-read", "plain-load"])
def test_at25_of_64_claims_in_8_processes_exactly_one_spends_a_grant(
    make_world: MakeWorld, database: Any, processes: Processes, gated: bool
) -> None:
    world = make_world()
    call, request = world.grant()
    children = [
        processes.start(
            "race", world, database.url, call=facts_of(call), request=request.id, threads=CLAIMS // CHILDREN,
            gated=gated,
        )
        for _ in range(CHILDREN)
    ]

    assert [child.hear() for child in children] == ["ready"] * CHILDREN  # each has read, where that is the gate
    for child in children:
        child.say("go")
    answers = [child.hear() for child in children]

    assert Counter(code for codes, _ in answers for code in codes) == ONE_SUCCESS
    assert sum(ran for _, ran in answers) == 1
    spent_once(world, call, request)


def test_at25_the_same_call_found_by_its_identity_is_spent_once_too(make_world: MakeWorld) -> None:
    world = make_world()
    call, request = world.grant()
    node = world.another(store=GatedStore(world.store, all_read(8)))

    codes = at_once([lambda: told(lambda: node.run(call))] * 8)

    assert Counter(codes) == Counter({"ok": 1, "consumed": 7})
    assert types_of(world, request) == ["request:approved", "grant:claimed", "call:succeeded"]


def test_at25_a_call_that_the_policy_approves_by_itself_runs_once_too(make_world: MakeWorld) -> None:
    world = make_world()
    world.grant()  # the tenant has its control row
    node = world.another(store=GatedStore(world.store, all_read(8)))
    call = world.call("ping")

    codes = at_once([lambda: told(lambda: node.run(call))] * 8)

    assert Counter(codes) == Counter({"ok": 1, "consumed": 7})
    assert len(world.effects) == 1


def test_at25_the_first_calls_of_a_new_tenant_do_not_hinder_each_other(make_world: MakeWorld) -> None:
    """Nobody has written the tenant's control row yet, and a claim must be able to lock one."""
    world = make_world()
    node = world.another(store=GatedStore(world.store, all_read(8)))
    calls = [world.call("ping") for _ in range(8)]

    codes = at_once([partial(told, partial(node.run, call)) for call in calls])

    assert codes == ["ok"] * 8
    assert len(world.effects) == 8


def test_at26_approving_twice_is_one_decision_and_running_twice_is_one_run(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call()
    request = world.guard.request(call)

    first = world.approve(request)
    again = world.approve(request)

    assert (again.nonce, again.at, again.state) == (first.nonce, first.at, "approved")
    assert world.run(call, request_id=request.id) == "done"
    assert world.approve(request).nonce == first.nonce
    with world.refused("consumed", "succeeded"):
        world.run(call, request_id=request.id)
    assert len(world.effects) == 1
    assert types_of(world, request) == ["request:approved", "grant:claimed", "call:succeeded"]


@pytest.mark.parametrize("spent", [False, True])
@pytest.mark.parametrize(("approver", "verdict"), [(CAROL, True), (BOB, False), (CAROL, False)])
def test_at26_anything_but_the_same_decision_is_told_that_it_was_decided(
    world: World, spent: bool, approver: Principal, verdict: bool
) -> None:
    call, request = world.grant()
    if spent:
        world.run(call)
    state = world.state(request)

    with world.refused("already-decided", state, kind="decision:refused"):
        world.guard.decide(request.id, approver=approver, approve=verdict, fingerprint=request.fingerprint)

    assert world.state(request) == state
    assert [(vote.approver, vote.approve) for vote in world.guard.get(request.id).votes] == [("bob", True)]


def test_at26_a_double_click_is_one_decision(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call()
    request = world.guard.request(call)
    node = world.another(store=GatedStore(world.store, all_read(4)))

    decisions = at_once([lambda: node.approve(request)] * 4)

    assert len({decision.nonce for decision in decisions}) == 1
    assert types_of(world, request) == ["request:approved"]


def test_at27_approving_and_denying_at_once_gives_one_final_state(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call()
    request = world.guard.request(call)
    node = world.another(store=GatedStore(world.store, all_read(2)))

    codes = at_once([lambda: told(lambda: node.approve(request)), lambda: told(lambda: node.deny(request, CAROL))])

    state = world.state(request)
    assert sorted(codes) == ["already-decided", "ok"]
    assert state == ("approved" if codes[0] == "ok" else "denied")
    assert [event["code"] for event in world.audited("decision:refused")] == ["already-decided"]
    assert types_of(world, request) == [f"request:{state}"]
    assert told(lambda: world.run(call, request_id=request.id)) == ("ok" if state == "approved" else "denied")
    assert len(world.effects) == (state == "approved")


def test_at27_of_16_people_who_decide_at_once_one_decides(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call()
    request = world.guard.request(call)
    meet = all_read(16)
    node = world.another(store=GatedStore(world.store, meet))

    def decision(number: int) -> str:
        approver = Principal(f"person-{number}")
        act = node.approve if number % 2 else node.deny
        return told(lambda: act(request, approver))

    codes = at_once([partial(decision, number) for number in range(16)])

    assert Counter(codes) == Counter({"ok": 1, "already-decided": 15})
    assert len(types_of(world, request)) == 1
    assert len(world.guard.get(request.id).votes) == 1


@pytest.mark.parametrize("how", ["here", "restarted", "elsewhere"])
def test_x02_a_second_use_is_consumed_wherever_it_is_tried(
    make_world: MakeWorld, database: Any, processes: Processes, how: str
) -> None:
    world = make_world()
    call, request = world.grant()
    assert world.run(call) == "done"

    if how == "elsewhere":
        child = processes.start(
            "race", world, database.url, call=facts_of(call), request=request.id, threads=1, gated=True
        )
        child.hear()
        child.say("go")
        assert child.hear() == [["consumed"], 0]
    else:
        node = world if how == "here" else world.another(store=SQLStore(database.url))
        with node.refused("consumed"):
            node.run(call, request_id=request.id)
        if how == "restarted":
            node.store.close()

    assert world.state(request) == "succeeded"
    assert len(world.effects) == 1


def test_x02_two_grants_for_equal_arguments_run_once_each(make_world: MakeWorld) -> None:
    world = make_world()
    granted = [world.grant() for _ in range(2)]

    codes = at_once([
        partial(told, partial(world.run, call, request_id=request.id)) for call, request in granted for _ in range(4)
    ])

    assert Counter(codes) == Counter({"ok": 2, "consumed": 6})
    assert len(world.effects) == 2
