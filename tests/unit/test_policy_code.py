"""Code policies: what functions are told, what their answers mean, and that every failure asks a person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest

from hitl_guard.errors import ConfigurationError
from hitl_guard.policy.code import CallInfo, CodePolicy, ToolPolicy, code_policy
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.core import PolicyInput, Status, Verdict

ASKED_ERROR = ("user-approval", 1)


def call(tool: str = "refund", **changes: Any) -> PolicyInput:
    facts: dict[str, Any] = {
        "arguments": {"amount": 60, "items": [{"sku": "a"}]}, "user": "ana", "tenant": "t", "run_id": "r",
        "call_id": "c", "agent": "bot",
    }
    return PolicyInput(tool=tool, **(facts | changes))


def resolve(awaitable: Awaitable[Any], timeout_s: float) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(timeout_s):
            return await awaitable

    return asyncio.run(limited())


def require(setting: Any, *, own: Any = None, timeout_s: float = 5.0, **changes: Any) -> Verdict:
    policy = Policy(require_approval=setting, timeout_s=timeout_s)
    return policy.evaluate(call(**changes), tool_policy=ToolPolicy(own), resolve=resolve)


def approval(setting: Any, *, own: Any = None, request: Any = None, **changes: Any) -> Verdict:
    policy = Policy(tool_approval=setting, require_approval=request)
    return policy.evaluate(call(**changes), tool_policy=ToolPolicy(own), resolve=resolve)


def raising(*_: Any) -> Any:
    raise ValueError("boom")


async def async_raising(*_: Any) -> Any:
    raise ValueError("boom")


async def endless(*_: Any) -> Any:
    await asyncio.Event().wait()


def returning(value: Any) -> Any:
    return lambda *_: value


# -- require_approval ------------------------------------------------------------------------------------------------


def test_m08_true_asks_for_every_call_of_the_request() -> None:
    verdict = require(True)

    assert (verdict.status, verdict.rules, verdict.errors) == (Status.USER_APPROVAL, ("code:require_approval",), ())
    assert len(verdict.requirements) == 1


def test_m09_a_tools_own_true_asks_whatever_the_request_says() -> None:
    assert [require(setting, own=True).status for setting in (False, True)] == [Status.USER_APPROVAL] * 2
    assert require(False, own=True).rules == ("code:tool",)


@pytest.mark.parametrize(
    ("request_level", "own", "asks"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False), (True, None, True),
     (False, None, False)],
)
def test_m10_m11_request_and_tool_are_combined_by_or(request_level: bool, own: bool | None, asks: bool) -> None:
    assert (require(request_level, own=own).status is Status.USER_APPROVAL) is asks


def test_m12_other_tools_are_not_affected_by_a_tools_setting() -> None:
    policy = Policy(require_approval=False)

    assert policy.evaluate(call("other"), tool_policy=None).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("function", [lambda info: info.args["amount"] > 50, None])
def test_m20_a_function_is_evaluated_for_each_call_sync_or_async(function: Any) -> None:
    async def large(info: CallInfo) -> bool:
        await asyncio.sleep(0)
        return bool(info.args["amount"] > 50)

    setting = function or large

    assert require(setting).status is Status.USER_APPROVAL
    assert require(setting, arguments={"amount": 5}).status is Status.NOT_APPLICABLE


def test_m21_a_function_is_told_the_call_and_the_hosts_context() -> None:
    seen: list[CallInfo] = []

    require(lambda info: seen.append(info), context={"workspace": "w1", "plan": "pro"}, dynamic=True,
            turn=(("mail", {"to": "x"}),))

    (info,) = seen
    assert (info.tool_name, info.args, info.request_context, info.workspace) == (
        "refund", {"amount": 60, "items": [{"sku": "a"}]}, {"workspace": "w1", "plan": "pro"}, "w1",
    )
    assert (info.user, info.tenant, info.run_id, info.tool_call_id, info.agent) == ("ana", "t", "r", "c", "bot")
    assert (info.turn, info.dynamic) == ((("mail", {"to": "x"}),), True)


def test_m21_without_context_there_is_an_empty_one() -> None:
    seen: list[CallInfo] = []

    require(lambda info: seen.append(info))

    assert (seen[0].request_context, seen[0].workspace) == ({}, None)


def test_a_function_cannot_change_what_others_see() -> None:
    given = call(context={"list": [1]}, turn=(("mail", {"to": ["x"]}),))

    def meddle(info: CallInfo) -> bool:
        info.args["items"][0]["sku"] = "b"
        info.args["amount"] = 1
        info.request_context["list"].append(2)
        assert info.turn is not None
        info.turn[0][1]["to"].clear()
        return False

    Policy(require_approval=meddle).evaluate(given)

    assert given.arguments == {"amount": 60, "items": [{"sku": "a"}]}
    assert given.context == {"list": [1]}
    assert given.turn == (("mail", {"to": ["x"]}),)


@pytest.mark.parametrize(
    ("value", "status", "errors"),
    [
        (True, "user-approval", 0), (False, "not-applicable", 0), (None, "not-applicable", 0),
        (1, *ASKED_ERROR), (0, *ASKED_ERROR), ("", *ASKED_ERROR), ("false", *ASKED_ERROR), ([], *ASKED_ERROR),
        ("approved", *ASKED_ERROR), ("not-applicable", *ASKED_ERROR), (object(), *ASKED_ERROR),
    ],
)
def test_m22_true_asks_false_and_none_do_not_and_everything_else_asks(value: Any, status: str, errors: int) -> None:
    verdict = require(returning(value))

    assert (verdict.status, len(verdict.errors)) == (status, errors)


@pytest.mark.parametrize("function", [raising, async_raising])
def test_m23_a_function_that_raises_asks(function: Any) -> None:
    verdict = require(function)

    assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("code:require_approval",))


def test_m23_an_async_function_that_takes_too_long_asks() -> None:
    verdict = require(endless, timeout_s=0.001)

    assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("code:require_approval",))


def test_m23_an_async_function_without_anybody_to_run_it_asks() -> None:
    class Late:
        def __await__(self) -> Any:
            yield None

    for function in (endless, lambda info: Late()):
        verdict = Policy(require_approval=function).evaluate(call())

        assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("code:require_approval",))


def test_an_interruption_is_not_taken_for_a_failure() -> None:
    def interrupted(info: CallInfo) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        require(interrupted)


def test_m24_a_functions_verdict_is_combined_with_the_tools_bool() -> None:
    assert require(returning(False), own=True).status is Status.USER_APPROVAL
    assert require(returning(True), own=False).status is Status.USER_APPROVAL
    assert require(returning(False), own=False).status is Status.NOT_APPLICABLE


def test_m25_a_tools_function_is_authoritative() -> None:
    assert require(True, own=returning(False)).status is Status.NOT_APPLICABLE
    assert require(False, own=returning(True)).status is Status.USER_APPROVAL
    assert require(True, own=returning(None)).status is Status.NOT_APPLICABLE


def test_m25_a_tools_function_gets_the_arguments_and_the_call() -> None:
    seen: list[Any] = []

    require(True, own=lambda arguments, info: seen.append((arguments, info)), context={"workspace": "w"})

    arguments, info = seen[0]
    assert arguments == info.args == {"amount": 60, "items": [{"sku": "a"}]}
    assert info.workspace == "w"


@pytest.mark.parametrize("function", [raising, async_raising, returning("no")])
def test_m25_a_tools_function_that_fails_asks(function: Any) -> None:
    verdict = require(False, own=function)

    assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("code:tool",))


def test_m26_a_classifier_gets_names_only_and_an_answer_without_a_number_asks() -> None:
    async def classify(names: list[str]) -> Mapping[str, Any]:
        return {"probability": 0.69} if names == ["city"] else {} if names == ["x"] else {"probability": 0.7}

    async def risky(info: CallInfo) -> bool:
        answer = await classify(sorted(info.args))
        return bool(answer.get("probability", 1) >= 0.7)

    statuses = [require(risky, arguments=arguments).status for arguments in ({"city": 1}, {"amount": 1}, {"x": 1})]

    assert statuses == [Status.NOT_APPLICABLE, Status.USER_APPROVAL, Status.USER_APPROVAL]


@pytest.mark.parametrize("setting", ["true", 1, 0, [], {}, "user-approval"])
def test_a_require_approval_setting_that_is_no_bool_and_no_function_is_refused(setting: Any) -> None:
    with pytest.raises(ConfigurationError, match="'require_approval' is True, False or a function"):
        Policy(require_approval=setting)
    with pytest.raises(ConfigurationError, match="'require_approval' is True, False or a function"):
        ToolPolicy(setting)


# -- tool_approval ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(Status))
def test_a05_the_four_statuses(status: Status) -> None:
    assert approval(status.value).status is status
    assert approval({"refund": status.value}).status is status
    assert approval({"refund": {"type": status.value}}).status is status
    assert approval(returning(status)).status is status
    assert approval({"refund": returning({"type": status.value})}).status is status


def test_a06_none_is_not_applicable() -> None:
    assert approval(returning(None)) == Verdict(Status.NOT_APPLICABLE)
    assert approval({"refund": returning(None)}) == Verdict(Status.NOT_APPLICABLE)
    assert approval({"refund": None}) == Verdict(Status.NOT_APPLICABLE)


@pytest.mark.parametrize("status", ["approved", "denied", "user-approval"])
def test_a07_a_reason_goes_with_the_verdict(status: str) -> None:
    static = approval({"refund": {"type": status, "reason": " Too large. "}})
    dynamic = approval(returning({"type": status, "reason": "Too large."}))

    assert static.reason == dynamic.reason == "Too large."
    assert approval({"refund": {"type": status, "reason": "  "}}).reason is None


def test_a08_a_map_holds_statuses_objects_and_functions() -> None:
    policy = Policy(tool_approval={
        "a": "denied", "b": {"type": "approved", "reason": "Fine."}, "c": lambda arguments, info: "user-approval",
    })

    assert [policy.evaluate(call(tool)).status for tool in "abcd"] == [
        Status.DENIED, Status.APPROVED, Status.USER_APPROVAL, Status.NOT_APPLICABLE,
    ]


def test_a09_a_per_tool_function_gets_input_and_options() -> None:
    async def limit(arguments: dict[str, Any], info: CallInfo) -> Any:
        if info.request_context["role"] != "admin":
            return {"type": "denied", "reason": "Admins only."}
        return "user-approval" if arguments["amount"] > 50 else None

    verdicts = [
        approval({"refund": limit}, context={"role": role}, arguments={"amount": amount})
        for role, amount in (("user", 1), ("admin", 60), ("admin", 5))
    ]

    assert [verdict.status for verdict in verdicts] == [Status.DENIED, Status.USER_APPROVAL, Status.NOT_APPLICABLE]
    assert verdicts[0].reason == "Admins only."


def test_a10_a11_one_function_for_all_tools_can_ask_for_every_dynamic_one() -> None:
    def dynamic(info: CallInfo) -> str | None:
        return "user-approval" if info.dynamic else None

    assert approval(dynamic, dynamic=True).status is Status.USER_APPROVAL
    assert approval(dynamic).status is Status.NOT_APPLICABLE


def test_a04_a_tool_approval_setting_replaces_the_tools_own() -> None:
    assert approval({"refund": "approved"}, own=True).status is Status.APPROVED
    assert approval({"refund": "approved"}, own=returning(True)).status is Status.APPROVED
    assert approval("approved", own=True).status is Status.APPROVED
    assert approval(returning(None), own=True).status is Status.NOT_APPLICABLE


def test_a04_a_tool_that_the_map_does_not_name_keeps_its_own() -> None:
    assert approval({"mail": "approved"}, own=True).status is Status.USER_APPROVAL
    assert approval({"refund": None}, own=True).status is Status.USER_APPROVAL


def test_between_the_two_families_the_strictest_wins() -> None:
    assert approval("approved", request=True).status is Status.USER_APPROVAL
    assert approval("denied", request=True).status is Status.DENIED
    assert approval("approved", request=False).status is Status.APPROVED


@pytest.mark.parametrize(
    "value",
    [True, False, 1, "", "Approved", "allow", "user_approval", [], {}, {"type": "nope"}, {"type": None},
     {"type": ["denied"]}, {"reason": "x"}, {"type": "approved", "reasn": "x"}, {"type": "approved", "reason": 1},
     {"type": "approved", "reason": "x" * 2_001}, {"type": "approved", "reason": "\ud800"}, object()],
)
@pytest.mark.parametrize("form", [returning, lambda value: {"refund": lambda arguments, info: value}])
def test_a_function_that_returns_anything_else_asks(value: Any, form: Any) -> None:
    verdict = approval(form(value))

    assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("code:tool_approval",))


@pytest.mark.parametrize("function", [raising, async_raising])
def test_a_tool_approval_function_that_raises_asks(function: Any) -> None:
    for setting in (function, {"refund": function}):
        verdict = approval(setting)

        assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("code:tool_approval",))


def test_an_answer_that_breaks_when_it_is_read_asks() -> None:
    class Broken(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise RuntimeError("broken")

        def __iter__(self) -> Any:
            raise RuntimeError("broken")

        def __len__(self) -> int:
            return 1

    assert approval(returning(Broken())).errors == ("code:tool_approval",)


@pytest.mark.parametrize(
    "setting",
    [True, 1, "approve", "user_approval", ["denied"], {"refund": True}, {"refund": False}, {"refund": "yes"},
     {"refund": {"type": "yes"}}, {"refund": {"type": "denied", "because": "x"}}, {"refund": 1}, {"": "denied"},
     {1: "denied"}],
)
def test_static_settings_that_are_unknown_are_refused_at_start(setting: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Policy(tool_approval=setting)

    assert caught.value.code == "config-error"


# -- parameters and declarations -------------------------------------------------------------------------------------


def test_functions_with_the_wrong_parameters_are_refused_at_start() -> None:
    def takes_nothing() -> bool:
        return True

    def takes_one(info: CallInfo) -> None: ...

    for make in (
        lambda: Policy(require_approval=takes_nothing),
        lambda: Policy(tool_approval=takes_nothing),
        lambda: Policy(tool_approval={"refund": takes_one}),
        lambda: ToolPolicy(takes_one),
        lambda: Policy(require_approval=code_policy(takes_nothing, name="n", version="1")),
    ):
        with pytest.raises(ConfigurationError, match="must take"):
            make()


def test_a_builtin_without_a_signature_is_accepted_and_its_failure_asks() -> None:
    verdict = require(dict.fromkeys)

    assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("code:require_approval",))
    assert require(type).errors == ("code:require_approval",)


def test_a_declared_function_works_like_any_other_and_gives_its_name() -> None:
    large = code_policy(lambda info: info.args["amount"] > 50, name="large", version="2")

    assert isinstance(large, CodePolicy)
    assert require(large).rules == ("code:large",)
    assert approval(code_policy(raising, name="broken", version="1")).errors == ("code:broken",)


@pytest.mark.parametrize(
    ("function", "name", "version"),
    [("x", "n", "1"), (None, "n", "1"), (code_policy(raising, name="n", version="1"), "n", "1"), (raising, "", "1"),
     (raising, "a:b", "1"), (raising, "n", ""), (raising, "n", "1@2"), (raising, "n", 1), (raising, None, "1"),
     (raising, "n\n", "1")],
)
def test_an_unusable_declaration_is_refused(function: Any, name: Any, version: Any) -> None:
    with pytest.raises(ConfigurationError):
        code_policy(function, name=name, version=version)
