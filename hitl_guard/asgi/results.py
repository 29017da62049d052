"""JSON Schemas of what the API returns (see `views`): no member is left out, and there are no others."""

from __future__ import annotations

from typing import Any

from ..lifecycle.state import STATES
from .problems import PROBLEMS, TYPE_PREFIX

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TIME: Schema = {"type": "integer", "description": "Epoch milliseconds of the database's clock."}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {"description": "Any JSON value."}
FREE: Schema = {"type": "object"}
STATE: Schema = {"type": "string", "enum": sorted(STATES)}


def maybe(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def exactly(**members: Schema) -> Schema:
    """Return the schema of an object that has just these members."""
    return {"type": "object", "properties": members, "required": sorted(members), "additionalProperties": False}


def ref(name: str) -> Schema:
    """Return a reference to one of `RESULTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


_VOTE = exactly(
    approve=FLAG, approver=TEXT, at=TIME, automatic=FLAG, channel=TEXT, evidence=maybe(TEXT), fingerprint=TEXT,
    reason=maybe(TEXT), response=ANY, roles=many(TEXT),
)
_LINE: dict[str, Schema] = {
    "agent": maybe(TEXT), "binding": TEXT, "call_id": maybe(TEXT), "decide_by": TIME,
    "execute_by": maybe(TIME), "fingerprint": TEXT, "id": TEXT, "issued_at": TIME, "key_id": TEXT,
    "occurrence": NUMBER, "policy_version": TEXT, "reason": maybe(TEXT), "requirements": many(FREE),
    "rules": many(TEXT), "run_id": TEXT, "state": STATE, "supersedes": maybe(TEXT), "tenant": TEXT, "tool": TEXT,
    "user": TEXT, "version": NUMBER, "votes": many(_VOTE), "waits_for_me": FLAG,
}
_HAPPENING = {"type": "object", "required": ["at", "type"], "properties": {"at": TIME, "type": TEXT}}
_CALL = exactly(
    args=FREE, fingerprint=maybe(TEXT), pause_id=TEXT, requires_approval=FLAG, resume_schema=maybe(TEXT),
    suspend_payload=ANY, tool_call_id=TEXT, tool_name=TEXT,
)
_RUN = exactly(
    agent=TEXT, resource_id=TEXT, run_id=TEXT, status={"enum": ["interrupted", "suspended"], "type": "string"},
    suspended_at=TIME, thread_id=maybe(TEXT), tool_calls=many(_CALL),
)
_PAUSE = exactly(kind={"enum": ["agent", "all", "tool"], "type": "string"}, name=TEXT)
_PASSKEY = exactly(created_at=TIME, id=TEXT, name=TEXT, transports=many(TEXT), used_at=maybe(TIME))

RESULTS: dict[str, Schema] = {
    "Ceremony": {
        "type": "object", "required": ["options", "ticket"], "additionalProperties": False,
        "properties": {"confirm": maybe(FREE), "options": FREE, "ticket": TEXT},
    },
    "Control": exactly(
        everywhere=many(_PAUSE), everywhere_restored=FLAG, mutes=many(FREE), now=TIME, pauses=many(_PAUSE),
        policy=maybe(TEXT), restored=FLAG, version=NUMBER,
    ),
    "Decision": exactly(
        approve=FLAG, approver=TEXT, at=TIME, automatic=FLAG, channel=TEXT, fingerprint=TEXT, policy_version=TEXT,
        reason=maybe(TEXT), request_id=TEXT, response=ANY, roles=many(TEXT), state=STATE,
    ),
    "Dossier": exactly(
        context=maybe(FREE), description=maybe(TEXT), entitled=FLAG, history=many(_HAPPENING),
        input_schema=maybe(FREE), missing=NUMBER, now=TIME, previous=maybe(TEXT), request=ref("Request"),
    ),
    "Empty": exactly(),
    "Health": exactly(status=TEXT),
    "Line": exactly(**_LINE),
    "Listing": exactly(
        damaged=many(exactly(code=TEXT, key_id=maybe(TEXT), request_id=TEXT)), items=many(ref("Line")),
        next=maybe(TEXT), now=TIME, total=maybe(NUMBER),
    ),
    "Passkey": _PASSKEY,
    "Passkeys": exactly(passkeys=many(ref("Passkey"))),
    "Problem": {
        "type": "object", "required": ["status", "title", "type"], "additionalProperties": False,
        "properties": {
            "decided_by": TEXT, "detail": TEXT, "state": TEXT, "status": NUMBER, "title": TEXT,
            "type": {"type": "string", "enum": sorted(TYPE_PREFIX + slug for slug in PROBLEMS)},
        },
    },
    "Ready": exactly(checks={"type": "object", "additionalProperties": FLAG}, status=TEXT),
    "Request": exactly(
        **_LINE, arguments=FREE, canonical=maybe(TEXT), secrets=many(TEXT), warnings=many(TEXT),
    ),
    "Result": exactly(
        finish_reason=maybe(TEXT), run_id=TEXT, status=TEXT, text=TEXT,
        waits=many(exactly(pause_id=TEXT, tool_call_id=TEXT, tool_name=TEXT)),
    ),
    "Revealed": exactly(value=ANY),
    "Runs": exactly(damaged=many(exactly(code=TEXT, run_id=TEXT)), runs=many(_RUN), total=NUMBER),
    "Session": exactly(
        display=TEXT, global_operator=FLAG, id=TEXT, kind=TEXT, now=TIME, operator=FLAG, roles=many(TEXT),
        tenant=TEXT, token=maybe(TEXT),
    ),
    "State": exactly(state=STATE),
}
"""Name → schema."""
