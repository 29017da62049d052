"""An agent's tools: what cannot be one, what the model is told, how they are started, how they suspend."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from hitl_guard import Guard
from hitl_guard.agent.tools import APPROVAL_RESUME_SCHEMA, Tool, ToolContext, tool
from hitl_guard.errors import CanonicalizationError, ConfigurationError
from hitl_guard.lifecycle import schemas
from hitl_guard.models import ToolDefinition
from hitl_guard.testing import UnsafeKeyring, UnsafeMemoryStore

REFERENCE = Path(__file__).resolve().parents[3] / "shared/vectors/reference-loop-events.json"
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}, "required": ["b"]}


class Refund(BaseModel):
    order: str
    amount: float = Field(gt=0)


class Answer(BaseModel):
    confirmed: bool


class Consent(BaseModel):
    approved: bool = Field(alias="ok")


class Unknowable:
    """Something to call whose parameters nobody can read."""

    __signature__ = "unreadable"

    def __call__(self, given: Any) -> Any:
        return given


class Callback(BaseModel):
    done: Callable[[], None]


def context(**changes: Any) -> ToolContext:
    return ToolContext(**{"tool_call_id": "call-1", "run_id": "run-1", "user": "ana", **changes})


def one(given: Any) -> Any:
    return given


def generating(given: Any) -> Iterator[Any]:
    yield given


async def async_generating(given: Any) -> AsyncIterator[Any]:
    yield given


def keyword_only(given: Any, *, context: Any) -> Any:
    return given, context


# -- what cannot be a tool -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", None, 5, b"refund", "x" * 513, "\ud800"], ids=repr)
def test_a_name_must_be_usable_as_an_id(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        Tool(name)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"description": None}, "description"),
        ({"effect": "harmless"}, "effect"),
        ({"auto_resume": 1, "resume_schema": Answer}, "'auto_resume' is True or False"),
        ({"require_approval": "yes"}, "require_approval"),
        ({"require_approval": lambda: True}, "require_approval"),
        ({"execute": "refund"}, "must be a function"),
        ({"execute": generating}, "generator"),
        ({"execute": async_generating}, "generator"),
        ({"execute": lambda: None}, r"must take \(input\) or"),
        ({"execute": lambda a, b, c: None}, r"must take \(input\) or"),
        ({"execute": keyword_only}, r"must take \(input\) or"),
        ({"execute": Unknowable()}, "signature"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_that_cannot_be_used_is_refused_at_once(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Tool("refund", **setting)


@pytest.mark.parametrize("which", ["input_schema", "output_schema", "suspend_schema", "resume_schema"])
@pytest.mark.parametrize(
    "schema",
    [
        "object", 5, dict, Answer(confirmed=True), {"type": "objekt"}, {"type": object()}, {1: "a"}, Callback,
        {"pattern": "(?=a)"}, {"description": "x" * 300_000}, {"enum": [float("nan")]},
    ],
    ids=["text", "number", "class", "instance", "unknown-type", "no-json", "no-name", "model", "regex", "large", "nan"],
)
def test_a_schema_is_a_model_or_a_json_schema_that_can_be_applied(which: str, schema: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"The {which.split('_')[0]} schema of the tool 'refund'"):
        Tool("refund", **{which: schema})


def test_a_function_that_is_guarded_already_is_refused() -> None:
    with UnsafeMemoryStore() as store:
        guard = Guard(policy="user-approval", keyring=UnsafeKeyring(), store=store)

        @guard.tool
        def guarded(given: str) -> str:
            return given

        @functools.wraps(guarded)
        def wrapping(given: str) -> str:
            return guarded(given)

        for function, message in ((guarded, "guarded already"), (wrapping, "wraps"), (guard.sealed(one), "sealed")):
            with pytest.raises(ConfigurationError, match=message):
                Tool("refund", execute=function)
        for function in (guarded, wrapping):
            with pytest.raises(ConfigurationError, match="guard"):
                tool(function)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"properties": {"approved": {}}},
        {"properties": {"answer": {"properties": {"approved": {"type": "boolean"}}}}},
        {"anyOf": [{"required": ["approved"]}, {}]},
        {"properties": {"verdict": {"enum": ["approved", "declined"]}}},
        Consent,
    ],
    ids=["none", "property", "nested", "required", "value", "alias"],
)
def test_what_asks_for_consent_is_never_resumed_by_a_message(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="resume"):
        Tool("refund", resume_schema=schema, auto_resume=True)


def test_m53_a_tool_with_a_data_bearing_answer_may_opt_in_to_auto_resume() -> None:
    assert Tool("book", resume_schema=SCHEMA, auto_resume=True).auto_resume
    assert not Tool("book", resume_schema=SCHEMA).auto_resume


def test_m53_a_yes_or_no_is_never_derived_from_a_message() -> None:
    for schema in ({"type": "boolean"}, {"properties": {"confirm": {"type": ["boolean", "null"]}}, "type": "object"}):
        with pytest.raises(ConfigurationError):
            Tool("book", resume_schema=schema, auto_resume=True)


# -- what others are told --------------------------------------------------------------------------------------------


def test_the_definition_is_computed_once_from_a_copy_of_the_schema() -> None:
    given = json.loads(json.dumps(SCHEMA))
    made = Tool("refund", description="Pays back.", input_schema=given)

    given["properties"].clear()

    assert made.definition == ToolDefinition("refund", "Pays back.", SCHEMA)
    assert made.definition is made.definition
    assert list(made.chat()["function"]["parameters"]["properties"]) == ["b", "a"]


def test_the_model_is_told_name_description_and_schema_in_an_object_of_its_own() -> None:
    made = Tool("refund", description="Pays back.", input_schema=Refund)

    told = made.chat()
    told["function"]["parameters"].clear()

    function = {"name": "refund", "description": "Pays back.", "parameters": Refund.model_json_schema()}
    assert made.chat() == {"type": "function", "function": function}
    assert Tool("ping").chat()["function"]["parameters"] == {"type": "object", "properties": {}}


def test_the_policy_and_the_kind_follow_the_settings() -> None:
    def ask(arguments: dict[str, Any], info: Any) -> bool:
        return bool(arguments or info)

    assert Tool("refund", require_approval=True).policy.require_approval is True
    assert Tool("refund", require_approval=ask, execute=one).policy.require_approval is ask
    assert [Tool("refund").is_client, Tool("refund", execute=one).is_client] == [True, False]


def test_equal_resume_schemas_have_equal_texts() -> None:
    turned = dict(reversed(SCHEMA.items()))

    texts = [Tool("book", resume_schema=schema).resume_schema_json for schema in (SCHEMA, turned, None)]

    assert texts[0] == texts[1]
    assert json.loads(texts[0] or "") == SCHEMA
    assert texts[2] is None


def test_an_approval_asks_for_a_verdict_and_may_have_a_reason() -> None:
    schema = json.loads(APPROVAL_RESUME_SCHEMA)

    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert [schemas.fits(schema, text) for text in (b'{"approved":false}', b'{"approved":true,"reason":"ok"}')] == [
        True, True,
    ]
    wrong = (b"{}", b'{"approved":1}', b'{"approved":true,"reason":1}', b'{"approved":true,"x":1}', b"true")
    assert [schemas.fits(schema, text) for text in wrong] == [False] * 5


def test_the_approval_schema_is_the_references() -> None:
    if not REFERENCE.is_file():
        pytest.skip("the shared reference data are not here")
    recorded = json.loads(REFERENCE.read_text("utf-8"))["resume_schemas"]["<APPROVAL_RESUME_SCHEMA>"]

    assert json.loads(APPROVAL_RESUME_SCHEMA) == recorded
    assert json.dumps(recorded, separators=(",", ":")) == APPROVAL_RESUME_SCHEMA


def test_a_tool_shows_no_schema_and_no_function() -> None:
    made = Tool("refund", description="Pays back.", input_schema=Refund, execute=one)

    assert repr(made) == "Tool(name='refund', effect='opaque', auto_resume=False)"
    assert len({made, made, Tool("refund")}) == 2


# -- starting --------------------------------------------------------------------------------------------------------


def with_context(given: Any, told: ToolContext) -> Any:
    return given, told.run_id


def with_optional_context(given: Any, context: Any = None) -> Any:
    return given, context.run_id


def with_limit(given: Any, limit: int = 10) -> Any:
    return given, limit


def with_anything(*given: Any) -> Any:
    return given[0], given[1].run_id


async def awaiting(given: Any, told: ToolContext) -> Any:
    await asyncio.sleep(0)
    return given, told.run_id


class Awaiting:
    async def __call__(self, given: Any, context: ToolContext) -> Any:
        return given, context.run_id


@pytest.mark.parametrize(
    ("execute", "result"),
    [
        (one, "in"),
        (with_context, ("in", "run-1")),
        (with_optional_context, ("in", "run-1")),
        (with_limit, ("in", 10)),
        (with_anything, ("in", "run-1")),
        (awaiting, ("in", "run-1")),
        (Awaiting(), ("in", "run-1")),
        (functools.partial(with_context, told=context(run_id="own")), ("in", "own")),
        (lambda given: awaiting(given, context()), ("in", "run-1")),
    ],
    ids=["input", "both", "optional", "default", "anything", "async", "object", "partial", "returns-awaitable"],
)
async def test_a_function_gets_the_input_and_the_context_if_it_wants_it(execute: Any, result: Any) -> None:
    assert await Tool("refund", execute=execute).start("in", context()) == result


async def test_a_sync_tool_runs_in_a_thread_of_its_own() -> None:
    ran = await Tool("refund", execute=lambda _: threading.get_ident()).start({}, context())

    assert ran != threading.get_ident()


async def test_a_client_tool_is_never_run_here() -> None:
    with pytest.raises(ConfigurationError, match="only a client"):
        await Tool("refund").start({}, context())


async def test_what_a_tool_raises_goes_through() -> None:
    def fails(given: Any) -> Any:
        raise LookupError(given)

    with pytest.raises(LookupError, match="no order"):
        await Tool("refund", execute=fails).start("no order", context())


@pytest.mark.parametrize("returns_coroutine", [True, False])
async def test_a_cancelled_task_waits_for_a_sync_tool_and_awaits_nothing_after_it(returns_coroutine: bool) -> None:
    started, ends, ran = threading.Event(), threading.Event(), []

    async def later() -> None:
        ran.append("awaited")

    def works(_: Any) -> Any:
        started.set()
        assert ends.wait(60)
        ran.append("worked")
        return later() if returns_coroutine else None

    task = asyncio.create_task(Tool("refund", execute=works).start({}, context()))
    await asyncio.to_thread(started.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    ends.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == ["worked"]


# -- suspending ------------------------------------------------------------------------------------------------------


async def test_m39_suspend_raises_nothing_stops_nothing_and_awaits_to_none() -> None:
    told = context(suspend_payload="before", resume_data=False)
    assert (told.suspended, told.suspend_payload, told.resume_data) == (False, "before", False)

    told.suspend({"ask": 1})
    awaited = await told.suspend({"ask": 2})  # type: ignore[func-returns-value]

    assert awaited is None
    assert (told.suspended, told.suspend_payload) == (True, {"ask": 2})


def test_a_suspension_without_payload_has_none() -> None:
    told = context(suspend_payload="before")

    told.suspend()

    assert (told.suspended, told.suspend_payload) == (True, None)


def test_a_context_has_no_room_for_unknown_things_and_shows_no_data() -> None:
    told = context(resume_data="s3cret", request_context={"token": "s3cret"}, suspend_payload="s3cret")

    with pytest.raises(AttributeError):
        told.approved = True  # type: ignore[attr-defined]
    assert "s3cret" not in repr(told)
    assert context().request_context is not context().request_context


# -- made of a function ----------------------------------------------------------------------------------------------


def test_a_decorated_function_becomes_a_tool() -> None:
    @tool
    def refund(order: str, amount: float = 1.5) -> str:
        """Pay an order back."""
        return f"{order}: {amount}"

    assert refund.definition == ToolDefinition("refund", "Pay an order back.", {
        "additionalProperties": False, "required": ["order"], "title": "refund", "type": "object",
        "properties": {
            "order": {"title": "Order", "type": "string"},
            "amount": {"default": 1.5, "title": "Amount", "type": "number"},
        },
    })
    assert not refund.is_client


async def test_a_decorated_function_gets_what_its_annotations_say() -> None:
    @tool
    def plan(
        day: date, kind: Literal["a", "b"], sizes: list[int], count: Annotated[int, Field(ge=0)] = 0,
        note: str | None = None, of: Refund | None = None,
    ) -> Any:
        return day, kind, sizes, count, note, of

    given = {"day": "2026-05-01", "kind": "a", "sizes": [1, 2], "of": {"order": "A", "amount": 2}}
    got = await plan.start(plan.checked_input(given), context())

    assert got[:5] == (date(2026, 5, 1), "a", [1, 2], 0, None)
    assert type(got[5]) is Refund
    for wrong in ({"kind": "c"}, {"sizes": ["x"]}, {"count": -1}, {"day": 5}, {"more": 1}):
        with pytest.raises(CanonicalizationError):
            plan.checked_input(given | wrong)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ConfigurationError):
        tool(lambda order: order)

    assert tool(lambda order: order, name="look").name == "look"


def test_a_parameter_without_a_schema_is_a_configuration_error() -> None:
    def odd(given: Unknowable) -> None:
        """Take something that has no schema."""

    with pytest.raises(ConfigurationError):
        tool(odd)


async def test_a_decorated_function_gets_its_arguments_by_name_and_the_context_unseen_by_the_model() -> None:
    @tool
    def pay(context: ToolContext, order: str, amount: float = 1.5) -> Any:
        return context.run_id, order, amount

    @tool
    async def pay_async(order: str, context: ToolContext) -> Any:
        return context.run_id, order

    assert await pay.start(pay.checked_input({"order": "A"}), context()) == ("run-1", "A", 1.5)
    assert await pay_async.start({"order": "A"}, context()) == ("run-1", "A")
    assert list(pay.definition.to_json()["input_schema"]["properties"]) == ["order", "amount"]


async def test_a_decorated_function_without_context_gets_none() -> None:
    @tool
    async def ping() -> str:
        return "pong"

    assert await ping.start({}, context()) == "pong"
    assert ping.description == ""


async def test_the_decorator_takes_the_other_settings() -> None:
    @tool(
        name="pay", description="Pays.", input_schema=Refund, effect="idempotent", require_approval=True,
        resume_schema=SCHEMA, auto_resume=True,
    )
    def refund(order: str, amount: float) -> Any:
        return order, amount

    assert (refund.name, refund.description, refund.effect, refund.auto_resume) == ("pay", "Pays.", "idempotent", True)
    assert refund.policy.require_approval is True
    assert refund.definition.input_schema == Refund.model_json_schema()
    assert await refund.start(refund.checked_input({"order": "A", "amount": 2}), context()) == ("A", 2.0)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (lambda *given: given, {}),
        (generating, {}),
        (Unknowable(), {"name": "it"}),
        (one, {"name": "x" * 513}),
        (one, {"name": ""}),
        (one, {"effect": "harmless"}),
    ],
    ids=["any-number", "generator", "unreadable", "long-name", "no-name", "effect"],
)
def test_a_function_that_cannot_be_a_tool_is_refused(function: Any, options: Any) -> None:
    with pytest.raises(ConfigurationError):
        tool(**options)(function)


def test_the_input_is_the_plain_dict_where_no_model_describes_it() -> None:
    given = {"b": "x", "more": [1]}

    assert Tool("refund", input_schema=SCHEMA).checked_input(given) is given
    assert Tool("refund").checked_input(given) is given


def test_the_input_is_an_instance_where_a_model_describes_it() -> None:
    assert Tool("refund", input_schema=Refund).checked_input({"order": "A", "amount": 3}) == Refund(order="A", amount=3)


def test_arguments_that_the_model_refuses_are_refused_without_showing_them() -> None:
    with pytest.raises(CanonicalizationError) as refused:
        Tool("refund", input_schema=Refund).checked_input({"order": "s3cret", "amount": -1})

    error = refused.value
    assert (error.code, error.detail) == ("unsupported-value", "schema")
    assert "'refund'" in str(error)
    assert "s3cret" not in f"{error} {error.__cause__} {error.__context__}"
