"""The dossier of a request: everything that its page shows, verified, and who may decide it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hitl_guard.errors import InvalidApprovalError, InvalidSignatureError
from hitl_guard.lifecycle import dossier as dossiers
from hitl_guard.lifecycle.dossier import Happening
from hitl_guard.models import Principal, ToolDefinition
from tests.support import ANA, BOB, CAROL, OPERATOR, POLICY, World, document, until
from tests.threats.attacker import OPEN, REQUESTS, Attacker

RULES = POLICY + """\
  - id: desk-only
    tools: [pay]
    effect: require_approval
    approvers: [lead]
    channels: [inbox]
  - id: pair
    tools: [pay]
    effect: require_approval
    quorum: 3
"""
SPEC = ToolDefinition("refund", "Pays money back.", {"type": "object"})


@pytest.fixture
def attacked(make_database: Callable[..., Any], open_store: Callable[..., Any]) -> tuple[World, Attacker]:
    """A guard on SQLite, and an attacker on its database."""
    database = make_database("sqlite")
    return World(open_store(database)), Attacker(database)


def happened(found: dossiers.Dossier) -> list[tuple[str, str | None, str | None, str | None]]:
    return [(one.type, one.by, one.reason, one.detail) for one in found.history]


def test_x10_a_dossier_holds_what_was_signed_about_the_call(make_world: Callable[..., World]) -> None:
    world = make_world()
    earlier = world.call("read", {"page": 1})
    agent = Principal("bot", kind="agent", owner="Olaf")
    call = world.call(
        definition=SPEC, turn=(earlier,), context={"ticket": 7}, agent=agent, user=ANA,
    )
    request = world.guard.request(call)

    found = world.guard.dossier(request.id)

    assert (found.request, found.definition, found.turn) == (request, SPEC, (("read", {"page": 1}),))
    assert found.context == {"ticket": 7}
    assert found.requesters == {"ana", "ana@example.org", "olaf"}
    assert found.agent_names == {"bot"}
    assert (found.history, found.previous, found.missing) == ((), None, 1)
    assert request.issued_at <= found.now <= world.store.now()


def test_x10_a_dossier_tells_who_did_what_when_and_why(world: World) -> None:
    call = world.call("wire")
    request = world.guard.request(call)
    world.approve(request, by=BOB, reason="Checked.", channel="inbox")
    world.approve(request, by=CAROL)
    permit = world.guard.authorize(call)
    world.guard.settle(permit, "in_doubt", "timeout")
    world.guard.resolve(request.id, "failed", by=OPERATOR, reason="The bank never saw it.")

    found = world.guard.dossier(request.id)

    assert happened(found) == [
        ("request:voted", "bob", "Checked.", "inbox"), ("request:approved", "carol", None, "api"),
        ("grant:claimed", None, None, None), ("call:in_doubt", None, None, "timeout"),
        ("call:failed", "olga", "The bank never saw it.", None),
    ]
    times = [one.at for one in found.history]
    assert request.issued_at <= times[0]
    assert times == sorted(times)
    assert found.history[0] == Happening("request:voted", times[0], "bob", "Checked.", "inbox")
    assert (found.request.state, found.missing, found.missing_each) == ("failed", 0, (0,))


def test_x10_a_dossier_says_what_took_a_requests_place_and_who_edited(world: World) -> None:
    old = world.guard.request(world.call("mail", {"to": "a"}))
    decision = world.approve(old, arguments={"to": "b"})

    before, after = world.guard.dossier(old.id), world.guard.dossier(decision.request_id)

    assert happened(before) == [("request:superseded", "bob", None, decision.request_id)]
    assert happened(after) == [("request:approved", "bob", None, "api")]
    assert after.previous is not None
    assert (after.previous.id, after.previous.state) == (old.id, "superseded")
    assert before.previous is None


def test_x10_an_outdated_request_is_superseded_by_nobody_in_particular(world: World) -> None:
    call = world.call()
    old = world.guard.request(call)
    new = world.another(policy=document(POLICY + "# newer\n")).guard.request(call)

    assert happened(world.guard.dossier(old.id)) == [("request:superseded", None, None, new.id)]


@pytest.mark.parametrize("tenant", ["other", "default"])
def test_x10_a_dossier_of_an_unknown_or_foreign_request_does_not_exist(world: World, tenant: str) -> None:
    request = world.guard.request(world.call())

    with pytest.raises(InvalidApprovalError) as caught:
        world.guard.dossier(request.id if tenant == "other" else "nobody", tenant=tenant)

    assert caught.value.detail == "unknown"


def test_x10_a_dossier_of_a_damaged_request_is_refused(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    request = world.guard.request(world.call())
    attacker.set(REQUESTS, {"arguments": b"{}"}, id=request.id.encode())

    with pytest.raises(InvalidSignatureError):
        world.guard.dossier(request.id)


# -- who is needed ----------------------------------------------------------------------------------------------------


def test_x10_the_people_who_are_still_needed_are_counted_per_rule(world: World) -> None:
    world = world.another(policy=document(RULES))
    request = world.guard.request(world.call("pay"))

    found = world.guard.dossier(request.id)
    assert (found.missing, found.missing_each) == (3, (1, 3))

    world.approve(request, by=BOB, channel="inbox")
    assert world.guard.dossier(request.id).missing_each == (0, 2)
    world.approve(request, by=CAROL)
    assert world.guard.dossier(request.id).missing_each == (0, 1)
    world.deny(request, by=Principal("dave"))
    assert (world.guard.dossier(request.id).missing, world.guard.dossier(request.id).missing_each) == (0, (0, 0))


def test_x10_who_may_decide_is_what_deciding_would_say(world: World) -> None:
    world = world.another(policy=document(RULES))
    request = world.guard.request(world.call("close_account", user=ANA, agent="bot"))
    found = world.guard.dossier(request.id)

    people = {
        BOB: True, CAROL: False, ANA: False, replace(ANA, roles=("lead",)): False,
        Principal("x", aliases=("ANA@example.org",), roles=("lead",)): False,
        Principal("bot", kind="agent", roles=("lead",)): False, Principal("s", kind="service", roles=("lead",)): False,
        replace(BOB, tenant="other"): False, OPERATOR: False,
    }
    assert {person: found.entitled(person) for person in people} == people


def test_x10_a_rules_channels_count_where_one_is_named(world: World) -> None:
    world = world.another(policy=document(POLICY + (
        "  - id: desk-only\n    tools: [pay]\n    effect: require_approval\n    channels: [inbox]\n"
    )))
    request = world.guard.request(world.call("pay"))

    entitled = world.guard.dossier(request.id).entitled

    assert [entitled(BOB), entitled(BOB, channel="inbox"), entitled(BOB, channel="cli")] == [True, True, False]


# -- the attempt before -----------------------------------------------------------------------------------------------


def asked_later(world: World, tool: str = "refund", **scope: Any) -> Any:
    """Ask at a later millisecond than anything before."""
    until(world.store, world.store.now() + 1)
    return world.guard.request(world.call(tool, **scope))


def test_x10_the_attempt_before_is_the_runs_latest_with_the_same_tool(world: World) -> None:
    first = asked_later(world)
    second = asked_later(world)
    world.deny(second)
    asked_later(world, "transfer")
    asked_later(world, run_id="another")
    asked_later(world, user="mallory")
    third = asked_later(world)
    asked_later(world)

    found = [world.guard.dossier(request.id).previous for request in (first, second, third)]

    assert [one and (one.id, one.state) for one in found] == [
        None, (first.id, "pending"), (second.id, "denied"),
    ]


def test_x10_the_attempt_before_is_looked_for_in_the_tenants_verified_requests_only(
    attacked: tuple[World, Attacker]
) -> None:
    world, attacker = attacked
    bad, foreign, elsewhere = (
        asked_later(world), asked_later(world, tenant="other"), asked_later(world, run_id="elsewhere")
    )
    mine = asked_later(world)
    line = attacker.row(OPEN, request_id=mine.id.encode())
    for moved in (foreign, elsewhere):
        attacker.set(OPEN, {"tenant": line["tenant"], "run": line["run"]}, request_id=moved.id.encode())
    attacker.set(REQUESTS, {"arguments": b"{}"}, id=bad.id.encode())

    assert world.guard.dossier(mine.id).previous is None


def test_x10_a_long_run_is_not_read_whole_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dossiers, "LOOK_BACK", 2)
    limits: list[int] = []
    for name in ("open_requests", "ended_requests"):
        listed = getattr(world.store, name)

        def watched(listed: Any = listed, **options: Any) -> Any:
            limits.append(options["limit"])
            return listed(**options)

        monkeypatch.setattr(world.store, name, watched)
    request = asked_later(world)

    world.guard.dossier(request.id)

    assert limits == [2, 2]
