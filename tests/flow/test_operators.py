"""What operators do at night: policies that must be in force, revoked keys, restored backups, and going on again."""

from __future__ import annotations

import pytest

from hitl_guard import clock
from hitl_guard.errors import ConfigurationError
from hitl_guard.keyring import Keyring, revoked
from hitl_guard.lifecycle.ledger import verify
from hitl_guard.models import Principal, ToolDefinition
from tests.support import BOB, OPERATOR, POLICY, World, document, ring


def test_only_nodes_with_the_activated_policy_run_gated_calls(world: World) -> None:
    call, _ = world.grant()
    behind = world.another(policy=document(POLICY + "# older\n"))
    world.guard.activate_policy(world.guard.policy_version, by=OPERATOR)

    with behind.refused("policy-changed", "node"):
        behind.run(behind.call())
    assert world.run(call) == "done"

    world.guard.activate_policy(None, by=OPERATOR)
    assert behind.ask(behind.call(call_id="later")).state == "pending"


@pytest.mark.parametrize("by", [BOB, Principal("olga", kind="agent", roles=("operator",))])
def test_nobody_but_an_operator_changes_the_control_row(world: World, by: Principal) -> None:
    with world.refused("not-authorised", "role", kind="decision:refused"):
        world.guard.activate_policy(None, by=by)


def test_an_operator_pauses_the_own_tenant_only(world: World) -> None:
    world.guard.pause(by=Principal("oskar", tenant="other", roles=("operator",)))

    call, _ = world.grant()

    assert world.run(call) == "done"


def test_what_the_thief_of_a_key_wrote_into_the_control_row_does_not_outlive_its_revocation(world: World) -> None:
    world.guard.pause(by=OPERATOR, tool="wire")
    node = world.another(keyring=revoked(world.keyring, world.keyring.keys[0].id, now=clock.epoch_ms())[0])

    with node.refused("paused", "restored"):
        node.guard.authorize(node.call())
    node.guard.pause(by=OPERATOR, tool="transfer")
    with node.refused("paused", "all"):
        node.guard.authorize(node.call())
    node.confirm()

    assert node.ask(node.call()).state == "pending"
    with node.refused("paused", "tool"):
        node.guard.authorize(node.call("transfer"))


def test_after_a_revocation_the_same_call_can_be_asked_again(world: World) -> None:
    call, request = world.grant()
    ring, _ = revoked(world.keyring, request.key_id, now=clock.epoch_ms())
    node = world.another(keyring=ring)

    with node.refused("key-revoked"):
        node.run(call, request_id=request.id)
    with node.refused("paused", "restored"):
        node.guard.authorize(call)
    node.confirm()
    again = node.ask(call)
    node.approve(again)

    assert again.id != request.id
    assert node.run(call) == "done"
    assert [damaged.code for damaged in node.guard.pending().damaged] == ["key-revoked"]


def test_what_a_revoked_key_signed_is_void_for_the_audit_and_no_fault(world: World) -> None:
    _, request = world.grant()
    ring, _ = revoked(world.keyring, request.key_id, now=clock.epoch_ms())

    report = verify(world.another(keyring=ring).guard._desk)

    assert report.findings == ()
    assert {finding.code for finding in report.void} == {"key-revoked"}


def test_a_call_that_was_spent_before_its_key_was_revoked_stays_spent(world: World) -> None:
    call, request = world.grant()
    world.run(call)
    ring, _ = revoked(world.keyring, request.key_id, now=clock.epoch_ms())
    node = world.another(keyring=ring)
    node.confirm()

    with node.refused("consumed", "spent"):
        node.run(call)
    with node.refused("consumed", "spent"):
        node.guard.request(call)


def test_after_a_restore_what_was_pending_is_asked_again(world: World) -> None:
    call, request = world.grant()
    node = world.another(keyring=Keyring(world.keyring.keys, epoch=2))

    with node.refused("invalid-approval", "epoch"):
        node.run(call, request_id=request.id)
    with node.refused("paused", "restored"):
        node.guard.authorize(call)
    node.confirm()

    assert node.ask(call).id != request.id
    assert verify(node.guard._desk).findings == ()


