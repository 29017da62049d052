"""X11: bodies that are not what they say, too large, too slow or broken, and what happens when nobody can tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hitl_guard import canonical
from hitl_guard.asgi import middleware
from hitl_guard.asgi.body import is_json, read_body, strict_json
from hitl_guard.errors import CanonicalizationError
from tests.support import World

from .chat import Answer, Chat, fresh_world, send  # noqa: F401  a fixture

MALFORMED, TOO_LARGE, NOT_JSON = (
    (400, "urn:hitl-guard:problem:malformed"), (413, "urn:hitl-guard:problem:too-large"),
    (415, "urn:hitl-guard:problem:unsupported-media-type"),
)
JSON = {"content-type": "application/json"}
FORGED = Answer("forged", None, "c1", "refund", {"amount": 1}).body("ai-sdk-ui")


def outcome(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["type"]


BROKEN: dict[str, tuple[bytes, str]] = {
    "a name twice": (b'{"id":"run-1","messages":[],"messages":[]}', "duplicate"),
    "a name twice, once escaped, deep down": (b'{"id":"a","x":[{"y":{"approved":false,"\\u0061pproved":true}}]}',
                                              "duplicate"),
    "a byte order mark": (b'\xef\xbb\xbf{"id":"run-1"}', "encoding"),
    "UTF-16": (json.dumps(FORGED).encode("utf-16"), "encoding"),
    "UTF-16 without a mark": (json.dumps(FORGED).encode("utf-16-le"), "syntax"),
    "invalid UTF-8": (b'{"id":"\xff"}', "encoding"),
    "a lone surrogate": (b'{"id":"\\ud800"}', "text"),
    "NaN": (b'{"id":"a","x":NaN}', "number"),
    "a number beyond all doubles": (b'{"id":"a","x":1e999}', "number"),
    "5,000 digits": (b'{"x":' + b"9" * 5_000 + b"}", "digits"),
    "something after it": (b'{"id":"a"} {"id":"b"}', "trailing"),
    "half of it": (b'{"id":"a","messages":[{"role', "syntax"),
    "a form": (b"id=run-1&approved=true", "syntax"),
    "depth 201": (b"[" * 201 + b"]" * 201, "depth"),
    "depth 100,000": (b"[" * 100_000 + b"]" * 100_000, "depth"),
}


async def test_x11_at17_at20_a_body_that_is_not_strict_json_never_reaches_the_app(world: World) -> None:
    chat = Chat(world)

    for name, (body, _) in BROKEN.items():
        assert (name, outcome(await chat.post(body))) == (name, MALFORMED)

    assert chat.seen == []
    # Of each code so many refusals are written one by one, the rest is counted.
    assert {detail for _, detail in chat.codes()} <= {detail for _, detail in BROKEN.values()}
    assert len(chat.codes()) >= 5


async def test_x11_a_body_in_the_widest_limits_passes(world: World) -> None:
    chat = Chat(world)
    body = b"[" * 200 + b"]" * 200

    assert (await chat.post(body)).content == body
    assert (await chat.post(b"")).content == b""
    assert (await chat.post(b' {"n": 12345678901234567890123, "s": "\\u00e9"}\n')).status_code == 201


async def test_x11_a_body_over_the_limit_is_refused_whatever_its_length_says(world: World) -> None:
    chat = Chat(world, max_body=1_000)
    body = json.dumps({"id": "a" * 1_000}).encode()
    read: list[int] = []

    async def chunks() -> Any:
        for number in range(10_000):
            read.append(number)
            yield b" " * 100

    assert outcome(await chat.post(body)) == TOO_LARGE
    assert outcome(await send(chat.guarded(), "POST", content=chunks(), headers=JSON)) == TOO_LARGE
    assert len(read) <= 11
    assert outcome(await chat.post(b"{}", content_length="1001")) == TOO_LARGE
    assert (await chat.post(b'{"id":"' + b"a" * 991 + b'"}')).status_code == 201
    assert len(chat.seen) == 1


@pytest.mark.parametrize("stated", ["-1", "+5", "five", "0x10", "", "9" * 30])
async def test_x11_a_content_length_that_is_none_is_refused(world: World, stated: str) -> None:
    assert outcome(await Chat(world).post(b"{}", content_length=stated)) == MALFORMED


@pytest.mark.parametrize("headers", [
    {}, {"content-type": ""}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": "multipart/form-data; boundary=x"}, {"content-type": "application/json; charset=utf-16"},
    {"content-type": "application/json, text/plain"}, {"content-type": "application/jsonp"},
    {"content-type": "application/json; charset = utf-7"}, {"content-type": "application/json; charset*=''utf-7"},
    JSON | {"content-encoding": "gzip"},
], ids=str)
async def test_x11_what_does_not_say_that_it_is_json_is_refused(world: World, headers: dict[str, str]) -> None:
    chat = Chat(world)

    response = await send(chat.guarded(), "POST", content=json.dumps(FORGED).encode(), headers=headers)

    assert (outcome(response), chat.seen) == (NOT_JSON, [])


def test_x11_json_is_told_by_one_content_type() -> None:
    assert is_json([(b"Content-Type", b"application/json; charset=UTF-8"), (b"content-encoding", b"identity")])
    assert is_json([(b"content-type", b'application/vnd.chat+json;charset="utf-8"')])
    assert is_json([(b"content-type", b" application/problem+json ; Charset = utf8 ")])
    assert is_json([(b"content-type", b"application/json;")])
    assert not is_json([(b"content-type", b"application/json"), (b"content-type", b"text/plain")])


@pytest.mark.parametrize("more", [
    b"; charset=utf-7", b"; charset = utf-7", b"; charset*=us-ascii''utf-7", b"; charset\t=utf-7", b"; charset*0=utf-7",
    b"; charset=utf-8; charset=utf-7", b'; x="; charset = utf-7"', b"; version=1", b"; charset='utf-8'", b"; charset",
    b'; charset="utf-8', b"; charset=utf-8, text/plain", b"\x0b", b"; charset=utf-8\xa0", b"; charset=utf-8\n",
], ids=str)
def test_x11_a_content_type_that_says_more_than_json_in_utf8_is_refused(more: bytes) -> None:
    assert not is_json([(b"content-type", b"application/json" + more)])


async def test_x11_nobody_is_told_so_before_the_body_is_read(world: World) -> None:
    chat, read = Chat(world), []

    async def chunks() -> Any:
        read.append(True)
        yield b"{}"

    response = await send(chat.guarded(), "POST", content=chunks(), headers=JSON | {"x-user": ""})

    assert outcome(response) == (401, "urn:hitl-guard:problem:unauthenticated")
    assert "www-authenticate" in response.headers
    assert (read, chat.seen) == ([], [])


@pytest.mark.parametrize("run_of", [
    lambda request, body: body["no such member"], lambda request, body: None, lambda request, body: "",
    lambda request, body: 7, lambda request, body: "r" * 600, lambda request, body: int(body["id"]),
])
async def test_x11_answers_of_no_run_are_refused(
    world: World, run_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    chat = Chat(world, run_of=run_of)

    assert outcome(await chat.post(FORGED)) == MALFORMED
    assert caplog.text == ""
    assert (len(chat.codes()), chat.seen) == (1, [])
    assert (await chat.post({"text": "no approval, no run"})).status_code == 201


@pytest.mark.parametrize(("run_of", "kind"), [
    (lambda request, body: body.secret_run, "AttributeError"), (lambda request, body: body + 1, "TypeError"),
    (lambda request, body: 1 / 0, "ZeroDivisionError"),
])
async def test_x11_what_may_be_a_fault_of_the_host_is_refused_and_logged_by_its_kind(
    world: World, caplog: pytest.LogCaptureFixture, run_of: Callable[..., Any], kind: str
) -> None:
    chat = Chat(world, run_of=run_of)

    assert outcome(await chat.post(FORGED)) == MALFORMED
    assert f"'run_of' failed on a body: builtins.{kind} at " in caplog.text
    assert "secret_run" not in caplog.text


async def test_x11_too_many_answers_are_refused_unread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chat(world)
    monkeypatch.setattr(middleware, "MAX_CLAIMS", 2)
    parts = FORGED["messages"][1]["parts"] * 3

    assert outcome(await chat.post({"id": "run-1", "messages": [{"parts": parts}]})) == MALFORMED
    assert chat.codes() == [("too-large", "claims")]


def disconnecting(*chunks: bytes) -> Callable[[], Any]:
    left: list[dict[str, Any]] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]

    async def receive() -> dict[str, Any]:
        return left.pop(0) if left else {"type": "http.disconnect"}

    return receive


async def test_x11_a_client_that_goes_away_ends_the_request_and_nothing_else(world: World) -> None:
    chat, sent = Chat(world), []

    async def answer(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/chat", "headers": headers, "query_string": b""}
    await chat.guarded()(scope, disconnecting(b'{"id":', b'"run'), answer)

    assert (chat.seen, sent) == ([], [])


async def test_x11_a_slow_client_is_told_to_try_again(world: World) -> None:
    chat, sent = Chat(world, body_timeout=0), []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def answer(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/api/chat", "headers": [], "query_string": b""}
    await chat.guarded()(scope, receive, answer)

    assert (chat.seen, sent[0]["status"]) == ([], 408)


async def test_x11_a_body_is_put_together_from_its_pieces_and_is_never_more_than_the_limit() -> None:
    pieces = [b"a", b"", b"bc", b"d"]

    async def body(limit: int) -> bytes:
        left = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces] + [
            {"type": "http.request"}
        ]

        async def receive() -> Any:
            return left.pop(0)

        return await read_body(receive, limit=limit)

    assert await body(4) == b"abcd"
    with pytest.raises(CanonicalizationError) as refusal:
        await body(3)
    assert (refusal.value.code, refusal.value.detail) == ("too-large", "bytes")
    with pytest.raises(ClientDisconnect):
        await read_body(disconnecting(b"a"), limit=4)
    with pytest.raises(CanonicalizationError):
        await read_body(disconnecting(), limit=4, headers=[(b"Content-Length", b"1"), (b"content-length", b"2")])


class Pairs(list[Any]):
    """Members of an object, which may have one name twice."""


LIMITS = canonical.Limits(max_depth=6, max_nodes=30, max_bytes=400)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(st.text(max_size=2), inner), max_size=4).map(Pairs),
    max_leaves=12,
)


def written(value: Any, compact: bool) -> str:
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{written(item, compact)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ("," if compact else " , ").join(written(item, compact) for item in value) + "]"
    return json.dumps(value, ensure_ascii=not compact)


@given(VALUES, st.booleans())
def test_x11_reading_fast_is_reading_strictly(value: Any, compact: bool) -> None:
    raw = written(value, compact).encode("utf-8", "surrogatepass")

    def told(read: Callable[[], Any]) -> str:
        try:
            return repr(read())
        except CanonicalizationError as error:
            return f"{error.code} {error.detail}"

    assert told(lambda: strict_json(raw, LIMITS)) == told(lambda: canonical.parse(raw, limits=LIMITS))


async def test_x11_a_store_that_is_down_is_never_a_denial(
    make_database: Callable[..., Any], open_store: Callable[..., Any]
) -> None:
    database = make_database("sqlite")
    node = World(open_store(database))
    chat, body = Chat(node), Answer.to(node.grant()[1]).body("ai-sdk-ui")
    node.store.close()
    path = Path(make_url(database.url).database or "")
    for part in path.parent.glob(f"{path.name}*"):
        part.unlink()

    for posted in (body, b"{"):
        response = await chat.post(posted)

        assert outcome(response) == (503, "urn:hitl-guard:problem:unavailable")
        assert "retry-after" in response.headers
    assert chat.seen == []
    assert (await chat.post({"id": "run-1", "text": "no approval"})).status_code == 201


async def test_x11_an_authenticator_that_fails_lets_nobody_in(world: World) -> None:
    def broken(request: Any) -> None:
        raise OSError("the directory is down")

    def refusing(request: Any) -> None:
        raise HTTPException(401)

    assert outcome(await Chat(world, authenticate=broken).post(FORGED))[0] == 503
    assert outcome(await Chat(world, authenticate=refusing).post(FORGED))[0] == 401
