"""Provider-style ``tool_calls`` (the OpenAI chat format): which are open, what they ask, how they are answered."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import orjson

from .errors import (
    ApprovalDeniedError,
    ApprovalRequired,
    CanonicalizationError,
    ConfigurationError,
    ConsumedError,
    InDoubtError,
    PolicyDeniedError,
    RefusedError,
    UnavailableError,
)
from .lifecycle.toolspec import ToolSpec, loose_spec_of
from .models import ApprovalRequest, Permit, Principal, ToolCall
from .policy.core import Status, Verdict

PAUSES = ("raise", "result")


@dataclass(frozen=True, slots=True)
class Guarded:
    """What a guarded function carries in ``__hitl_guard__``.

    Attributes:
        function: The plain function. wrapper: The guarded one that was made of it, and the only one this counts for.
    """

    spec: ToolSpec
    function: Callable[..., Any]
    guard: Any
    wrapper: Callable[..., Any]


SEALED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""The sealed functions themselves: a mark on a function could be copied to another one."""


class Asker(Protocol):
    """What a turn needs of a guard."""

    def evaluate(self, call: ToolCall) -> Verdict:
        """See `hitl_guard.Guard.evaluate`."""

    def request(self, call: ToolCall) -> ApprovalRequest:
        """See `hitl_guard.Guard.request`."""


@dataclass(frozen=True, slots=True)
class Item:
    """One open call of the last turn."""

    message_id: str
    call: ToolCall
    function: Callable[..., Any]
    spec: ToolSpec


