"""Anything at all as input ends in a proper answer or in one of our errors, and leaves nothing half-written."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import date
from decimal import Decimal
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hitl_guard.canonical import canonicalize
from hitl_guard.errors import ApprovalRequired, ConfigurationError, DecisionError, HitlGuardError
from hitl_guard.guard import Guard
from hitl_guard.keyring import Keyring
from hitl_guard.lifecycle import ledger
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import ApprovalRequest, Decision, Permit, Principal, ToolCall, ToolDefinition
from hitl_guard.policy.core import Verdict
from hitl_guard.store.sql import SQLStore
from tests.support import BOB, OPERATOR, World, document, ring

POLICY = """\
version: 1
name: bad-input
default: not_applicable
rules:
  - id: ask
    tools: [refund, mail]
    effect: require_approval
    edit: true
  - id: let
    tools: [ping]
    effect: allow
  - id: never
    tools: [drop]
    effect: deny
  - id: limit
    tools: [refund]
    when: args.amount > 100
    effect: require_approval
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One guard for the whole file: whatever an input left behind must not disturb the next one."""
    store = SQLStore(f"sqlite:///{tmp_path_factory.mktemp('bad-input') / 'approvals.db'}")
    store.setup()
    many = Settings(max_open_per_run=100_000, max_open_per_requester=100_000, max_open_per_approver=100_000)
    yield World(store, policy=document(POLICY), settings=many)
    store.close()


@pytest.fixture(autouse=True)
def nothing_is_half_written(world: World) -> Iterator[None]:
    """After each test everything in the store verifies, and an ordinary call still works."""
    yield
    assert ledger.verify(world.guard._desk).findings == ()
    ran = len(world.effects)
    call, _ = world.grant()
    assert world.run(call) == "done"
    assert len(world.effects) == ran + 1


def ours(action: Callable[[], Any]) -> Any:
    """Return what ``action`` returns or raises, if that is one of ours. Anything else fails the test by itself."""
    try:
        return action()
    except HitlGuardError as caught:
        error = caught
    assert error.code
    assert 10 < len(str(error)) < 5_000
    return error


def unharmed(world: World, action: Callable[[], Any], *proper: type) -> Any:
    """Demand one of our errors or a proper result, and that no tool ran."""
    ran = len(world.effects)
    answer = ours(action)
    assert isinstance(answer, (HitlGuardError, *proper))
    assert len(world.effects) == ran
    return answer


# -- what can come in ------------------------------------------------------------------------------------------------

SURROGATES = st.text(alphabet=st.characters(), max_size=20)
"""Any string that Python can hold: lone surrogates, NUL and everything else."""

STRINGS = SURROGATES | st.sampled_from(
    ["", " ", "\0", "\ud800", "a" * 513, "\u00e4" * 300, "x" * 2_000, "../x", "' OR 1=1 --", "control:", "default",
     "hitl-guard-selftest", "hitl_guard_canary", "refund", "\u202eabc", "{}", "null", "__class__"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | SURROGATES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SURROGATES, inner, max_size=4), max_leaves=12,
)
OBJECTS = st.dictionaries(SURROGATES, JSON, max_size=5)


class Colour(IntEnum):
    RED = 1


class Text(str):
    pass


class Odd(Mapping[str, Any]):
    """A mapping that breaks every promise."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[str]:
        yield "a"

    def __len__(self) -> int:
        return -5


def circular() -> dict[str, Any]:
    inside: dict[str, Any] = {}
    inside["x"] = inside
    return inside


def circular_list() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


def shared() -> dict[str, Any]:
    """Return a value that is small in memory and 2^60 nodes when written out."""
    value: dict[str, Any] = {}
    for _ in range(60):
        value = {"x": value, "y": value}
    return value


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


