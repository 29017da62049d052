"""Calls through the proxy: they wait, run once, end on record; what a person, a server or a crash does to them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hitl_guard.errors import CanonicalizationError
from hitl_guard.integrations.mcp_proxy.gate import check_spelling
from hitl_guard.models import Principal, ToolDefinition
from tests.mcp_proxy.stage import Stage, text_of, told

REFUND = {"amount": 82, "order": "A-17"}


def test_a_call_waits_and_runs_once_after_its_approval(stage: Stage) -> None:
    with stage.client() as client:
        assert "approval-pending" in told(client.call("refund", REFUND))
        assert stage.runs() == []
        request = stage.decide()

        assert text_of(client.call("refund", REFUND)) == 'refund {"amount": 82, "order": "A-17"}'

        assert len(stage.runs()) == 1
        assert stage.state(request) == "succeeded"
        assert (request.tool, request.user, request.binding) == ("refund", "ana", "retry")


def test_the_outcome_is_on_record_before_the_client_has_the_answer(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        request = stage.decide()

        client.call("refund", REFUND)

        assert stage.state(request) == "succeeded"


def test_a_second_retry_waits_for_a_new_approval(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        first = stage.decide()
        text_of(client.call("refund", REFUND))

        assert "approval-pending" in told(client.call("refund", REFUND))

        assert stage.only().id != first.id
        assert len(stage.runs()) == 1


def test_asking_again_while_it_waits_joins_the_same_request(stage: Stage) -> None:
    with stage.client() as client:
        answers = [told(client.call("refund", REFUND)) for _ in range(3)]

        assert {json.loads(answer)["request_id"] for answer in answers} == {stage.only().id}


def test_the_line_that_the_client_sent_goes_on_unchanged(stage: Stage) -> None:
    line = b'{"params": {"arguments": {"order":"A-17", "amount":8.2e1}, "name":"refund"},  "id":"x","method":' \
           b'"tools\\/call","jsonrpc":"2.0"}'
    with stage.client() as client:
        client.send(line)
        told(client.next())
        stage.decide()

        client.send(line)
        text_of(client.next())

        assert stage.runs() == [line]


def test_an_approval_counts_for_the_approved_arguments_alone(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        stage.decide()

        assert "approval-pending" in told(client.call("refund", {**REFUND, "amount": 820}))

        assert stage.runs() == []


def test_an_approval_outlives_the_proxy(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
    stage.decide()
    with stage.client() as client:
        text_of(client.call("refund", REFUND))

        assert len(stage.runs()) == 1


def test_an_approval_counts_for_its_run_and_its_user_alone(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        stage.decide()
    for option, value in (("--run", "another"), ("--user", "eve")):
        with stage.client(option, value) as client:
            assert "approval-pending" in told(client.call("refund", REFUND))
    assert stage.runs() == []


def test_edited_arguments_run_and_the_client_is_told(stage: Stage) -> None:
    asked = {"to": "all", "text": "hello"}
    with stage.client() as client:
        client.call("mail", asked, _meta={"progressToken": 5})
        stage.decide(arguments={"to": "ana", "text": "hello"})

        answer = client.call("mail", asked, _meta={"progressToken": 5})

        sent = json.loads(stage.runs("mail")[0])["params"]
        assert sent == {"name": "mail", "arguments": {"to": "ana", "text": "hello"}, "_meta": {"progressToken": 5}}
        assert '"to":"all"' not in text_of(answer)
        assert text_of(answer).startswith("A person changed this call's arguments")
        assert answer["result"]["content"][1]["text"] == 'mail {"text": "hello", "to": "ana"}'


def test_a_denial_tells_the_reason_and_stays(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        stage.decide(approve=False, reason="Ask the customer first.")

        assert told(client.call("refund", REFUND)) == "Ask the customer first."
        assert told(client.call("refund", REFUND)) == "Ask the customer first."
        assert stage.runs() == []


def test_a_person_may_answer_for_the_tool(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        stage.decide(approve=False, respond={"paid": False})

        answer = client.call("refund", REFUND)

        assert json.loads(text_of(answer)) == {"paid": False}
        assert answer["result"]["structuredContent"] == {"paid": False}
        assert stage.runs() == []


def test_what_the_policy_allows_runs_at_once_whatever_waits(stage: Stage) -> None:
    with stage.client() as client:
        assert text_of(client.call("note", {"id": 1})) == 'note {"id": 1}'


def test_the_servers_own_word_about_a_tool_lowers_nothing(stage: Stage) -> None:
    with stage.client() as client:
        assert "readOnlyHint" in client.ask("tools/list")["result"]["tools"][1]["annotations"]

        assert "approval-pending" in told(client.call("refund", REFUND))


def test_what_the_policy_denies_is_refused(stage: Stage) -> None:
    with stage.client() as client:
        assert told(client.call("drop_database")) == "Never."
        assert stage.runs() == []


def test_a_tool_that_the_server_does_not_list_is_refused(stage: Stage) -> None:
    with stage.client() as client:
        assert client.call("Refund", REFUND)["error"]["code"] == -32602
        assert stage.runs() == []
        assert stage.pending() == []


def test_arguments_that_differ_from_a_tools_own_in_case_are_refused(stage: Stage) -> None:
    with stage.client() as client:
        assert "unsupported-value" in told(client.call("refund", {"amount": 1, "Order": "A-17"}))
        assert stage.pending() == []


@pytest.mark.parametrize("arguments", [
    {"free": 1, "Free": 2}, {"inside": {"amount": 1, "Amount": 1000}}, {"many": [{"a": 1}, {"a": 1, "A": 2}]},
], ids=str)
def test_two_arguments_that_differ_in_case_alone_are_refused_at_any_depth(stage: Stage, arguments: Any) -> None:
    with stage.client() as client:
        assert "unsupported-value" in told(client.call("note", arguments))
        assert stage.runs("note") == []


def test_a_nested_argument_that_differs_from_the_declared_one_in_case_is_refused() -> None:
    inner = {"type": "object", "properties": {"amount": {"type": "number"}}}
    schema = {"type": "object", "properties": {"one": inner, "many": {"type": "array", "items": inner}}}
    definition = ToolDefinition("pay", None, schema)

    check_spelling(definition, {"one": {"amount": 1}, "many": [{"amount": 1}], "other": {"Amount": 1}})
    for arguments in ({"one": {"Amount": 1}}, {"many": [{"amount": 1}, {"AMOUNT": 1}]}):
        with pytest.raises(CanonicalizationError):
            check_spelling(definition, arguments)


def test_a_changed_definition_voids_the_approval(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        first = stage.decide()
        client.note("test/redefine", tell=False)

        assert "tool-changed" in told(client.call("refund", REFUND))
        assert (stage.pending(), stage.state(first)) == ([], "approved")
        assert "approval-pending" in told(client.call("refund", REFUND))

        assert stage.runs() == []
        assert stage.state(first) == "superseded"
        definition = stage.guard.get(stage.only().id).definition
        assert definition is not None
        assert definition.description == "Pay back, and keep a copy."


def test_a_list_that_the_server_says_has_changed_is_looked_at_again(stage: Stage) -> None:
    with stage.client() as client:
        client.ask("tools/list")
        client.note("test/redefine", tell=True)
        assert client.method() == "notifications/tools/list_changed"

        assert "tool-changed" in told(client.call("refund", REFUND))
        client.call("refund", REFUND)

        definition = stage.guard.get(stage.only().id).definition
        assert definition is not None
        assert definition.description == "Pay back, and keep a copy."


def test_the_proxy_reads_every_page_of_the_servers_list(stage: Stage) -> None:
    with stage.client() as client:
        client.note("test/pages", size=2)

        assert text_of(client.call("note")) == "note {}"
        assert "approval-pending" in told(client.call("legs"))


@pytest.mark.parametrize(("tool", "said"), [("broken", '"no such order"'), ("boom", '"message": "boom"')])
def test_an_error_of_the_tool_leaves_the_call_in_doubt(stage: Stage, tool: str, said: str) -> None:
    with stage.client() as client:
        client.call(tool)
        request = stage.decide()

        assert said in json.dumps(client.call(tool))
        assert stage.state(request) == "in_doubt"
        assert "in-doubt" in told(client.call(tool))
        assert len(stage.runs(tool)) == 1


def test_an_error_of_a_tool_that_promises_no_effect_leaves_nothing_in_doubt(stage: Stage) -> None:
    with stage.client("--effect", "broken=none") as client:
        client.call("broken")
        request = stage.decide()
        assert told(client.call("broken")) == "no such order"

        assert stage.state(request) == "failed"


def test_a_server_that_dies_in_a_call_leaves_it_in_doubt(stage: Stage) -> None:
    with stage.client() as client:
        client.call("die")
        request = stage.decide()

        answer = client.call("die")

        assert "unknown" in answer["error"]["message"]
        assert client.line() == b""
        assert client.process.wait(20) == 7
        assert stage.state(request) == "in_doubt"


def test_a_proxy_that_is_killed_between_claim_and_answer_never_runs_the_call_again(stage: Stage) -> None:
    with stage.client() as client:
        client.call("hold")
        request = stage.decide()
        client.say("tools/call", {"name": "hold", "arguments": {}})
        assert client.method() == "test/held"
        client.process.kill()
    with stage.client("--guard", "host:guard") as client:
        assert "in-doubt" in told(client.call("hold"))

        assert len(stage.runs("hold")) == 1
        assert stage.state(request) == "executing"


def test_a_call_that_waits_for_the_server_holds_up_nothing_else(stage: Stage) -> None:
    with stage.client() as client:
        client.call("hold")
        stage.decide()
        held = client.say("tools/call", {"name": "hold", "arguments": {}})
        assert client.method() == "test/held"

        client.sync()
        text_of(client.call("note"))
        client.note("test/release")

        answer = client.next()
        assert (answer["id"], text_of(answer)) == (held, "released")


def test_of_equal_calls_at_once_one_runs(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        stage.decide()
        ids = [client.say("tools/call", {"name": "refund", "arguments": REFUND}) for _ in range(8)]

        answers = [client.next() for _ in ids]

        assert sorted(answer["id"] for answer in answers) == ids
        assert len([answer for answer in answers if not answer["result"].get("isError")]) == 1
        assert len(stage.runs()) == 1


def test_a_call_that_was_cancelled_before_it_reached_the_server_never_does(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        stage.decide()
        client.send(
            json.dumps({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": {
                "name": "refund", "arguments": REFUND}}).encode()
            + b'\n{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}'
        )
        client.sync()
        client.sync()

        assert stage.runs() == []
        assert not any(b"cancelled" in line for line in stage.received())


def test_the_cancellation_of_a_call_that_runs_reaches_the_server(stage: Stage) -> None:
    line = b'{"jsonrpc":"2.0", "method":"notifications/cancelled","params":{"requestId":"c"}}'
    with stage.client() as client:
        client.call("hold")
        stage.decide()
        client.say("tools/call", {"name": "hold", "arguments": {}}, id="c")
        assert client.method() == "test/held"

        client.send(line)
        client.sync()

        assert line in stage.received()


def test_a_call_that_the_server_asks_back_about_goes_on_under_one_approval(stage: Stage) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    with stage.client() as client:
        client.call("legs", _meta=meta)
        request = stage.decide()
        assert client.call("legs", _meta=meta)["result"]["resultType"] == "input_required"
        assert stage.state(request) == "executing"

        assert text_of(client.call("legs", _meta=meta, requestState="half", inputResponses={})) == "legs {}"

        assert stage.state(request) == "succeeded"
        again = client.call("legs", _meta=meta, requestState="half", inputResponses={})
        assert "approval-pending" in told(again)
        assert len(stage.runs("legs")) == 2


def test_equal_calls_that_the_server_asks_back_about_each_get_their_end(stage: Stage) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    with stage.client() as client:
        requests = []
        for _ in range(2):
            client.call("legs", _meta=meta)
            requests.append(stage.decide())
            assert client.call("legs", _meta=meta)["result"]["resultType"] == "input_required"

        for _ in range(2):
            assert text_of(client.call("legs", _meta=meta, requestState="half", inputResponses={})) == "legs {}"

        assert [stage.state(request) for request in requests] == ["succeeded", "succeeded"]


def test_a_store_that_is_gone_refuses_the_call_and_says_so(stage: Stage) -> None:
    with stage.client() as client:
        text_of(client.call("note"))
        stage.close()
        for file in stage.folder.glob("approvals.db*"):
            file.unlink()

        error = client.call("refund", REFUND)["error"]

        assert error["code"] == -32000
        assert "unavailable" in error["message"] or "rolled-back" in error["message"]
        assert stage.runs("refund") == []


def test_a_paused_tool_is_refused(stage: Stage) -> None:
    with stage.client() as client:
        client.call("refund", REFUND)
        stage.decide()
        stage.guard.pause(by=Principal("olga", roles=("operator",)), tool="refund", reason="look first")

        assert "paused" in told(client.call("refund", REFUND))
        assert stage.runs() == []


def test_an_id_is_free_again_as_soon_as_it_is_answered(stage: Stage) -> None:
    with stage.client() as client:
        for _ in range(20):
            client.say("tools/call", {"name": "note"}, id="same")
            assert text_of(client.next()) == "note {}"


def test_a_call_that_waits_for_the_clients_word_is_in_doubt_once_the_client_leaves(stage: Stage) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    with stage.client() as client:
        client.call("legs", _meta=meta)
        request = stage.decide()
        client.call("legs", _meta=meta)

        assert client.end() == 0

    assert stage.state(request) == "in_doubt"


def test_a_page_that_brings_news_is_pinned_too(stage: Stage) -> None:
    with stage.client() as client:
        client.ask("tools/list")
        client.note("test/redefine", tell=False)
        client.note("test/pages", size=2)
        client.ask("tools/list", {"cursor": "0"})

        client.call("refund", REFUND)

        definition = stage.guard.get(stage.only().id).definition
        assert definition is not None
        assert definition.description == "Pay back, and keep a copy."
