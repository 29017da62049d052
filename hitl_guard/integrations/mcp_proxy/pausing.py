"""How a client is told that a person must decide first. What it answers approves nothing: the store alone does.

A client that can show its user a link (URL elicitation) gets it, once a request, in the shape of its protocol version.
From then on, and every other client from the start, gets a tool result that says so: the same call runs later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ...models import ApprovalRequest
from ...toolcalls import as_text, pending_result
from . import frames
from .frames import Frame

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
META_KEYS = (VERSION_KEY, CAPABILITIES_KEY, "io.modelcontextprotocol/clientInfo")
"""What each request says about itself from 2026-07-28 on."""

URL_ELICITATION_REQUIRED = -32042
LINK_VERSIONS = frozenset({"2025-11-25"})
"""Versions with a handshake that know `URL_ELICITATION_REQUIRED`."""

STATE = "hitl-guard:"
"""How the ``requestState`` of our own pause starts."""

_MESSAGE = "A person must approve this tool call. Open the link, decide, then let the call be made again."


class Pausing:
    """What one client can be shown.

    Args:
        inbox: Where the inbox is (``https://approvals.example``), or None: no links.
    """

    def __init__(self, inbox: str | None) -> None:
        self._inbox = None if inbox is None else inbox.rstrip("/")
        self._version: str | None = None
        self._capabilities: Mapping[str, Any] = {}
        self._shown: set[str] = set()

    def greeted(self, request: Frame, answer: Frame) -> None:
        """Note what a handshake agreed on."""
        version, capabilities = answer.result.get("protocolVersion"), request.params.get("capabilities")
        self._version = version if isinstance(version, str) else None
        self._capabilities = capabilities if isinstance(capabilities, dict) else {}

    def link(self, request: ApprovalRequest) -> str | None:
        """Return the address of a request's page in the inbox."""
        return None if self._inbox is None else f"{self._inbox}/requests/{quote(request.id, safe='')}"

    def told(self, frame: Frame, request: ApprovalRequest) -> bytes:
        """Return what a call that waits is answered with."""
        link = self.link(request)
        again = request.id in self._shown or is_ours(frame)
        if link is None or again or not self._takes_links(frame):
            facts = pending_result(request) | ({} if link is None else {"link": link})
            return frames.answer(frame.id, tool_result(frame, as_text(facts), is_error=True))
        self._shown.add(request.id)
        asked = {"message": _MESSAGE, "mode": "url", "url": link}
        if is_modern(frame):
            wanted = {f"{STATE}{request.id}": {"method": "elicitation/create", "params": asked}}
            return frames.answer(frame.id, {
                "inputRequests": wanted, "requestState": f"{STATE}{request.id}", "resultType": "input_required",
            })
        facts = {"elicitations": [{**asked, "elicitationId": request.id}]}
        return frames.error(frame.id, URL_ELICITATION_REQUIRED, _MESSAGE, facts)

    def _takes_links(self, frame: Frame) -> bool:
        capabilities = self._capabilities
        if is_modern(frame):
            told = frame.meta.get(CAPABILITIES_KEY)
            capabilities = told if isinstance(told, dict) else {}
        elif self._version not in LINK_VERSIONS:
            return False
        elicitation = capabilities.get("elicitation")
        return isinstance(elicitation, dict) and isinstance(elicitation.get("url"), dict)


def is_modern(frame: Frame) -> bool:
    """Whether a request tells its protocol version itself (2026-07-28)."""
    return isinstance(frame.meta.get(VERSION_KEY), str)


def is_ours(frame: Frame) -> bool:
    """Whether a call answers a pause of ours, so that the server must not see the answer."""
    state = frame.params.get("requestState")
    return isinstance(state, str) and state.startswith(STATE)


def tool_result(frame: Frame, text: str, *, is_error: bool) -> dict[str, Any]:
    """Return a tool result with one text."""
    result: dict[str, Any] = {"content": [{"text": text, "type": "text"}], "isError": is_error}
    return result | ({"resultType": "complete"} if is_modern(frame) else {})
