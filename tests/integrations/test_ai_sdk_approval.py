"""`tool_approval`: the SDK's configuration in Python, shape by shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from hitl_guard import Guard, Policy, Principal, Settings, code_policy
from hitl_guard.agent import Agent, Tool
from hitl_guard.errors import ApprovalRequired, ConfigurationError, HitlGuardError, PolicyDeniedError
from hitl_guard.integrations.ai_sdk.approval import Options, request_map, takes_requests, tool_approval
from hitl_guard.integrations.ai_sdk.loop import AgentLoop
from hitl_guard.integrations.ai_sdk.messages import ChatId
from hitl_guard.integrations.ai_sdk.own_loop import Turn
from hitl_guard.models import ToolCall, ToolDefinition
from hitl_guard.policy.core import Status
from hitl_guard.testing import ScriptedModel, UnsafeKeyring, UnsafeMemoryStore
from tests.support import document

ANA = Principal("ana")


@pytest.fixture
def make_guard() -> Iterator[Callable[..., Guard]]:
    stores: list[UnsafeMemoryStore] = []

    def make(setting: Any, **policy: Any) -> Guard:
        stores.append(UnsafeMemoryStore())
        return Guard(
            policy=Policy(tool_approval=setting, **policy), keyring=UnsafeKeyring(), store=stores[-1],
            settings=Settings(),
        )

    yield make
    for store in stores:
        store.close()


def call(tool: str = "pay", arguments: Mapping[str, Any] | None = None, **changes: Any) -> ToolCall:
    given = {"user": "ana", "run_id": "r", "call_id": "c"} | changes
    return ToolCall(tool, dict(arguments or {"amount": 5}), **given)


def verdict(guard: Guard, one: ToolCall) -> tuple[str, str | None]:
    found = guard.evaluate(one)
    return found.status.value, found.reason


@pytest.mark.parametrize("status", [status.value for status in Status])
def test_a05_a06_every_status_is_taken_as_a_string_and_as_an_object(
    make_guard: Callable[..., Guard], status: str
) -> None:
    guard = make_guard(tool_approval({"pay": status, "send": {"type": status, "reason": "So."}}))

    assert verdict(guard, call())[0] == status
    assert verdict(guard, call("send")) == (status, "So.")
    assert verdict(guard, call("other"))[0] == "not-applicable"


def test_a07_the_reason_of_a_request_is_shown_to_the_approver(make_guard: Callable[..., Guard]) -> None:
    guard = make_guard(tool_approval({"pay": {"type": "user-approval", "reason": "Money leaves."}}))

    with pytest.raises(ApprovalRequired) as asked:
        guard.authorize(call())

    assert asked.value.request.reason == "Money leaves."


@pytest.mark.parametrize(("role", "amount", "status"), [
    ("clerk", 1, "denied"), ("admin", 5_000, "user-approval"), ("admin", 5, "not-applicable"),
])
@pytest.mark.parametrize("is_async", [False, True])
def test_a09_a_function_of_one_tool_gets_its_input_and_the_options(
    make_guard: Callable[..., Guard], role: str, amount: int, status: str, is_async: bool
) -> None:
    seen: list[Options] = []

    def decide(input: dict[str, Any], options: Options) -> Any:
        seen.append(options)
        if options.runtime_context["role"] != "admin":
            return {"type": "denied", "reason": "Admins only."}
        return "user-approval" if input["amount"] > options.tool_context["limit"] else None

    async def later(input: dict[str, Any], options: Options) -> Any:
        return decide(input, options)

    guard = make_guard(tool_approval({"pay": later if is_async else decide}))
    context = {"role": role, "tools_context": {"pay": {"limit": 1_000}}, "messages": [{"role": "user"}]}

    assert verdict(guard, call(arguments={"amount": amount}, context=context))[0] == status
    assert (seen[0].tool_call_id, seen[0].messages) == ("c", [{"role": "user"}])
    assert seen[0].runtime_context == {"role": role}


def test_a10_a11_one_function_for_all_tools_sees_which_tool_is_dynamic(make_guard: Callable[..., Guard]) -> None:
    guard = make_guard(tool_approval(lambda options: "user-approval" if options.tool_call.dynamic else None))
    agent = Agent("bot", model=ScriptedModel(), tools=[Tool("pay", execute=lambda args: "paid")], guard=guard)

    assert agent.tool_names() == ["pay"]
    assert verdict(guard, call("found_by_mcp"))[0] == "user-approval"


SCHEMA = {"properties": {"amount": {"type": "integer"}}, "type": "object"}
PAY, SEND = Tool("pay", description="Pay.", input_schema=SCHEMA), ToolDefinition("send", "Send.", server="mail")
TOOLS = (PAY, SEND)


def careful(options: Options) -> str | None:
    """Ask for every tool that is none of the known ones, and for those of a server."""
    known = options.tools.get(options.tool_call.tool_name)
    return "user-approval" if known is None or known.server is not None else None


@pytest.mark.parametrize("per_request", [False, True])
@pytest.mark.parametrize("setting", [careful, {name: lambda input, options: careful(options)
                                               for name in ("pay", "send", "other")}], ids=["one", "map"])
def test_a10_a_function_sees_the_tools_that_the_model_can_call(
    make_guard: Callable[..., Guard], setting: Any, per_request: bool
) -> None:
    guard = make_guard(tool_approval(setting, tools=TOOLS, per_request=per_request))

    assert [verdict(guard, call(tool))[0] for tool in ("pay", "send", "other")] == [
        "not-applicable", "user-approval", "user-approval"
    ]


def test_a10_the_tools_are_the_functions_own_copy(make_guard: Callable[..., Guard]) -> None:
    seen: list[dict[str, ToolDefinition]] = []

    def spoil(options: Options) -> None:
        seen.append(options.tools)
        schema: Any = seen[-1].pop("pay").input_schema
        schema.clear()

    guard = make_guard(tool_approval(spoil, tools=TOOLS))

    assert [verdict(guard, call())[0] for _ in range(2)] == ["not-applicable"] * 2
    assert PAY.definition.input_schema == SCHEMA != {}
    assert seen[0] == seen[1] == {"send": SEND}


def test_a10_a_policy_that_looks_at_tools_asks_a_person_where_nobody_gave_any(make_guard: Callable[..., Guard]) -> None:
    found = make_guard(tool_approval(careful)).evaluate(call())

    assert (found.status, bool(found.errors)) == (Status.USER_APPROVAL, True)
    assert verdict(make_guard(tool_approval(careful, tools=[])), call())[0] == "user-approval"


@pytest.mark.parametrize("wrong", [7, "pay", ["pay"], {"pay": PAY}, [*TOOLS, PAY], [None]])
def test_a10_what_is_no_list_of_tools_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="tools"):
        tool_approval(careful, tools=wrong)


@pytest.mark.parametrize("wrong", [True, False, "DENY", {"type": "denied?"}, {"decision": "denied"}, 0, [], "allow"])
def test_a08_an_unknown_status_stops_the_start_and_asks_a_person_where_a_function_returns_it(
    make_guard: Callable[..., Guard], wrong: Any
) -> None:
    with pytest.raises(ConfigurationError):
        tool_approval({"pay": wrong})
    for setting in (tool_approval({"pay": lambda input, options: wrong}), tool_approval(lambda options: wrong)):
        found = make_guard(setting).evaluate(call())
        assert (found.status, bool(found.errors)) == (Status.USER_APPROVAL, True)


@pytest.mark.parametrize("wrong", [None, 7, "yes", ["pay"]])
def test_a08_what_is_no_configuration_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        tool_approval(wrong)


def test_a08_a_function_that_raises_asks_a_person(make_guard: Callable[..., Guard]) -> None:
    guard = make_guard(tool_approval({"pay": lambda input, options: input["nothing"]}))

    assert guard.evaluate(call()).status is Status.USER_APPROVAL


def test_a04_the_configuration_replaces_a_tools_own_default(make_guard: Callable[..., Guard]) -> None:
    guard = make_guard(tool_approval({"pay": "not-applicable"}))
    ran: list[Any] = []
    agent = Agent(
        "bot", model=ScriptedModel([("c", "pay", {"amount": 1})], "done"), guard=guard,
        tools=[Tool("pay", execute=ran.append, require_approval=lambda args, info: True)],
    )

    assert agent.sync.generate("pay", user="ana").status == "success"
    assert ran == [{"amount": 1}]


class Engine:
    """A policy of another package, as a host has one: it decides by its own rules, and may be away."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.away = False

    async def decide(self, facts: dict[str, Any]) -> dict[str, str] | None:
        self.asked.append(facts)
        if self.away:
            raise OSError("connection refused")
        if facts["input"]["amount"] > 100 * facts["level"]:
            return {"type": "denied", "reason": "Above the limit."}
        if facts["input"]["amount"] > 10:
            return {"type": "user-approval", "reason": "A large one."}
        return {"type": "approved"} if facts["tool"] == "pay" else None


