"""What a page is told of secret arguments: where they stand, by the rule of the inbox. The chat has them whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hitl_guard import Guard
from hitl_guard.integrations.ai_sdk.asked import MAX_SECRETS, descriptor_of, hidden
from hitl_guard.integrations.ai_sdk.chunks import UIMessageStream
from hitl_guard.models import ApprovalRequest, ToolCall, ToolDefinition
from hitl_guard.render.secrets import secrets_of
from hitl_guard.testing import UnsafeKeyring, UnsafeMemoryStore
from tests.integrations.wire import checked, one

LOGIN = {
    "properties": {
        "accounts": {"items": {"properties": {"pin": {"x-secret": True}}, "type": "object"}, "type": "array"},
        "name": {"type": "string"}, "password": {"format": "password", "type": "string"},
    },
    "type": "object",
}
ARGUMENTS = {"accounts": [{"pin": 1}, {"pin": 2}], "name": "ana", "password": "hunter2"}


@pytest.fixture
def guard() -> Iterator[Guard]:
    with UnsafeMemoryStore() as store:
        yield Guard(policy="user-approval", keyring=UnsafeKeyring(), store=store)


def asked(guard: Guard, arguments: Mapping[str, Any], schema: Mapping[str, Any] | None) -> ApprovalRequest:
    definition = None if schema is None else ToolDefinition("login", input_schema=schema)
    call = ToolCall("login", dict(arguments), user="ana", run_id="r", call_id="c1", definition=definition)
    return guard.request(call)


def test_x21_a_page_is_told_which_arguments_are_secret_by_the_rule_of_the_inbox(guard: Guard) -> None:
    request = asked(guard, ARGUMENTS, LOGIN)

    told = descriptor_of(request)["secrets"]

    assert told == ["/accounts/0/pin", "/accounts/1/pin", "/password"] == sorted(secrets_of(request))


@pytest.mark.parametrize("schema", [None, {"type": "object"}])
def test_x21_a_tool_without_marks_has_no_secrets(guard: Guard, schema: Mapping[str, Any] | None) -> None:
    assert descriptor_of(asked(guard, ARGUMENTS, schema))["secrets"] == []


def test_x21_more_secrets_than_a_page_is_told_of_make_all_arguments_secret(guard: Guard) -> None:
    names = {f"secret-{number:04}" * 10: 1 for number in range(MAX_SECRETS // 100)}

    request = asked(guard, names, {"additionalProperties": {"writeOnly": True}, "type": "object"})

    assert len(secrets_of(request)) == len(names)
    assert descriptor_of(request)["secrets"] == [""]


def test_x17_secret_arguments_are_shown_whole_and_can_be_decided_in_the_chat(guard: Guard) -> None:
    """The client posts back what it shows, and exactly that is compared with what was signed."""
    request, stream = asked(guard, ARGUMENTS, LOGIN), UIMessageStream()

    chunks = checked([*stream.tool_call("c1", "login", ARGUMENTS), *stream.approval(request), *stream.finish()])

    assert hidden(request) is None
    assert one(chunks, "tool-input-available")["input"] == ARGUMENTS
    assert one(chunks, "tool-approval-request")["approvalDescriptor"]["secrets"] == [*sorted(secrets_of(request))]