ODDITIES: list[Any] = [
    object(), object, print, b"\xff", bytearray(b"{}"), memoryview(b"{}"), {1, 2}, frozenset(), (1, 2), range(3), 1j,
    Decimal("1.0"), date(2026, 1, 1), UUID(int=0), Colour.RED, Text("a"), {1: 2}, {None: 1}, {"a": {2: 3}},
    {Text("a"): 1},
    OrderedDict(a=1), MappingProxyType({"a": 1}), {"a": (1,)}, [{"a": {1}}], deep(100),
    float("nan"), float("inf"), {"a": float("-inf")}, 2**53 + 1, -(10**400), {"a": 2.0**60}, {"x" * 2_000: 1},
    iter(()), map(str, ()), ..., NotImplemented, Exception("x"), BOB, ToolCall,
]
ANYTHING = (
    JSON | st.sampled_from(ODDITIES) | st.binary(max_size=30) | st.sampled_from(ODDITIES).map(lambda one: {"x": one})
)

HUGE: dict[str, Callable[[], Any]] = {
    "circular": circular, "circular list": lambda: {"x": circular_list()}, "very deep": lambda: deep(100_000),
    "shared": shared, "many digits": lambda: {"x": 10**5000}, "long": lambda: {"x": "x" * 2_000_000},
    "many members": lambda: {str(number): number for number in range(60_000)},
    "many items": lambda: {"x": [[]] * 60_000}, "breaks every promise": Odd,
}
"""What takes too long to print, or cannot be."""

PIECES = st.sampled_from([
    "{", "}", "[", "]", ":", ",", '"', '"a"', '"\\u0061"', '"\\ud800"', "1", "-0", "1e5", "1e999", "NaN", "Infinity",
    "null", "true", "tru", " ", "\n", "\ufeff", "\x00", "//", "'", "9" * 50, '"amount"', "\u00e9", "\\",
])
JSON_TEXT = JSON.map(json.dumps) | st.lists(PIECES, max_size=25).map("".join) | SURROGATES
RAW = JSON_TEXT | JSON_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=60)


# -- arguments -------------------------------------------------------------------------------------------------------


@given(RAW, st.sampled_from(["refund", "ping", "drop", "other"]))
@example('{"a":1,"a":2}', "refund")
@example('{"a":' * 50_000, "refund")
@example("[" * 1_000_000, "refund")
@example('{"a":' + "9" * 5_000 + "}", "ping")
@example('{"a":"' + "x" * 2_000_000 + '"}', "refund")
@example(b"\xef\xbb\xbf{}", "refund")
@example("{}\n{}", "refund")
def test_any_json_text_as_arguments(world: World, arguments: str | bytes, tool: str) -> None:
    call = world.call(tool, arguments)

    unharmed(world, lambda: world.guard.evaluate(call), Verdict)
    unharmed(world, lambda: world.guard.request(call), ApprovalRequest)
    unharmed(world, lambda: world.guard.authorize(call), Permit)


@given(ANYTHING, st.sampled_from(["refund", "ping", "drop", "other"]))
def test_any_python_value_as_arguments(world: World, arguments: Any, tool: str) -> None:
    # `World.call` puts arguments in the place of None.
    call = ToolCall(tool, arguments, run_id="any", call_id=world.call().call_id, user="ana")

    answer = unharmed(world, lambda: world.guard.request(call), ApprovalRequest)
    unharmed(world, lambda: world.guard.authorize(call), Permit)

    if isinstance(answer, ApprovalRequest):
        assert answer.canonical == canonicalize(answer.arguments)


@pytest.mark.parametrize("make", HUGE.values(), ids=HUGE)
@pytest.mark.parametrize("tool", ["refund", "ping"])
def test_what_cannot_be_written_out_is_refused_as_arguments(
    world: World, make: Callable[[], Any], tool: str
) -> None:
    for arguments in (make(), {"a": [make()]}):
        call = world.call(tool, arguments)
        assert unharmed(world, partial(world.guard.authorize, call)).code in ("too-large", "unsupported-value")


