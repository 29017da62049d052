"""`ChatClient`: the AI SDK's own chat client in a Node process, for tests of a server.

::

    with ChatClient(f"{url}/api/chat", user="ana") as chat:
        chat.send("Refund order 7.")
        part = chat.tool_part()
        chat.approve(part["approval"]["id"], "Checked.")
        assert chat.tool_part()["state"] == "output-available"

The client sends by itself what the SDK would send: after the last approval of a turn is answered, and again for as long
as an answer of the server leaves that condition true. 50 posts are the limit; then the chat's error says so.

A Node process serves one chat after the other, each with a chat object of its own: to start one takes longer than most
chats. One that is not idle when its client is closed is ended instead, and so is one that broke.
"""

from __future__ import annotations

import atexit
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tests.chat.node import HERE, Node, installed

LIMIT_S = 20
"""How long a command may take, in seconds."""
_END_S = 20


class ChatClientError(AssertionError):
    """The Node process refused a command, took too long, or ended."""


class _Process:
    """A Node process with `client.mjs`, and the lines that it answered."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  end() closes it
        self._process = subprocess.Popen(
            [node.path, HERE / "client.mjs"],
            cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, encoding="utf-8",
        )
        self._number = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def say(self, command: str, **options: Any) -> dict[str, Any]:
        """Give a command; return its answer."""
        self._number += 1
        assert self._process.stdin is not None
        line = json.dumps({"number": self._number, "command": command} | options)
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._broken(command, "has ended") from None
        while True:
            try:
                told = self._lines.get(timeout=LIMIT_S)
            except queue.Empty:
                raise self._broken(command, f"took more than {LIMIT_S} s") from None
            if told is None:
                raise self._broken(command, "has ended")
            answer: dict[str, Any] = json.loads(told)
            if answer["number"] == self._number:
                return answer

    def end(self) -> None:
        self._kill()
        self._reader.join(_END_S)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            # A command that the dead process did not read is nobody's trouble.
            with suppress(BrokenPipeError):
                stream.close()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait(_END_S)

    def _broken(self, command: str, what: str) -> ChatClientError:
        self._kill()
        self._errors.seek(0)
        told = self._errors.read().decode("utf-8", "replace")[-2000:]
        return ChatClientError(f"{command}: the client {what}. {told}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


_idle: list[_Process] = []
"""Processes that wait for their next chat."""


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of the client and what came back so far.

    Attributes:
        method: ``POST``, or ``GET`` for a resumed stream.
        body: What was posted, parsed.
        status: The HTTP status, None before there is one. headers: Of the answer, names in lower case.
        text: The answer's body as the client received it.
    """

    method: str
    body: Any
    status: int | None
    headers: dict[str, str]
    text: str

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The chunks of a UI message stream, without ``[DONE]``."""
        data = [line.removeprefix("data: ") for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(chunk) for chunk in data if chunk != "[DONE]"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back to `ChatClient.post`."""

    status: int
    headers: dict[str, str]
    text: str


