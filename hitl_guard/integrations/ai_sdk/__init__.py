"""The AI SDK (npm package ``ai``): an unmodified ``useChat`` front end on a Python server; the SDK's own signatures.

The names resolve lazily (PEP 562): the signatures need no web framework.

- ``Chat`` serves an agent, or a loop of your own, to ``useChat``. ``AgentLoop`` gives an agent's runs options of their
  own. `hitl_guard.integrations.ai_sdk.own_loop` tells all that another loop must do, with one that works: ``Loop``,
  ``Turn``, ``Event``, ``ChatId``.
- For an endpoint of your own: ``chunks_of`` makes chunks of events (``request_of`` reads their requests),
  ``UIMessageStream`` makes them by hand (``part_id`` names the calls), ``UIMessageStreamResponse`` sends them;
  ``Streams`` keeps running ones for clients that reconnect (``rebuilt``: what such a client had).
- ``tool_approval`` takes the SDK's ``toolApproval``; its functions get ``Options`` with a ``ToolCallInfo``.
- ``verify_ai_sdk_signature`` checks what a JavaScript server signed, ``sign_ai_sdk_approval`` signs for one; neither
  allows a call. ``canonical_input`` and ``json_parse`` are the JSON of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import names_of

if TYPE_CHECKING:
    from .approval import Options, ToolCallInfo, tool_approval
    from .chat import Chat
    from .chunks import UIMessageStream
    from .events import chunks_of
    from .javascript import canonical_input, json_parse
    from .loop import AgentLoop
    from .messages import ChatId
    from .own_loop import Event, Loop, RequestOf, Turn, request_of
    from .parts import Chunk, part_id, rebuilt
    from .response import UIMessageStreamResponse
    from .signatures import VerifiedAiSdkSignature, sign_ai_sdk_approval, verify_ai_sdk_signature
    from .streams import Streams

__all__ = [
    "AgentLoop", "Chat", "ChatId", "Chunk", "Event", "Loop", "Options", "RequestOf", "Streams", "ToolCallInfo", "Turn",
    "UIMessageStream", "UIMessageStreamResponse", "VerifiedAiSdkSignature", "canonical_input", "chunks_of",
    "json_parse", "part_id", "rebuilt", "request_of", "sign_ai_sdk_approval", "tool_approval",
    "verify_ai_sdk_signature",
]

_HOMES = {
    "approval": ("Options", "ToolCallInfo", "tool_approval"),
    "chat": ("Chat",),
    "chunks": ("UIMessageStream",),
    "events": ("chunks_of",),
    "javascript": ("canonical_input", "json_parse"),
    "loop": ("AgentLoop",),
    "messages": ("ChatId",),
    "own_loop": ("Event", "Loop", "RequestOf", "Turn", "request_of"),
    "parts": ("Chunk", "part_id", "rebuilt"),
    "response": ("UIMessageStreamResponse",),
    "signatures": ("VerifiedAiSdkSignature", "sign_ai_sdk_approval", "verify_ai_sdk_signature"),
    "streams": ("Streams",),
}

# Hidden from type checkers, which would otherwise believe that every misspelt name exists.
if not TYPE_CHECKING:
    __getattr__, __dir__ = names_of(__name__, _HOMES)
