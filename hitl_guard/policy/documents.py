"""Policy documents: YAML rules with conditions. The grammar is described in policies/README.md.

Every rule that covers the tool and whose condition holds has a say; the strictest effect wins, whatever the order of
the rules. An error in the condition of a deny or require rule counts as a match, in an allow rule as no match. So does
a turn that nobody knows, where the condition depends on it; but a person who is then asked can allow the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .. import fingerprint
from ..errors import ConfigurationError
from ..models import Requirement
from .conditions import CelEngine, Condition, ConditionEngine, ConditionError, TurnUnknownError, totals, visible
from .core import PolicyInput, Status, Verdict, strictest

if TYPE_CHECKING:
    from .grammar import RuleFile
    from .source import Source

EFFECTS: Final[Mapping[str, Status]] = {
    "allow": Status.APPROVED,
    "deny": Status.DENIED,
    "require_approval": Status.USER_APPROVAL,
    "not_applicable": Status.NOT_APPLICABLE,
}
"""The words of a document and the verdicts that they mean; a rule cannot say ``not_applicable``."""

_CUMULATIVE = re.compile(r"\b(?:total|count)\b")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, ready to be asked.

    Attributes:
        tools: Exact names, or the start of a name with ``*`` behind it.
        cumulative: Whether the condition looks at ``total`` or ``count``.
        requirement: What must be met, of a rule that asks for a person.
        verdict: What the rule says when it matches.
    """

    id: str
    tools: tuple[str, ...]
    effect: Status
    reason: str | None
    condition: Condition | None
    requirement: Requirement | None
    cumulative: bool
    verdict: Verdict
    exact: frozenset[str]
    prefixes: tuple[str, ...]

    @property
    def strict(self) -> bool:
        """Whether the rule stops calls, so that an error counts as a match."""
        return self.effect is not Status.APPROVED

    def covers(self, tool: str) -> bool:
        """Return whether the rule is about this tool."""
        return tool in self.exact or tool.startswith(self.prefixes)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule said about one call: whether it counts as matched, and the error if it could not tell."""

    rule: Rule
    matched: bool
    error: ConditionError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PolicyDocument:
    """A loaded policy document.

    Attributes:
        source: The exact bytes; they enter the policy version.
        file: Where it came from, for messages.
        name: The document's own name.
        default: The verdict where no rule matches.
    """

    source: bytes = field(repr=False)
    file: str
    name: str
    default: Status
    rules: tuple[Rule, ...] = field(repr=False)
    _engine: ConditionEngine = field(repr=False)
    _named: Mapping[str, tuple[Rule, ...]] = field(repr=False)
    _patterns: tuple[Rule, ...] = field(repr=False)
    _default: Verdict = field(repr=False)

    @classmethod
    def from_source(cls, source: bytes, name: str, *, engine: ConditionEngine | None = None) -> PolicyDocument:
        """Build a document from the bytes of a YAML file.

        Args:
            name: File name, for messages.
            engine: What compiles the conditions; CEL when omitted.

        Raises:
            ConfigurationError: anything in it is unknown, malformed or contradictory.
        """
        # PyYAML and pydantic are loaded with the first document: a guard whose policy is code needs neither.
        from .grammar import DEFAULT_RULE, DocumentFile
        from .source import parse

        parsed = parse(source, name)
        model = parsed.validated(DocumentFile)
        chosen = default_engine() if engine is None else engine
        rules = tuple(_built(rule, index, parsed, chosen) for index, rule in enumerate(model.rules))
        seen: set[str] = set()
        for index, rule in enumerate(rules):
            if rule.id in seen:
                raise parsed.problem(f"the id '{rule.id}' stands here twice. Rename one.", ("rules", index, "id"))
            seen.add(rule.id)
        names = {tool for rule in rules for tool in rule.exact}
        named = {tool: tuple(rule for rule in rules if rule.covers(tool)) for tool in names}
        patterns = tuple(rule for rule in rules if rule.prefixes)
        default = EFFECTS[model.default]
        needs = (Requirement(),) if default is Status.USER_APPROVAL else ()
        otherwise = Verdict(default, None, needs, (DEFAULT_RULE,))
        return cls(source, name, model.name, default, rules, chosen, named, patterns, otherwise)

    @property
    def version(self) -> str:
        """The policy version of this document alone: 64 hex digits."""
        return fingerprint.policy_version([self.source], [])

    def covering(self, tool: str) -> tuple[Rule, ...]:
        """Return the rules about this tool, in the document's order."""
        rules = self._named.get(tool)
        return tuple(rule for rule in self._patterns if rule.covers(tool)) if rules is None else rules

    def evaluate(self, call: PolicyInput) -> Verdict:
        """Return the document's verdict on one call. It never raises for what the call or a condition holds.

        An allow rule that could not be answered is no match, so the verdict rests on nothing unknown: only deny and
        require_approval rules enter `Verdict.errors`.
        """
        bindings = _Bindings(self._engine, call)
        parts: list[Verdict] = []
        errors: list[str] = []
        for rule in self.covering(call.tool):
            answer = _answer(rule, bindings)
            if not _matches(rule, answer):
                continue
            unknown = isinstance(answer, TurnUnknownError)
            parts.append(_of_unknown_turn(rule) if unknown else rule.verdict)
            if answer is not True and not unknown:
                errors.append(rule.id)
        if not parts:
            return self._default
        return replace(strictest(parts), errors=tuple(errors))

    def examine(self, call: PolicyInput) -> list[Finding]:
        """Return what every rule about the tool says, in the document's order."""
        bindings = _Bindings(self._engine, call)
        answers = ((rule, _answer(rule, bindings)) for rule in self.covering(call.tool))
        return [
            Finding(rule, _matches(rule, answer), None if isinstance(answer, bool) else answer)
            for rule, answer in answers
        ]