PLAIN = {name: make for name, make in HUGE.items() if name != "breaks every promise"}


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_what_cannot_be_written_out_is_refused_everywhere_else(world: World, make: Callable[[], Any]) -> None:
    request = world.guard.request(world.call())
    definition = ToolDefinition("refund", "x", {"type": "object", "properties": make()})
    actions: list[Callable[[], Any]] = [
        lambda: world.guard.authorize(world.call(context=make())),
        lambda: world.guard.authorize(world.call(definition=definition)),
        lambda: world.approve(request, arguments=make()),
        lambda: world.deny(request, respond=make()),
    ]

    for action in actions:
        assert unharmed(world, action).code in ("too-large", "unsupported-value")

    assert world.guard.get(request.id).state == "pending"


@pytest.mark.parametrize("make", HUGE.values(), ids=HUGE)
def test_a_call_that_can_never_run_does_not_stop_the_next_one_of_its_turn(
    world: World, make: Callable[[], Any]
) -> None:
    earlier = world.call("refund", make())

    assert isinstance(unharmed(world, partial(world.guard.authorize, earlier)), HitlGuardError)
    answer = unharmed(world, partial(world.guard.authorize, world.call(turn=(earlier,))))

    assert isinstance(answer, ApprovalRequired)


@given(OBJECTS)
def test_any_object_that_was_taken_reaches_the_tool_as_it_was_shown(world: World, arguments: dict[str, Any]) -> None:
    call = ToolCall("mail", arguments, run_id="any", call_id=world.call().call_id, user="ana")
    request = ours(lambda: world.guard.request(call))
    if isinstance(request, HitlGuardError):
        return

    world.approve(request)
    permit = world.guard.authorize(call)

    assert (permit.canonical, permit.arguments) == (request.canonical, request.arguments)
    assert permit.arguments == arguments


@given(ANYTHING, ANYTHING)
def test_any_value_as_context_turn_or_schema(world: World, value: Any, other: Any) -> None:
    cases: list[dict[str, Any]] = [
        {"context": value}, {"turn": value}, {"turn": (world.call("refund", value),)}, {"turn": [value]},
        {"definition": ToolDefinition("refund", "x", {"type": "object", "properties": {"order": value}})},
        {"definition": ToolDefinition("refund", "x", {"$ref": "#/nowhere", "x": other})},
        {"definition": ToolDefinition("refund", None, {"pattern": "(", "type": other})},
        {"occurrence": value}, {"context": {"a": value, "b": other}},
    ]
    for changes in cases:
        unharmed(world, partial(world.guard.authorize, world.call("refund", **changes)), Permit)


# -- tokens and ids --------------------------------------------------------------------------------------------------

IDS = STRINGS | st.binary(max_size=40) | st.sampled_from(ODDITIES[:12])


@given(STRINGS | RAW | st.sampled_from(ODDITIES[:12]))
def test_anything_as_a_token(world: World, token: Any) -> None:
    call = world.call()

    answer = unharmed(world, lambda: world.guard.authorize(call, token=token))

    assert not isinstance(answer, ApprovalRequired)


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_token_with_any_bytes_exchanged(world: World, changes: list[tuple[int, int]]) -> None:
    call, request = world.grant()
    token = bytearray(request.token.encode())
    for place, value in changes:
        token[place % len(token)] = value

    answer = ours(lambda: world.guard.authorize(call, token=bytes(token)))

    assert isinstance(answer, Permit if bytes(token) == request.token.encode() else HitlGuardError)


@given(JSON)
def test_a_token_with_any_payload(world: World, payload: Any) -> None:
    _, request = world.grant()
    mac = request.token.partition(".")[2]
    signer = world.guard._desk.signer
    texts: list[Any] = [json.dumps(payload).encode()]
    answer = ours(lambda: canonicalize(payload))
    if isinstance(answer, bytes):
        texts.append(signer.seal("request", signer.keyring.keys[0], answer))
    for text in [*texts, *(text + mac.encode() for text in texts)]:
        unharmed(world, partial(world.guard.authorize, world.call(), token=text))


