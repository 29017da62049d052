"""A guarded function is known by itself, not by a mark that a decorator may copy; and what a tool may return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hitl_guard.errors import AuditUnavailableError, ConfigurationError, KeyInactiveError, PausedError
from hitl_guard.keyring import Key, Keyring
from hitl_guard.lifecycle.control import CANARY_TENANT
from hitl_guard.models import Principal
from tests.support import BOB, World


def _close(order: str) -> None:
    """Close an order."""


def _around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def outer(**arguments: Any) -> Any:
        raise PermissionError("an outer decorator has its own say")

    return outer


@pytest.fixture
def guarded(world: World) -> Callable[..., Any]:
    @world.guard.tool(name="refund")
    def refund(order: str, amount: int) -> str:
        return world.tool(order=order, amount=amount)

    return refund


def test_a_decorator_around_a_guarded_function_is_never_skipped(world: World, guarded: Callable[..., Any]) -> None:
    call, _ = world.grant()
    message = {
        "role": "assistant",
        "tool_calls": [{"id": call.call_id, "type": "function",
                        "function": {"name": "refund", "arguments": '{"order": "A-17", "amount": 82}'}}],
    }

    with pytest.raises(ConfigurationError):
        world.guard.run(call, _around(guarded))
    with pytest.raises(ConfigurationError):
        world.guard.run_tool_calls([message], {"refund": _around(guarded)}, user="ana", run_id="run-1")

    assert world.effects == []
    assert world.guard.run(call, guarded) == "done"


def test_a_copied_mark_guards_nothing_and_coverage_says_so(world: World, guarded: Callable[..., Any]) -> None:
    raw = functools.wraps(guarded)(lambda order, amount: None)
    copied_seal = functools.wraps(world.guard.sealed(_close))(lambda order: None)

    assert world.guard.coverage({"raw": raw, "seal": copied_seal}).unguarded == ("raw", "seal")
    with pytest.raises(ConfigurationError):
        world.guard.selftest([raw])
    with pytest.raises(ConfigurationError):
        world.guard.tool(raw)


def test_x14_a_model_that_gets_the_result_directly_is_told_of_an_edit(world: World) -> None:
    execute = world.guard.wrap(lambda name, args, context: world.tool(**args), pause="result")
    context = {"user": "ana", "run_id": "run-9"}
    pending = execute("mail", {"to": "x"}, context)
    request = world.guard.get(pending["request_id"])
    world.approve(request, BOB, arguments={"to": "y"})

    told = execute("mail", {"to": "x"}, context)

    assert told["result"] == "done"
    assert '{"to":"y"}' in told["message"]
    assert world.effects == [{"to": "y"}]


def test_a_tool_that_returns_a_generator_is_in_doubt(world: World) -> None:
    call, request = world.grant()

    def lazy(**arguments: Any) -> Iterator[int]:
        return iter_of(1)

    def iter_of(number: int) -> Iterator[int]:
        yield number

    with pytest.raises(ConfigurationError):
        world.guard.run(call, lazy)

    assert world.state(request) == "in_doubt"


def test_a_self_test_of_a_paused_dispatcher_says_that_it_is_paused(world: World) -> None:
    execute = world.guard.wrap(lambda name, args, context: None)
    world.guard.selftest(execute)
    world.guard.pause(by=Principal("olga", tenant=CANARY_TENANT, roles=("operator",)))

    with pytest.raises(PausedError):
        world.guard.selftest(execute)


class Unshowable:
    """A result, and an error, that no text can stand for."""

    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


class UnshowableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(("result", "told"), [
    (Unshowable(), "The tool succeeded; its result, a Unshowable, has no text."),
    (10**5000, "The tool succeeded; its result, a int, has no text."),
    (UnshowableError(), "Tool failed: UnshowableError"),
], ids=["result", "number", "error"])
def test_what_has_no_text_is_told_as_what_it_is(world: World, result: Any, told: str) -> None:
    def lookup(**arguments: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    message = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}],
    }

    (answer,) = world.guard.run_tool_calls([message], {"lookup": lookup}, user="ana", run_id="run-1")

    assert answer["content"] == told


def test_without_an_active_key_a_refusal_that_cannot_be_audited_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_active(keyring: Keyring, now: int) -> Key:
        raise KeyInactiveError("No key is active.")

    call, request = world.grant()
    world.deny(world.guard.request(world.call(call_id="other")))
    monkeypatch.setattr(Keyring, "signing_key", none_active)

    with pytest.raises(AuditUnavailableError) as caught:
        world.run(world.call(call_id="other"))

    assert vars(caught.value)["refused"] == "denied"
    with pytest.raises(KeyInactiveError):
        world.run(call, request_id=request.id)
    assert world.effects == []