def load_policy(path: str | Path) -> PolicyDocument:
    """Load a policy document from a YAML file.

    Raises:
        ConfigurationError: it cannot be read, or anything in it is unknown, malformed or contradictory.
    """
    from .source import read_bytes

    return PolicyDocument.from_source(read_bytes(path), str(path))


@cache
def default_engine() -> ConditionEngine:
    """Return the process's CEL engine."""
    return CelEngine()


def _answer(rule: Rule, bindings: _Bindings) -> bool | ConditionError:
    if rule.condition is None:
        return True
    try:
        return rule.condition.evaluate(bindings.of(rule))
    except ConditionError as error:
        alone = bindings.alone()
        if alone is None or isinstance(_answer(rule, alone), ConditionError):
            return error
        return TurnUnknownError("The other calls of the model's turn are not known.", detail="turn")
    except Exception as error:  # noqa: BLE001  an engine's own fault is no answer either
        failure = ConditionError("The condition engine failed.", detail="engine")
        failure.__cause__ = error
        return failure


def _matches(rule: Rule, answer: bool | ConditionError) -> bool:
    """A rule that stops calls matches when it cannot tell; a rule that lets them through does not."""
    return answer is True or (answer is not False and rule.strict)


def _of_unknown_turn(rule: Rule) -> Verdict:
    told = "This rule looks at the other calls of the model's turn, which are not known here."
    return replace(rule.verdict, reason=told if rule.reason is None else f"{rule.reason} {told}")


def _built(rule: RuleFile, index: int, parsed: Source, engine: ConditionEngine) -> Rule:
    condition = None
    if rule.when is not None:
        try:
            condition = engine.compile(rule.when)
        except ConfigurationError as error:
            raise parsed.problem(str(error), ("rules", index, "when")) from error
    effect = EFFECTS[rule.effect]
    requirement = rule.requirement() if effect is Status.USER_APPROVAL else None
    return Rule(
        id=rule.id,
        tools=tuple(rule.tools),
        effect=effect,
        reason=rule.reason,
        condition=condition,
        requirement=requirement,
        cumulative=bool(_CUMULATIVE.search(rule.when or "")),
        verdict=Verdict(effect, rule.reason, () if requirement is None else (requirement,), (rule.id,)),
        exact=frozenset(tool for tool in rule.tools if not tool.endswith("*")),
        prefixes=tuple(tool[:-1] for tool in rule.tools if tool.endswith("*")),
    )


class _Bindings:
    """The variables of one call, bound once for all rules that see the same totals."""

    _supposed = False
    """Whether the turn is only supposed to be what it is."""

    def __init__(self, engine: ConditionEngine, call: PolicyInput) -> None:
        self._engine = engine
        self._call = call
        self._bound: dict[tuple[int, ...] | None, Any] = {}

    def of(self, rule: Rule) -> Any:
        """Return what the rule's condition is evaluated with."""
        key = self._covered(rule) if rule.cumulative else None
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(key)
        return bound

    def alone(self) -> _Bindings | None:
        """Return those of a call that nobody knows the turn of, as if it were alone in it, and ``turn_known`` false all
        the same; None where that is known.
        """
        return _Alone(self._engine, replace(self._call, turn=())) if self._call.turn is None else None

    def _covered(self, rule: Rule) -> tuple[int, ...]:
        return tuple(index for index, (tool, _) in enumerate(self._call.turn or ()) if rule.covers(tool))

    def _bind(self, covered: tuple[int, ...] | None) -> Any:
        call, turn = self._call, self._call.turn
        variables: dict[str, Any] = {
            "tool": call.tool,
            "args": call.arguments,
            "user": call.user,
            "tenant": call.tenant,
            "run": call.run_id,
            "agent": call.agent,
            "dynamic": call.dynamic,
            "context": {} if call.context is None else dict(call.context),
            "turn_known": turn is not None and not self._supposed,
        }
        if turn is not None:
            variables["turn"] = [{"tool": tool, "args": arguments} for tool, arguments in turn]
        if covered is not None and turn is not None:
            earlier = [turn[index][1] for index in covered]
            variables["count"] = len(earlier) + 1
            if visible([call.arguments, *earlier]):
                variables["total"] = totals(call.arguments, earlier)
        return self._engine.bind(variables)


class _Alone(_Bindings):
    """Those of a call that is supposed to be alone in its turn."""

    _supposed = True