@given(IDS, STRINGS)
def test_anything_as_a_request_id(world: World, request_id: Any, tenant: str) -> None:
    call = world.call()
    by = Principal("olga", roles=("operator",))

    for action in (
        lambda: world.guard.authorize(call, request_id=request_id),
        lambda: world.guard.get(request_id, tenant=tenant),
        lambda: world.guard.decide(request_id, approver=BOB, approve=True, fingerprint="0" * 64),
        lambda: world.guard.revoke(request_id, by=by),
        lambda: world.guard.resolve(request_id, "failed", by=by, reason="x"),
    ):
        answer = unharmed(world, action, Permit) if request_id is None else unharmed(world, action)
        assert request_id is None or not isinstance(answer, ApprovalRequired)


@given(STRINGS, st.integers(-(10**20), 10**20), STRINGS, STRINGS)
def test_anything_as_a_page_of_the_list(world: World, after: str, limit: int, tenant: str, run_id: str) -> None:
    filters: list[dict[str, Any]] = [
        {"after": after}, {"limit": limit}, {"tenant": tenant, "run_id": run_id}, {"states": (after, tenant)},
    ]
    for options in filters:
        answer = ours(partial(world.guard.pending, **options))
        assert isinstance(answer, HitlGuardError) or len(answer.requests) <= 500


# -- scope and people ------------------------------------------------------------------------------------------------

SCOPE = ("tool", "user", "run_id", "call_id", "tenant", "agent")


@given(st.dictionaries(st.sampled_from(SCOPE), STRINGS, min_size=1), st.integers(-5, 2**70))
def test_any_string_as_a_scope_field(world: World, scope: dict[str, str], occurrence: int) -> None:
    given_: dict[str, Any] = {"tool": "refund", "user": "ana", "run_id": "run-1", "call_id": world.call().call_id}
    given_ |= scope
    tool = given_.pop("tool")
    call = ToolCall(tool, {"amount": 1}, occurrence=occurrence, **given_)

    answer = unharmed(world, lambda: world.guard.request(call), ApprovalRequest)
    unharmed(world, lambda: world.guard.authorize(call), Permit)

    if isinstance(answer, ApprovalRequest):
        shown = (answer.tool, answer.user, answer.run_id, answer.call_id, answer.tenant, answer.occurrence)
        assert shown == (call.tool, call.user, call.run_id, call.call_id, call.tenant, call.occurrence)
        assert world.guard.get(answer.id, tenant=call.tenant) == answer


@given(st.sampled_from([*SCOPE, "occurrence"]), ANYTHING)
def test_any_value_as_a_scope_field(world: World, name: str, value: Any) -> None:
    given_: dict[str, Any] = {"tool": "refund", "user": "ana", "run_id": "run-1", "call_id": world.call().call_id}
    given_[name] = value
    tool = given_.pop("tool")
    call = ToolCall(tool, {"amount": 1}, **given_)

    unharmed(world, lambda: world.guard.request(call), ApprovalRequest)
    unharmed(world, lambda: world.guard.authorize(call), Permit)


@given(STRINGS, STRINGS, st.lists(STRINGS, max_size=3), st.lists(STRINGS, max_size=3), st.none() | STRINGS)
def test_any_strings_as_a_person(
    world: World, name: str, tenant: str, roles: list[str], aliases: list[str], owner: str | None
) -> None:
    def person(**more: Any) -> Principal:
        return Principal(name, roles=tuple(roles), aliases=tuple(aliases), owner=owner, **more)

    stranger, approver = ours(lambda: person(tenant=tenant)), ours(person)
    request = world.guard.request(world.call())

    if isinstance(stranger, Principal):
        unharmed(world, lambda: world.approve(request, stranger), Decision)
    if isinstance(approver, Principal):
        answer = unharmed(world, lambda: world.approve(request, approver), Decision)
        shown = world.guard.get(request.id)
        assert (shown.state, len(shown.votes)) == (("approved", 1) if isinstance(answer, Decision) else ("pending", 0))
        call = ours(lambda: world.guard.request(world.call(user=approver, agent=approver)))
        assert isinstance(call, (ApprovalRequest, HitlGuardError))


