"""What the reference loop was recorded doing, and ours in the words of that recording."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from hitl_guard.agent import AgentStream, SuspendedRuns

from .stage import Event

FILE = Path(__file__).resolve().parents[3] / "shared/vectors/reference-loop-events.json"

FOREIGN = frozenset({
    "_durableStepContent", "createdAt", "processorRetryFeedback", "providerExecuted", "providerMetadata", "response",
    "stepId",
})
"""What only the reference has: its provider's data, its processors', its durable engine's, a time beside each part."""

OURS = frozenset({
    "approvalId", "clientSide", "expiresAt", "fingerprint", "innerToolCallId", "occurrence", "reason",
    "suspensionId", "token",
})
"""What our payloads add."""

UNTOLD = OURS | {"payload", "payloadKeys", "resourceId", "stepReason", "threadId"}
"""What a recording may leave out."""

CODES = {
    "AGENT_LIST_SUSPENDED_RUNS_INVALID_PAGE": ("invalid-page", "page"),
    "AGENT_LIST_SUSPENDED_RUNS_INVALID_PER_PAGE": ("invalid-page", "per-page"),
    "AGENT_RESUME_NO_SNAPSHOT_FOUND": ("run-not-found", None),
    "AGENT_RESUME_TOOL_CALL_NOT_SUSPENDED": ("call-not-suspended", None),
    "AGENT_SEND_STREAM_RESUME_NO_SUSPENDED_THREAD_RUN": ("run-not-found", "thread"),
    "AGENT_SEND_TOOL_APPROVAL_NO_ACTIVE_THREAD_RUN": ("run-not-found", "thread"),
}
"""The reference's error ids → our codes and details."""


@cache
def recording() -> dict[str, Any]:
    """Return the recording; skip the test where it is absent."""
    if not FILE.is_file():
        pytest.skip("reference-loop-events.json is not here: put it into ../shared/vectors/")
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def find(data: Any, name: str) -> Any:
    """Return the first value of this name anywhere in recorded data that is no placeholder; None without one."""
    if isinstance(data, dict) and name in data and not str(data[name]).startswith("<"):
        return data[name]
    items = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return next((found for found in (find(item, name) for item in items) if found is not None), None)


class Words:
    """Says ours in the words of a recording: the same thing becomes the same word, any other thing stays as it is.

    Attributes:
        names: Recorded agent ids → ours. The reference names a delegation by a registration key, we by the agent's id.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._ids: dict[str, str] = {}

    def plain(self, recorded: Any) -> Any:
        """Return recorded data without what only the reference has."""
        if isinstance(recorded, list):
            return [self.plain(item) for item in recorded]
        if not isinstance(recorded, dict):
            return self.names.get(recorded, recorded) if isinstance(recorded, str) else recorded
        kept = {name: self.plain(item) for name, item in recorded.items() if name not in FOREIGN}
        if "payloadKeys" in kept:
            kept["payloadKeys"] = sorted({*kept["payloadKeys"]} - FOREIGN)
        return kept | ({"from": "AGENT"} if kept.get("from") == "USER" else {})

    def of(self, wanted: Any, ours: Any) -> Any:
        """Return ours in the words of what is wanted."""
        if ours == wanted:
            return wanted
        if isinstance(wanted, dict) and isinstance(ours, dict):
            return {
                name: self.of(wanted.get(name), item)
                for name, item in ours.items() if name in wanted or name not in UNTOLD
            }
        if isinstance(wanted, list) and isinstance(ours, list):
            return [self.of(want, item) for want, item in zip_longest(wanted[: len(ours)], ours)]
        return self._word(wanted, ours) if isinstance(wanted, str) and (ours is None or type(ours) is str) else ours

    def _word(self, wanted: str, ours: str | None) -> str | None:
        schema = recording()["resume_schemas"].get(wanted) or (json.loads(wanted) if wanted[:1] == "{" else None)
        if schema is not None:
            return wanted if ours is not None and json.loads(ours) == schema else ours
        if re.fullmatch(r"th-uuid-\d+(-uuid-\d+)*", wanted):
            return wanted  # a sub-agent's conversation: ours belongs to its run alone and has no name of its own
        if ours is not None and re.fullmatch(r"txt-\d+|<run>|<call>|\w{8}(-\w{4}){3}-\w{12}", wanted):
            return wanted  # a provider's id of a text, or an id that was left as it was
        if ours is None or not re.fullmatch(r"uuid-\d+", wanted):
            return ours
        known = self._ids.setdefault(wanted, ours)
        return wanted if known == ours and [*self._ids.values()].count(ours) == 1 else f"{ours} is not {wanted}"


# -- ours, as the recorder wrote things down -------------------------------------------------------------------------


def event_of(event: Event) -> Event:
    """Return one of our events."""
    payload = dict(event["payload"])
    if event["type"] == "tool-output":
        payload["output"] = event_of(payload["output"])
    elif event["type"] == "tool-result":
        payload.pop("approval", None)  # the reference tells it of a denial alone
    told = {
        "type": event["type"], "runId": event["run_id"], "from": event["from"], "payload": payload,
        "payloadKeys": sorted(payload.keys() - OURS),
    }
    return told | ({"stepReason": payload["stepResult"]["reason"]} if "stepResult" in payload else {})


def listed(page: SuspendedRuns) -> dict[str, Any]:
    """Return a list of suspended runs. The reference leaves out a suspension's arguments."""
    return {"total": page.total, "runs": [
        {
            "runId": run.run_id, "status": run.status, "threadId": run.thread_id, "resourceId": run.resource_id,
            "suspendedAt": "<time>" if run.suspended_at.tzinfo is not None else run.suspended_at,
            "toolCalls": [
                {"toolCallId": call.tool_call_id, "toolName": call.tool_name} | (
                    {"args": call.args, "requiresApproval": True} if call.requires_approval
                    else {"requiresApproval": False, "suspendPayload": call.suspend_payload}
                )
                for call in run.tool_calls
            ],
        }
        for run in page.runs
    ]}


