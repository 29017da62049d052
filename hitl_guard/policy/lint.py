"""Lint: what a policy document says that it probably does not mean. Loading already refuses what is plainly wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import ConfigurationError
from .conditions import CelEngine
from .core import Status
from .documents import PolicyDocument, Rule, load_policy
from .golden import cases_path, load_cases

KNOWN_CHANNELS = ("api", "chat", "cli", "inbox")
"""Channels that decisions are known to come from; hosts may have others of their own."""

_RANK = {Status.APPROVED: 1, Status.USER_APPROVAL: 2, Status.DENIED: 3}
_UPPER = re.compile(r"\bargs(?:\.\w+)+\s*>=?\s*[0-9]")
_LOWER = re.compile(r"\bargs(?:\.\w+)+\s*<=?\s*[0-9]")


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that `lint` found.

    Attributes:
        severity: ``error``: the document must not be used. ``warning``: it probably does not mean what it says.
        code: A stable slug.
        rule: The rule's id, or None where the whole document is meant.
    """

    severity: Literal["error", "warning"]
    code: str
    rule: str | None
    message: str


def lint(path: str | Path) -> list[Remark]:
    """Check a policy file and its golden cases for what loading alone does not refuse. Nothing is raised."""
    try:
        document = load_policy(path)
    except ConfigurationError as error:
        return [Remark("error", "config-error", None, str(error))]
    remarks = list(_open_default(document))
    for index, rule in enumerate(document.rules):
        remarks.extend(_rule_remarks(rule, document, document.rules[:index]))
    remarks.extend(_case_remarks(document, cases_path(path)))
    return remarks


def _open_default(document: PolicyDocument) -> Iterator[Remark]:
    if document.default in (Status.APPROVED, Status.NOT_APPLICABLE):
        yield Remark("warning", "open-default", None, "A tool that no rule names runs without a person. Is that meant?")


def _rule_remarks(rule: Rule, document: PolicyDocument, earlier: tuple[Rule, ...]) -> Iterator[Remark]:
    for other in earlier:
        if _same(rule, other):
            yield Remark("warning", "duplicate", rule.id, f"It says the same as rule '{other.id}'. Remove one.")
    for other in document.rules:
        if other.condition is None and _RANK[other.effect] > _RANK[rule.effect] and _covers_all(other, rule):
            yield Remark("warning", "shadowed", rule.id,
                         f"Rule '{other.id}' always covers its tools and is stricter, so it never decides.")
    if rule.effect is Status.APPROVED and document.default is Status.APPROVED:
        yield Remark("warning", "no-effect", rule.id, "The default allows what it allows. Remove it, or the default.")
    if rule.condition is not None and _is_constant(rule.condition.source):
        yield Remark("warning", "constant", rule.id, "Its condition does not look at the call. Remove the condition.")
    if _limits_one_call(rule):
        yield Remark("warning", "per-call-limit", rule.id,
                     "It limits each call alone; several calls of one turn pass under it. Compare 'total', not 'args'.")
    for channel in () if rule.requirement is None else rule.requirement.channels:
        if channel not in KNOWN_CHANNELS:
            yield Remark("warning", "unknown-channel", rule.id,
                         f"'{channel}' is no channel that decisions are known to come from. Check its spelling.")


def _same(rule: Rule, other: Rule) -> bool:
    def meaning(one: Rule) -> tuple[object, ...]:
        return set(one.tools), one.effect, one.requirement, None if one.condition is None else one.condition.source

    return meaning(rule) == meaning(other)


def _covers_all(other: Rule, rule: Rule) -> bool:
    exact = all(other.covers(tool) for tool in rule.exact)
    return exact and all(prefix.startswith(other.prefixes) for prefix in rule.prefixes)


def _is_constant(source: str) -> bool:
    try:
        CelEngine({}).compile(source)
    except ConfigurationError:
        return False
    return True


def _limits_one_call(rule: Rule) -> bool:
    if rule.condition is None or rule.cumulative or "turn" in rule.condition.source:
        return False
    return bool((_UPPER if rule.strict else _LOWER).search(rule.condition.source))


def _case_remarks(document: PolicyDocument, path: Path) -> Iterator[Remark]:
    if not path.exists():
        yield Remark("warning", "no-cases", None, f"It has no golden cases. Write some into {path.name}.")
        return
    try:
        cases = load_cases(path)
    except ConfigurationError as error:
        yield Remark("error", "config-error", None, str(error))
        return
    matched = {found.rule.id for _, call in cases for found in document.examine(call) if found.matched}
    for rule in document.rules:
        if rule.id not in matched:
            yield Remark("warning", "untested", rule.id, "No golden case makes it match. Add one.")