@pytest.mark.parametrize("per_request", [False, True])
def test_a33_a_policy_of_another_package_decides_call_by_call_and_adds_to_the_documents(
    make_guard: Callable[..., Guard], per_request: bool
) -> None:
    engine = Engine()

    async def ask(options: Options) -> Any:
        facts = {"input": options.tool_call.input, "level": options.runtime_context["level"]}
        return await engine.decide(facts | {"tool": options.tool_call.tool_name})

    rules = document("version: 1\nname: d\ndefault: not_applicable\nrules:\n"
                     "  - {id: never, tools: [drop], effect: deny, reason: Never.}\n")
    declared = code_policy(ask, name="engine", version="7")
    guard = make_guard(tool_approval(declared, per_request=per_request), documents=[rules])

    def said(tool: str, amount: int, level: int = 1) -> tuple[str, str | None]:
        return verdict(guard, call(tool, {"amount": amount}, context={"level": level}))

    assert said("pay", 5)[0] == "approved"
    assert said("pay", 50) == ("user-approval", "A large one.")
    assert said("pay", 500) == ("denied", "Above the limit.")
    assert said("pay", 500, level=9) == ("user-approval", "A large one.")
    assert said("look", 5)[0] == "not-applicable"
    assert said("drop", 5) == ("denied", "Never.")
    assert engine.asked[0] == {"input": {"amount": 5}, "level": 1, "tool": "pay"}
    engine.away = True
    assert said("pay", 5)[0] == "user-approval"  # nobody can tell: a person is asked