DECISION = st.fixed_dictionaries(
    {},
    optional={
        "approver": st.sampled_from([BOB, OPERATOR, Principal("\u2003"), Principal("ana"), "bob", None]) | ANYTHING,
        "approve": st.booleans() | ANYTHING, "fingerprint": STRINGS | ANYTHING, "reason": STRINGS | ANYTHING,
        "arguments": RAW | ANYTHING, "respond": ANYTHING, "channel": STRINGS | ANYTHING,
        "credential": STRINGS | ANYTHING, "execute_within": st.integers() | ANYTHING,
    },
)


@given(DECISION)
@example({"approve": False, "respond": "x" * 400_000})
@example({"reason": "x" * 5_000})
@example({"arguments": ""})
@example({"channel": "x" * 400_000})
def test_anything_as_a_decision(world: World, given_: dict[str, Any]) -> None:
    request = world.guard.request(world.call())
    decision: dict[str, Any] = {"approver": BOB, "approve": True, "fingerprint": request.fingerprint} | given_

    answer = unharmed(world, lambda: world.guard.decide(request.id, **decision), Decision)

    now = world.guard.get(request.id)
    if isinstance(answer, Decision):
        decided = world.guard.get(answer.request_id)
        assert decided.votes[-1].nonce == answer.nonce
        # A window of a millisecond may be over by now.
        assert decided.state in ({answer.state, "expired"} if "execute_within" in given_ else {answer.state})
    else:
        assert isinstance(answer, DecisionError)
        assert (now.state, now.votes) == ("pending", ())


@given(st.sampled_from(["tool", "agent"]), STRINGS | ANYTHING, STRINGS | ANYTHING)
def test_anything_as_a_pause(world: World, kind: str, name: Any, reason: Any) -> None:
    pausing: dict[str, Any] = {"by": OPERATOR, kind: name, "reason": reason}

    ours(lambda: world.guard.pause(**pausing))
    ours(lambda: world.guard.resume(**pausing))
    world.guard.resume(by=OPERATOR)

    assert world.guard._desk.read("default").control.pauses == frozenset()


@given(STRINGS | ANYTHING, STRINGS | ANYTHING)
def test_anything_as_an_outcome(world: World, outcome: Any, detail: Any) -> None:
    call, request = world.grant()
    permit = world.guard.authorize(call)

    answer = ours(lambda: world.guard.settle(permit, outcome, detail))

    assert world.state(request) == (outcome if answer is None else "executing")


# -- messages of a model ---------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["refund", "ping", "drop", "mail", "__class__", "Refund", "", "refund\0"])
FUNCTIONS = st.fixed_dictionaries({}, optional={"name": NAMES | ANYTHING, "arguments": RAW | ANYTHING})
CALLS = st.fixed_dictionaries(
    {}, optional={"id": STRINGS | ANYTHING, "type": STRINGS, "function": FUNCTIONS | ANYTHING}
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool", "system"]) | ANYTHING, "content": ANYTHING,
        "tool_calls": st.lists(CALLS | ANYTHING, max_size=4) | ANYTHING, "tool_call_id": STRINGS | ANYTHING,
        "approved": st.booleans(),
    },
)
TURN = st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": st.lists(CALLS, min_size=1, max_size=4)})


@given(
    st.lists(MESSAGES | TURN | ANYTHING, max_size=4) | ANYTHING, st.lists(TURN, max_size=2),
    st.sampled_from(["raise", "result"]),
)
@example(None, [], "raise")
@example([1], [], "raise")
@example([], [{"role": "assistant", "tool_calls": [{"id": "", "function": {"name": "refund"}}]}], "raise")
@example([], [{"role": "assistant", "tool_calls": [{"id": ["x"], "function": {"name": "refund"}}]}], "result")
def test_any_messages_of_a_model(world: World, before: Any, turns: list[dict[str, Any]], pause: str) -> None:
    messages = [*before, *turns] if isinstance(before, list) else before
    tools = {"refund": world.tool, "drop": world.tool, "mail": world.tool}

    answer = unharmed(
        world, lambda: world.guard.run_tool_calls(messages, tools, user="ana", run_id="any", pause=pause), list
    )

    made = answer.messages if isinstance(answer, ApprovalRequired) else answer
    if not isinstance(made, HitlGuardError):
        for message in made:
            assert {name: type(value) for name, value in message.items()} == {
                "role": str, "content": str, "tool_call_id": str,
            }


