"""Arguments that are not the approved ones, and values that would let two different calls look the same."""

from __future__ import annotations

import asyncio
import enum
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from hitl_guard import canonical
from hitl_guard.aio import AsyncGuard
from hitl_guard.errors import ApprovalRequired, HitlGuardError
from hitl_guard.fingerprint import fingerprint
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import ApprovalRequest, ToolCall, ToolDefinition
from hitl_guard.render import request_text
from hitl_guard.render.flags import flags
from tests.support import BOB, World

MakeWorld = Callable[..., World]
VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors" / "jcs"


def changed(call: ToolCall, arguments: Any, tool: str | None = None) -> ToolCall:
    """Return the same call with other arguments, or of another tool."""
    return ToolCall(
        tool or call.tool, arguments, run_id=call.run_id, call_id=call.call_id, user=call.user, tenant=call.tenant
    )


def grants(request: ApprovalRequest) -> list[dict[str, Any]]:
    """Return the three ways to name a grant: by id, by its signed text, by the call's identity."""
    return [{"request_id": request.id}, {"token": request.token}, {}]


@contextmanager
def answered(world: World, code: str) -> Iterator[None]:
    """Demand that the model is told of one refusal with this code, that it is audited once, and that no tool ran."""
    ran, before = len(world.effects), len(world.audited())
    yield
    assert [event["code"] for event in world.audited()[before:]] == [code]
    assert len(world.effects) == ran


# -- AT-11 to AT-13: changed after the approval ------------------------------------------------------------------------


@pytest.mark.parametrize("amount", [820_000, 8_200, 82_000.5, -82_000, "82000", [82_000]], ids=repr)
def test_at11_a_changed_value_is_refused_and_the_grant_is_not_spent(world: World, amount: Any) -> None:
    call, request = world.grant(world.call(arguments={"order": "A-17", "amount": 82_000}))

    for grant in grants(request):
        with world.refused("args-mismatch"):
            world.run(changed(call, {"order": "A-17", "amount": amount}), **grant)

    assert world.state(request) == "approved"
    assert world.run(call) == "done"
    assert world.effects == [{"order": "A-17", "amount": 82_000}]


@pytest.mark.parametrize(
    "arguments",
    [{"order": "A-17"}, {"order": "A-17", "amount": 82, "note": ""}, {"order": "A-17", "Amount": 82}, {},
     {"order": "A-17", "amount": 82, "deep": {"a": [1, {"b": 3}]}}, {"order": "A-17 ", "amount": 82}],
    ids=repr,
)
def test_at11_arguments_that_differ_anywhere_are_refused(world: World, arguments: dict[str, Any]) -> None:
    approved = {"order": "A-17", "amount": 82} | ({"deep": {"a": [1, {"b": 2}]}} if "deep" in arguments else {})
    call, request = world.grant(world.call(arguments=approved))

    for grant in grants(request):
        with world.refused("args-mismatch"):
            world.run(changed(call, arguments), **grant)

    assert world.state(request) == "approved"


def test_at11_a_changed_value_is_refused_for_deny_and_retry(world: World) -> None:
    call, request = world.grant(world.call(call_id=None, arguments={"amount": 82}))
    other = changed(call, {"amount": 820})

    for grant in ({"request_id": request.id}, {"token": request.token}):
        with world.refused("args-mismatch"):
            world.run(other, **grant)

    assert world.ask(other).id != request.id  # another call: it needs an approval of its own
    assert world.run(call) == "done"


@pytest.mark.parametrize(
    "tool", ["transfer", "Refund", "refund ", "refund\0", "ping", "free", "réfund", "__class__", "constructor"]
)
def test_at12_another_tool_with_the_same_arguments_is_refused(world: World, tool: str) -> None:
    call, request = world.grant()

    for grant in grants(request):
        with world.refused("args-mismatch"):
            world.run(changed(call, call.arguments, tool), **grant)

    assert world.state(request) == "approved"
    assert world.run(call) == "done"