def outcome(stream: AgentStream) -> dict[str, Any]:
    """Return how a stream ended."""
    ended = {"status": stream.status, "finishReason": stream.finish_reason, "text": stream.text}
    return ended if stream.suspend_payload is None else ended | {"suspendPayload": stream.suspend_payload}


def told_to(messages: list[dict[str, Any]], wanted: list[Any]) -> list[Any]:
    """Return what a model was told about its calls: a text where the recording has one, else the JSON of a value."""
    names = {call["id"]: call["function"]["name"] for one in messages for call in one.get("tool_calls") or ()}
    kinds = [one["output"]["type"] for one in wanted]
    answers = [one for one in messages if one["role"] == "tool"]
    return [
        {"toolCallId": one["tool_call_id"], "toolName": names[one["tool_call_id"]], "output": {
            "type": kind, "value": json.loads(one["content"]) if kind == "json" else one["content"],
        }}
        for one, kind in zip(answers, [*kinds, *["text"] * len(answers)], strict=False)
    ]


def recalled(messages: list[dict[str, Any]]) -> Callable[[list[Any]], list[Any]]:
    """Return a conversation in the reference's form, where a call and its answer are one part of a message."""
    answers = {one["tool_call_id"]: one for one in messages if one["role"] == "tool"}

    def part(call: dict[str, Any]) -> dict[str, Any]:
        answer = answers[call["id"]]
        function, state = call["function"], answer["state"]
        result = {"result": json.loads(answer["content"])} if state == "result" else {}
        return {"type": "tool-invocation", "toolInvocation": {
            "state": state, "toolCallId": call["id"], "toolName": function["name"],
            "args": json.loads(function["arguments"]), "approval": answer["approval"], **result,
        }}

    def form(wanted: list[Any]) -> list[Any]:
        spoken: list[dict[str, Any]] = [
            {"role": one["role"], "parts": [
                *([{"type": "text", "text": one["content"]}] if one["content"] else []),
                *map(part, one.get("tool_calls", ())),
            ]}
            for one in messages if one["role"] != "tool"
        ]
        for one, want in zip(spoken, wanted, strict=False):
            one |= {"metadata": want["metadata"]} if "metadata" in want else {}
        return spoken

    return form


def ui_part(event: Event) -> dict[str, Any]:
    """Return the part of a chat client's stream that can be made of one event, by nothing but its type and payload."""
    kind, payload = event["type"], event["payload"]
    named = {"toolCallId": payload.get("toolCallId")}
    if kind in ("tool-call-approval", "tool-call-suspended"):
        kept = ("toolName", "args" if kind == "tool-call-approval" else "suspendPayload", "resumeSchema")
        data = named | {name: payload[name] for name in kept}
        return {
            "type": f"data-{kind}", "id": payload["toolCallId"],
            "data": data | {"state": f"data-{kind}", "runId": event["run_id"]},
        }
    parts: dict[str, dict[str, Any]] = {
        "start": {"type": "start", "messageId": payload.get("messageId")},
        "step-start": {"type": "start-step"},
        "tool-call": {"type": "tool-input-available", "toolName": payload.get("toolName")} | named | {
            "input": payload.get("args"),
        },
        "tool-result": {"type": "tool-output-available", "output": payload.get("result")} | named,
        "tool-output-denied": {"type": kind} | named,
        "step-finish": {"type": "finish-step"},
        "text-start": {"type": kind, "id": payload.get("id")},
        "text-delta": {"type": kind, "id": payload.get("id"), "delta": payload.get("text")},
        "text-end": {"type": kind, "id": payload.get("id")},
        "finish": {"type": kind, "finishReason": payload.get("stepResult", {}).get("reason")},
    }
    return parts[kind]