@given(st.lists(st.builds(lambda call, id_: {**call, "id": id_}, CALLS, SURROGATES), max_size=5))
def test_every_call_of_a_turn_is_answered_once_or_waits(world: World, calls: list[dict[str, Any]]) -> None:
    messages = [{"role": "assistant", "tool_calls": calls}]
    run_id = world.call().call_id or ""

    answer = unharmed(
        world, lambda: world.guard.run_tool_calls(messages, {"refund": world.tool}, user="ana", run_id=run_id), list
    )

    waiting = len(answer.requests) if isinstance(answer, ApprovalRequired) else 0
    told = list(answer.messages) if isinstance(answer, ApprovalRequired) else answer
    assert len(told) + waiting == len(calls)
    if not waiting:
        assert world.guard.run_tool_calls([*messages, *told], {"refund": world.tool}, user="ana", run_id=run_id) == []


# -- set-up ----------------------------------------------------------------------------------------------------------

RING = ring().dump().reveal().decode()
POLICY_FILE = str(Path(__file__).resolve().parents[2] / "policies" / "deny-all.yaml")
VARIABLES = st.fixed_dictionaries(
    {},
    optional={
        "HITL_GUARD_KEYS": STRINGS | JSON_TEXT | st.just(RING),
        "HITL_GUARD_KEYS_FILE": SURROGATES | st.sampled_from(["", "/", ".", "/dev/null", "/nowhere/keys.json", "\0"]),
        "HITL_GUARD_POLICY": SURROGATES | st.sampled_from(
            ["", "/", ".", "/dev/null", "/nowhere.yaml", "\0", "a" * 2_000, POLICY_FILE]
        ),
        "HITL_GUARD_STORE": STRINGS | st.sampled_from([
            "sqlite://", "sqlite:///:memory:", "sqlite:////nowhere/x.db", "oracle://x", "mysql://", "://", "sqlite:",
            "postgresql://nobody:secret@127.0.0.1:1/x", "postgresql://[", "mariadb://127.0.0.1:x/y",
        ]),
    },
)


@given(VARIABLES)
def test_any_environment_makes_a_guard_or_says_what_to_do(environ: dict[str, str]) -> None:
    answer = ours(lambda: Guard.from_env(environ))

    assert isinstance(answer, HitlGuardError)
    assert "secret@" not in str(answer)


@given(VARIABLES.map(lambda found: {name: found[name] for name in found if "KEYS" in name}))
def test_any_environment_is_a_key_ring_or_says_what_to_do(environ: dict[str, str]) -> None:
    answer = ours(lambda: Keyring.from_env(environ))

    if isinstance(answer, Keyring):
        assert environ["HITL_GUARD_KEYS"] == RING
    else:
        assert isinstance(answer, ConfigurationError)


@given(ANYTHING)
def test_anything_as_a_policy(world: World, thing: Any) -> None:
    answer = ours(lambda: Guard(policy=thing, keyring=world.keyring, store=world.store))

    assert isinstance(answer, (Guard, HitlGuardError))


@given(st.dictionaries(st.sampled_from([field.name for field in fields(ToolCall)]) | STRINGS, ANYTHING, max_size=4))
def test_anything_as_the_context_of_decorated_tools(world: World, given_: dict[str, Any]) -> None:
    wrapped = world.guard.wrap(lambda name, args, context: world.tool(**args))

    answer = ours(lambda: wrapped("refund", {"amount": 1}, {"user": "ana", "run_id": "any", **given_}))

    assert isinstance(answer, HitlGuardError)