@pytest.fixture
def nested() -> dict[str, Any]:
    return {"lines": [{"sku": "a", "count": 1}], "to": "ana"}


APPROVED = {"lines": [{"sku": "a", "count": 1}], "to": "ana"}


def mutate(arguments: dict[str, Any]) -> None:
    arguments["lines"][0]["count"] = 1_000
    arguments["lines"].append({"sku": "b", "count": 1})


def test_at13_an_object_that_was_changed_while_waiting_is_refused(world: World, nested: dict[str, Any]) -> None:
    call = world.call(arguments=nested)
    request = world.ask(call)
    world.approve(request)

    mutate(nested)

    for grant in grants(request):
        with world.refused("args-mismatch"):
            world.run(call, **grant)
    assert request.arguments == APPROVED
    assert world.run(changed(call, APPROVED)) == "done"
    assert world.effects == [APPROVED]


def test_at13_an_object_that_is_changed_after_the_permit_does_not_reach_the_tool(
    world: World, nested: dict[str, Any]
) -> None:
    call, _ = world.grant(world.call(arguments=nested))

    permit = world.guard.authorize(call)
    mutate(nested)
    mutate(permit.arguments)

    assert permit.arguments == APPROVED


def test_at13_an_object_that_is_changed_while_the_claim_is_written_does_not_reach_the_tool(
    world: World, nested: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, _ = world.grant(world.call(arguments=nested))
    write = world.store.write

    def late(*steps: Any) -> Any:
        if nested == APPROVED:
            mutate(nested)
        return write(*steps)

    monkeypatch.setattr(world.store, "write", late)

    assert world.run(call) == "done"
    assert nested != APPROVED
    assert world.effects == [APPROVED]


def test_at13_a_policy_function_cannot_change_what_runs(world: World) -> None:
    def policy(arguments: dict[str, Any], _info: Any) -> str:
        mutate(arguments)
        return "user-approval"

    node = world.another(policy={"refund": policy})
    call, request = node.grant(node.call(arguments={"lines": [{"sku": "a", "count": 1}], "to": "ana"}))

    assert node.run(call) == "done"
    assert request.arguments == APPROVED
    assert world.effects == [APPROVED]


def test_at13_an_object_that_another_thread_keeps_changing_runs_as_approved_or_not_at_all(world: World) -> None:
    live: dict[str, Any] = {"amount": 82, "lines": [{"count": 1}]}
    stop = threading.Event()

    def tamper() -> None:
        while not stop.is_set():
            live["amount"], live["lines"][0]["count"] = 820_000, 1_000
            live["amount"], live["lines"][0]["count"] = 82, 1

    grants_ = [world.grant(world.call(arguments={"amount": 82, "lines": [{"count": 1}]})) for _ in range(40)]
    thread = threading.Thread(target=tamper, daemon=True)
    thread.start()
    refused = 0
    for call, request in grants_:
        try:
            world.run(changed(call, live), request_id=request.id)
        except HitlGuardError as error:
            refused += error.code == "args-mismatch"
    stop.set()
    thread.join()

    assert len(world.effects) + refused == len(grants_)
    assert all(effect == {"amount": 82, "lines": [{"count": 1}]} for effect in world.effects)


def approve_when_asked(world: World, before: Callable[[], None]) -> threading.Thread:
    """Approve the first request that comes up, after ``before`` was done to the caller's object."""

    def watch() -> None:
        while not (page := world.guard.pending()):
            pass
        before()
        world.approve(page[0])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_at13_an_object_that_changes_under_a_blocking_wait_is_refused(world: World, nested: dict[str, Any]) -> None:
    thread = approve_when_asked(world, lambda: mutate(nested))

    with world.refused("args-mismatch"):
        world.run(world.call(arguments=nested), wait=60)
    thread.join()

    assert world.effects == []


async def test_at13_an_object_that_changes_under_an_awaited_approval_is_refused(
    world: World, nested: dict[str, Any]
) -> None:
    guard = AsyncGuard(guard=world.guard)
    call = world.call(arguments=nested)
    waiting = asyncio.create_task(guard.run(call, world.tool, wait=60))
    while not (page := await guard.pending()):
        await asyncio.sleep(0)

    mutate(nested)
    request = page[0]
    await guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)
    with world.refused("args-mismatch"):
        await waiting

    assert world.effects == []
    assert await guard.run(changed(call, APPROVED), world.tool) == "done"
    assert world.effects == [APPROVED]


