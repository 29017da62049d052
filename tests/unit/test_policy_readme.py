"""The page about policy documents says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from hitl_guard.policy.conditions import VARIABLES
from hitl_guard.policy.core import Status
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.policy.golden import call_input, cases_path, run_cases
from hitl_guard.policy.grammar import RuleFile

POLICIES = Path(__file__).parents[2] / "policies"
PAGE = (POLICIES / "README.md").read_text()


def rows(heading: str) -> list[str]:
    table = PAGE.partition(heading)[2].split("\n\n")[0]
    return re.findall(r"^\| (`[^|]*`) \|", table, flags=re.MULTILINE)


def names(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_page_describes_every_key_of_a_rule() -> None:
    assert names(rows("| key | what it holds | effects |")) == set(RuleFile.model_fields)


def test_the_page_describes_every_name_that_a_condition_may_use() -> None:
    assert names(rows("| name | type | what it is |")) == set(VARIABLES)


def test_the_page_lists_every_shipped_policy() -> None:
    listed = set(re.findall(r"^\| \[([\w-]+\.yaml)\]\(\1\) \|", PAGE, flags=re.MULTILINE))

    assert listed == {path.name for path in POLICIES.glob("*.yaml") if not path.stem.endswith("_test")}


def test_the_examples_of_the_page_work_together(tmp_path: Path) -> None:
    document, cases = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    path = tmp_path / "refunds.yaml"
    path.write_text(document)
    cases_path(path).write_text(cases)

    (result,) = run_cases(path)

    assert result.differences == ()


def test_what_the_page_says_about_cel_is_so() -> None:
    def matches(when: str, **arguments: object) -> tuple[Status, bool]:
        rule = f"- id: r\n  tools: [x]\n  effect: require_approval\n  when: >\n   {when}\n"
        text = f"version: 1\nname: n\ndefault: deny\nrules:\n{rule}"
        verdict = PolicyDocument.from_source(text.encode(), "p.yaml").evaluate(call_input("x", arguments))
        return verdict.status, bool(verdict.errors)

    yes, no, no_answer = (Status.USER_APPROVAL, False), (Status.DENIED, False), (Status.USER_APPROVAL, True)
    assert matches("has(args.amount)") == no
    assert matches("args.amount == 1") == no_answer
    assert matches("args.amount == 1", amount=1.0) == yes
    assert matches("args.amount > 50", amount="60") == no_answer
    assert matches("args.amount == 60", amount="60") == no
    assert matches("type(args.amount) in [int, double]", amount="60") == no
    assert matches("args.amount == 1 || true") == yes
    assert matches("args.amount == 1 && false") == no
    assert matches("args.path.matches('^[a-z]+$')", path="a/b") == no
    assert matches("args.path.matches('[a-z]+')", path="a/b") == yes
    assert matches("args.items.all(x, x > 0)", items=[1] * 9_000) == yes
    assert matches("args.items.all(x, x > 0)", items=[1] * 10_000) == no_answer
