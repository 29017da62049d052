"""Lint: each remark has a document that earns it, and a near one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hitl_guard.policy.golden import cases_path
from hitl_guard.policy.lint import Remark, lint


def remarks(folder: Path, rules: str, default: str = "deny", cases: str | None = None) -> list[Remark]:
    path = folder / "p.yaml"
    path.write_text(f"version: 1\nname: n\ndefault: {default}\n" + (f"rules:\n{rules}" if rules else ""))
    if cases is not None:
        cases_path(path).write_text(cases)
    return lint(path)


def codes(folder: Path, *rules: str, default: str = "deny") -> set[tuple[str, str | None]]:
    text = "".join(f"  - {{{one}}}\n" for one in rules)
    ignored = {"no-cases"}
    return {(found.code, found.rule) for found in remarks(folder, text, default) if found.code not in ignored}


@pytest.mark.parametrize(
    ("default", "expected"),
    [("allow", {("open-default", None)}), ("not_applicable", {("open-default", None)}), ("deny", set()),
     ("require_approval", set())],
)
def test_an_open_default_is_pointed_out(tmp_path: Path, default: str, expected: set[tuple[str, str | None]]) -> None:
    assert codes(tmp_path, default=default) == expected


def test_a_rule_that_says_the_same_as_another_is_pointed_out(tmp_path: Path) -> None:
    first = "id: a, tools: [x, y], when: args.n == 1, effect: deny"

    assert codes(tmp_path, first, "id: b, tools: [y, x], when: args.n == 1, effect: deny") == {("duplicate", "b")}
    assert codes(tmp_path, first, "id: b, tools: [y, x], when: args.n == 2, effect: deny") == set()
    assert codes(tmp_path, first, "id: b, tools: [x], when: args.n == 1, effect: deny") == set()
    assert codes(tmp_path, "id: a, tools: [x], effect: deny", "id: b, tools: [x], effect: deny") == {("duplicate", "b")}


@pytest.mark.parametrize(
    ("stricter", "other", "shadowed"),
    [
        ("tools: [x], effect: deny", "tools: [x], effect: allow", True),
        ("tools: [x], effect: require_approval", "tools: [x], effect: allow", True),
        ("tools: [x], effect: deny", "tools: [x], effect: require_approval", True),
        ("tools: ['*'], effect: deny", "tools: [x, 'y*'], effect: require_approval", True),
        ("tools: ['y*'], effect: deny", "tools: ['yz*'], effect: require_approval", True),
        ("tools: ['yz*'], effect: deny", "tools: ['y*'], effect: require_approval", False),
        ("tools: [x], effect: deny", "tools: [x, y], effect: allow", False),
        ("tools: [x], when: args.n == 1, effect: deny", "tools: [x], effect: allow", False),
        ("tools: [x], effect: allow", "tools: [x], when: args.n == 1, effect: deny", False),
    ],
)
def test_a_rule_that_can_never_decide_is_pointed_out(tmp_path: Path, stricter: str, other: str, shadowed: bool) -> None:
    expected = {("shadowed", "b")} if shadowed else set()

    assert codes(tmp_path, f"id: a, {stricter}", f"id: b, {other}") == expected
    assert codes(tmp_path, f"id: b, {other}", f"id: a, {stricter}") == expected


def test_an_allow_rule_under_an_allowing_default_is_pointed_out(tmp_path: Path) -> None:
    rule = "id: a, tools: [x], effect: allow"

    assert ("no-effect", "a") in codes(tmp_path, rule, default="allow")
    assert ("no-effect", "a") not in codes(tmp_path, rule, default="not_applicable")


def test_a_condition_that_does_not_look_at_the_call_is_pointed_out(tmp_path: Path) -> None:
    assert codes(tmp_path, "id: a, tools: [x], when: 1 == 1, effect: deny") == {("constant", "a")}
    assert codes(tmp_path, "id: a, tools: [x], when: user == 'x', effect: deny") == set()


@pytest.mark.parametrize(
    ("when", "effect", "pointed_out"),
    [
        ("args.amount > 50", "deny", True),
        ("args.payment.amount >= 50", "require_approval", True),
        ("args.amount < 50", "allow", True),
        ("args.amount <= 50", "allow", True),
        ("args.amount <= 0", "deny", False),
        ("args.amount > 5", "allow", False),
        ("total.amount > 50", "deny", False),
        ("args.amount > 50 && size(turn) == 0", "deny", False),
        ("args.amount > args.limit", "deny", False),
    ],
)
def test_a_limit_on_each_call_alone_is_pointed_out(tmp_path: Path, when: str, effect: str, pointed_out: bool) -> None:
    found = codes(tmp_path, f"id: a, tools: [x], when: {when}, effect: {effect}")

    assert found == ({("per-call-limit", "a")} if pointed_out else set())


def test_a_channel_that_nobody_knows_is_pointed_out(tmp_path: Path) -> None:
    rule = "id: a, tools: [x], effect: require_approval, channels: [inbox, {}]"

    assert codes(tmp_path, rule.format("imbox")) == {("unknown-channel", "a")}
    assert codes(tmp_path, rule.format("api")) == set()


def test_missing_broken_and_incomplete_cases_are_pointed_out(tmp_path: Path) -> None:
    rules = "  - {id: a, tools: [x], effect: deny}\n  - {id: b, tools: [y], when: args.n == 1, effect: deny}\n"
    one = "cases:\n  - {name: n, call: {tool: x}, expect: {status: denied}}\n"

    assert [(found.severity, found.code) for found in remarks(tmp_path, rules)] == [("warning", "no-cases")]
    broken = remarks(tmp_path, rules, cases="{}")
    assert [(found.severity, found.code) for found in broken] == [("error", "config-error")]
    assert [(found.code, found.rule) for found in remarks(tmp_path, rules, cases=one)] == [("untested", "b")]


def test_a_file_that_cannot_be_loaded_is_one_error(tmp_path: Path) -> None:
    (found,) = remarks(tmp_path, "  - {id: a}\n")

    assert (found.severity, found.code, found.rule) == ("error", "config-error", None)
    assert "p.yaml:5" in found.message