async def test_at13_a_guarded_async_tool_gets_the_approved_values_or_does_not_run(
    world: World, nested: dict[str, Any]
) -> None:
    @world.guard.tool(name="refund", wait=60)
    async def refund(lines: list[Any], to: str) -> str:
        world.effects.append({"lines": lines, "to": to})
        return "done"

    with world.guard.context(user="ana", run_id="run-1", call_id="call-1"):
        waiting = asyncio.create_task(refund(nested["lines"], nested["to"]))
    while not (page := world.guard.pending()):
        await asyncio.sleep(0)
    mutate(nested)
    world.approve(page[0])
    with world.refused("args-mismatch"):
        await waiting

    assert world.effects == []


def test_at13_raw_json_in_a_mutable_message_is_read_once(world: World) -> None:
    function = {"name": "refund", "arguments": '{"amount":82}'}
    messages = [{"role": "assistant", "tool_calls": [{"id": "call-1", "type": "function", "function": function}]}]
    with pytest.raises(ApprovalRequired) as pause:
        world.guard.run_tool_calls(messages, {"refund": world.tool}, user="ana", run_id="run-1")
    world.approve(pause.value.request)

    function["arguments"] = '{"amount":820}'
    with answered(world, "args-mismatch"):
        (answer,) = world.guard.run_tool_calls(messages, {"refund": world.tool}, user="ana", run_id="run-1")

    assert "args-mismatch" in answer["content"]
    assert world.effects == []


# -- AT-14 to AT-16: same value, other value ---------------------------------------------------------------------------