def test_a33_another_version_of_that_policy_is_another_policy_version(make_guard: Callable[..., Guard]) -> None:
    def versions(version: str) -> set[str]:
        function = code_policy(lambda input, options: None, name="limits", version=version)
        everything = code_policy(lambda options: None, name="all", version=version)
        return {
            make_guard(tool_approval({"pay": function})).policy_version,
            make_guard(tool_approval({"pay": function}, per_request=True)).policy_version,
            make_guard(tool_approval(everything)).policy_version,
            make_guard(tool_approval(everything, per_request=True)).policy_version,
        }

    assert len(versions("1") | versions("2")) == 8
    one, two = (make_guard(tool_approval({"pay": status}, per_request=True)) for status in ("denied", "approved"))
    assert one.policy_version != two.policy_version


# -- per request -------------------------------------------------------------------------------------------------------


async def started(guard: Guard, prepare: Any, ran: list[Any]) -> list[str]:
    """Start one run with these options; return the types of its events."""
    model = ScriptedModel([("c", "pay", {"amount": 1})], "done")
    tools = [Tool(name, execute=ran.append) for name in ("pay", "send")]
    agent = Agent("bot", model=model, tools=tools, guard=guard)
    chat = ChatId("chat", ANA)
    said = [{"content": "pay", "role": "user"}]
    loop = AgentLoop(agent, prepare_call=prepare)
    turn = Turn(chat, chat.new_run(), said, said, {"tenant_tier": "free"})
    return [event["type"] async for event in loop.start(turn)]


