"""`hitl-guard policy`: lint, test and explain, for people and as JSON, with the exit codes 0, 1 and 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hitl_guard.cli import main

GOOD = """\
version: 1
name: refunds
default: deny
rules:
  - id: large
    tools: [refund]
    when: total.amount > 50
    effect: require_approval
    reason: Too much.
    approvers: [lead]
  - id: small
    tools: [refund]
    when: total.amount <= 50
    effect: allow
  - id: mail
    tools: [mail]
    effect: require_approval
  - id: self
    tools: [note]
    effect: require_approval
    self_approval: true
"""
CASES = """\
cases:
  - {name: large, call: {tool: refund, args: {amount: 60}}, expect: {status: user-approval}}
  - {name: small, call: {tool: refund, args: {amount: 5}}, expect: {status: approved}}
  - {name: mail, call: {tool: mail}, expect: {status: user-approval}}
  - {name: note, call: {tool: note}, expect: {status: user-approval}}
"""


@pytest.fixture
def good(tmp_path: Path) -> str:
    (tmp_path / "good_test.yaml").write_text(CASES)
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return str(path)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace("effect: allow", "effect: approve"))
    return str(path)


def hitl_guard(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["policy", *arguments])


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def test_lint_passes_a_good_file(good: str) -> None:
    result = hitl_guard("lint", good, "--strict")

    assert (result.exit_code, result.stdout) == (0, "1 file(s), 0 remark(s)\n")


def test_lint_fails_on_an_error(good: str, bad: str) -> None:
    result = hitl_guard("lint", good, bad)

    assert result.exit_code == 1
    assert "bad.yaml: error config-error: " in result.stdout
    assert result.stdout.endswith("2 file(s), 1 remark(s)\n")


def test_lint_fails_on_a_warning_only_when_strict(good: str) -> None:
    text = GOOD.replace("default: deny", "default: not_applicable").replace("total.amount >", "args.amount >")
    Path(good).write_text(text)

    relaxed, strict = hitl_guard("lint", good), hitl_guard("lint", good, "--strict")

    assert (relaxed.exit_code, strict.exit_code) == (0, 1)
    assert "warning open-default: " in relaxed.stdout
    assert "warning per-call-limit (large): " in relaxed.stdout


def test_lint_as_json(good: str, bad: str) -> None:
    result = hitl_guard("lint", good, bad, "--json")

    (remark,) = as_json(result)
    assert result.exit_code == 1
    assert (remark["file"], remark["severity"], remark["code"], remark["rule"]) == (bad, "error", "config-error", None)


def test_test_passes_when_every_case_does(good: str) -> None:
    result = hitl_guard("test", good)

    assert (result.exit_code, result.stdout) == (0, "4 passed, 0 failed\n")


def test_test_fails_with_what_differs(good: str) -> None:
    Path(good).write_text(GOOD.replace("> 50", "> 100").replace("<= 50", "<= 100"))

    result = hitl_guard("test", good)

    assert result.exit_code == 1
    assert "good.yaml: large: status: expected user-approval, got approved" in result.stdout
    assert result.stdout.endswith("3 passed, 1 failed\n")


def test_test_fails_when_a_file_or_its_cases_cannot_be_loaded(good: str, bad: str) -> None:
    (Path(good).parent / "bad_test.yaml").write_text(CASES)

    result = hitl_guard("test", good, bad)

    assert result.exit_code == 1
    assert "bad.yaml: cannot be tested: " in result.stdout
    (Path(good).parent / "good_test.yaml").unlink()
    assert hitl_guard("test", good).exit_code == 1


def test_test_as_json(good: str) -> None:
    result = hitl_guard("test", good, "--json")

    assert [line["passed"] for line in as_json(result)] == [True] * 4


def test_explain_tells_the_verdict_and_every_rule(good: str) -> None:
    result = hitl_guard("explain", good, "--tool", "refund", "--args", '{"amount": 60}')

    assert result.exit_code == 0
    assert result.stdout == (
        "user-approval: Too much.\n"
        "  needs 1 of: lead\n"
        "refunds/large [user-approval] matched\n"
        "  when total.amount > 50\n"
        "refunds/small [approved] did not match\n"
        "  when total.amount <= 50\n"
        "refunds/mail [user-approval] is about other tools\n"
        "refunds/self [user-approval] is about other tools\n"
    )


def test_explain_says_who_may_decide_where_nobody_is_named(good: str) -> None:
    assert "needs 1 of: anybody but the requester\n" in hitl_guard("explain", good, "--tool", "mail").stdout
    assert "needs 1 of: anybody\n" in hitl_guard("explain", good, "--tool", "note").stdout


def test_explain_says_which_rule_could_not_tell(good: str) -> None:
    result = hitl_guard("explain", good, "--tool", "refund", "--args", '{"amount": "60"}')

    assert "  failed: large (an approval of this call could not be used)\n" in result.stdout
    assert "refunds/large [user-approval] could not tell, which counts as a match (missing)\n" in result.stdout
    assert "refunds/small [approved] could not tell, which counts as no match (missing)\n" in result.stdout


def test_explain_as_json_with_every_fact(good: str) -> None:
    result = hitl_guard(
        "explain", good, "--json", "--tool", "refund", "--args", '{"amount": 40}', "--user", "ana", "--tenant", "t",
        "--run", "r", "--agent", "bot", "--dynamic", "--context", "{}", "--turn",
        '[{"tool": "refund", "args": {"amount": 40}}]',
    )

    data = as_json(result)
    assert (data["status"], data["rules"]) == ("user-approval", ["large"])


def test_explain_escapes_what_a_terminal_would_act_on(good: str) -> None:
    Path(good).write_text(GOOD.replace("Too much.", '"Too \\e[31m much\\u202E."'))

    result = hitl_guard("explain", good, "--tool", "refund", "--args", '{"amount": 60}')

    assert result.exit_code == 1
    Path(good).write_text(GOOD.replace("Too much.", '"Too much\\u202E."'))
    assert "Too much\\u202e." in hitl_guard("explain", good, "--tool", "refund", "--args", '{"amount": 60}').stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--args", "[]"], ["--args", "{"], ["--args", '{"a": 1, "a": 2}'], ["--turn", "{}"], ["--turn", "[1]"],
        ["--context", "[]"], ["--context", '{"a": 1e400}'], ["--user", ""], ["--nonsense"],
    ],
)
def test_explain_refuses_unusable_input_as_usage(good: str, arguments: list[str]) -> None:
    result = hitl_guard("explain", good, "--tool", "refund", *arguments)

    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_explain_of_a_file_that_cannot_be_loaded_is_a_failed_check(bad: str) -> None:
    result = hitl_guard("explain", bad, "--tool", "refund")

    assert result.exit_code == 1
    assert "config-error" in result.output


@pytest.mark.parametrize("command", ["lint", "test", "explain"])
def test_a_missing_file_is_a_usage_error(command: str) -> None:
    assert hitl_guard(command).exit_code == 2
    assert hitl_guard(command, "none.yaml").exit_code == 2


def test_help_loads_none_of_the_libraries_that_policies_need() -> None:
    script = (
        "import sys\nfrom click.testing import CliRunner\nfrom hitl_guard.cli import main\n"
        "assert CliRunner().invoke(main, ['policy', '--help']).exit_code == 0\n"
        "print(sorted({'yaml', 'pydantic', 'cel_expr_python', 'sqlalchemy'} & set(sys.modules)))"
    )

    done = run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
