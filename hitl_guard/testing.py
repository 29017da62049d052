"""For tests of your own code. What would keep nothing safe in production says so in its name."""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL

from . import clock
from .errors import ConfigurationError
from .keyring import Key, Keyring
from .store.sql import SQLStore

__all__ = ["ScriptedModel", "UnsafeKeyring", "UnsafeMemoryStore"]


class UnsafeMemoryStore(SQLStore):
    """A real store that forgets everything: a SQLite file in a private temporary folder, deleted by `close`.

    Only for tests: what is approved in it is gone when the process ends. It is ready to use, and a context manager::

        with UnsafeMemoryStore() as store:
            guard = Guard(policy="user-approval", keyring=UnsafeKeyring(), store=store)
    """

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="hitl-guard-unsafe-"))
        # Also when nobody closes it; a forked child must not delete its parent's file.
        self._delete = weakref.finalize(self, _delete, folder, os.getpid())
        super().__init__(URL.create("sqlite", database=str(folder / "approvals.db")).render_as_string())
        self.setup()

    def __repr__(self) -> str:
        return "<UnsafeMemoryStore>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release every connection and delete the file."""
        super().close()
        self._delete()


class UnsafeKeyring(Keyring):
    """A key ring with one new key that nobody keeps. Only for tests: what it signed cannot be verified afterwards."""

    __slots__ = ()

    def __init__(self, *, epoch: int = 1) -> None:
        super().__init__([Key.generate(clock.epoch_ms() - 3_600_000)], epoch)


class ScriptedModel:
    """A model for tests: it says what it was told to say, one turn after another, and keeps what it was asked.

    Args:
        turns: What each call of the model comes to: a text; a list of tool calls ``(id, name, arguments)``, with
            arguments as a dict or as raw text; a mapping like a chat assistant message; an exception, which is raised;
            or a function of the messages that returns one of these.
        split: Whether it answers in small deltas instead of whole turns.

    Attributes:
        calls: The messages of each call, copied. tools, settings: The tools and settings of each call, likewise.

    Raises:
        ConfigurationError: a turn is something else; or, when it is called, there is no turn left.
    """

    def __init__(self, *turns: Any, split: bool = False) -> None:
        self._turns = [turn if callable(turn) or isinstance(turn, BaseException) else _message(turn) for turn in turns]
        self._split = split
        self.calls: list[list[dict[str, Any]]] = []
        self.tools: list[list[dict[str, Any]]] = []
        self.settings: list[dict[str, Any]] = []

    async def __call__(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], settings: dict[str, Any]
    ) -> Any:
        """Return the next turn (see `hitl_guard.agent.turns.Model`)."""
        self.calls.append(copy.deepcopy(messages))
        self.tools.append(copy.deepcopy(tools))
        self.settings.append(copy.deepcopy(settings))
        if len(self.calls) > len(self._turns):
            raise ConfigurationError(f"Call {len(self.calls)} of the scripted model has no turn. Give it one more.")
        turn = self._turns[len(self.calls) - 1]
        if callable(turn):
            turn = turn(copy.deepcopy(messages))
        if isinstance(turn, BaseException):
            raise turn
        message = _message(turn)
        return _split(message) if self._split else message


def _message(turn: Any) -> dict[str, Any]:
    """Return a scripted turn as a chat assistant message."""
    if isinstance(turn, Mapping):
        return copy.deepcopy(dict(turn))
    if isinstance(turn, str):
        return {"content": turn, "tool_calls": [], "finish_reason": "stop"}
    if not isinstance(turn, list) or not all(isinstance(call, (list, tuple)) and len(call) == 3 for call in turn):
        raise ConfigurationError(
            "A scripted turn is a text, a list of (id, name, arguments), a mapping, an exception or a function."
        )
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": _raw(arguments)}}
        for id_, name, arguments in turn
    ]
    return {"content": None, "tool_calls": calls, "finish_reason": "tool_calls"}


def _raw(arguments: Any) -> Any:
    return json.dumps(arguments) if isinstance(arguments, dict) else arguments


async def _split(message: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yield a message as a provider streams it: a few characters at a time, each call's head before its arguments."""
    content, calls = message.pop("content", None), message.pop("tool_calls", None)
    for piece in _pieces(content):
        yield {"content": piece}
    for index, call in enumerate(calls or ()):
        function = dict(call.get("function") or {})
        arguments = function.pop("arguments", None)
        yield {"tool_calls": [{**call, "index": index, "function": function}]}
        for piece in _pieces(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
    yield message


def _pieces(text: Any) -> list[Any]:
    """Return a text in pieces of five characters; anything else as it is."""
    return [text[at : at + 5] for at in range(0, len(text), 5)] if isinstance(text, str) else [text]


def _delete(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
