"""The events of a loop, checked where they come in: a loop of one's own may be wrong, and its author must learn where.

Every event that a chat reads comes through `with_withheld`, so that what reads it later can rely on its form (the table
of `own_loop`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from ...agent.events import Event
from ...asgi.logs import LOGGER
from ...errors import ConfigurationError
from ...render import escape

_SEE = "see hitl_guard.integrations.ai_sdk.own_loop."

_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_data(value: Any) -> bool:
    return True


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_step_result(value: Any) -> bool:
    return _is_object(value) and (value.get("reason") is None or _is_text(value["reason"]))


def _is_event(value: Any) -> bool:
    return _is_object(value) and _is_text(value.get("type")) and _is_text(value.get("run_id")) and (
        _is_object(value.get("payload"))
    )


_CALL: dict[str, _Check] = {"args": _is_data, "toolCallId": _is_text, "toolName": _is_text}
_QUESTION: dict[str, _Check] = {"resumeSchema": _is_data, "suspendPayload": _is_data, "suspensionId": _is_text}

_NEEDED: dict[str, dict[str, _Check]] = {
    "start": {"messageId": _is_text},
    "step-start": {},
    "text-delta": {"id": _is_text, "text": _is_text},
    "text-end": {},
    "tool-call": _CALL,
    "tool-call-approval": _CALL | {"approvalId": _is_text},
    "tool-call-suspended": _CALL | _QUESTION,
    "tool-call-resumed": _CALL | {"kind": lambda value: value in ("approval", "suspension")},
    "tool-result": _CALL | {"result": _is_data},
    "tool-error": _CALL | {"error": _is_object},
    "tool-output-denied": _CALL,
    "finish": {"stepResult": _is_step_result},
    "error": {},
    "tool-output": {"output": _is_event},
}
"""Type → what its payload must have; a type that is not here is passed over."""

_OPTIONAL: dict[str, _Check] = {
    "approval": lambda value: value is None or (_is_object(value) and _is_optional_text(value.get("approvalId"))),
    "occurrence": lambda value: type(value) is int and value >= 0,
}
"""What the payload of an event about a call may have."""

_PASSED_OVER = frozenset({"step-finish", "text-start"})
"""Types of the built-in agent that a chat has no use for."""

_MOST_NAMED = 100
_named: set[str] = set()


def _is_optional_text(value: Any) -> bool:
    return value is None or _is_text(value)


async def with_withheld(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """Yield the events, and at a pause what has ended beside it: the client waits for each call by itself.

    Closes them at the end.

    Raises:
        ConfigurationError: they are no async iterator, or an event has not the form of the table of `own_loop`.
    """
    if not hasattr(events, "__aiter__"):
        if hasattr(events, "close"):
            events.close()  # a coroutine that nobody awaits
        raise ConfigurationError(
            f"A loop's methods must be async generators that yield events, or return such an iterator, and this is "
            f"'{type(events).__name__}': {_SEE}"
        )
    try:
        async for event in events:
            if _is_told(event):
                yield event
        for event in getattr(events, "withheld", ()):
            if _is_told(event):
                yield event
    finally:
        if hasattr(events, "aclose"):
            await events.aclose()


def _is_told(event: Event) -> bool:
    """Whether an event says anything to a chat. Of an unknown type it does not, and the log names that type once.

    Raises:
        ConfigurationError: it has not the form of the table.
    """
    while True:
        if not _is_event(event):
            raise ConfigurationError(
                f"An event must be a dict with 'type' and 'run_id', both strings, and 'payload', a dict: {_SEE}"
            )
        kind, payload = event["type"], event["payload"]
        if kind not in _NEEDED:
            _name(kind)
            return False
        _check(kind, payload, _NEEDED[kind])
        if kind != "tool-output":
            return True
        event = payload["output"]


def _check(kind: str, payload: dict[str, Any], needed: dict[str, _Check]) -> None:
    if kind == "tool-call-resumed" and payload.get("kind") != "approval":
        needed = needed | _QUESTION
    elif kind == "tool-call-resumed":
        needed = needed | {"approvalId": _is_text}
    for name, fits in needed.items():
        if name not in payload:
            raise ConfigurationError(f"Event '{kind}' must have '{name}': {_SEE}")
        if not fits(payload[name]):
            raise ConfigurationError(f"Event '{kind}' has another '{name}' than it must: {_SEE}")
    if "toolCallId" in needed:
        for name, fits in _OPTIONAL.items():
            if name in payload and not fits(payload[name]):
                raise ConfigurationError(f"Event '{kind}' has another '{name}' than it may: {_SEE}")
    if kind == "finish":
        _check_output(payload.get("output", {}))


def _check_output(output: Any) -> None:
    calls = output.get("toolCalls", []) if _is_object(output) else None
    if not isinstance(calls, (list, tuple)) or not all(map(_is_object, calls)):
        raise ConfigurationError(f"The 'output' of event 'finish' is a dict whose 'toolCalls' is a list: {_SEE}")
    for call in calls:
        _check("finish", call, _CALL)


def _name(kind: str) -> None:
    if kind in _PASSED_OVER or kind in _named or len(_named) >= _MOST_NAMED:
        return
    _named.add(kind)
    LOGGER.warning("Events of type '%s' say nothing to a chat, and are passed over: %s", escape(kind[:100]), _SEE)
