"""What a model is to the built-in agent loop: a function of the conversation, in the OpenAI chat format.

Everything that a model writes is untrusted. Here it only gets a definite form; what is wrong in it is refused later,
by the guard, and the model is told.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigurationError
from ..models import MAX_FIELD_BYTES
from .shapes import well_formed

Model = Callable[[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]], Any]
"""``(messages, tools, settings)`` → one turn, to be awaited or not, or an async iterator of deltas.

A turn is a mapping like a chat assistant message: ``content``, ``tool_calls`` and, optionally, ``finish_reason`` and
``usage``. A delta is one like a chat streaming delta: the same keys, with pieces of texts, and tool calls with an
``index``.
"""

MAX_CALLS = 128
"""The most calls of one turn: each is checked together with those before it. One more is kept, to tell the model so."""

MAX_WRITTEN = 8_388_608
"""Characters that a model may write in one turn, arguments included; then it ends (``length``), without its calls."""

_REFUSED = "null"
"""Arguments that the guard refuses, in the place of those that have no JSON text."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """One tool call as the model wrote it; ``arguments`` is raw JSON text, if it is JSON at all."""

    id: str
    name: str
    arguments: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one call of the model came to. ``usage`` holds counts of tokens by name."""

    text: str = field(repr=False)
    calls: tuple[Proposed, ...]
    finish_reason: str | None
    usage: dict[str, int]


async def deltas(
    model: Model, messages: list[dict[str, Any]], tools: list[dict[str, Any]], settings: dict[str, Any]
) -> AsyncGenerator[str | Turn, None]:
    """Call the model; yield the pieces of its text as they come, and at the end the one `Turn`.

    Close this generator (`contextlib.aclosing`) and the model's own is closed, too. What the model raises goes through.

    Raises:
        ConfigurationError: detail ``model``: the model returned neither a turn nor an iterator of deltas.
    """
    answer = model(messages, tools, settings)
    if inspect.isawaitable(answer):
        answer = await answer
    growing = _Growing()
    if isinstance(answer, Mapping):
        if not {"content", "tool_calls"} & answer.keys():
            raise _no_turn()
        for text in growing.add(answer, whole=True):
            yield text
    elif hasattr(answer, "__aiter__"):
        stream = aiter(answer)
        try:
            async for delta in stream:
                if not isinstance(delta, Mapping):
                    raise _no_turn()
                for text in growing.add(delta):
                    yield text
                if growing.is_full:
                    break
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()
    else:
        raise _no_turn()
    yield growing.turn()


def merge_usage(total: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, int]:
    """Return the sums of two usages, by name; what is no count is left out."""
    counts = [{name: count for name, count in usage.items() if _is_count(name, count)} for usage in (total, more)]
    return {name: sum(one.get(name, 0) for one in counts) for name in counts[0] | counts[1]}


@dataclass(slots=True)
class _Call:
    """One tool call that still grows."""

    id: str = ""
    name: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def proposed(self, place: int) -> Proposed:
        """Return the finished call: always with a usable id, and with ``{}`` where the model wrote no arguments."""
        arguments = "".join(self.arguments)
        return Proposed(
            self.id if _is_id(self.id) else f"call_{place}", well_formed("".join(self.name)),
            arguments if arguments.strip() else "{}",
        )


@dataclass(slots=True)
class _Growing:
    """A turn that is put together from one message, or from deltas."""

    text: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    places: dict[int | None, _Call] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    written: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the model has written as much as it may."""
        return self.written >= MAX_WRITTEN

    def add(self, delta: Mapping[str, Any], *, whole: bool = False) -> Iterator[str]:
        """Take one piece in (or the whole), and yield its text if any. Unknown keys and wrong types are passed over."""
        items = delta.get("tool_calls")
        for item in items if isinstance(items, (list, tuple)) else ():
            if isinstance(item, Mapping):
                self._add_call(item, whole)
        if isinstance(reason := delta.get("finish_reason"), str):
            self.finish_reason = well_formed(reason)
        if isinstance(usage := delta.get("usage"), Mapping):
            self.usage = merge_usage({}, usage)  # of the whole turn so far, wherever it stands in a stream
        if isinstance(content := delta.get("content"), str) and content:
            text = well_formed(content)[: max(MAX_WRITTEN - self.written, 0)]
            self.written += len(text)
            self.text += [text] if text else []
            yield from self.text[-1:] if text else ()

    def _add_call(self, item: Mapping[str, Any], whole: bool) -> None:
        given = item.get("function")
        function: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        index, id_, name = item.get("index"), _text(item.get("id")), _text(function.get("name"))
        place = index if type(index) is int else None
        call = self.places.get(place)
        # Some providers give no index, or the same one to every call.
        another = call is not None and ((id_ and call.id and id_ != call.id) or (place is None and name and call.name))
        if whole or call is None or another:
            surplus = len(self.calls) > MAX_CALLS
            if surplus and call is None:
                return
            call = self.places[place] = _Call()  # what is surplus must not grow an earlier call
            self.calls += [] if surplus else [call]
        call.id = call.id or id_
        call.name += [name] if name else []
        call.arguments.append(_arguments(function.get("arguments")))
        self.written += len(id_) + len(name) + len(call.arguments[-1])

    def turn(self) -> Turn:
        """Return what it came to."""
        if self.is_full:
            return Turn("".join(self.text), (), "length", self.usage)  # calls may have been cut
        calls = tuple(call.proposed(place) for place, call in enumerate(self.calls))
        return Turn("".join(self.text), calls, self.finish_reason, self.usage)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_OURS = re.compile(r"[A-Za-z0-9_-]{22}")
"""The form of request and suspension ids: a model must not call a call so, or one would be decided for another."""


def _is_id(value: str) -> bool:
    usable = bool(value) and well_formed(value) == value and len(value.encode()) <= MAX_FIELD_BYTES
    return usable and _OURS.fullmatch(value) is None


def _arguments(value: object) -> str:
    """Return a call's arguments, or a piece of them, as well-formed text; the guard parses it, strictly."""
    if value is None:
        return ""
    if isinstance(value, str):
        # A lone surrogate becomes its escape, which the strict parser refuses; no other character takes its place.
        return value.encode("utf-8", "backslashreplace").decode()
    try:
        return json.dumps(dict(value) if isinstance(value, Mapping) else value)
    except (TypeError, ValueError, RecursionError):  # no JSON data, or inside itself
        return _REFUSED


def _is_count(name: object, value: object) -> bool:
    return type(name) is str and type(value) is int and 0 <= value < 2**53 and well_formed(name) == name


def _no_turn() -> ConfigurationError:
    return ConfigurationError(
        "The model must return a mapping with 'content' or 'tool_calls', or an async iterator of such mappings.",
        detail="model",
    )
