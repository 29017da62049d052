"""Policy documents: a strict grammar, the strictest effect wins, and errors fail closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.errors import ConfigurationError
from hitl_guard.models import Requirement
from hitl_guard.policy.conditions import ConditionError
from hitl_guard.policy.core import PolicyInput, Status, Verdict
from hitl_guard.policy.documents import PolicyDocument, load_policy
from hitl_guard.policy.grammar import milliseconds


def call(tool: str = "refund", arguments: Any = None, **changes: Any) -> PolicyInput:
    facts: dict[str, Any] = {"user": "ana", "tenant": "t", "run_id": "r", "call_id": "c", "agent": None} | changes
    return PolicyInput(tool=tool, arguments={"amount": 60} if arguments is None else arguments, **facts)


def document(rules: str = "", default: str = "require_approval") -> PolicyDocument:
    head = f"version: 1\nname: tests\ndefault: {default}\n"
    return PolicyDocument.from_source((head + ("rules:\n" + rules if rules else "")).encode(), "p.yaml")


def rule(name: str, effect: str, *lines: str, tools: str = "[refund]") -> str:
    return "".join(f"    {line}\n" for line in (f"id: {name}", f"tools: {tools}", f"effect: {effect}", *lines)).replace(
        "    id", "  - id", 1
    )


# -- the verdict -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "status", "needs"),
    [
        ("allow", Status.APPROVED, ()),
        ("deny", Status.DENIED, ()),
        ("require_approval", Status.USER_APPROVAL, (Requirement(),)),
        ("not_applicable", Status.NOT_APPLICABLE, ()),
    ],
)
def test_x09_without_a_matching_rule_the_default_decides(default: str, status: Status, needs: Any) -> None:
    verdict = document(rule("r", "deny", tools="[other]"), default).evaluate(call())

    assert verdict == Verdict(status, None, needs, ("default",))


@pytest.mark.parametrize("order", [("allow", "require_approval", "deny"), ("deny", "require_approval", "allow")])
def test_x09_the_strictest_matching_effect_wins_whatever_the_order(order: tuple[str, ...]) -> None:
    rules = {"allow": Status.APPROVED, "require_approval": Status.USER_APPROVAL, "deny": Status.DENIED}

    for present in (order, order[:2], order[1:], order[::2]):
        text = "".join(rule(f"rule-{effect}", effect) for effect in present)
        strictest = max(present, key=list(rules).index)

        verdict = document(text).evaluate(call())

        assert (verdict.status, verdict.rules) == (rules[strictest], (f"rule-{strictest}",))


def test_x09_the_demands_of_all_matching_rules_are_kept() -> None:
    text = rule("one", "require_approval", "approvers: [lead, 'user:bob']", "reason: First.") + rule(
        "two", "require_approval", "approvers: [finance]", "quorum: 2", "self_approval: true", "channels: [inbox, api]",
        "evidence: passkey", "edit: true", "risk: high", "decide_within: 2d", "execute_within: 15m",
        "recheck_approvers: true", "reason: Second.",
    )

    verdict = document(text).evaluate(call())

    assert verdict.reason == "First. · Second."
    assert verdict.rules == ("one", "two")
    assert verdict.requirements == (
        Requirement(approvers=("lead", "user:bob")),
        Requirement(
            approvers=("finance",), quorum=2, self_approval=True, channels=("inbox", "api"), evidence="passkey",
            edit=True, risk="high", decide_within=172_800_000, execute_within=900_000, recheck_approvers=True,
        ),
    )


def test_x09_an_error_in_a_deny_rule_is_a_match() -> None:
    verdict = document(rule("r", "deny", "when: args.nothing == 1"), "allow").evaluate(call())

    assert verdict == Verdict(Status.DENIED, None, (), ("r",), ("r",))


def test_x09_an_error_in_a_require_rule_is_a_match() -> None:
    verdict = document(rule("r", "require_approval", "when: args.nothing == 1"), "allow").evaluate(call())

    assert verdict == Verdict(Status.USER_APPROVAL, None, (Requirement(),), ("r",), ("r",))


def test_x09_an_error_in_an_allow_rule_is_no_match() -> None:
    verdict = document(rule("r", "allow", "when: args.nothing == 1"), "deny").evaluate(call())

    assert verdict == Verdict(Status.DENIED, None, (), ("default",))


def test_x09_errors_stay_listed_when_another_rule_decides() -> None:
    text = rule("broken", "require_approval", "when: args.nothing == 1") + rule("never", "deny")

    verdict = document(text).evaluate(call())

    assert (verdict.status, verdict.rules, verdict.errors) == (Status.DENIED, ("never",), ("broken",))


@pytest.mark.parametrize("arguments", [{"amount": 1 << 64}, {"amount": "60"}, {"amount": None}, {"note": "\0"}, {}])
def test_i37_arguments_that_the_condition_cannot_see_never_allow(arguments: dict[str, Any]) -> None:
    text = rule("small", "allow", "when: args.amount < 100") + rule("large", "deny", "when: args.amount >= 100")

    verdict = document(text).evaluate(call(arguments=arguments))

    assert (verdict.status, verdict.rules, verdict.errors) == (Status.DENIED, ("large",), ("large",))


def test_i37_a_condition_over_more_than_the_engine_will_walk_never_allows() -> None:
    text = rule("fine", "allow", "when: args.items.all(x, x > 0)")

    verdict = document(text, "deny").evaluate(call(arguments={"items": [1] * 20_000}))

    assert verdict.status is Status.DENIED


def test_a_rule_covers_exact_names_and_beginnings() -> None:
    text = rule("r", "deny", tools="[refund, 'pay_*']") + rule("all", "require_approval", tools="['*']")
    loaded = document(text, "allow")

    tools = ("refund", "refunds", "Refund", "pay_", "pay_x", "pay")
    found = {tool: loaded.evaluate(call(tool)).rules for tool in tools}

    assert found == {
        "refund": ("r",), "refunds": ("all",), "Refund": ("all",), "pay_": ("r",), "pay_x": ("r",), "pay": ("all",),
    }


def test_an_exact_name_does_not_hide_a_beginning() -> None:
    text = rule("exact", "allow", tools="[pay_x]") + rule("beginning", "deny", tools="['pay_*']")

    assert document(text).evaluate(call("pay_x")).rules == ("beginning",)


def test_x09_small_calls_of_one_turn_cannot_slip_under_one_limit() -> None:
    loaded = document(rule("limit", "require_approval", "when: total.amount > 50 || count > 3"), "allow")
    earlier = ("refund", {"amount": 20})

    statuses = [
        loaded.evaluate(call(arguments={"amount": 20}, turn=(earlier,) * number)).status for number in range(4)
    ]

    assert statuses == [Status.APPROVED, Status.APPROVED, Status.USER_APPROVAL, Status.USER_APPROVAL]


def test_x09_a_total_counts_the_tools_of_its_own_rule() -> None:
    text = rule("refunds", "require_approval", "when: total.amount > 50") + rule(
        "money", "deny", "when: total.amount > 100", tools="[refund, 'pay*']"
    ) + rule("plain", "require_approval", "when: args.amount > 1000")
    turn = (("payout", {"amount": 90}), ("mail", {"amount": 900}))

    verdict = document(text, "allow").evaluate(call(arguments={"amount": 20}, turn=turn))

    assert verdict.rules == ("money",)
    assert verdict.errors == ()


def test_x09_a_total_with_an_earlier_text_in_place_of_a_number_is_an_error() -> None:
    loaded = document(rule("limit", "require_approval", "when: total.amount > 50"), "allow")

    verdict = loaded.evaluate(call(arguments={"amount": 1}, turn=(("refund", {"amount": "1000"}),)))

    assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("limit",))


def test_x09_a_total_with_earlier_arguments_that_cannot_be_seen_is_an_error() -> None:
    loaded = document(rule("limit", "require_approval", "when: total.amount > 50"), "allow")

    verdict = loaded.evaluate(call(arguments={"amount": 1}, turn=(("refund", {"amount": 1 << 70}),)))

    assert (verdict.status, verdict.errors) == (Status.USER_APPROVAL, ("limit",))


def test_conditions_see_the_hosts_context_and_the_dynamic_flag() -> None:
    loaded = document(rule("r", "deny", "when: dynamic && context.env == 'prod'"), "allow")

    assert loaded.evaluate(call(context={"env": "prod"}, dynamic=True)).status is Status.DENIED
    assert loaded.evaluate(call(context={"env": "prod"})).status is Status.APPROVED
    assert loaded.evaluate(call(dynamic=True)).errors == ("r",)


def test_examine_says_what_each_rule_about_the_tool_said() -> None:
    text = rule("yes", "deny") + rule("no", "allow", "when: args.amount > 100") + rule(
        "broken", "allow", "when: args.nothing == 1") + rule("other", "deny", tools="[mail]")

    findings = document(text).examine(call())

    assert [(found.rule.id, found.matched) for found in findings] == [("yes", True), ("no", False), ("broken", False)]
    assert [type(found.error) for found in findings] == [type(None), type(None), ConditionError]


class _Engine:
    """An engine of one's own: a condition holds for the user whom it names."""

    def compile(self, source: str) -> _Named:
        return _Named(source)

    def bind(self, variables: Any) -> Any:
        return variables


