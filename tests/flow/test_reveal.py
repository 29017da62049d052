"""X21: revealing a secret argument is audited before anybody sees it, and is for those who see the request."""

from __future__ import annotations

from typing import Any

import pytest

from hitl_guard.errors import ConfigurationError, DecisionError, StoreUnavailableError, UnavailableError
from hitl_guard.lifecycle.desk import ROUNDS
from hitl_guard.models import ApprovalRequest, Principal, ToolDefinition
from tests.support import ANA, BOB, CAROL, OPERATOR, World

SCHEMA = {
    "type": "object",
    "properties": {
        "cards": {"type": "array", "items": {"properties": {"a/b": {"type": "string", "writeOnly": True}}}},
        "order": {"type": "string"}, "pin": {"type": "string", "x-secret": True},
    },
}
ARGUMENTS = {"cards": [{"a/b": "4111"}, {"a/b": "5500"}], "order": "A-17", "pin": "hunter2"}


def ask(world: World, tool: str = "refund", **scope: Any) -> ApprovalRequest:
    call = world.call(tool, ARGUMENTS, definition=ToolDefinition(tool, None, SCHEMA), **scope)
    return world.guard.request(call)


class Failing:
    """A store whose first writes lose their race, or fail."""

    def __init__(self, world: World, losses: int = 0, error: Exception | None = None) -> None:
        self.real, self.losses, self.error, self.writes = world.store, losses, error, 0

    def write(self, *args: Any) -> Any:
        self.writes += 1
        if self.error is not None:
            raise self.error
        return None if self.writes <= self.losses else self.real.write(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.mark.parametrize(("pointer", "value"), [("/pin", "hunter2"), ("/cards/1/a~1b", "5500")])
def test_x21_one_secret_is_revealed_and_the_audit_log_has_who_saw_which(
    world: World, pointer: str, value: str
) -> None:
    request = ask(world)

    assert world.guard.reveal(request.id, pointer, by=BOB) == value

    assert world.audited("argument:revealed") == [
        {"by": "bob", "fingerprint": request.fingerprint, "place": pointer, "request": request.id}
    ]
    assert world.state(request) == "pending"


@pytest.mark.parametrize("pointer", ["", "/", "/order", "/cards", "/cards/2/a~1b", "/none", "pin"])
def test_x21_what_is_no_secret_of_the_call_cannot_be_revealed(world: World, pointer: str) -> None:
    request = ask(world)

    with world.refused("invalid-approval", "unknown", kind="decision:refused"):
        world.guard.reveal(request.id, pointer, by=BOB)

    assert world.audited("argument:revealed") == []


def test_x21_a_tool_without_a_schema_has_no_secrets(world: World) -> None:
    request = world.guard.request(world.call("refund", ARGUMENTS))

    with pytest.raises(DecisionError) as caught:
        world.guard.reveal(request.id, "/pin", by=BOB)

    assert caught.value.detail == "unknown"


@pytest.mark.parametrize("by", [BOB, OPERATOR, ANA], ids=lambda by: str(by.id))
def test_x21_who_sees_a_request_may_reveal_its_secrets(world: World, by: Principal) -> None:
    request = ask(world, "close_account")

    assert world.guard.reveal(request.id, "/pin", by=by) == "hunter2"


@pytest.mark.parametrize("by", [
    CAROL, Principal("ANA"), Principal("bob", tenant="other", roles=("lead", "operator")),
    Principal("olga", kind="agent", roles=("operator",)), Principal("bot", kind="service", roles=("lead",)),
], ids=["no role", "like the requester", "another tenant", "an agent", "a service"])
def test_x21_nobody_else_can_tell_that_there_is_one(world: World, by: Principal) -> None:
    request = ask(world, "close_account")
    errors = []

    for request_id, pointer in ((request.id, "/pin"), (request.id, "/none"), ("unknown", "/pin")):
        with pytest.raises(DecisionError) as caught:
            world.guard.reveal(request_id, pointer, by=by)
        errors.append((caught.value.code, caught.value.detail))

    assert errors == [("invalid-approval", "unknown")] * 3
    assert world.audited("argument:revealed") == []


def test_x21_who_decided_may_still_reveal_without_the_role(world: World) -> None:
    request = ask(world, "close_account")
    world.approve(request, by=BOB)

    assert world.guard.reveal(request.id, "/pin", by=Principal("bob")) == "hunter2"


def test_x21_nobody_is_no_principal(world: World) -> None:
    request = ask(world)

    with pytest.raises(ConfigurationError):
        world.guard.reveal(request.id, "/pin", by="bob")  # type: ignore[arg-type]


def test_x21_a_reveal_that_loses_a_race_is_written_anew(world: World) -> None:
    request = ask(world)
    store: Any = Failing(world, losses=2)

    assert world.another(store=store).guard.reveal(request.id, "/pin", by=BOB) == "hunter2"

    assert len(world.audited("argument:revealed")) == 1


@pytest.mark.parametrize(("losses", "error"), [(10_000, None), (0, StoreUnavailableError("The store is gone."))])
def test_x21_what_cannot_be_audited_is_not_told(world: World, losses: int, error: Exception | None) -> None:
    request = ask(world)
    store: Any = Failing(world, losses, error)

    with pytest.raises(UnavailableError) as caught:
        world.another(store=store).guard.reveal(request.id, "/pin", by=BOB)

    assert "hunter2" not in repr(caught.value)
    assert store.writes == (ROUNDS if error is None else 1)
    assert world.audited("argument:revealed") == []