ONE_VALUE = '{"amount":100,"none":null,"note":"Ab/é","parts":[1,2.5,true],"to":{"id":7,"name":"ana"}}'
SAME = {
    "as it was": ONE_VALUE,
    "other order of keys": '{"to":{"name":"ana","id":7},"parts":[1,2.5,true],"note":"Ab/é","amount":100,"none":null}',
    "white space": ' {\n "amount" : 100 ,\t"none":null,"note":"Ab/é","parts":[ 1, 2.5,\r true ],'
    '"to":{"id":7,"name":"ana"} }\n',
    "escapes": '{"\\u0061mount":100,"none":null,"note":"\\u0041b\\/\\u00e9","parts":[1,2.5,true],'
    '"to":{"id":7,"name":"\\u0061na"}}',
    "1.0 for 1": '{"amount":100.0,"none":null,"note":"Ab/é","parts":[1.0,2.50,true],"to":{"id":7.0,"name":"ana"}}',
    "1E2 for 100": '{"amount":1E2,"none":null,"note":"Ab/é","parts":[1e0,25e-1,true],"to":{"id":70E-1,"name":"ana"}}',
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
@pytest.mark.parametrize("kind", ["text", "bytes", "plain data"])
def test_at14_the_same_value_in_another_spelling_spends_the_grant(world: World, text: str, kind: str) -> None:
    call, request = world.grant(world.call(arguments=ONE_VALUE))
    spelled: Any = {"text": text, "bytes": text.encode(), "plain data": json.loads(text)}[kind]

    assert world.run(changed(call, spelled), request_id=request.id) == "done"

    assert world.effects == [json.loads(ONE_VALUE)]
    assert type(world.effects[0]["amount"]) is int
    with world.refused("consumed"):
        world.run(changed(call, spelled), request_id=request.id)


def test_at14_zero_has_one_spelling(world: World) -> None:
    for text in ('{"a":0}', '{"a":-0}', '{"a":0.0}', '{"a":-0.0}', '{"a":0e9}'):
        call, _ = world.grant(world.call(arguments='{"a":0}'))

        assert world.run(changed(call, text)) == "done"
    assert world.effects == [{"a": 0}] * 5


OTHER_TYPES: list[Any] = [True, "1", [1], {"0": 1}, 2, 1.5, -1, None, "1.0", [[1]], {"1": 1}, False]


@pytest.mark.parametrize("other", OTHER_TYPES, ids=repr)
def test_at15_a_value_of_another_type_is_another_value(world: World, other: Any) -> None:
    call, request = world.grant(world.call(arguments={"a": 1}))

    for grant in grants(request):
        with world.refused("args-mismatch"):
            world.run(changed(call, {"a": other}), **grant)

    assert world.run(call) == "done"


EMPTIES: dict[str, dict[str, Any]] = {
    "null": {"a": None}, "missing": {}, "empty text": {"a": ""}, "empty object": {"a": {}}, "empty list": {"a": []},
    "false": {"a": False}, "zero": {"a": 0}, "null text": {"a": "null"}, "list of null": {"a": [None]},
}


@pytest.mark.parametrize("approved", EMPTIES)
def test_at16_nothing_is_another_nothing(world: World, approved: str) -> None:
    call, request = world.grant(world.call(arguments=EMPTIES[approved]))

    for name, other in EMPTIES.items():
        if name != approved:
            for grant in grants(request):
                with world.refused("args-mismatch"):
                    world.run(changed(call, other), **grant)

    assert world.run(call) == "done"
    assert world.effects == [EMPTIES[approved]]


# -- AT-17 to AT-22: values that have no one canonical form ------------------------------------------------------------

DUPLICATES = {
    "plain": '{"amount":1,"amount":2}',
    "same value": '{"amount":1,"amount":1}',
    "escaped": '{"amount":1,"\\u0061mount":2}',
    "escaped twice": '{"\\u0061mount":1,"a\\u006dount":2}',
    "empty name": '{"":1,"":2}',
    "depth 5": '{"a":[{"b":{"c":[{"amount":1,"amount":2}]}}]}',
    "depth 5, escaped": '{"a":[{"b":{"c":[{"amount":1,"\\u0061mount":2}]}}]}',
    "surrogate pair": '{"\\ud83d\\ude02":1,"\U0001f602":2}',
    "far apart": '{"amount":1,' + ",".join(f'"x{number}":0' for number in range(300)) + ',"amount":2}',
}


def refused_everywhere(world: World, arguments: Any, code: str, detail: str | None = None) -> None:
    """Demand that no way into the guard takes these arguments, and that each leaves one audit event."""
    call = changed(world.call(), arguments)
    approved, request = world.grant(world.call(arguments={"a": 1}))

    for action in (world.guard.request, world.guard.authorize, world.guard.evaluate, world.run):
        with world.refused(code, detail):
            action(call)
    for grant in grants(request):
        with world.refused(code, detail):
            world.run(changed(approved, arguments), **grant)

    assert world.effects == []
    assert [one.id for one in world.guard.pending(states=("pending", "approved"))] == [request.id]


@pytest.mark.parametrize("text", DUPLICATES.values(), ids=DUPLICATES)
@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_at17_duplicate_members_are_refused(world: World, text: str, kind: str) -> None:
    refused_everywhere(world, text if kind == "text" else text.encode(), "unsupported-value", "duplicate")


@pytest.mark.parametrize("text", DUPLICATES.values(), ids=DUPLICATES)
def test_at17_duplicate_members_from_a_model_are_refused(world: World, text: str) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "refund", "arguments": text}}
    messages = [{"role": "assistant", "tool_calls": [call]}]

    with answered(world, "unsupported-value"):
        (answer,) = world.guard.run_tool_calls(messages, {"refund": world.tool}, user="ana", run_id="run-1")

    assert "unsupported-value" in answer["content"]
    assert len(world.guard.pending()) == 0


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    ONE = "one"


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Record(NamedTuple):
    a: int = 1


