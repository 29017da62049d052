"""The AI SDK (npm package ``ai``): an unmodified ``useChat`` front end on a Python server; the SDK's own signatures.

The names resolve lazily (PEP 562): the signatures need no web framework.

``Chat`` serves an agent to ``useChat``; `tool_approval` takes the SDK's policy shapes; `UIMessageStream`, `chunks_of`
and `UIMessageStreamResponse` are the parts for another loop; `verify_ai_sdk_signature` checks what a JavaScript server
signed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import names_of

if TYPE_CHECKING:
    from .approval import tool_approval
    from .chat import Chat
    from .chunks import UIMessageStream
    from .events import chunks_of
    from .javascript import canonical_input, json_parse
    from .loop import AgentLoop, Loop, Turn
    from .messages import ChatId
    from .response import UIMessageStreamResponse
    from .signatures import VerifiedAiSdkSignature, sign_ai_sdk_approval, verify_ai_sdk_signature
    from .streams import Streams

__all__ = [
    "AgentLoop", "Chat", "ChatId", "Loop", "Streams", "Turn", "UIMessageStream", "UIMessageStreamResponse",
    "VerifiedAiSdkSignature", "canonical_input", "chunks_of", "json_parse", "sign_ai_sdk_approval", "tool_approval",
    "verify_ai_sdk_signature",
]

_HOMES = {
    "approval": ("tool_approval",),
    "chat": ("Chat",),
    "chunks": ("UIMessageStream",),
    "events": ("chunks_of",),
    "javascript": ("canonical_input", "json_parse"),
    "loop": ("AgentLoop", "Loop", "Turn"),
    "messages": ("ChatId",),
    "response": ("UIMessageStreamResponse",),
    "signatures": ("VerifiedAiSdkSignature", "sign_ai_sdk_approval", "verify_ai_sdk_signature"),
    "streams": ("Streams",),
}

# Hidden from type checkers, which would otherwise believe that every misspelt name exists.
if not TYPE_CHECKING:
    __getattr__, __dir__ = names_of(__name__, _HOMES)