class _Named:
    def __init__(self, source: str) -> None:
        self.source = source

    def evaluate(self, bound: Any) -> bool:
        if bound["user"] == "nobody":
            raise ZeroDivisionError
        return bool(bound["user"] == self.source)


def test_another_engine_takes_cels_place_and_its_faults_are_no_answers() -> None:
    text = b"version: 1\nname: n\ndefault: deny\nrules:\n- {id: a, tools: [refund], when: ana, effect: allow}\n"
    loaded = PolicyDocument.from_source(text, "p.yaml", engine=_Engine())

    assert [loaded.evaluate(call(user=user)).status for user in ("ana", "bob", "nobody")] == [
        Status.APPROVED, Status.DENIED, Status.DENIED,
    ]
    (finding,) = loaded.examine(call(user="nobody"))
    assert isinstance(finding.error, ConditionError)
    assert isinstance(finding.error.__cause__, ZeroDivisionError)


# -- the grammar -----------------------------------------------------------------------------------------------------

HEAD = "version: 1\nname: n\ndefault: deny\n"


def one(*lines: str, effect: str = "require_approval", tools: str = "[refund]") -> str:
    return HEAD + "rules:\n" + rule("r", effect, *lines, tools=tools)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # the document
        ("name: n\ndefault: deny\n", "version: this key is required"),
        ("version: 1\nname: n\n", "default: this key is required"),
        ("version: 1\ndefault: deny\n", "name: this key is required"),
        ("version: 2\nname: n\ndefault: deny\n", "version: "),
        ("version: true\nname: n\ndefault: deny\n", "version: "),
        ("version: 1.0\nname: n\ndefault: deny\n", "version: "),
        ("version: '1'\nname: n\ndefault: deny\n", "version: "),
        ("version: 1\nname: n\ndefault: maybe\n", "default: "),
        ("version: 1\nname: n\ndefault:\n", "default: "),
        ("version: 1\nname: n\ndefault: not-applicable\n", "default: "),
        ("version: 1\nname: a b\ndefault: deny\n", "name: "),
        (HEAD + "defualt: allow\n", "defualt: this key is unknown"),
        (HEAD + "default: allow\n", "'default' stands here twice"),
        (HEAD + "rules:\n", "rules: "),
        (HEAD + "rules: {}\n", "rules: "),
        ("just text", "valid dictionary"),
        ("[]", "valid dictionary"),
        ("", "empty"),
        # a rule's own keys
        (one("require-approval: false"), "require-approval: this key is unknown"),
        (one("quorum: 1", "quorum: 2"), "'quorum' stands here twice"),
        (one(effect="approve"), "effect: "),
        (one(effect="not_applicable"), "effect: "),
        (one(effect=""), "effect: "),
        (one(tools="[]"), "tools: "),
        (one(tools="refund"), "tools: "),
        (one(tools="[refund, refund]"), "tools: an entry stands here twice"),
        (one(tools="['a*b']"), "form that is not allowed"),
        (one(tools="['**']"), "form that is not allowed"),
        (one(tools="['a b']"), "form that is not allowed"),
        (one(tools='["a\\0b"]'), "form that is not allowed"),
        (one(tools="[1]"), "tools[0]: "),
        (one("when: args.amount >"), "when: the condition does not compile"),
        (one("when: nosuch == 1"), "undeclared reference to 'nosuch'"),
        (one("when: args.flag"), "not known to be true or false"),
        (one("when: true"), "when: this must be a text"),
        (one("when:"), "'when' has no value"),
        (one("approvers:"), "'approvers' has no value"),
        (one("approvers: []"), "approvers: "),
        (one("approvers: finance"), "approvers: "),
        (one("approvers: ['usr:bob']"), "form that is not allowed"),
        (one("approvers: ['user:']"), "form that is not allowed"),
        (one("approvers: [a, a]"), "approvers: an entry stands here twice"),
        (one("approvers: ['user:bob']", "quorum: 2"), "quorum is larger than the number of named users"),
        (one("quorum: 0"), "quorum: "),
        (one("quorum: -1"), "quorum: "),
        (one("quorum: '2'"), "quorum: "),
        (one("quorum: 2.0"), "quorum: "),
        (one("quorum: true"), "quorum: "),
        (one("quorum: 21"), "quorum: "),
        (one("self_approval: no"), "self_approval: "),
        (one("self_approval: 0"), "self_approval: "),
        (one("edit: 'true'"), "edit: "),
        (one("channels: []"), "channels: "),
        (one("channels: [API]"), "form that is not allowed"),
        (one("evidence: ed25519"), "'ed25519' evidence is not supported by this version"),
        (one("evidence: none"), "evidence is unknown"),
        (one("risk: huge"), "risk: "),
        (one("decide_within:"), "'decide_within' has no value"),
        (one("decide_within: 15"), "decide_within: "),
        (one("decide_within: 0m"), "a duration is"),
        (one("decide_within: 15min"), "a duration is"),
        (one("execute_within: 366d"), "a duration is"),
        (one("execute_within: -1h"), "a duration is"),
        (one("reason: ''"), "reason: "),
        (one('reason: "a\\0b"'), "reason: "),
        (one("reason: " + "x" * 501), "reason: "),
        (HEAD + "rules:\n" + rule("default", "deny"), "stands for the document's default"),
        (HEAD + "rules:\n" + rule("a b", "deny"), "id: "),
        (HEAD + "rules:\n" + rule("a", "deny") + rule("a", "allow"), "rules[1].id: the id 'a' stands here twice"),
        # keys without a meaning for the effect
        (one("quorum: 1", effect="deny"), "'quorum' has no meaning"),
        (one("approvers: [a]", effect="allow"), "'approvers' has no meaning"),
        (one("self_approval: false", effect="deny"), "'self_approval' has no meaning"),
        # a pattern cannot open a door
        (one(effect="allow", tools="['read_*']"), "an allow rule names its tools exactly"),
        (one(effect="allow", tools="['*']"), "an allow rule names its tools exactly"),
    ],
)
def test_i41_a_malformed_document_is_a_configuration_error_that_says_where(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PolicyDocument.from_source(text.encode(), "p.yaml")

    assert words in str(caught.value)
    assert str(caught.value).startswith("p.yaml")
    assert caught.value.code == "config-error"


def test_a_problem_in_a_rule_names_its_line() -> None:
    with pytest.raises(ConfigurationError, match=r"^p\.yaml:8: rules\[0\]\.when: the condition does not compile"):
        PolicyDocument.from_source(one("when: ((").encode(), "p.yaml")


def test_i41_too_many_rules_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most 1000"):
        document("".join(rule(f"r{number}", "deny") for number in range(1001)))


def test_a_reason_may_have_several_lines() -> None:
    verdict = document(rule("r", "deny", 'reason: " First.\\n\\tSecond. "')).evaluate(call())

    assert verdict.reason == "First.\n\tSecond."


@pytest.mark.parametrize(
    ("text", "length"), [("1s", 1_000), ("15m", 900_000), ("24h", 86_400_000), ("365d", 31_536_000_000)]
)
def test_durations_are_milliseconds(text: str, length: int) -> None:
    assert milliseconds(text) == length


@given(st.binary(max_size=300))
def test_any_bytes_are_a_document_or_a_configuration_error(data: bytes) -> None:
    assert _loads(data) in {"document", "config-error"}


PIECES = st.sampled_from([
    "version", "name", "default", "rules", "id", "tools", "when", "effect", "approvers", "quorum", "1", "deny", "allow",
    "require_approval", "[refund]", "args.amount > 1", "true", "null", "{", "}", "[", "]", ": ", "- ", "\n", "  ", ", ",
    "'", '"', "&a", "*a", "!!int", "|", ">", "#", "---", "\t", "\0", "💥", "10m", "user:bob",
])


@given(st.lists(PIECES, max_size=40), st.integers(0, 3))
def test_any_yaml_is_a_document_or_a_configuration_error(pieces: list[str], head: int) -> None:
    prefix = ("", HEAD, HEAD + "rules:\n", one("quorum: 1"))[head]

    assert _loads((prefix + "".join(pieces)).encode()) in {"document", "config-error"}


def _loads(data: bytes) -> str:
    try:
        loaded = PolicyDocument.from_source(data, "p.yaml")
    except ConfigurationError as error:
        return error.code
    assert isinstance(loaded.evaluate(call()), Verdict)
    return "document"


# -- files and versions ----------------------------------------------------------------------------------------------


def test_a_file_is_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "refunds.yaml"
    path.write_text(HEAD)

    loaded = load_policy(path)

    assert (loaded.file, loaded.name, loaded.default, loaded.source) == (str(path), "n", Status.DENIED, HEAD.encode())


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_policy(str(tmp_path / "none.yaml"))


def test_at34_any_change_of_the_source_is_another_version() -> None:
    texts = [HEAD, HEAD + "\n", HEAD.replace("deny", "allow"), HEAD + "# a remark\n"]

    versions = {PolicyDocument.from_source(text.encode(), "p.yaml").version for text in texts}

    assert len(versions) == 4
    assert document().version == document().version


def test_a_documents_repr_shows_no_rules() -> None:
    assert "refund" not in repr(document(rule("r", "deny")))
