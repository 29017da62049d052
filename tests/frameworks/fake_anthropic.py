"""A Messages API on loopback that says what it is told to, for the real Claude Code program."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Turns = Sequence[Sequence[tuple[str, str, dict[str, Any]]]]


class Model:
    """Asks for the first turn of its script whose calls are not in the history, and then says done.

    Args:
        inner: What a sub-agent is told to do, and its model.

    Attributes:
        told: The results of tools that it was given, in order, whatever request they came with.
        repeats: Where the history begins with a run that was resumed: the calls whose results hold these words are made
            again, once, with the arguments that the history has; all calls where none does (a sub-agent's waits).
    """

    def __init__(self, turns: Turns, inner: tuple[str, Model] | None = None) -> None:
        self._turns, self._inner = turns, inner
        self.told: list[Any] = []
        self.repeats: str | None = None

    def blocks(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the content of the answer to a conversation."""
        parts = [
            part for message in messages if isinstance(message["content"], list) for part in message["content"]
        ]
        if self._inner is not None and self._inner[0] in str(messages[0]["content"]):
            return self._inner[1].blocks(messages)
        calls = {part["id"]: part for part in parts if part.get("type") == "tool_use"}
        results = {part["tool_use_id"]: part.get("content") for part in parts if part.get("type") == "tool_result"}
        self.told = [*results.values()]
        words, self.repeats = self.repeats, None
        if words is not None:
            waiting = {call_id: call for call_id, call in calls.items() if words in str(results.get(call_id))}
            return [call | {"id": f"{call_id}again"} for call_id, call in (waiting or calls).items()]
        asked = calls.keys()
        for turn in self._turns:
            if not asked & {call_id for call_id, _, _ in turn}:
                return [
                    {"type": "tool_use", "id": call_id, "name": tool, "input": arguments}
                    for call_id, tool, arguments in turn
                ]
        return [{"type": "text", "text": "done"}]


@contextmanager
def serving(model: Model) -> Iterator[str]:
    """Serve a model, and yield the API's address."""
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self.path.partition("?")[0].endswith("/messages"):
                self._answer("application/json", json.dumps({"input_tokens": 1}).encode())
            elif not body.get("tools"):  # the program's own questions: titles, topics
                self._message(body, [{"type": "text", "text": "done"}])
            else:
                self._message(body, model.blocks(body["messages"]))

        def do_GET(self) -> None:
            self._answer("application/json", b"{}")

        def do_HEAD(self) -> None:
            self._answer("application/json", b"")

        def _message(self, body: dict[str, Any], blocks: list[dict[str, Any]]) -> None:
            reason = "tool_use" if blocks[0]["type"] == "tool_use" else "end_turn"
            usage = {"input_tokens": 1, "output_tokens": 1}
            whole = {
                "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": blocks,
                "stop_reason": reason, "stop_sequence": None, "usage": usage,
            }
            if not body.get("stream"):
                self._answer("application/json", json.dumps(whole).encode())
                return
            events = [{"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}]
            for index, block in enumerate(blocks):
                events += _streamed(index, block)
            events += [
                {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
                {"type": "message_stop"},
            ]
            text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
            self._answer("text/event-stream", text.encode())

        def _answer(self, kind: str, content: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _streamed(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    if block["type"] == "text":
        empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        empty = block | {"input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    return [
        {"type": "content_block_start", "index": index, "content_block": empty},
        {"type": "content_block_delta", "index": index, "delta": delta},
        {"type": "content_block_stop", "index": index},
    ]
