"""A model for the built-in agent loop on OpenAI's chat completions, or any service that speaks them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from ..errors import ConfigurationError


class OpenAIChat:
    """A model (see `hitl_guard.agent.turns.Model`) on the ``openai`` package, streaming.

    Args:
        model: The model's name.
        client: An ``openai.AsyncOpenAI``; when omitted, one is made, which reads ``OPENAI_API_KEY`` and
            ``OPENAI_BASE_URL`` from the environment.
        settings: Further arguments of ``chat.completions.create``, ``temperature=0`` for example. The settings of a
            run override them.

    Attributes:
        client: The client; close it when nobody asks any more.

    Raises:
        ConfigurationError: the ``openai`` package or its API key is missing.
    """

    def __init__(self, model: str, *, client: Any = None, **settings: Any) -> None:
        self.client = _client() if client is None else client
        self._settings = {"model": model, **settings}

    def __repr__(self) -> str:
        return f"<OpenAIChat model={self._settings['model']!r}>"

    async def __call__(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], settings: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the deltas of one turn. Errors of the ``openai`` package go through."""
        request = self._settings | settings
        if not tools:  # the service refuses an empty list, and what is about tools without any
            request = {name: value for name, value in request.items() if name not in _ABOUT_TOOLS}
        options = {**(request.pop("stream_options", None) or {}), "include_usage": True}
        request |= {"messages": messages, "stream": True, "stream_options": options}
        request |= {"tools": tools} if tools else {}
        async with await self.client.chat.completions.create(**request) as stream:
            async for chunk in stream:
                # What other services leave out is no error here; the package checks nothing of a stream either.
                for delta in _deltas(chunk.model_dump(warnings=False)):
                    yield delta


_ABOUT_TOOLS = frozenset({"parallel_tool_calls", "tool_choice", "tools"})


def _client() -> Any:
    try:
        import openai
    except ImportError as error:
        raise ConfigurationError("OpenAIChat needs the openai package: install 'hitl-guard[openai]'.") from error
    try:
        return openai.AsyncOpenAI()
    except openai.OpenAIError as error:
        raise ConfigurationError("OpenAIChat needs an API key: set OPENAI_API_KEY, or give it a client.") from error


def _deltas(chunk: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a chunk says: a delta of the first choice, and the usage."""
    for choice in chunk.get("choices") or ():
        if not choice.get("index"):
            delta = choice.get("delta") or {}
            # A refusal is the model's text, too; it comes instead of the content.
            text = delta.get("content") or delta.get("refusal")
            yield {"content": text, "tool_calls": delta.get("tool_calls"), "finish_reason": choice.get("finish_reason")}
    yield {"usage": chunk.get("usage")}