@dataclass
class Turn:
    """The open calls of the last assistant message, and the answers that they get.

    Answers carry nothing but the tool-call id. So where a provider gave one id to several calls, these are answered in
    their order: none runs while an earlier one of the same id waits.

    Args:
        guard: Whose tools they are.
        messages: The conversation; tool calls whose answer is in it are skipped.
        tools: Tool name → function (guarded or plain). A name is looked up exactly.
    """

    guard: Asker
    messages: Sequence[Mapping[str, Any]]
    tools: Mapping[str, Callable[..., Any]]
    user: str | Principal
    run_id: str
    tenant: str
    agent: str | Principal | None
    context: Mapping[str, Any] | None
    pause: str
    answers: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[ApprovalRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_pause(self.pause)
        if not isinstance(self.messages, (list, tuple)) or not all(isinstance(one, Mapping) for one in self.messages):
            raise ConfigurationError("The messages must be a list of mappings, as the chat format has them.")
        if not isinstance(self.tools, Mapping) or not all(map(callable, self.tools.values())):
            raise ConfigurationError("The tools must be a mapping from tool name to function.")
        for name, tool in self.tools.items():
            guarded = guarded_of(tool)
            if guarded is not None:
                check_guarded(guarded, name, self.guard)

    def items(self) -> Iterator[Item]:
        """Yield the open calls in order; each sees the earlier ones of its turn. Malformed calls are answered here."""
        index = max((place for place, one in enumerate(self.messages) if _calls(one)), default=None)
        if index is None:
            return
        answered = Counter(_id(one, "tool_call_id") for one in self.messages[index + 1 :] if one.get("role") == "tool")
        seen = Counter(_id(call) for one in self.messages[:index] for call in _calls(one))
        earlier: list[ToolCall] = []
        for raw in _calls(self.messages[index]):
            item = self._item(raw, seen[_id(raw)], tuple(earlier))
            seen[_id(raw)] += 1
            if isinstance(item, Item):
                earlier.append(item.call)
            if answered[_id(raw)] > 0:
                answered[_id(raw)] -= 1
            elif isinstance(item, Item):
                yield item
            elif not self._waits(_id(raw)):
                self.answers.append(answer(_id(raw), item))

    def _item(self, raw: Mapping[str, Any], occurrence: int, earlier: tuple[ToolCall, ...]) -> Item | str:
        """Return one call, or what the model is told because it is none."""
        function = raw.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        tool = self.tools.get(name) if isinstance(name, str) else None
        if tool is None or not isinstance(function, Mapping) or not isinstance(name, str):
            return "Refused: there is no such tool."
        if not _id(raw) and self.pause == "raise":
            return "Refused: the call has no id."
        spec, plain = unwrapped(name, tool)
        call = ToolCall(
            name, function.get("arguments", "{}"), run_id=self.run_id, user=self.user, tenant=self.tenant,
            call_id=_id(raw) if self.pause == "raise" else None, occurrence=occurrence if self.pause == "raise" else 0,
            agent=self.agent, definition=spec.definition, turn=earlier, context=self.context,
        )
        return Item(_id(raw), call, plain, spec)

    def _waits(self, message_id: str) -> bool:
        return self.pause == "raise" and any(request.call_id == message_id for request in self.waiting)

    def held(self, item: Item) -> bool:
        """Whether an earlier call with the same id waits. This one then only asks, where it must; its turn comes."""
        if not self._waits(item.message_id):
            return False
        try:
            if self.guard.evaluate(item.call).status is Status.USER_APPROVAL:
                request = self.guard.request(item.call)
                self.waiting += [request] if request.state == "pending" else []
        except (RefusedError, CanonicalizationError):
            return True  # the model is told when the call's turn has come
        return True

    @contextmanager
    def answering(self, item: Item) -> Iterator[list[Any]]:
        """Turn how one call ends into its tool message. Put its permit, then its result into the list handed out."""
        result: list[Any] = []
        try:
            yield result
            if not result:
                return
            text = as_text(result[1])
        except ApprovalRequired as pause:
            if result and result[0].request_id is not None:  # raised by the tool itself, which has started
                text = _failed(pause)
            else:
                self.waiting.append(pause.request)
                if self.pause == "raise":
                    return
                text = as_text(pending_result(pause.request))
        except (ConfigurationError, UnavailableError) as error:
            error.messages = tuple(self.answers)
            raise
        except (RefusedError, CanonicalizationError) as error:
            text = _failed(error) if result else as_text(refusal_result(error))
        except Exception as error:  # noqa: BLE001  the tool's own: the model is told, as every agent loop does
            text = _failed(error)
        if result and result[0].edited:
            text = edit_notice(result[0]) + text
        self.answers.append(answer(item.message_id, text))

    def finish(self) -> list[dict[str, Any]]:
        """Return the tool messages, or raise `ApprovalRequired` with all open requests and the messages so far."""
        if self.waiting and self.pause == "raise":
            raise ApprovalRequired(*self.waiting, messages=tuple(self.answers))
        return self.answers


def check_pause(pause: str) -> None:
    """Raise `ConfigurationError` unless ``pause`` is a way to pause."""
    if pause not in PAUSES:
        raise ConfigurationError("'pause' is 'raise' (ApprovalRequired) or 'result' (deny and retry).")


def check_wait(wait: object) -> None:
    """Raise `ConfigurationError` unless ``wait`` is None or a number of seconds, at most a day."""
    if wait is not None and (type(wait) not in (int, float) or not 0 <= cast(float, wait) <= 86_400):
        raise ConfigurationError("'wait' is a number of seconds from 0 to 86400, or None.")


def guarded_of(tool: object) -> Guarded | None:
    """Return what a guarded function carries; None for any other, also for one that only copied the mark."""
    guarded = getattr(tool, "__hitl_guard__", None)
    return guarded if isinstance(guarded, Guarded) and guarded.wrapper is tool else None


def check_mark(tool: object) -> None:
    """Raise `ConfigurationError` for a function that carries another one's mark, as `functools.wraps` copies it.

    What it does around the guarded function would be skipped, or it runs without the guard: nobody can tell.
    """
    if isinstance(getattr(tool, "__hitl_guard__", None), Guarded) and guarded_of(tool) is None:
        raise ConfigurationError("The function wraps a guarded one: put the guard's decorator outermost.")


def check_guarded(guarded: Guarded, name: object, guard: object) -> None:
    """Raise `ConfigurationError` unless a function is guarded under this name by this guard.

    A tool's own settings are registered under its name with its guard; elsewhere they would be lost.
    """
    if guarded.spec.name != name:
        raise ConfigurationError(f"The function is guarded as '{guarded.spec.name}': call it by this name.")
    if guarded.guard is not guard:
        raise ConfigurationError(f"The tool '{guarded.spec.name}' is guarded by another guard.")


def unwrapped(name: str, tool: Callable[..., Any]) -> tuple[ToolSpec, Callable[..., Any]]:
    """Return specification and plain function of a tool, guarded already or not."""
    check_mark(tool)
    guarded = guarded_of(tool)
    if guarded is not None:
        return guarded.spec, guarded.function
    return loose_spec_of(tool, name), tool


def pending_result(request: ApprovalRequest) -> dict[str, Any]:
    """Return what a model is told while a person has not decided (deny-and-retry)."""
    return {
        "message": "A person must approve this call first. Make exactly the same call again later; do not change it.",
        "request_id": request.id, "status": "approval-pending",
    }


def refusal_result(error: RefusedError | CanonicalizationError) -> Any:
    """Return what a model is told about a refused call: a person's words, or a coarse reason."""
    if isinstance(error, ApprovalDeniedError):
        return error.reason if error.response is None else error.response
    if isinstance(error, PolicyDeniedError):
        return error.reason or "The policy does not allow this call."
    if isinstance(error, (ConsumedError, InDoubtError)):
        return f"Refused ({error.code}): the call was started before. Do not repeat it."
    return f"Refused ({error.code}): the call was not run."


def edit_notice(permit: Permit) -> str:
    """Return what a model is told, before the result, when a person changed the call that it asked for."""
    return f"A person changed this call's arguments before it ran. They were: {permit.canonical.decode()}\n"


def _failed(error: Exception) -> str:
    try:
        return f"Tool failed: {type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  an exception that cannot be shown
        return f"Tool failed: {type(error).__name__}"


def as_text(value: Any) -> str:
    """Return a tool's result as the text of a tool message: strings as they are, anything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except Exception:  # noqa: BLE001  no JSON can hold it; the tool ran all the same
        return _described(value)


def _described(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  nor can it be shown
        return f"The tool succeeded; its result, a {type(value).__name__}, has no text."


def answer(message_id: str, text: str) -> dict[str, Any]:
    """Return one tool message."""
    return {"content": text, "role": "tool", "tool_call_id": message_id}


def _calls(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    calls = message.get("tool_calls") if message.get("role") == "assistant" else None
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, (list, tuple)) else []


def _id(call: Mapping[str, Any], name: str = "id") -> str:
    value = call.get(name)
    return value if isinstance(value, str) else ""
