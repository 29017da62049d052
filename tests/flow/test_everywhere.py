"""X18: the kill switch of all tenants: one signed row that every call of every tenant is checked against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy

from hitl_guard.errors import HitlGuardError
from hitl_guard.keyring import Keyring
from hitl_guard.lifecycle import ledger
from hitl_guard.models import Principal, ToolCall
from hitl_guard.rows import EVERYWHERE, control_record
from hitl_guard.store import schema
from tests.databases import Database
from tests.flow.test_loops import again, suspended
from tests.support import GLOBAL, OPERATOR, World, make_world

__all__ = ["make_world"]

MakeWorld = Callable[..., World]

TARGETS = [({}, "all"), ({"tool": "refund"}, "tool"), ({"agent": "bot"}, "agent")]


def elsewhere(world: World, **changes: Any) -> ToolCall:
    return world.call(tenant="acme", **changes)


@pytest.mark.parametrize(("what", "detail"), TARGETS, ids=str)
def test_x18_a_pause_everywhere_stops_asked_approved_and_free_calls_of_every_tenant_until_it_is_lifted(
    make_world: MakeWorld, what: dict[str, Any], detail: str
) -> None:
    world = make_world()
    call, _ = world.grant(world.call(agent="bot"))
    world.guard.pause(by=GLOBAL, everywhere=True, reason="incident", **what)

    for stopped in (call, world.call(agent="bot"), elsewhere(world, agent="bot")):
        with world.refused("paused", detail):
            world.run(stopped)
    assert world.effects == []

    world.guard.resume(by=GLOBAL, everywhere=True, **what)
    assert world.run(call) == "done"
    assert world.ask(elsewhere(world)).state == "pending"


def test_x18_a_pause_everywhere_reaches_a_node_that_runs_already(make_world: MakeWorld) -> None:
    world = make_world()
    call, _ = world.grant()
    node = world.another()
    assert node.guard.control().everywhere == frozenset()

    world.guard.pause(by=GLOBAL, everywhere=True)

    with node.refused("paused", "all"):
        node.run(call)


def test_x18_a_pause_everywhere_leaves_other_tools_and_agents_alone(make_world: MakeWorld) -> None:
    world = make_world()
    world.guard.pause(by=GLOBAL, everywhere=True, tool="wire")
    world.guard.pause(by=GLOBAL, everywhere=True, agent="other")

    call, _ = world.grant(world.call(agent="bot"))
    assert world.run(call) == "done"


@pytest.mark.parametrize(
    "by", [OPERATOR, Principal("bob"), Principal("x", kind="agent", roles=("global-operator",))], ids=lambda by: by.id
)
def test_x18_nobody_but_a_global_operator_stops_or_frees_all_tenants(make_world: MakeWorld, by: Principal) -> None:
    world = make_world()
    world.guard.pause(by=GLOBAL, everywhere=True, tool="wire")

    for change in (world.guard.pause, world.guard.resume):
        with world.refused("not-authorised", "role", kind="decision:refused"):
            change(by=by, everywhere=True, tool="wire")

    assert world.guard.control().everywhere == {("tool", "wire")}


def test_x18_a_global_operator_s_role_is_none_in_a_tenant(make_world: MakeWorld) -> None:
    world = make_world()

    with world.refused("not-authorised", "role", kind="decision:refused"):
        world.guard.pause(by=GLOBAL)


def test_x18_a_tenant_s_operator_does_not_lift_what_is_paused_everywhere(make_world: MakeWorld) -> None:
    world = make_world()
    world.guard.pause(by=OPERATOR, tool="wire")
    world.guard.pause(by=GLOBAL, everywhere=True, tool="refund")
    world.guard.resume(by=OPERATOR)
    world.guard.resume(by=OPERATOR, tool="refund")

    with world.refused("paused", "tool"):
        world.run(world.call())
    world.guard.resume(by=GLOBAL, everywhere=True, tool="refund")
    with world.refused("paused", "tool"):
        world.run(world.call("wire"))


def test_x18_what_is_paused_everywhere_is_shown_beside_what_the_tenant_paused(make_world: MakeWorld) -> None:
    world = make_world()
    world.guard.pause(by=OPERATOR, tool="wire")
    world.guard.pause(by=GLOBAL, everywhere=True, agent="bot")

    found = world.guard.control()

    assert (set(found.pauses), set(found.everywhere)) == ({("tool", "wire")}, {("agent", "bot")})
    assert world.guard.control("acme").everywhere == {("agent", "bot")}


@pytest.mark.parametrize(
    ("change", "code"),
    [("deleted", "store-rolled-back"), ("older", "store-rolled-back"), ("edited", "invalid-signature")],
)
def test_x18_at25_a_row_of_all_tenants_that_is_not_the_newest_signed_one_stops_everything(
    make_world: MakeWorld, database: Database, change: str, code: str
) -> None:
    world = make_world()
    call, _ = world.grant()
    control = schema.control
    of_all = control.c.tenant == b""
    with database.connect() as attacker:
        before = attacker.execute(sqlalchemy.select(control.c.body).where(of_all)).scalar_one()
    world.guard.pause(by=GLOBAL, everywhere=True)
    with database.connect() as attacker:
        attacker.execute({
            "deleted": sqlalchemy.delete(control).where(of_all),
            "older": sqlalchemy.update(control).where(of_all).values(version=1, body=before),
            "edited": sqlalchemy.update(control).where(of_all).values(body=before),
        }[change])
        attacker.commit()

    for node in (world, world.another()):
        with pytest.raises(HitlGuardError) as caught:
            node.run(call)
        assert caught.value.code == code
    assert world.effects == []
    found = ledger.verify(world.guard._desk).findings
    assert "control ''" in {finding.where for finding in found}


def test_x18_at63_a_row_of_all_tenants_of_an_earlier_epoch_stops_everything_until_a_global_operator_resumes(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.grant()
    world.guard.pause(by=GLOBAL, everywhere=True, tool="wire")
    later = world.another(keyring=Keyring(world.keyring.keys, epoch=2))
    later.guard.resume(by=OPERATOR)

    with later.refused("paused", "restored"):
        later.guard.request(later.call())
    with later.refused("not-authorised", "role", kind="decision:refused"):
        later.guard.resume(by=OPERATOR, everywhere=True)
    later.guard.resume(by=GLOBAL, everywhere=True)

    assert later.guard.control().everywhere == {("tool", "wire")}
    assert later.ask(later.call()).state == "pending"


def test_x18_the_self_test_of_a_node_that_starts_meanwhile_still_passes(make_world: MakeWorld) -> None:
    world = make_world()
    world.guard.pause(by=GLOBAL, everywhere=True)

    world.guard.selftest()

    with world.refused("paused", "all"):
        world.run(world.call(tenant="hitl-guard-selftest"))


def test_x18_a_suspended_call_starts_again_on_a_database_that_has_no_row_of_all_tenants_yet(
    make_world: MakeWorld, database: Database
) -> None:
    """A database of before has none; the row is made first, as before a first claim."""
    world = make_world()
    call, request, start = suspended(world)
    record = control_record(EVERYWHERE)
    with database.connect() as before:
        before.execute(sqlalchemy.delete(schema.control).where(schema.control.c.tenant == b""))
        before.execute(sqlalchemy.delete(schema.events).where(schema.events.c.request_id == record.encode()))
        before.commit()
    node = world.another(store=make_world().store)

    assert again(node, call, request, start).request_id == request.id

    assert node.guard.control().everywhere_version == 1