class ChatClient:
    """One chat of the SDK's client. Use it with ``with``.

    Every method that makes the client send waits until the chat has settled: its status is ``ready`` or ``error`` and
    it sends nothing more by itself. With ``wait=False`` it returns at once; see `reached` and `settle`.

    Args:
        api: The address that the client posts to.
        user: The value of the header ``x-demo-user``; None leaves it out.
        headers: More headers of every request.
        id: The chat's id; the SDK makes one if None.
        messages: What the chat starts with, as after a reload of the page.
        node: What `tests.chat.node.installed` returned; None asks it.

    Raises:
        UnavailableError: By ``with``: there is no Node, or its packages cannot be fetched.
    """

    def __init__(
        self,
        api: str,
        *,
        user: str | None = "alice",
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        node: Node | None = None,
    ) -> None:
        self._api = api
        self._node = node
        self._headers = ({} if user is None else {"x-demo-user": user}) | dict(headers or {})
        self._id = id
        self._messages = messages
        self._process: _Process | None = None
        self._state: dict[str, Any] = {}

    def __enter__(self) -> ChatClient:
        node = self._node or installed()
        waiting = [process for process in _idle if process.node == node]
        if waiting:
            _idle.remove(waiting[0])
        self._process = waiting[0] if waiting else _Process(node)
        try:
            self.open(id=self._id, messages=self._messages)
        except BaseException:
            self._process.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the chat."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with suppress(ChatClientError):
            if process.say("idle")["result"]:
                _idle.append(process)
                return
        process.end()

    def open(self, *, id: str | None = None, messages: Sequence[Mapping[str, Any]] = ()) -> None:
        """Start another chat in the same process; what was counted starts anew."""
        self._do("open", api=self._api, id=id, headers=self._headers, messages=list(messages))

    def act_as(self, user: str | None, **headers: str) -> None:
        """Send as another user from now on, with ``headers`` instead of those given before."""
        self._headers = ({} if user is None else {"x-demo-user": user}) | headers
        self._do("headers", headers=self._headers)

    def send(self, text: str, *, wait: bool = True) -> None:
        """Send a user message."""
        self._start("send", wait, text=text)

    def proceed(self, *, wait: bool = True) -> None:
        """Send without a new message: the answers given so far (`sendMessage()`)."""
        self._start("continue", wait)

    def regenerate(self, *, wait: bool = True) -> None:
        """Ask for the last answer again."""
        self._start("regenerate", wait)

    def approve(self, approval_id: str, reason: str | None = None, *, wait: bool = True) -> None:
        """Approve; an id that waits for no answer is ignored, as by the SDK."""
        self.respond(approval_id, True, reason, wait=wait)

    def deny(self, approval_id: str, reason: str | None = None, *, wait: bool = True) -> None:
        """Deny; otherwise like `approve`."""
        self.respond(approval_id, False, reason, wait=wait)

    def respond(self, approval_id: str, approved: Any, reason: str | None = None, *, wait: bool = True) -> None:
        """Answer with any value for ``approved``, a wrong one too."""
        response = {"id": approval_id, "approved": approved} | ({} if reason is None else {"reason": reason})
        self._start("respond", wait, response=response)

    def set_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Replace the history that the client holds, as one who tampers with it would."""
        self._do("set", messages=list(messages))

    def stop(self, *, wait: bool = True) -> None:
        """Abort the answer that is being received."""
        self._start("stop", wait)

    def resume(self, *, wait: bool = True) -> None:
        """Fetch the stream of the chat that may still run on the server."""
        self._start("resume", wait)

    def settle(self) -> None:
        """Wait until the chat has settled."""
        self._do("settled")

    def reached(self, state: str) -> None:
        """Wait until the chat's status, or some tool part's state, is ``state``; fail if the chat settles before."""
        self._do("reached", state=state)

    def post(self, body: Any, **headers: str) -> Answer:
        """Post past the SDK's chat: ``body`` as JSON, or text and bytes as they are. It is not among `exchanges`."""
        text = body.decode() if isinstance(body, bytes) else body if isinstance(body, str) else json.dumps(body)
        return Answer(**self._do("raw", text=text, headers=self._headers | headers))

    @property
    def id(self) -> str:
        """The chat's id."""
        return str(self._seen("id"))

    @property
    def status(self) -> str:
        """``submitted``, ``streaming``, ``ready`` or ``error``."""
        return str(self._seen("status"))

    @property
    def error(self) -> dict[str, Any] | None:
        """``name``, ``message`` and ``statusCode`` of the chat's error; None without one."""
        found: dict[str, Any] | None = self._seen("error")
        return found

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole history, as the client would post it."""
        return list(self._seen("messages"))

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts of the last message."""
        messages = self.messages
        return list(messages[-1]["parts"]) if messages else []

    @property
    def tool_parts(self) -> list[dict[str, Any]]:
        """The tool parts of the last message."""
        return [part for part in self.parts if part["type"] == "dynamic-tool" or part["type"].startswith("tool-")]

    def tool_part(self, call_id: str | None = None) -> dict[str, Any]:
        """Return the tool part of one call, or the only one of the last message."""
        (found,) = [part for part in self.tool_parts if call_id in (None, part["toolCallId"])]
        return found

    @property
    def text(self) -> str:
        """The text of the last message."""
        return "".join(part["text"] for part in self.parts if part["type"] == "text")

    @property
    def exchanges(self) -> list[Exchange]:
        """Every request of the chat so far, resumed streams included."""
        return [Exchange(**exchange) for exchange in self._seen("exchanges")]

    @property
    def posts(self) -> list[Any]:
        """The bodies of every POST of the chat so far, parsed."""
        return [exchange.body for exchange in self.exchanges if exchange.method == "POST"]

    @property
    def endings(self) -> list[dict[str, Any]]:
        """How each answer ended: ``isAbort``, ``isDisconnect``, ``isError``, ``finishReason``."""
        return list(self._seen("endings"))

    def _seen(self, name: str) -> Any:
        self._do("state")
        return self._state[name]

    def _start(self, command: str, wait: bool, **options: Any) -> None:
        self._do(command, **options)
        if wait:
            self.settle()

    def _do(self, command: str, **options: Any) -> Any:
        if self._process is None:
            raise ChatClientError(f"{command}: the client is closed.")
        answer = self._process.say(command, **options)
        self._state = answer["chat"] or {}
        if trouble := answer.get("error") or self._state.get("failure"):
            raise ChatClientError(f"{command}: {trouble}")
        return answer["result"]
