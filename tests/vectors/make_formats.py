"""Write ``formats.json``: one example of every signed format, from fixed keys and fixed input.

Run ``python -m tests.vectors.make_formats`` after a format changed on purpose, and give it a new version.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from hitl_guard import audit, canonical, fingerprint
from hitl_guard.envelope import CONTROL_TYPE, DECISION_TYPE, REQUEST_TYPE, Envelope, Vote
from hitl_guard.keyring import Key, Keyring
from hitl_guard.models import Requirement, Scope, ToolDefinition
from hitl_guard.rows import Draft, Link
from hitl_guard.signing import Signer

FILE = Path(__file__).with_name("formats.json")
SECRET = bytes((number * 73 + 41) % 256 for number in range(32))
NOW = 1_800_000_000_000


def vectors() -> dict[str, Any]:
    """Return the vectors, made anew."""
    signer = Signer(Keyring([Key("k-example", SECRET, activates_at=NOW - 1000)], epoch=3))
    scope = Scope(tenant="tenant-a", user="ana", run="run-1", call_id="call_1", occurrence=0)
    arguments = canonical.canonicalize({"order": "A-17", "amount": 82.0, "note": "é\u202e", "big": 2**64 + 1})
    definition = ToolDefinition("refund", "Pay money back.", {"type": "object"}, None)
    details = canonical.canonicalize({
        "agent_names": ["support-bot"], "context": None, "definition": definition.to_json(), "generation": 0,
        "reason": "Money.",
        "requester_names": ["ana"], "requirements": [Requirement().to_json()], "rules": ["refunds"], "tool": "refund",
        "turn": [],
    })
    print_ = fingerprint.fingerprint("refund", arguments)
    envelope = Envelope(
        request_id="AAAAAAAAAAAAAAAAAAAAAA", binding="call", agent="support-bot", fingerprint=print_,
        tool_digest=fingerprint.tool_digest(definition),
        policy_version=fingerprint.policy_version([b"version: 1\n"], [("limit", "2")]),
        details=fingerprint.details_digest(details), scope=scope, nonce="BBBBBBBBBBBBBBBBBBBBBB", issued_at=NOW,
        decide_by=NOW + 86_400_000, execute_within=900_000,
    )
    request = signer.sign("request", REQUEST_TYPE, envelope.to_fields(), now=NOW)
    record = fingerprint.record_digest(request, arguments, details)
    vote = Vote(
        tenant="tenant-a", request_id=envelope.request_id, fingerprint=print_, policy_version=envelope.policy_version,
        approver="bob", kind="human", names=("bob",), roles=("lead",), channel="api", credential=None, approve=True,
        automatic=False, reason=None, response=None, nonce="CCCCCCCCCCCCCCCCCCCCCC", execute_by=NOW + 900_500,
    )
    decision = signer.sign("decision", DECISION_TYPE, vote.to_fields(), now=NOW + 500)
    control = {"pauses": [["tool", "transfer"]], "policy": None, "tenant": "tenant-a", "version": 2}
    body = audit.body(decision=decision.decode(), request=record)
    draft = Draft("request:approved", "tenant-a", NOW + 500, body, envelope.request_id, 1, None)
    event = audit.Sealer(signer)(draft, Link("DDDDDDDDDDDDDDDDDDDDDD", 7, bytes(range(32))))
    return {
        "key": {"id": "k-example", "secret": base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode(), "epoch": 3},
        "call": {
            "tool": "refund", "canonical": arguments.decode(), "fingerprint": print_,
            "identity": fingerprint.identity(scope, print_).hex(),
            "spend_key": fingerprint.spend_key(scope, envelope.request_id).hex(),
            "idempotency_key": fingerprint.idempotency_key("tenant-a", envelope.request_id, print_),
        },
        "tool_definition": {"canonical": canonical.canonicalize(definition.to_json()).decode(),
                            "digest": envelope.tool_digest},
        "policy": {"sources": ["version: 1\n"], "code": [["limit", "2"]], "version": envelope.policy_version},
        "details": {"canonical": details.decode(), "digest": envelope.details},
        "signed_texts": [
            {"purpose": "request", "text": request.decode()},
            {"purpose": "decision", "text": decision.decode()},
            {"purpose": "control", "text": signer.sign("control", CONTROL_TYPE, control, now=NOW).decode()},
        ],
        "record_digest": record,
        "event": {
            "type": event.type, "tenant": event.tenant, "at": event.at, "body": event.body.decode(),
            "request_id": event.request_id, "version": event.version, "spend_key": None, "chain": event.chain,
            "seq": event.seq, "previous": event.previous.hex(), "epoch": event.epoch, "kid": event.key_id,
            "mac": event.mac.hex(),
        },
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=2, ensure_ascii=True) + "\n", "utf-8")