@pytest.mark.parametrize("base", [
    {"pay": "user-approval"}, {"pay": lambda input, options: "user-approval"},
    lambda options: "user-approval" if options.tool_call.tool_name == "pay" else None,
], ids=["status", "function", "whole"])
@pytest.mark.parametrize("own", [{"pay": None}, {"pay": None, "send": "denied"}])
async def test_a12_none_in_a_request_s_map_names_no_tool_and_lifts_nothing(
    make_guard: Callable[..., Guard], base: Any, own: dict[str, Any]
) -> None:
    guard, ran = make_guard(tool_approval(base, per_request=True)), list[Any]()

    kinds = await started(guard, lambda turn: {"tool_approval": own}, ran)

    assert ("tool-call-approval" in kinds, ran) == (True, [])
    assert "pay" not in request_map(own)
    # Nor where a host puts such a map into the context of a call itself.
    assert guard.evaluate(call(context={"tool_approval": own})).status is Status.USER_APPROVAL


@pytest.mark.parametrize(("given", "seen"), [
    ({"pay": "user-approval"}, "tool-call-approval"), ({"send": "denied"}, "tool-result"), ({}, "tool-result"),
    ({"pay": {"type": "denied", "reason": "No."}}, "tool-output-denied"),
])
async def test_a12_a_request_has_a_configuration_of_its_own(
    make_guard: Callable[..., Guard], given: dict[str, Any], seen: str
) -> None:
    guard, ran = make_guard(tool_approval({"send": "user-approval"}, per_request=True)), []  # type: ignore[var-annotated]

    async def prepare(turn: Turn) -> dict[str, Any]:
        assert turn.context == {"tenant_tier": "free"}
        return {"tool_approval": given}

    kinds = await started(guard, prepare, ran)

    assert seen in kinds
    assert bool(ran) is (seen == "tool-result")


async def test_a12_a_request_s_configuration_counts_where_the_call_is_checked_again(
    make_guard: Callable[..., Guard]
) -> None:
    guard = make_guard(tool_approval({"pay": "not-applicable"}, per_request=True))

    with pytest.raises(PolicyDeniedError):
        guard.authorize(call(context={"tool_approval": {"pay": "denied"}}))
    found = guard.evaluate(call(context={"tool_approval": "denied"}))
    assert (found.status, bool(found.errors)) == (Status.USER_APPROVAL, True)


async def test_a12_a_policy_that_does_not_look_at_it_is_no_policy_for_it(make_guard: Callable[..., Guard]) -> None:
    ran: list[Any] = []

    for setting in (tool_approval({"pay": "not-applicable"}), lambda info: None):
        with pytest.raises(ConfigurationError, match="per_request"):
            await started(make_guard(setting), lambda turn: {"tool_approval": {"pay": "denied"}}, ran)
    with pytest.raises(HitlGuardError):
        await started(make_guard(tool_approval({}, per_request=True)), lambda turn: {"tool_approval": {"pay": 1}}, ran)
    assert ran == []


