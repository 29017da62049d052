"""The server behind a URL: MCP's Streamable HTTP, frame for frame.

Each frame of the client's is posted by itself; answers come as JSON or as server-sent events, a stream that breaks is
taken up again where the server allows it, and the server's own messages come over a stream that stays open. A request
whose answer will never come is answered with an error here, so that nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from ...errors import ConfigurationError
from . import frames
from .events import Events
from .frames import SERVER_LIMITS, Fault, Frame, Key
from .pausing import VERSION_KEY
from .stdio import PATIENCE_S, TERMINATION_S, Line

CONNECT_S = 30.0
TOLD_S = 5.0
"""How long a server may take to accept a message that has no answer. The client's later frames wait for that."""
RETRY_MS, MAX_RETRY_MS = 1_000, 60_000
ATTEMPTS = 3
"""How often in a row a broken stream is taken up again without a word from the server."""

SESSION, VERSION = "mcp-session-id", "mcp-protocol-version"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The requests whose subject stands in a header too (2026-07-28)."""

_LOG = logging.getLogger("hitl_guard.mcp_proxy")


class Remote:
    """A server behind a URL.

    Args:
        authorization: The Authorization header, or None.

    Raises:
        ConfigurationError: no HTTP package is installed, or a credential would travel in the clear.
    """

    def __init__(self, url: str, authorization: str | None = None) -> None:
        self._http = _http()
        parts = urlsplit(url)
        if authorization and parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise ConfigurationError("A server that gets an Authorization header needs an https address.")
        self._url = url
        self._client = self._http.AsyncClient(
            timeout=self._http.Timeout(None, connect=CONNECT_S), follow_redirects=False,
            headers={"authorization": authorization} if authorization else {},
        )
        self._lines: asyncio.Queue[Line] = asyncio.Queue(64)
        self._session: dict[str, str] = {}
        self._posts: dict[Key, asyncio.Task[None]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    # -- to the server -------------------------------------------------------------------------------------------

    async def send(self, frame: Frame) -> None:
        """See `relay.Upstream.send`. A request's answer comes among `lines`, whatever happens to it."""
        if frame.kind == "request":
            if frame.method == "initialize":
                self._session.clear()
            task = asyncio.create_task(self._request(frame))
            self._posts[frame.key] = task
            task.add_done_callback(lambda _: self._posts.pop(frame.key, None))
            return
        cancelled = frame.params.get("requestId")
        if frame.method == "notifications/cancelled" and VERSION not in self._session and frames.is_id(cancelled):
            # Without a handshake the end of the request's own stream is what cancels it (2026-07-28).
            if (post := self._posts.get(frames.key_of(cancelled))) is not None:
                post.cancel()
            return
        try:
            async with asyncio.timeout(TOLD_S), self._client.stream(
                "POST", self._url, content=frame.line, headers=self._headers(frame)
            ) as response:  # there is nothing to read: such messages have no answer
                if response.status_code >= 400:
                    _LOG.warning("The server refused a message with HTTP status %d.", response.status_code)
        except (self._http.HTTPError, TimeoutError) as error:
            _LOG.warning("A message did not reach the server (%s).", type(error).__name__)
        if frame.method == "notifications/initialized" and self._listening is None:
            self._listening = asyncio.create_task(self._listen())

    def _headers(self, frame: Frame | None = None, last: str = "") -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream"} | self._session
        if last:
            headers["last-event-id"] = last
        if frame is None:
            return headers | {"accept": "text/event-stream"}
        headers["content-type"] = "application/json"
        version = frame.meta.get(VERSION_KEY)
        if isinstance(version, str):
            headers |= {VERSION: _header(version), "mcp-method": _header(frame.method)}
            subject = frame.params.get(NAMED.get(frame.method, ""))
            headers |= {"mcp-name": _header(subject)} if isinstance(subject, str) else {}
        return headers

    async def _request(self, frame: Frame) -> None:
        """Post a request, and see to it that it is answered."""
        why = "The server's stream ended without an answer."
        try:
            if await self._answered(frame):
                return
        except asyncio.CancelledError:
            why = "The request was cancelled."
        except self._http.HTTPError as error:
            why = f"The server cannot be reached, or the connection broke ({type(error).__name__})."
        except _Refused as refused:
            why = str(refused)
        await self._lines.put(frames.error(frame.id, frames.UNAVAILABLE, f"{why} Whether it had an effect is unknown."))

    async def _answered(self, frame: Frame) -> bool:
        async with self._client.stream(
            "POST", self._url, content=frame.line, headers=self._headers(frame)
        ) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status_code == 200 and frame.method == "initialize" and SESSION in response.headers:
                self._session[SESSION] = response.headers[SESSION]
            if response.status_code == 200 and kind == "text/event-stream":
                events = Events(SERVER_LIMITS.max_bytes)
                if await self._streamed(response, events, frame):
                    return True
            elif kind == "application/json":
                return await self._single(await _body(response), frame, response.status_code)
            else:
                raise _Refused(f"The server answered with HTTP status {response.status_code}.")
        return await self._resumed(frame, events)

    async def _single(self, body: bytes, frame: Frame, status: int) -> bool:
        """Pass on a JSON answer. An error that was refused before its id was read gets the request's."""
        line = _one_line(body)
        answer = frames.read(line, SERVER_LIMITS)
        if isinstance(answer, Fault) and status >= 400:  # an error of HTTP's, of a login, say
            raise _Refused(f"The server answered with HTTP status {status}.")
        if isinstance(answer, Frame) and answer.kind == "response" and answer.data["id"] is None:
            told = answer.data["error"] if isinstance(answer.data.get("error"), dict) else {}
            code, message = told.get("code"), told.get("message")
            line = frames.error(
                frame.id, code if type(code) is int else frames.UNAVAILABLE,
                message if isinstance(message, str) else "The server refused the request.",
            )
        return await self._passed(line, frame)

    async def _passed(self, line: bytes, frame: Frame | None) -> bool:
        """Pass on a line; return whether it answers the request."""
        answer = frames.read(line, SERVER_LIMITS)
        await self._lines.put(line)
        if frame is None or isinstance(answer, Fault) or answer.kind != "response" or answer.data["id"] is None:
            return False
        if answer.key == frame.key and frame.method == "initialize":
            version = answer.result.get("protocolVersion")
            self._session |= {VERSION: _header(version)} if isinstance(version, str) else {}
        return answer.key == frame.key

    # -- streams -------------------------------------------------------------------------------------------------

    async def _streamed(self, response: Any, events: Events, frame: Frame | None) -> bool:
        """Pass on a stream's messages; return whether the request was answered."""
        async for chunk in response.aiter_bytes():
            for data in events.feed(chunk):
                if data is None:
                    await self._lines.put(None if frame is None else frames.error(
                        frame.id, frames.UNAVAILABLE, "The server's answer is too large."))
                    return True
                if await self._passed(_one_line(data), frame):
                    return True
        return False

    async def _resumed(self, frame: Frame | None, events: Events) -> bool:
        """Take up a broken stream where it ended, as long as the server goes on with it."""
        attempts = 0
        while attempts < ATTEMPTS and (frame is None or events.last_id):
            if frame is not None or attempts or events.count:
                wait_ms = RETRY_MS if events.retry_ms is None else events.retry_ms
                await asyncio.sleep(min(wait_ms, MAX_RETRY_MS) / 1000)
            attempts += 1
            with suppress(self._http.HTTPError):
                async with self._client.stream(
                    "GET", self._url, headers=self._headers(last=events.last_id)
                ) as response:
                    if response.status_code != 200:
                        return False
                    events.restart()
                    before = events.count
                    if await self._streamed(response, events, frame):
                        return True
                    attempts = attempts if events.count == before else 0
        return False

    async def _listen(self) -> None:
        """Take the server's own messages, where it has a stream for them."""
        await self._resumed(None, Events(SERVER_LIMITS.max_bytes))

    # -- from the server -----------------------------------------------------------------------------------------

    async def lines(self) -> AsyncIterator[Line]:
        """Yield the server's lines, until the proxy ends and nothing is open any more."""
        while (line := await self._lines.get()) != b"":
            yield line

    def close(self) -> None:
        """End `lines` once all open requests are answered."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        while self._posts:
            await asyncio.wait(list(self._posts.values()))
        await self._lines.put(b"")

    async def stop(self, *, patience_s: float = PATIENCE_S) -> int:
        """Break off what is open, end the session, and return 0."""
        for task in (*self._posts.values(), *([self._listening] if self._listening else [])):
            task.cancel()
        self.close()
        with suppress(self._http.HTTPError, TimeoutError):
            async with asyncio.timeout(TERMINATION_S):
                if SESSION in self._session:
                    await self._client.delete(self._url, headers=self._headers())
        await self._client.aclose()
        return 0


class _Refused(Exception):  # noqa: N818  a signal inside this module
    """The server's HTTP answer holds no frame."""


async def _body(response: Any) -> bytes:
    """Return a response's body, of at most a frame's size."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > SERVER_LIMITS.max_bytes:
            raise _Refused("The server's answer is too large.")
    return bytes(body)


def _one_line(body: bytes) -> bytes:
    """Return JSON without line ends: they stand between its tokens only, where a space says the same."""
    return body.replace(b"\r\n", b" ").replace(b"\n", b" ").replace(b"\r", b" ").strip()


def _header(value: str) -> str:
    """Return a header's value; what HTTP cannot carry goes as base64 (2026-07-28)."""
    plain = value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?")
    return value if plain else f"=?base64?{b64encode(value.encode()).decode()}?="


def _http() -> Any:
    for name in ("httpx2", "httpx"):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise ConfigurationError(
        "A server behind a URL needs an HTTP client: install hitl-guard[mcp-proxy].", detail="extra"
    )
