"""What the API returns: plain JSON data for each noun. Secret arguments are masked wherever they appear."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from .. import canonical
from ..models import ApprovalRequest, Decision
from ..render import request_json, request_line, warnings
from ..render.secrets import masked, secrets_of
from .identity import Viewer
from .lists import Listing
from .runs import WaitingRuns
from .visibility import waits_for

if TYPE_CHECKING:
    from ..agent.stream import AgentResult
    from ..lifecycle.control import Control
    from ..lifecycle.credentials import Credential
    from ..lifecycle.dossier import Dossier

STORED = canonical.Limits(max_bytes=2**40, max_depth=200, max_nodes=2**31, max_digits=4_300)
"""Limits for what is shown: it was within the guard's own when it was asked for."""


def answer(data: Any, status: int = 200) -> Response:
    """Return JSON in pure ASGI bytes of printable ASCII: no control or bidirectional character reaches a terminal."""
    return Response(json.dumps(data, allow_nan=False).encode(), status, media_type="application/json")


def request_view(request: ApprovalRequest, viewer: Viewer) -> dict[str, Any]:
    """Return one request in full. ``secrets`` names the masked arguments; ``canonical`` is None where there are any."""
    secrets = secrets_of(request)
    own = {"secrets": sorted(secrets), "waits_for_me": waits_for(request, viewer)}
    if not secrets:
        return request_json(request) | own
    shown = {} if "" in secrets else masked(request.arguments, secrets)
    data = canonical.canonicalize(shown, limits=STORED)
    return request_line(request) | own | {"arguments": shown, "canonical": None, "warnings": list(warnings(data))}


def line_view(request: ApprovalRequest, viewer: Viewer) -> dict[str, Any]:
    """Return one request for a list: everything but its arguments."""
    return request_line(request) | {"waits_for_me": waits_for(request, viewer)}


def listing_view(listing: Listing, viewer: Viewer) -> dict[str, Any]:
    """Return one page of a list."""
    return {
        "damaged": [dataclasses.asdict(one) for one in listing.damaged],
        "items": [line_view(one, viewer) for one in listing.items],
        "next": listing.next, "now": listing.now, "total": listing.total,
    }


def dossier_view(dossier: Dossier, viewer: Viewer) -> dict[str, Any]:
    """Return one request with its history. What the agent wrote is data of the agent's, checked by nobody."""
    definition = dossier.definition
    schema = None if definition is None else definition.input_schema
    return {
        "context": None if dossier.context is None else dict(dossier.context),
        "description": None if definition is None else definition.description,
        "entitled": dossier.entitled(viewer.principal),
        "history": [dataclasses.asdict(one) for one in dossier.history],
        "input_schema": None if schema is None else dict(schema),
        "missing": dossier.missing,
        "now": dossier.now,
        "previous": None if dossier.previous is None else dossier.previous.id,
        "request": request_view(dossier.request, viewer),
    }


def decision_view(decision: Decision) -> dict[str, Any]:
    """Return one decision; ``request_id`` is another one after an edit."""
    names = (
        "approve", "approver", "at", "automatic", "channel", "fingerprint", "policy_version", "reason", "request_id",
        "response", "state",
    )
    return {name: getattr(decision, name) for name in names} | {"roles": list(decision.roles)}


def runs_view(found: WaitingRuns) -> dict[str, Any]:
    """Return suspended runs."""
    return {
        "damaged": [{"code": code, "run_id": run_id} for run_id, code in found.damaged],
        "runs": [
            {
                "agent": agent, "resource_id": run.resource_id, "run_id": run.run_id, "status": run.status,
                "suspended_at": int(run.suspended_at.timestamp() * 1000), "thread_id": run.thread_id,
                "tool_calls": [
                    {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
                    for call in run.tool_calls
                ],
            }
            for agent, run in found.runs
        ],
        "total": found.total,
    }


def result_view(result: AgentResult) -> dict[str, Any]:
    """Return what a run came to. The arguments of what waits are in the request, where secrets are masked."""
    return {
        "finish_reason": result.finish_reason, "run_id": result.run_id, "status": result.status, "text": result.text,
        "waits": [
            {
                "pause_id": one.get("approvalId") or one.get("suspensionId"), "tool_call_id": one["toolCallId"],
                "tool_name": one["toolName"],
            }
            for one in result.pauses
        ] if result.status == "suspended" else [],
    }


def control_view(control: Control, now: int) -> dict[str, Any]:
    """Return what is paused and muted in a tenant, and what is paused in all of them."""
    return {
        "everywhere": _pauses(control.everywhere), "everywhere_restored": control.everywhere_restored,
        "mutes": [dataclasses.asdict(one) for one in control.mutes], "now": now, "pauses": _pauses(control.pauses),
        "policy": control.policy, "restored": control.restored, "version": control.version,
    }


def _pauses(pauses: frozenset[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"kind": kind, "name": name} for kind, name in sorted(pauses)]


def passkey_view(credential: Credential) -> dict[str, Any]:
    """Return one passkey, without its key."""
    names = ("created_at", "id", "name", "used_at")
    return {name: getattr(credential, name) for name in names} | {"transports": list(credential.transports)}
