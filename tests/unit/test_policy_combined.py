"""Documents and code together: one version, one verdict, and code never lifts what a document demands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hitl_guard.errors import ConfigurationError
from hitl_guard.models import Requirement
from hitl_guard.policy.code import ToolPolicy, code_policy
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.core import PolicyInput, Status, Verdict, strictest
from hitl_guard.policy.documents import PolicyDocument

STATUSES = ["not-applicable", "approved", "user-approval", "denied"]
DEFAULTS = {
    "not-applicable": "not_applicable", "approved": "allow", "user-approval": "require_approval", "denied": "deny",
}


def call(tool: str = "refund", **changes: Any) -> PolicyInput:
    facts: dict[str, Any] = {
        "arguments": {"amount": 60}, "user": "ana", "tenant": "t", "run_id": "r", "call_id": "c", "agent": None,
    }
    return PolicyInput(tool=tool, **(facts | changes))


def document(default: str = "deny", rules: str = "", name: str = "p.yaml") -> PolicyDocument:
    text = f"version: 1\nname: n\ndefault: {default}\n{rules}"
    return PolicyDocument.from_source(text.encode(), name)


def rules(identity: str, *lines: str, effect: str = "require_approval") -> str:
    more = "".join(f"    {line}\n" for line in lines)
    return f"rules:\n  - id: {identity}\n    tools: [refund]\n    effect: {effect}\n{more}"


# -- combining -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", STATUSES)
@pytest.mark.parametrize("written", STATUSES)
def test_rule_3_a_documents_denied_or_user_approval_is_never_lifted_by_code(written: str, code: str) -> None:
    verdict = Policy([document(DEFAULTS[written])], tool_approval=code).evaluate(call())

    assert verdict.status == max(written, code, key=STATUSES.index)


def test_rule_3_a_tools_function_lifts_a_request_level_demand_but_no_documents() -> None:
    lifting = ToolPolicy(lambda arguments, info: False)

    plain = Policy(require_approval=True).evaluate(call(), tool_policy=lifting)
    written = Policy([document("require_approval")], require_approval=True).evaluate(call(), tool_policy=lifting)

    assert (plain.status, written.status) == (Status.NOT_APPLICABLE, Status.USER_APPROVAL)


def test_i43_a_judge_may_raise_the_tier_never_lower_it() -> None:
    text = rules("refunds", "approvers: [finance]")

    for answer in ("approved", "not-applicable", None, "safe", False):
        verdict = Policy([document("allow", text)], tool_approval=lambda info, said=answer: said).evaluate(call())

        assert verdict.status is Status.USER_APPROVAL
        assert Requirement(approvers=("finance",)) in verdict.requirements


def test_rule_3_several_documents_are_each_asked() -> None:
    first = document("allow", rules("one", "quorum: 2"), "a.yaml")
    second = document("not_applicable", rules("two", "approvers: [lead]"), "b.yaml")

    verdict = Policy([first, second]).evaluate(call())

    assert (verdict.rules, verdict.requirements) == (
        ("one", "two"), (Requirement(quorum=2), Requirement(approvers=("lead",))),
    )
    assert Policy([first, document("deny")]).evaluate(call()).status is Status.DENIED


def test_a_person_asked_for_by_code_alone_is_any_but_the_requester() -> None:
    assert Policy(require_approval=True).evaluate(call()).requirements == (Requirement(),)


def test_who_may_decide_is_the_documents_matter_where_it_asks_too() -> None:
    text = rules("refunds", "approvers: [finance]", "edit: true")

    verdict = Policy([document("deny", text)], require_approval=True).evaluate(call())

    assert verdict.requirements == (Requirement(approvers=("finance",), edit=True),)


def test_code_is_not_asked_where_a_document_denies() -> None:
    asked: list[Any] = []

    verdict = Policy([document("deny")], require_approval=asked.append).evaluate(call())

    assert (verdict.status, asked) == (Status.DENIED, [])


def test_errors_of_documents_and_code_are_all_listed() -> None:
    def broken(info: Any) -> bool:
        raise ValueError

    text = rules("refunds", "when: args.nothing == 1")

    verdict = Policy([document("allow", text)], require_approval=broken).evaluate(call())

    assert verdict.errors == ("refunds", "code:require_approval")


def test_the_strictest_of_nothing_is_not_applicable() -> None:
    assert strictest([]) == Verdict(Status.NOT_APPLICABLE)


# -- construction ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Policy, lambda: Policy([]), lambda: Policy.of([]), lambda: Policy.of(())])
def test_an_empty_policy_is_refused(make: Callable[[], Policy]) -> None:
    with pytest.raises(ConfigurationError, match="The policy is empty"):
        make()


@pytest.mark.parametrize("timeout", [0, -1, 86_400, True, "5", None, float("nan")])
def test_an_unusable_time_out_is_refused(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="'timeout_s'"):
        Policy(require_approval=True, timeout_s=timeout)


@pytest.mark.parametrize("documents", [1, {"a": 1}, [1], [None], {document()}])
def test_documents_that_are_none_are_refused(documents: Any) -> None:
    with pytest.raises(ConfigurationError, match="'documents'"):
        Policy(documents)


def test_equal_rule_ids_in_two_documents_are_refused() -> None:
    first, second = document("deny", rules("r"), "a.yaml"), document("deny", rules("r"), "b.yaml")

    with pytest.raises(ConfigurationError, match=r"'r' stands in a\.yaml and in b\.yaml"):
        Policy([first, second])


def test_one_declared_function_with_two_versions_is_refused() -> None:
    old, new = (code_policy(lambda arguments, info: None, name="f", version=version) for version in "12")

    with pytest.raises(ConfigurationError, match="declared with two versions"):
        Policy(tool_approval={"a": old, "b": new})
    assert Policy(tool_approval={"a": old, "b": old}).version


def test_later_changes_of_the_hosts_map_do_not_reach_the_policy() -> None:
    given: dict[str, Any] = {"refund": {"type": "denied"}}
    policy = Policy(tool_approval=given)

    given["refund"]["type"] = "approved"
    given["refund"] = "approved"

    assert policy.evaluate(call()).status is Status.DENIED


def test_a_map_that_names_an_unregistered_tool_is_refused_at_start() -> None:
    policy = Policy(tool_approval={"refund": "denied", "refnud": "denied"})

    with pytest.raises(ConfigurationError, match="not registered: refnud") as caught:
        policy.check_tools(["refund", "mail"])
    assert caught.value.code == "config-error"

    policy.check_tools({"refund", "refnud"})
    Policy(require_approval=True).check_tools([])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rules("r", "recheck_approvers: true"), True), (rules("r"), False), (rules("r", effect="deny"), False),
        ("", False),
    ],
)
def test_a_policy_says_whether_roles_are_looked_up_again(text: str, expected: bool) -> None:
    assert Policy([document("deny", text)]).needs_recheck is expected


# -- Policy.of -------------------------------------------------------------------------------------------------------


def test_what_a_host_passes_becomes_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\nname: n\ndefault: deny\n")
    policy = Policy(require_approval=True)

    assert Policy.of(policy) is policy
    assert Policy.of(True).require_approval is True
    assert Policy.of(False).evaluate(call()).status is Status.NOT_APPLICABLE
    assert Policy.of("denied").tool_approval == "denied"
    assert Policy.of(Status.DENIED).evaluate(call()).status is Status.DENIED
    assert Policy.of({"refund": "denied"}).evaluate(call()).status is Status.DENIED
    assert Policy.of(lambda info: "denied").evaluate(call()).status is Status.DENIED
    assert Policy.of(code_policy(lambda info: None, name="f", version="1")).tool_approval.name == "f"
    assert Policy.of(document()).documents[0].default is Status.DENIED
    for given in (path, str(path), [path], (str(path),)):
        assert Policy.of(given).documents[0].name == "n"


def test_a_list_mixes_documents_and_code() -> None:
    policy = Policy.of([document("allow", name="a.yaml"), True, {"refund": "denied"}, document("allow", name="b.yaml")])

    assert len(policy.documents) == 2
    assert (policy.require_approval, policy.tool_approval) == (True, {"refund": "denied"})


@pytest.mark.parametrize("thing", [None, 1, 1.5, b"denied", object(), [[True]], {1, 2}])
def test_anything_else_is_no_policy(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match="A policy is a policy file's path"):
        Policy.of(thing)


@pytest.mark.parametrize("thing", [[True, False], ["denied", {"refund": "denied"}]])
def test_two_parts_of_one_kind_are_refused(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match="two parts"):
        Policy.of(thing)


def test_i41_a_misspelt_status_is_no_policy() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Policy.of("user-aproval")


# -- versions --------------------------------------------------------------------------------------------------------


def declared(version: str = "1", name: str = "f") -> Any:
    return code_policy(lambda *_: None, name=name, version=version)


def test_at34_every_change_of_a_policy_that_can_be_told_is_another_version() -> None:
    policies = [
        Policy([document("deny")]),
        Policy([document("allow")]),
        Policy([document("deny"), document("allow")]),
        Policy([document("allow"), document("deny")]),
        Policy(require_approval=True),
        Policy(require_approval=False),
        Policy(tool_approval="denied"),
        Policy(tool_approval={"refund": "denied"}),
        Policy(tool_approval={"refunds": "denied"}),
        Policy(tool_approval={"refund": "approved"}),
        Policy(tool_approval={"refund": {"type": "approved", "reason": "x"}}),
        Policy(tool_approval={"refund": declared()}),
        Policy(tool_approval={"refund": declared("2")}),
        Policy(tool_approval={"refund": declared(name="g")}),
        Policy(tool_approval={"mail": declared()}),
        Policy(tool_approval=declared()),
        Policy(require_approval=declared()),
        Policy(require_approval=lambda info: True),
    ]

    assert len({policy.version for policy in policies}) == len(policies)


def test_rule_5_undeclared_functions_do_not_enter_the_version() -> None:
    documents = [document("deny")]

    versions = {
        Policy(documents).version,
        Policy(documents, require_approval=lambda info: True).version,
        Policy(documents, tool_approval={"refund": lambda arguments, info: None}).version,
        Policy(documents, tool_approval=lambda info: None).version,
        documents[0].version,
    }

    assert len(versions) == 1


def test_a_version_does_not_depend_on_the_order_of_a_map_nor_on_a_files_name() -> None:
    one = Policy([document(name="a.yaml")], tool_approval={"a": "denied", "b": "approved"})
    two = Policy([document(name="b.yaml")], tool_approval={"b": {"type": "approved"}, "a": "denied"})

    assert one.version == two.version


# -- answers that are known beforehand -------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [None, True, False])
@pytest.mark.parametrize("require", [None, True, False])
@pytest.mark.parametrize("setting", [None, *STATUSES, {"refund": "denied"}, {"other": {"type": "approved"}}])
def test_settings_alone_answer_by_the_tools_name_as_the_whole_evaluation_does(
    setting: Any, require: bool | None, own: bool | None
) -> None:
    if setting is None and require is None:
        return
    policy, tool = Policy(require_approval=require, tool_approval=setting), ToolPolicy(require_approval=own)

    for _ in range(2):
        for name in ("refund", "other", "third"):
            assert policy.constant(name, tool_policy=tool) == policy.evaluate(call(name), tool_policy=tool)
            assert policy.constant(name) == policy.evaluate(call(name))


def test_what_looks_at_a_call_has_no_answer_beforehand() -> None:
    def asks(*_: Any) -> bool:
        return True

    assert Policy([document()]).constant("refund") is None
    assert Policy([document()], tool_approval="denied").constant("refund") is None
    assert Policy(require_approval=asks).constant("refund") is None
    assert Policy(tool_approval=lambda _info: "approved").constant("refund") is None
    assert Policy(tool_approval={"other": lambda *_: "approved"}).constant("refund") is None
    assert Policy(tool_approval="approved").constant("refund", tool_policy=ToolPolicy(require_approval=asks)) is None


def test_the_answers_that_are_kept_do_not_grow_with_the_names_that_a_model_invents() -> None:
    policy = Policy(tool_approval="approved")

    for number in range(2_500):
        assert policy.constant(f"invented-{number}") is not None

    assert len(policy._constants) <= 1_000
