"""Streams over HTTP: headers and framing, clients that leave and come back, bounds, and nobody reads another's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hitl_guard.errors import AgentError, ConfigurationError, LimitError, UnavailableError
from hitl_guard.integrations.ai_sdk.chunks import UIMessageStream
from hitl_guard.integrations.ai_sdk.messages import ChatId
from hitl_guard.integrations.ai_sdk.parts import rebuilt
from hitl_guard.integrations.ai_sdk.response import UIMessageStreamResponse, encoded
from hitl_guard.integrations.ai_sdk.streams import Streams
from hitl_guard.models import Principal
from tests.integrations.conftest import OpenChat, Serve
from tests.integrations.wire import Chunk, checked
from tests.support import eventually

ANA, BOB = Principal("ana"), Principal("bob")
CHAT = ChatId("chat-1", ANA)
HEADERS = {
    "content-type": "text/event-stream", "cache-control": "no-cache", "connection": "keep-alive",
    "x-vercel-ai-ui-message-stream": "v1", "x-accel-buffering": "no",
}
DELTA: Chunk = {"type": "text-delta", "id": "t", "delta": "…"}
START: Chunk = {"type": "start", "messageId": "m"}


class Source:
    """Chunks that come when the test says so.

    Attributes:
        closed: Set when it was closed. given: How many chunks were read.
    """

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.given = 0
        self._queue: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()

    def put(self, *chunks: Chunk | BaseException | None) -> None:
        """Hand over chunks, an error to raise, or None for the end."""
        for chunk in chunks:
            self._queue.put_nowait(chunk)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        try:
            while (chunk := await self._queue.get()) is not None:
                if isinstance(chunk, BaseException):
                    raise chunk
                self.given += 1
                yield chunk
        finally:
            self.closed.set()


class Client:
    """An HTTP client at the ASGI boundary: what it was sent, and when it leaves."""

    def __init__(self, response: Response, *, method: str = "POST", broken: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        self.grew = asyncio.Event()
        self.gone = asyncio.Event()
        self._broken = broken
        self.task = asyncio.create_task(response({"type": "http", "method": method}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._broken and self.sent:
            raise OSError("gone")
        self.sent.append(message)
        self.grew.set()

    async def until(self, text: str) -> None:
        """Wait until something was sent."""
        while text not in self.text:
            self.grew.clear()
            await asyncio.wait_for(self.grew.wait(), 20)

    async def end(self) -> str:
        """Wait for the end of the response; return its body."""
        await asyncio.wait_for(self.task, 20)
        return self.text

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()


async def of(*chunks: Chunk) -> AsyncIterator[Chunk]:
    for chunk in chunks:
        yield chunk


async def all_of(chunks: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in chunks]


# -- the response ----------------------------------------------------------------------------------------------------


async def test_a_response_has_the_headers_and_the_framing_of_the_protocol() -> None:
    response = UIMessageStreamResponse(of(START, DELTA), {"x-run": "r1", "Content-Type": "text/plain"})

    client = Client(response)

    assert await client.end() == (
        'data: {"type":"start","messageId":"m"}\n\ndata: {"type":"text-delta","id":"t","delta":"…"}\n\n'
        "data: [DONE]\n\n"
    )
    assert {name.decode(): value.decode() for name, value in client.sent[0]["headers"]} == HEADERS | {"x-run": "r1"}
    assert (client.sent[0]["status"], client.sent[-1]["more_body"]) == (200, False)


@pytest.mark.parametrize("turns", range(12))
async def test_a_response_ends_with_its_client_though_a_chunk_comes_at_the_same_moment(turns: int) -> None:
    source = Source()
    client = Client(UIMessageStreamResponse(source.chunks()))
    source.put(START)
    await client.until("start")

    client.gone.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    source.put(DELTA)

    await client.end()
    await asyncio.wait_for(source.closed.wait(), 20)


async def test_an_idle_stream_shows_that_it_lives() -> None:
    source = Source()
    client = Client(UIMessageStreamResponse(source.chunks(), keep_alive=0.001))

    await client.until(": keep-alive\n\n")
    source.put(START, None)

    assert (await client.end()).endswith('data: {"type":"start","messageId":"m"}\n\ndata: [DONE]\n\n')


@pytest.mark.parametrize(
    "fault", [RuntimeError("password"), {"type": "x", "data": float("nan")}], ids=["raises", "nan"]
)
async def test_a_failure_in_the_middle_is_an_error_chunk_without_details(fault: Any) -> None:
    source = Source()
    source.put(START, fault, DELTA)

    text = await Client(UIMessageStreamResponse(source.chunks())).end()

    assert text == (
        'data: {"type":"start","messageId":"m"}\n\ndata: {"type":"error","errorText":"An error occurred."}\n\n'
        "data: [DONE]\n\n"
    )
    assert source.closed.is_set()


async def test_a_client_that_goes_away_closes_the_source() -> None:
    source = Source()
    source.put(START)
    client = Client(UIMessageStreamResponse(source.chunks()))
    await client.until("start")

    client.gone.set()
    await client.end()

    assert source.closed.is_set()


@pytest.mark.parametrize("broken", [False, True], ids=["disconnects", "send fails"])
async def test_a_source_that_is_to_go_on_is_read_to_its_end_without_a_client(broken: bool) -> None:
    source = Source()
    response = UIMessageStreamResponse(source.chunks(), goes_on=True)
    client = Client(response, broken=broken)
    source.put(START)
    if not broken:
        await client.until("start")
        client.gone.set()
        await eventually(lambda: response._gone)

    source.put(DELTA, None)
    text = await client.end()

    assert (source.given, source.closed.is_set(), "text-delta" in text) == (2, True, False)


async def test_a_server_that_cannot_send_any_more_closes_the_source() -> None:
    source = Source()
    source.put(START)

    await Client(UIMessageStreamResponse(source.chunks()), broken=True).end()

    assert source.closed.is_set()


async def test_head_reads_nothing() -> None:
    source = Source()

    assert await Client(UIMessageStreamResponse(source.chunks()), method="HEAD").end() == ""
    assert source.given == 0


def test_a_response_without_a_usable_pace_is_refused() -> None:
    for pace in (0, -1.0, float("nan"), "1", True):
        with pytest.raises(ConfigurationError):
            UIMessageStreamResponse(of(), keep_alive=pace)  # type: ignore[arg-type]


# -- streams ---------------------------------------------------------------------------------------------------------


async def test_a_run_goes_on_without_its_client_and_is_replayed_from_the_start() -> None:
    streams, source = Streams(), Source()
    first = streams.begin(CHAT, source.chunks)
    source.put(START)
    assert await anext(first) == START
    await first.aclose()

    second = streams.again(CHAT)
    assert second is not None
    seen = [await anext(second)]
    source.put(DELTA, None)
    seen += await all_of(second)

    assert seen == [START, DELTA]
    assert streams.again(CHAT) is None  # it has ended: the client has all of it
    await streams.close()


async def test_a_chat_has_one_running_stream() -> None:
    streams, source = Streams(), Source()
    reader = streams.begin(CHAT, source.chunks)

    with pytest.raises(AgentError) as caught:
        streams.begin(CHAT, source.chunks)
    source.put(None)
    await all_of(reader)
    again = streams.begin(CHAT, lambda: of(DELTA))

    assert (caught.value.code, caught.value.detail) == ("run-busy", "stream")
    assert await all_of(again) == [DELTA]
    await streams.close()


@pytest.mark.parametrize("other", [
    ChatId("chat-1", BOB), ChatId("chat-1", Principal("ana", tenant="other")), ChatId("chat-2", ANA),
])
async def test_nobody_reads_or_stops_the_stream_of_another_user_tenant_or_chat(other: ChatId) -> None:
    streams, source = Streams(), Source()
    streams.begin(CHAT, source.chunks)

    assert streams.again(other) is None
    assert streams.stop(other) is False
    streams.begin(other, lambda: of(DELTA))  # and none of them keeps another from having their own
    await streams.close()


@pytest.mark.parametrize(("one", "other"), [
    (ChatId("b c", ANA, "a"), ChatId("c", ANA, "a b")), (ChatId("a b", ANA), ChatId("b", ANA, " a")),
    (ChatId("b", ANA, "a"), ChatId("a b", ANA)), (ChatId("x y", ANA, "a"), ChatId("y", ANA, "a x")),
])
async def test_chats_whose_names_read_alike_with_their_loops_are_two(one: ChatId, other: ChatId) -> None:
    streams, source = Streams(), Source()
    streams.begin(one, source.chunks)

    streams.check_free(other)
    assert (streams.again(other), streams.stop(other)) == (None, False)
    assert streams.again(one) is not None
    await streams.close()


async def test_what_a_continued_message_had_stands_before_a_replay_and_is_not_sent_again() -> None:
    streams, source = Streams(), Source()
    before = rebuilt([{"type": "step-start"}, {"type": "text", "text": "Hello."}])
    live = streams.begin(CHAT, source.chunks, before=before)
    replay = streams.again(CHAT)
    source.put(START, DELTA, None)

    assert replay is not None
    assert await all_of(live) == [START, DELTA]
    assert await all_of(replay) == [START, *before, DELTA]
    await streams.close()


async def test_a_failure_is_told_to_every_reader_and_ends_the_stream() -> None:
    streams, source = Streams(), Source()
    reader = streams.begin(CHAT, source.chunks)
    source.put(START, RuntimeError("password"))

    assert await all_of(reader) == [START, {"type": "error", "errorText": "An error occurred."}]
    streams.begin(CHAT, lambda: of())
    await streams.close()


async def test_a_stream_that_could_not_be_made_leaves_the_chat_free() -> None:
    streams = Streams()

    def fails() -> AsyncIterator[Chunk]:
        raise LookupError

    with pytest.raises(LookupError):
        streams.begin(CHAT, fails)
    assert await all_of(streams.begin(CHAT, lambda: of(DELTA))) == [DELTA]
    await streams.close()


@pytest.mark.parametrize("bound", [{"chunks": 3}, {"size": 3 * len(encoded(DELTA))}])
async def test_a_stream_beyond_its_bounds_goes_on_and_is_replayed_no_more(bound: dict[str, int]) -> None:
    streams, source = Streams(**bound), Source()
    slow = streams.begin(CHAT, source.chunks)
    source.put(*[DELTA] * 3)
    await anext(slow)
    quick = streams.again(CHAT)
    assert quick is not None
    got = [await anext(quick) for _ in range(3)]

    for _ in range(3):
        source.put(DELTA)
        got.append(await anext(quick))
    source.put(None)

    assert got + await all_of(quick) == [DELTA] * 6
    assert streams.again(CHAT) is None
    assert await all_of(slow) == [{"type": "error", "errorText": "The connection is too slow: load the chat again."}]
    await streams.close()


async def test_the_number_of_streams_is_bounded_and_ended_ones_make_room() -> None:
    streams, sources = Streams(most=2, own=1), [Source(), Source()]
    first = streams.begin(CHAT, sources[0].chunks)

    with pytest.raises(LimitError) as own:
        streams.begin(ChatId("chat-2", ANA), sources[1].chunks)
    streams.begin(ChatId("chat-1", BOB), sources[1].chunks)
    with pytest.raises(LimitError):
        streams.begin(ChatId("chat-1", Principal("carol")), sources[1].chunks)
    sources[0].put(None)
    await all_of(first)
    streams.begin(ChatId("chat-1", Principal("carol")), lambda: of(DELTA))

    assert own.value.detail == "streams"
    assert streams.again(CHAT) is None  # the one that had ended gave its place
    await streams.close()


async def test_a_stream_that_has_ended_is_replayed_no_more_and_holds_its_place_while_it_is_read() -> None:
    streams = Streams(own=1)
    slow = streams.begin(CHAT, lambda: of(DELTA, START))
    assert await anext(slow) == DELTA
    await asyncio.sleep(0)

    assert streams.again(CHAT) is None
    with pytest.raises(LimitError):
        streams.begin(ChatId("another", CHAT.user), lambda: of(DELTA))
    assert await all_of(slow) == [START]
    assert await all_of(streams.begin(ChatId("another", CHAT.user), lambda: of(DELTA))) == [DELTA]
    await streams.close()


async def test_at69_what_stands_before_a_stream_counts_among_its_bytes() -> None:
    streams, source = Streams(size=100), Source()
    reader = streams.begin(CHAT, source.chunks, before=rebuilt([{"type": "text", "text": "x" * 200}]))

    assert streams.again(CHAT) is None
    source.put(DELTA, None)
    assert await all_of(reader) == [DELTA]
    await streams.close()


async def test_at69_a_running_stream_is_read_so_often_at_once() -> None:
    streams, source = Streams(own=2), Source()
    readers = [streams.begin(CHAT, source.chunks), streams.again(CHAT)]

    with pytest.raises(LimitError):
        streams.again(CHAT)

    source.put(DELTA, None)
    assert [await all_of(reader) for reader in readers if reader is not None] == [[DELTA], [DELTA]]
    await streams.close()


async def test_a_new_message_begins_beside_a_stream_that_its_reader_left() -> None:
    streams, left, ran = Streams(), Source(), list[Chunk]()

    async def old() -> AsyncIterator[Chunk]:
        async for chunk in left.chunks():
            ran.append(chunk)
            yield chunk

    reader = streams.begin(CHAT, old)
    left.put(START)
    assert await anext(reader) == START
    with pytest.raises(AgentError):
        streams.begin(CHAT, lambda: of(DELTA), beside=True)
    await reader.aclose()

    assert await all_of(streams.begin(CHAT, lambda: of(DELTA), beside=True)) == [DELTA]
    left.put(DELTA, None)
    await eventually(lambda: ran == [START, DELTA])  # the run that was left goes on to its end
    await streams.close()


@pytest.mark.parametrize("closed", [True, False])
async def test_a_client_that_is_gone_before_it_was_sent_anything_keeps_no_place(closed: bool) -> None:
    streams, left = Streams(own=1), Source()
    reader = streams.begin(CHAT, left.chunks)
    if closed:
        await reader.aclose()
    del reader

    left.put(None)
    await left.closed.wait()

    assert await all_of(streams.begin(CHAT, lambda: of(DELTA))) == [DELTA]
    await streams.close()


async def test_a_stream_can_be_stopped_by_its_owner() -> None:
    streams, source = Streams(), Source()
    reader = streams.begin(CHAT, source.chunks)
    source.put(START)
    await anext(reader)

    assert streams.stop(CHAT) is True
    assert await all_of(reader) == [{"type": "abort", "reason": "Stopped."}]
    await asyncio.wait_for(source.closed.wait(), 20)
    assert streams.stop(CHAT) is False
    await streams.close()


async def test_at_shutdown_every_stream_ends_and_none_begins() -> None:
    streams, source = Streams(), Source()
    reader = streams.begin(CHAT, source.chunks)
    source.put(START)
    await anext(reader)

    await streams.close()

    assert await all_of(reader) == [{"type": "abort", "reason": "The server is shutting down."}]
    assert source.closed.is_set()
    with pytest.raises(UnavailableError) as caught:
        streams.begin(CHAT, source.chunks)
    assert caught.value.detail == "closing"


@pytest.mark.parametrize("options", [
    {"most": 0}, {"own": -1}, {"chunks": True}, {"size": 1.5},
])
def test_bounds_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Streams(**options)


# -- the real client -------------------------------------------------------------------------------------------------


class Server:
    """A chat server with `Streams` whose answers the test lets go on."""

    def __init__(self, *answers: Callable[[Any], AsyncIterator[Chunk]]) -> None:
        self.go_on = asyncio.Event()
        self._answers = list(answers)
        self._streams: Streams | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.app = Starlette(routes=[
            Route("/api/chat", self._post, methods=["POST"]), Route("/api/chat/{id}/stream", self._resume),
        ])

    def release(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.go_on.set)

    async def _post(self, request: Request) -> Response:
        self._loop, self._streams = asyncio.get_running_loop(), self._streams or Streams()
        body = json.loads(await request.body())
        before = rebuilt(body["messages"][-1]["parts"]) if body["messages"][-1]["role"] == "assistant" else ()
        answer = self._answers.pop(0)
        chunks = self._streams.begin(ChatId(body["id"], ANA), lambda: answer(body), before=before)
        return UIMessageStreamResponse(chunks)

    async def _resume(self, request: Request) -> Response:
        chunks = None if self._streams is None else self._streams.again(ChatId(request.path_params["id"], ANA))
        return Response(status_code=204) if chunks is None else UIMessageStreamResponse(chunks)


def test_the_sdk_comes_back_to_a_continued_message_that_still_runs(serve: Serve, open_chat: OpenChat) -> None:
    async def asks(body: Any) -> AsyncIterator[Chunk]:
        stream = UIMessageStream()
        for chunk in checked([
            *stream.start("msg-1"), *stream.text("t", "I refund it."), *stream.tool_call("c1", "refund", {"n": 1}),
            {"type": "tool-approval-request", "approvalId": "a1", "toolCallId": "c1", "signature": "t"},
            *stream.finish("tool-calls"),
        ]):
            yield chunk

    async def goes_on(body: Any) -> AsyncIterator[Chunk]:
        stream = UIMessageStream(known=body["messages"][-1]["parts"])
        for chunk in [*stream.start("msg-1"), *stream.output("c1", "done"), *stream.text("t", "All ")]:
            yield chunk
        await server.go_on.wait()
        for chunk in [*stream.text("t", "is well."), *stream.finish()]:
            yield chunk

    server = Server(asks, goes_on)
    chat = open_chat(f"{serve(server.app)}/api/chat")
    chat.send("Refund it.")
    chat.approve("a1", wait=False)
    chat.reached("output-available")

    again = open_chat(f"{chat._api}", id=chat.id)
    again.resume(wait=False)
    again.reached("output-available")
    server.release()
    again.settle()
    chat.settle()

    for one in (chat, again):
        assert (one.status, one.error, one.text) == ("ready", None, "I refund it.All is well.")
        part = one.tool_part("c1")
        assert (part["state"], part["input"], part["approval"]["approved"]) == ("output-available", {"n": 1}, True)


def test_the_sdk_has_nothing_to_come_back_to(serve: Serve, open_chat: OpenChat) -> None:
    chat = open_chat(f"{serve(Server().app)}/api/chat")

    chat.resume()

    assert (chat.status, chat.error, chat.messages, chat.exchanges[-1].status) == ("ready", None, [], 204)