def test_a_node_that_still_has_the_old_epoch_runs_nothing_after_a_restore(world: World) -> None:
    world.grant()
    world.another(keyring=Keyring(world.keyring.keys, epoch=2)).confirm()

    with world.refused("invalid-approval", "epoch"):
        world.guard.authorize(world.call(call_id="new"))


def test_without_an_active_key_a_guard_does_not_start(world: World) -> None:
    ended = Keyring([key.changed(deactivates_at=clock.epoch_ms() - 1000) for key in world.keyring.keys])

    with pytest.raises(ConfigurationError) as error:
        world.another(keyring=ended)

    assert error.value.detail == "no-key"


def test_a_map_with_a_misspelt_tool_stops_the_first_call(world: World) -> None:
    node = world.another(policy={"delete_ordr": "user-approval"})
    ran: list[str] = []

    @node.guard.tool
    def delete_order(order: str) -> None:
        ran.append(order)

    with pytest.raises(ConfigurationError), node.guard.context(user="ana", run_id="run-1"):
        delete_order(order="A-17")
    assert ran == []


def test_a_map_with_a_misspelt_tool_stops_the_start_where_the_tools_are_named(world: World) -> None:
    with pytest.raises(ConfigurationError):
        world.another(policy={"delete_ordr": "user-approval"}, tools=["delete_order"])


def test_a_principal_of_another_tenant_cannot_be_asked_for(world: World) -> None:
    with pytest.raises(ConfigurationError):
        world.guard.request(world.call(user=Principal("ana", tenant="acme")))

    assert len(world.guard.pending(tenant="acme")) == 0


def test_the_canarys_name_is_an_ordinary_tool_outside_the_self_test(world: World) -> None:
    node = world.another(policy="denied")

    with node.refused("policy-denied"):
        node.run(node.call("hitl_guard_canary"))


def test_a_definition_must_be_the_called_tools(world: World) -> None:
    with world.refused("tool-changed"):
        world.guard.request(world.call(definition=ToolDefinition("harmless")))


def test_a_definition_other_than_the_registered_one_is_refused(world: World) -> None:
    @world.guard.tool(name="refund")
    def refund(order: str, amount: int) -> None:
        """Pay money back."""

    with world.refused("tool-changed"):
        world.run(world.call(definition=ToolDefinition("refund", "Says something else.")))


@pytest.mark.parametrize("policy", ["not-applicable", "approved"])
def test_a_call_that_the_host_had_asked_about_does_not_run_because_its_request_ended(world: World, policy: str) -> None:
    node = world.another(policy=policy)
    call = node.call()
    request = node.guard.request(call)
    node.guard.revoke(request.id, by=OPERATOR)

    again = node.ask(call)

    assert (again.state, again.requirements) == ("pending", request.requirements)
    node.approve(again)
    assert node.run(call) == "done"


def test_a_pruned_key_pauses_its_tenant_until_an_operator_goes_on(world: World) -> None:
    world.grant()
    pruned = world.another(keyring=ring())

    with pruned.refused("paused", "restored"):
        pruned.guard.authorize(pruned.call(call_id="new"))
    pruned.confirm()

    assert pruned.ask(pruned.call(call_id="new")).state == "pending"


def test_a_closed_guard_opens_new_connections_when_it_is_used_again(world: World) -> None:
    call, _ = world.grant()

    world.guard.close()

    assert world.run(call) == "done"


def test_earlier_calls_of_a_turn_have_the_limit_of_one_call_together(world: World) -> None:
    large = world.call(arguments={"text": "x" * 600_000})

    with world.refused("too-large", "turn"):
        world.guard.request(world.call(turn=(large, large)))


def test_a_list_that_an_attacker_sent_in_circles_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.guard.request(world.call())
    listed = world.store.open_requests
    monkeypatch.setattr(world.store, "open_requests", lambda **options: listed(tenant=None, limit=1))

    assert world.guard.sweep() == 0