@pytest.mark.parametrize("wrong", [{"pay": lambda input, options: None}, {"pay": True}, "denied", None, {1: "denied"}])
def test_a12_a_request_s_configuration_is_data(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        request_map(wrong)


# -- a tool's own default ----------------------------------------------------------------------------------------------


def gated(guard: Guard, ran: list[Any], require: Any = True) -> Agent:
    return Agent(
        "bot", model=ScriptedModel([("c", "pay", {"amount": 1})], "done"), guard=guard,
        tools=[Tool("pay", execute=ran.append, require_approval=require), Tool("send", execute=ran.append)],
    )


@pytest.mark.parametrize("require", [True, lambda args, info: True], ids=["bool", "function"])
@pytest.mark.parametrize("setting", [
    tool_approval({"send": "user-approval"}), tool_approval({"send": "user-approval"}, per_request=True),
    tool_approval({}, per_request=True), tool_approval({"send": "user-approval", "pay": None}),
    tool_approval(lambda options: None), tool_approval(lambda options: None, per_request=True),
    lambda info: None, {"pay": lambda args, info: None}, {"pay": "not-applicable"}, "not-applicable",
], ids=range(10))
def test_m09_a_tool_that_asks_for_itself_is_not_freed_by_a_setting_that_does_not_name_it(
    make_guard: Callable[..., Guard], setting: Any, require: Any
) -> None:
    ran: list[Any] = []

    assert gated(make_guard(setting), ran, require).sync.generate("pay", user="ana").status == "suspended"
    assert ran == []


@pytest.mark.parametrize("per_request", [False, True])
def test_a04_an_entry_that_names_the_tool_frees_it(make_guard: Callable[..., Guard], per_request: bool) -> None:
    ran: list[Any] = []
    guard = make_guard(tool_approval({"pay": "not-applicable"}, per_request=per_request))

    assert gated(guard, ran).sync.generate("pay", user="ana").status == "success"
    assert ran == [{"amount": 1}]


@pytest.mark.parametrize("per_request", [False, True])
def test_a08_a_misspelt_tool_in_a_map_stops_the_first_call(
    make_guard: Callable[..., Guard], per_request: bool
) -> None:
    guard = make_guard(tool_approval({"pya": "user-approval"}, per_request=per_request))

    with pytest.raises(ConfigurationError, match="pya"):
        gated(guard, []).sync.generate("pay", user="ana")


async def test_a12_a_misspelt_tool_in_a_request_s_map_stops_the_run(make_guard: Callable[..., Guard]) -> None:
    ran: list[Any] = []

    with pytest.raises(ConfigurationError, match="pya"):
        await started(
            make_guard(tool_approval({}, per_request=True)), lambda turn: {"tool_approval": {"pya": "denied"}}, ran
        )
    assert ran == []


async def test_a12_a_context_is_no_place_for_a_request_s_map(make_guard: Callable[..., Guard]) -> None:
    """A host may hand on what the client posted as context: it must not say what needs approval."""
    guard, ran = make_guard(tool_approval({"pay": "user-approval"}, per_request=True)), list[Any]()

    with pytest.raises(ConfigurationError, match="prepare_call"):
        await started(guard, lambda turn: {"request_context": {"tool_approval": {"pay": "approved"}}}, ran)
    assert ran == []


def test_a09_a_policy_that_looks_at_messages_asks_a_person_where_nobody_gave_any(
    make_guard: Callable[..., Guard]
) -> None:
    guard = make_guard(tool_approval({"pay": lambda input, options: "denied" if options.messages else None}))

    assert verdict(guard, call())[0] == "user-approval"
    assert verdict(guard, call(context={"messages": []}))[0] == "not-applicable"


# -- what prepare_call returns -----------------------------------------------------------------------------------------


async def nothing(turn: Turn) -> None:
    """Want no options."""


@pytest.mark.parametrize("prepare", [nothing, lambda turn: None, lambda turn: {}, lambda turn: {
    "request_context": None}], ids=["async", "sync", "empty", "no-context"])
async def test_a12_a_request_needs_no_options(make_guard: Callable[..., Guard], prepare: Any) -> None:
    ran: list[Any] = []

    assert "tool-result" in await started(make_guard(tool_approval({})), prepare, ran)
    assert ran == [{"amount": 1}]


@pytest.mark.parametrize(("given", "named"), [
    ({"user": "mallory"}, "user"), ({"tenant": "other"}, "tenant"), ({"run_id": "r", "thread_id": "t"}, "run_id"),
    ({"messages": []}, "messages"), (["pay"], "mapping"), ("pay", "mapping"),
])
async def test_a12_options_that_the_chat_sets_or_that_are_none_stop_the_run(
    make_guard: Callable[..., Guard], given: Any, named: str
) -> None:
    ran: list[Any] = []

    with pytest.raises(ConfigurationError, match=named):
        await started(make_guard(tool_approval({})), lambda turn: given, ran)
    assert ran == []


def test_a12_a_declared_function_of_the_name_of_ours_is_no_policy_for_a_request_s_map() -> None:
    ours = tool_approval({}, per_request=True)

    assert takes_requests(ours)
    assert not takes_requests(code_policy(lambda info: None, name=ours.name, version="1"))
