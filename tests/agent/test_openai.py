"""OpenAI's chat completions as a model: the real package against a server on this machine that streams."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from hitl_guard.agent.openai import OpenAIChat
from hitl_guard.agent.turns import Proposed, Turn, deltas
from hitl_guard.errors import ConfigurationError

MESSAGES = [{"role": "user", "content": "Refund A-17."}]
TOOLS = [{"type": "function", "function": {"name": "refund", "parameters": {"type": "object", "properties": {}}}}]
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1}}


def chunk(delta: Any = None, *, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": choices, **more}


def part(index: int, arguments: str, **head: Any) -> dict[str, Any]:
    name = {"name": head.pop("name")} if head else {}
    return {"tool_calls": [{"index": index, **head, "function": {**name, "arguments": arguments}}]}


class Service:
    """A service that answers every request with the same chunks, or with an error.

    Attributes:
        requests: The bodies that it got. endless: Whether it repeats its chunks until the client goes away, which sets
            ``gone``.
    """

    def __init__(self) -> None:
        self.chunks: list[dict[str, Any]] = []
        self.status = 200
        self.endless = False
        self.gone = threading.Event()
        self.requests: list[dict[str, Any]] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(json.loads(handler.rfile.read(int(handler.headers["Content-Length"]))))
        handler.send_response(self.status)
        handler.send_header("Connection", "close")
        handler.send_header("Content-Type", "text/event-stream" if self.status == 200 else "application/json")
        handler.end_headers()
        if self.status != 200:
            handler.wfile.write(b'{"error":{"message":"overloaded"}}')
            return
        lines = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in self.chunks)
        try:
            handler.wfile.write(lines)
            while self.endless:
                handler.wfile.write(lines)
        except OSError:
            self.gone.set()
            return
        handler.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    for name in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    running = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            running.answer(self)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="s3cret", max_retries=0) as made:
        yield made


async def told(model: OpenAIChat, tools: list[Any] = TOOLS, **settings: Any) -> list[str | Turn]:
    return [piece async for piece in deltas(model, MESSAGES, tools, settings)]


async def test_text_is_streamed_and_the_usage_comes_last(service: Service, client: Any) -> None:
    service.chunks = [
        chunk({"role": "assistant", "content": ""}), chunk({"content": "Done"}), chunk({"content": "."}),
        chunk({"content": "another"}, index=1), chunk({}, finish="stop"), chunk(usage=USAGE),
    ]

    pieces = await told(OpenAIChat("gpt-x", client=client))

    counts = {name: count for name, count in USAGE.items() if isinstance(count, int)}
    assert pieces == ["Done", ".", Turn("Done.", (), "stop", counts)]


async def test_split_arguments_of_several_calls_are_put_together(service: Service, client: Any) -> None:
    service.chunks = [
        chunk(part(0, "", id="call-a", type="function", name="refund")), chunk(part(0, '{"order":"A')),
        chunk(part(0, '-17"}')), chunk(part(1, '{"order":', id="call-b", type="function", name="refund")),
        chunk(part(1, '"B"}')), chunk({}, finish="tool_calls"),
    ]

    (turn,) = await told(OpenAIChat("gpt-x", client=client))

    calls = (Proposed("call-a", "refund", '{"order":"A-17"}'), Proposed("call-b", "refund", '{"order":"B"}'))
    assert turn == Turn("", calls, "tool_calls", {})


async def test_a_refusal_is_text(service: Service, client: Any) -> None:
    service.chunks = [chunk({"refusal": "I can't."}, finish="stop")]

    assert (await told(OpenAIChat("gpt-x", client=client)))[0] == "I can't."


async def test_what_other_services_leave_out_is_no_error(service: Service, client: Any) -> None:
    service.chunks = [
        {"choices": None}, {"choices": [{"delta": None}]}, {"choices": [{"delta": {"content": "Done."}}]}, {"id": "c"},
    ]

    assert await told(OpenAIChat("gpt-x", client=client)) == ["Done.", Turn("Done.", (), None, {})]


async def test_the_request_streams_with_usage_and_a_runs_settings_win(service: Service, client: Any) -> None:
    model = OpenAIChat("gpt-x", client=client, temperature=1, seed=4, stream_options={"include_obfuscation": False})

    await told(model, temperature=0, tool_choice="auto", stream=False)

    assert service.requests == [{
        "messages": MESSAGES, "model": "gpt-x", "seed": 4, "stream": True, "temperature": 0, "tool_choice": "auto",
        "stream_options": {"include_obfuscation": False, "include_usage": True}, "tools": TOOLS,
    }]


async def test_without_tools_nothing_is_said_about_them(service: Service, client: Any) -> None:
    await told(OpenAIChat("gpt-x", client=client, parallel_tool_calls=False), [], tool_choice="auto")

    assert sorted(service.requests[0]) == ["messages", "model", "stream", "stream_options"]


async def test_an_error_of_the_service_goes_through(service: Service, client: Any) -> None:
    service.status = 500

    with pytest.raises(openai.InternalServerError, match="overloaded"):
        await told(OpenAIChat("gpt-x", client=client))


async def test_a_consumer_that_stops_closes_the_connection(service: Service, client: Any) -> None:
    service.chunks, service.endless = [chunk({"content": "more"})] * 100, True

    async with aclosing(deltas(OpenAIChat("gpt-x", client=client), MESSAGES, TOOLS, {})) as pieces:
        async for piece in pieces:
            assert (piece, service.gone.is_set()) == ("more", False)
            break

    assert await asyncio.to_thread(service.gone.wait, 60)


async def test_without_a_client_one_is_made_from_the_environment(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.chunks = [chunk({"content": "Done."})]
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    model = OpenAIChat("gpt-x")

    assert (await told(model))[0] == "Done."
    await model.client.close()


def test_a_missing_key_is_a_fault_of_the_set_up(service: Service) -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        OpenAIChat("gpt-x")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)

    with pytest.raises(ConfigurationError, match=r"hitl-guard\[openai\]"):
        OpenAIChat("gpt-x")


async def test_a_model_shows_its_name_and_no_secret(client: Any) -> None:
    assert repr(OpenAIChat("gpt-x", client=client, extra_headers={"x": "s3cret"})) == "<OpenAIChat model='gpt-x'>"
