"""The frozen nouns: what they take, what they refuse, and what they do not give away."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251  only to show that it cannot
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from hitl_guard.errors import CanonicalizationError, ConfigurationError
from hitl_guard.models import (
    MAX_FIELD_BYTES,
    MAX_REASON,
    Permit,
    Principal,
    Requirement,
    Scope,
    ToolCall,
    ToolDefinition,
    check_optional,
    check_reason,
    check_text,
)


@pytest.mark.parametrize("text", ["a", " ", "ä" * 256, "x" * MAX_FIELD_BYTES, "\0", "\n", "'; --", "🔑"], ids=ascii)
def test_any_well_formed_text_is_an_id(text: str) -> None:
    assert check_text("user", text) is text
    check_optional("user", text)


@pytest.mark.parametrize("value", ["", None, 7, b"ana", ["ana"], True], ids=repr)
def test_what_is_missing_or_no_text_is_a_configuration_error(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="'user'"):
        check_text("user", value)
    if value is not None:
        with pytest.raises(ConfigurationError):
            check_optional("user", value)


def test_nothing_is_an_optional_id() -> None:
    check_optional("agent", None)


@pytest.mark.parametrize(
    ("value", "code"), [("\ud800", "unsupported-value"), ("x" * 513, "too-large"), ("ä" * 257, "too-large")], ids=ascii
)
def test_a_text_that_cannot_be_an_id_is_refused(value: str, code: str) -> None:
    with pytest.raises(CanonicalizationError) as caught:
        check_text("user", value)

    assert caught.value.code == code
    assert value not in str(caught.value)


@pytest.mark.parametrize("reason", [None, "", "Because.", "x" * MAX_REASON], ids=lambda reason: str(reason)[:9])
def test_a_reason_is_a_text_or_nothing(reason: Any) -> None:
    check_reason(reason)


@pytest.mark.parametrize("reason", [7, b"x", "x" * (MAX_REASON + 1), "\ud800"], ids=lambda reason: ascii(reason)[:9])
def test_a_reason_that_cannot_be_kept_is_refused(reason: Any) -> None:
    with pytest.raises(ConfigurationError, match="reason"):
        check_reason(reason)


def test_a_subclass_of_text_is_no_id() -> None:
    class Text(str):
        """Might say something else later."""

        __slots__ = ()

    with pytest.raises(ConfigurationError):
        check_text("user", Text("ana"))


def test_a_principal_has_all_its_names_and_its_owners() -> None:
    agent = Principal("bot", kind="agent", aliases=["bot@example.org"], owner="otto", roles=["lead"])  # type: ignore[arg-type]

    assert agent.names() == ("bot", "bot@example.org", "otto")
    assert (agent.aliases, agent.roles) == (("bot@example.org",), ("lead",))
    assert Principal("ana").names() == ("ana",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""}, {"id": None}, {"kind": "robot"}, {"kind": None}, {"tenant": ""}, {"roles": "lead"},
        {"aliases": "ana@example.org"}, {"roles": ("",)}, {"aliases": (7,)}, {"owner": ""},
    ],
    ids=str,
)
def test_a_principal_that_is_not_somebody_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Principal(**{"id": "ana", **wrong})


@pytest.mark.parametrize(
    "noun",
    [Principal("ana"), ToolDefinition("refund"), Requirement(), Scope("t", "u", "r", None, 0),
     ToolCall("refund", {}, run_id="r", call_id=None, user="ana")],
    ids=lambda noun: type(noun).__name__,
)
def test_a_noun_cannot_be_changed(noun: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(noun, next(iter(type(noun).__slots__)), "changed")


def test_a_definition_is_plain_json_and_its_schema_a_copy() -> None:
    schema = {"type": "object"}

    plain = ToolDefinition("refund", "Refund.", schema, "shop.example").to_json()
    plain["input_schema"]["type"] = "array"

    assert ToolDefinition("refund").to_json() == {
        "description": None, "input_schema": None, "name": "refund", "server": None
    }
    assert schema == {"type": "object"}


def test_a_requirement_survives_its_signed_form() -> None:
    need = Requirement(
        approvers=("lead", "user:bob"), quorum=2, self_approval=True, channels=("inbox",), edit=True, risk="high",
        decide_within=1, execute_within=2, recheck_approvers=True,
    )

    assert Requirement.from_json(need.to_json()) == need
    assert Requirement.from_json(Requirement().to_json()) == Requirement()


@pytest.mark.parametrize(
    "change", [lambda data: data.pop("quorum"), lambda data: data.update(more=1)], ids=["less", "more"]
)
def test_a_requirement_of_another_shape_is_refused(change: Any) -> None:
    data = Requirement().to_json()
    change(data)

    with pytest.raises(KeyError):
        Requirement.from_json(data)


def permit(**options: Any) -> Permit:
    given = {"tool": "refund", "canonical": b'{"amount":1,"secret":"hunter2"}', "fingerprint": "f" * 64}
    return Permit(**{**given, "scope": Scope("t", "u", "r", "c", 0), "request_id": "id", **options})


def test_a_permit_decodes_its_arguments_afresh_each_time() -> None:
    one = permit()
    one.arguments["amount"] = 2

    assert one.arguments == {"amount": 1, "secret": "hunter2"}


def test_a_number_is_an_integer_unless_the_schema_says_number() -> None:
    schema = {"properties": {"amount": {"type": "number"}}}

    assert type(permit().arguments["amount"]) is int
    assert type(permit(schema=schema).arguments["amount"]) is float


@pytest.mark.parametrize("away", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_permit_does_not_leave_its_process(away: Any) -> None:
    with pytest.raises(TypeError, match="this process only"):
        away(permit())


def test_neither_a_permit_nor_a_call_shows_arguments() -> None:
    call = ToolCall("refund", {"pin": "hunter2"}, run_id="r", call_id="c", user="ana", context={"pin": "hunter2"})

    assert "hunter2" not in repr(permit()) + repr(call)
    assert repr(permit()) == "<Permit tool='refund' request_id='id'>"