@dataclass
class Data:
    a: int = 1


class Sly:
    """Claims to be plain data."""

    def __json__(self) -> str:
        return "1"

    def __str__(self) -> str:
        return "1"


ODD: dict[str, Any] = {
    "nan": float("nan"), "infinity": float("inf"), "-infinity": float("-inf"), "decimal": Decimal("82.00"),
    "fraction": Fraction(1, 2), "datetime": datetime(2026, 1, 2), "date": date(2026, 1, 2), "bytes": b"82",
    "bytearray": bytearray(b"82"), "set": {1}, "frozenset": frozenset({1}), "tuple": (1, 2), "named tuple": Record(),
    "range": range(3), "generator": (item for item in [1]), "complex": 1j, "uuid": uuid.UUID(int=1), "object": object(),
    "enum": Colour.RED, "int enum": Number.ONE, "str enum": Word.ONE, "str subclass": Text("82"),
    "int subclass": Whole(82), "dict subclass": OrderedDict(a=1), "mapping": MappingProxyType({"a": 1}),
    "dataclass": Data(), "sly": Sly(), "type": int, "function": len, "ellipsis": ...,
    "tuple key": {(1, 2): 1}, "int key": {1: 1}, "bool key": {True: 1}, "null key": {None: 1}, "bytes key": {b"a": 1},
    "enum key": {Word.ONE: 1}, "mixed keys": {"1": 1, 1: 2}, "lone surrogate": "\ud800", "surrogate key": {"\udfff": 1},
    "huge float": 1e16, "2^53 as a float": float(2**53),
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_at18_what_is_not_plain_json_data_is_refused(world: World, value: Any) -> None:
    refused_everywhere(world, {"a": {"deep": [value]}}, "unsupported-value")


@pytest.mark.parametrize(
    "arguments",
    [None, 1, [], [1], (), "null", "[]", "1", '"text"', b"[1]", OrderedDict(a=1), MappingProxyType({"a": 1}), Data(),
     {1: 2}, object()],
)
def test_at18_arguments_that_are_no_json_object_are_refused(world: World, arguments: Any) -> None:
    refused_everywhere(world, arguments, "unsupported-value")


def test_at18_numbers_of_numpy_are_refused(world: World) -> None:
    numpy = pytest.importorskip("numpy")

    for value in (numpy.int64(1), numpy.float64(1.5), numpy.bool_(True), numpy.str_("a"), numpy.array([1]), numpy.nan):
        with world.refused("unsupported-value"):
            world.guard.request(world.call(arguments={"a": value}))


def test_at18_a_structure_that_holds_itself_is_refused(world: World) -> None:
    arguments: dict[str, Any] = {"a": []}
    arguments["a"].append(arguments)

    refused_everywhere(world, arguments, "too-large")


def test_at18_odd_values_in_the_context_are_refused_too(world: World) -> None:
    with world.refused("unsupported-value"):
        world.guard.request(world.call(context={"a": Decimal(1)}))


def test_at18_an_earlier_call_that_can_never_run_does_not_count_and_stops_no_later_one(world: World) -> None:
    odd = world.call(arguments={"a": Decimal(1)})

    with world.refused("unsupported-value"):
        world.guard.request(odd)
    assert world.guard.request(world.call(turn=(odd,))).state == "pending"


BIG = [2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**20, 10**21, 10**40]


@pytest.mark.parametrize("number", [*BIG, *(-number for number in BIG)])
@pytest.mark.parametrize("as_text", [False, True])
def test_at19_a_big_integer_is_exact_to_the_last_digit(world: World, number: int, as_text: bool) -> None:
    def arguments(value: int) -> Any:
        return f'{{"id":{value}}}' if as_text else {"id": value}

    call, request = world.grant(world.call(arguments=arguments(number)))

    for neighbour in (number - 1, number + 1):
        with world.refused("args-mismatch"):
            world.run(changed(call, arguments(neighbour)), request_id=request.id)
    assert world.run(call) == "done"
    assert world.effects == [{"id": number}]
    assert ("big-integer" in flags(request.canonical)) == (abs(number) > 2**53 - 1)


@pytest.mark.parametrize(
    "text", ["9007199254740993.0", "9007199254740992.0", "1e16", "1E400", "-1e400", "1e21", "1e308"]
)
def test_at19_a_float_that_may_stand_for_two_integers_is_refused(world: World, text: str) -> None:
    refused_everywhere(world, f'{{"id":{text}}}', "unsupported-value", "number")


def test_at19_fingerprints_of_neighbours_differ() -> None:
    numbers = range(2**53 - 3, 2**53 + 4)

    digests = {fingerprint("refund", canonical.canonicalize({"id": number}, exact=True)) for number in numbers}

    assert len(digests) == len(numbers)


def test_at19_a_host_can_refuse_big_integers(world: World) -> None:
    node = world.another(settings=Settings(big_integers=False))

    for arguments in ({"id": 2**53}, f'{{"id":{2**53}}}'):
        with node.refused("unsupported-value", "number"):
            node.guard.request(node.call(arguments=arguments))
    assert node.guard.request(node.call(arguments={"id": 2**53 - 1})).state == "pending"


def test_at19_more_digits_than_the_limit_are_too_large(world: World) -> None:
    refused_everywhere(world, f'{{"id":{"9" * 5_000}}}', "too-large", "digits")


RAW: dict[str, tuple[Any, str]] = {
    "escaped lone surrogate": ('{"a":"\\ud800"}', "text"),
    "escaped low surrogate": ('{"a":"\\udc00x"}', "text"),
    "surrogates in the wrong order": ('{"a":"\\udc00\\ud800"}', "text"),
    "lone surrogate as a name": ('{"\\ud800":1}', "text"),
    "lone surrogate": ('{"a":"\ud800"}', "text"),
    "utf-8 of a surrogate": (b'{"a":"\xed\xa0\x80"}', "encoding"),
    "overlong": (b'{"a":"\xc0\xaf"}', "encoding"),
    "cut off": (b'{"a":"\xe2\x82"}', "encoding"),
    "latin-1": ('{"a":"é"}'.encode("latin-1"), "encoding"),
    "utf-16": ('{"a":1}'.encode("utf-16"), "encoding"),
    "byte order mark": (b'\xef\xbb\xbf{"a":1}', "encoding"),
    "byte order mark in text": ('\ufeff{"a":1}', "encoding"),
    "trailing value": ('{"a":1}{"a":2}', "trailing"),
    "trailing text": ('{"a":1} x', "trailing"),
    "trailing NUL": (b'{"a":1}\0', "trailing"),
    "trailing comma": ('{"a":1,}', "syntax"),
    "comment": ('{"a":1/*x*/}', "syntax"),
    "single quotes": ("{'a':1}", "syntax"),
    "NaN": ('{"a":NaN}', "number"),
    "Infinity": ('{"a":-Infinity}', "number"),
    "leading zero": ('{"a":01}', "syntax"),
    "plus": ('{"a":+1}', "syntax"),
    "hex": ('{"a":0x1}', "syntax"),
    "control character": ('{"a":"\n"}', "syntax"),
    "nothing": ("", "syntax"),
    "cut": ('{"a":', "syntax"),
}


@pytest.mark.parametrize(("text", "detail"), RAW.values(), ids=RAW)
def test_at20_text_that_is_not_strict_json_is_refused(world: World, text: Any, detail: str) -> None:
    refused_everywhere(world, text, "unsupported-value", detail)


def test_at20_deep_and_long_text_is_too_large(world: World) -> None:
    refused_everywhere(world, '{"a":' * 100_000 + "1" + "}" * 100_000, "too-large")
    with world.refused("too-large", "bytes"):
        world.guard.request(world.call(arguments=json.dumps({"a": "x" * 2_000_000})))
    with world.refused("too-large", "nodes"):
        world.guard.request(world.call(arguments={str(number): 0 for number in range(100_000)}))


@pytest.mark.parametrize(
    ("composed", "decomposed"), [("Å", "A\u030a"), ("/tmp/é", "/tmp/e\u0301"), ("\u00c5", "\u212b"), ("ﬁ", "fi")]
)
def test_at21_text_that_looks_the_same_is_another_value_and_is_flagged(
    world: World, composed: str, decomposed: str
) -> None:
    call, request = world.grant(world.call(arguments={"path": composed}))
    other, looks_alike = world.grant(world.call(arguments={"path": decomposed}))

    for grant in grants(request):
        with world.refused("args-mismatch"):
            world.run(changed(call, {"path": decomposed}), **grant)
    for grant in grants(looks_alike):
        with world.refused("args-mismatch"):
            world.run(changed(other, {"path": composed}), **grant)

    assert request.fingerprint != looks_alike.fingerprint
    for one, text in ((request, composed), (looks_alike, decomposed)):
        odd = text in ("A\u030a", "/tmp/e\u0301", "\u212b")
        assert ("non-nfc" in flags(one.canonical)) == odd
        assert ("NFC" in request_text(one, now=one.issued_at)) == odd


def test_at21_a_name_in_another_form_is_another_member(world: World) -> None:
    call, request = world.grant(world.call(arguments={"Å": 1}))

    with world.refused("args-mismatch"):
        world.run(changed(call, {"A\u030a": 1}), request_id=request.id)
    both = world.guard.request(world.call(arguments={"Å": 1, "A\u030a": 2}))

    assert both.arguments == {"Å": 1, "A\u030a": 2}


def test_at22_members_are_in_the_order_of_utf_16(world: World) -> None:
    arguments = {"\ufb33": "Hebrew", "\U0001f602": "joy", "\u20ac": "euro", "\r": "return", "1": "one", "é": "e"}

    request = world.guard.request(world.call(arguments=arguments))

    text = '{"\\r":"return","1":"one","é":"e","€":"euro","\U0001f602":"joy","\ufb33":"Hebrew"}'
    assert request.canonical == text.encode()


def test_at22_the_reference_file_has_its_reference_bytes(world: World) -> None:
    if not VECTORS.is_dir():
        pytest.skip("the reference vectors of RFC 8785 are not here")
    source, expected = (VECTORS / "input" / "weird.json").read_bytes(), (VECTORS / "output" / "weird.json").read_bytes()

    request = world.guard.request(world.call(arguments=source))

    assert request.canonical == expected.rstrip(b"\n")


# -- what a schema says ------------------------------------------------------------------------------------------------


def test_at11_arguments_that_break_the_schema_are_refused_before_anyone_is_asked(world: World) -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "integer", "maximum": 100}}, "required": ["amount"]}
    definition = ToolDefinition("refund", "Refunds.", schema)

    for arguments in ({"amount": 820}, {"amount": "82"}, {}, {"amount": 82.5}):
        with world.refused("unsupported-value", "schema"):
            world.guard.request(world.call(arguments=arguments, definition=definition))

    assert len(world.guard.pending()) == 0


def test_at13_a_definition_whose_schema_is_changed_meanwhile_is_noticed(world: World) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    call, request = world.grant(world.call(arguments={"amount": 82}, definition=ToolDefinition("refund", None, schema)))

    schema["properties"]["amount"]["type"] = "number"

    for grant in ({"request_id": request.id}, {"token": request.token}):
        with pytest.raises(HitlGuardError) as refusal:
            world.run(call, **grant)
        assert refusal.value.code == "tool-changed"
    assert world.effects == []
