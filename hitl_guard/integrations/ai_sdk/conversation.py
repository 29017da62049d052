"""What the server itself has of a chat's conversation, where the built-in agent keeps it (``memory``).

Other loops keep theirs as they like: of these nothing is known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...agent.shapes import well_formed
from ...canonical import decode
from ...errors import CanonicalizationError, RefusedError
from .loop import AgentLoop
from .messages import ChatId
from .own_loop import Loop
from .parts import named_call
from .texts import AGAIN

Message = Mapping[str, Any]


async def stored(loop: Loop, chat: ChatId) -> list[dict[str, Any]]:
    """Return every stored message of a chat, in the chat format; none where the server has none that can be read."""
    if isinstance(loop, AgentLoop) and loop.agent.memory is not None:
        with suppress(RefusedError):
            return await loop.agent.recall(chat.id, user=chat.user, tenant=chat.user.tenant)
    return []


async def suspended(loop: Loop, chat: ChatId, runs: Iterable[str]) -> list[str]:
    """Return those of a chat's runs that wait still, in the order given, so that they can tell what ended in them."""
    wanted = [*dict.fromkeys(runs)]
    if not wanted or not isinstance(loop, AgentLoop):
        return []
    found = await loop.agent.list_suspended_runs(user=chat.user, tenant=chat.user.tenant)
    waiting = {run.run_id for run in found.runs}
    return [run for run in wanted if run in waiting]


def results(kept: Iterable[Message]) -> dict[str, Any]:
    """Return the results in stored messages by the id of the request that allowed each call."""
    return {
        one["approval"]["approvalId"]: _result(one) for one in kept
        if one.get("state") == "result" and "approvalId" in (one.get("approval") or {})
    }


def _result(message: Message) -> Any:
    if "value" in message:
        return message["value"]
    if message.get("json") is True:
        with suppress(CanonicalizationError):
            return decode(str(message["content"]).encode())
    return message["content"]


def ran_there(told: Sequence[tuple[str, str | None]], kept: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the browser's results that a stored conversation lacks, under the tool-call ids that it has.

    Only the calls of the last turn can lack one. Where ids repeat, the newest parts are theirs.

    Args:
        told: See `messages.told_results`, of the message that goes on.
    """
    turn = max((place for place, one in enumerate(kept) if one.get("tool_calls")), default=None)
    if turn is None:
        return []
    answered = Counter(one.get("tool_call_id") for one in kept[turn + 1 :])
    left: dict[str, list[str | None]] = {}
    for id_, result in told:
        left.setdefault(named_call(id_), []).append(result)
    found = []
    for call_id in [call["id"] for call in reversed(kept[turn]["tool_calls"])]:
        if answered[call_id]:
            answered[call_id] -= 1
            continue
        results_ = left.get(well_formed(call_id))
        result = results_.pop() if results_ else None
        if result is not None:
            found.append({"content": result, "role": "tool", "tool_call_id": call_id})
    return found[::-1]


def asked_again(loop: Loop, said: Sequence[dict[str, Any]], kept: Sequence[Message]) -> list[dict[str, Any]]:
    """Return what a stored conversation lacks of ``said``, whose answer the user wants made anew (``regenerate``).

    The conversation holds what was said already, and usually an answer: of both the model must hear once. So where
    there is an answer, the user only says that he wants another one. Where the conversation has gone on since, or the
    model is not shown so much of it, all of ``said`` is said again.
    """
    memory = loop.agent.memory if isinstance(loop, AgentLoop) else None
    most = None if memory is None else memory.last_messages
    shown = kept if most is None else kept[-most:]
    before = [one["content"] for one in shown if one["role"] == "user" and one["content"] != AGAIN]
    own = [one["content"] for one in said]
    for count in range(len(own), 0, -1):
        if before[-count:] == own[:count]:
            left = [*said[count:]]
            return left if left or shown[-1]["role"] == "user" else [{"content": AGAIN, "role": "user"}]
    return [*said]
