"""Golden cases and explanations: how a policy document is tried before it is trusted.

The cases of ``refunds.yaml`` stand beside it in ``refunds_test.yaml``: calls, and the verdict that each must get.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .. import canonical
from ..errors import CanonicalizationError, ConfigurationError
from . import source as sources
from .combined import Policy
from .core import PolicyInput, Verdict
from .documents import PolicyDocument, load_policy

Text = Annotated[str, Field(min_length=1, max_length=500)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Earlier(_Strict):
    tool: Text
    args: dict[str, Any] = {}


class _Call(_Earlier):
    user: Text = "user"
    tenant: Text = "default"
    run: Text = "run"
    agent: Text | None = None
    dynamic: bool = False
    turn: list[_Earlier] | None = []
    context: dict[str, Any] = {}


class _Expectation(_Strict):
    status: Literal["not-applicable", "approved", "user-approval", "denied"]
    rules: list[Text] | None = None
    quorum: int | None = None
    approvers: list[Text] | None = None
    reason: str | None = None
    errors: list[Text] = []


class Case(_Strict):
    """One golden case: a call and the verdict that it must get."""

    name: Text
    call: _Call
    expect: _Expectation


class _CasesFile(_Strict):
    cases: Annotated[list[Case], Field(min_length=1, max_length=2_000)]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One golden case and what is wrong with its verdict; no differences means that it passed."""

    name: str
    differences: tuple[str, ...]
    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Whether the verdict is the expected one."""
        return not self.differences


def cases_path(path: str | Path) -> Path:
    """Return where the golden cases of a policy file stand: ``NAME_test.yaml`` beside ``NAME.yaml``."""
    given = Path(path)
    return given.with_name(f"{given.stem}_test{given.suffix}")


def run_cases(path: str | Path) -> list[CaseResult]:
    """Run the golden cases of a policy file.

    Raises:
        ConfigurationError: the policy or its cases cannot be loaded.
    """
    document = load_policy(path)
    return [_judged(case, document.evaluate(call)) for case, call in load_cases(cases_path(path))]


def load_cases(path: Path) -> list[tuple[Case, PolicyInput]]:
    """Load golden cases, each with its call as a guard would hand it to a policy.

    Raises:
        ConfigurationError: the file cannot be read, or anything in it is unknown or malformed.
    """
    parsed = sources.parse(sources.read_bytes(path), str(path))
    cases = parsed.validated(_CasesFile).cases
    loaded = []
    for index, case in enumerate(cases):
        try:
            loaded.append((case, _input(case.call)))
        except CanonicalizationError as error:
            raise parsed.problem(f"the call is none that a guard would pass on ({error.code}). Correct its values.",
                                 ("cases", index, "call")) from error
    return loaded


def _input(call: _Call) -> PolicyInput:
    return PolicyInput(
        tool=call.tool,
        arguments=_as_guarded(call.args),
        user=call.user,
        tenant=call.tenant,
        run_id=call.run,
        call_id="call",
        agent=call.agent,
        turn=None if call.turn is None else tuple((one.tool, _as_guarded(one.args)) for one in call.turn),
        context=_as_guarded(call.context),
        dynamic=call.dynamic,
    )


def _as_guarded(value: dict[str, Any]) -> dict[str, Any]:
    """Return the data as the guard hands it to a policy: through the canonical bytes, so that 82.0 is 82."""
    decoded: dict[str, Any] = canonical.parse(canonical.canonicalize(value, exact=True))
    return decoded


def _judged(case: Case, verdict: Verdict) -> CaseResult:
    expected = case.expect
    wanted: dict[str, Any] = {"status": expected.status, "errors": sorted(expected.errors)}
    found: dict[str, Any] = {"status": verdict.status.value, "errors": sorted(verdict.errors)}
    given = expected.model_fields_set
    if "rules" in given:
        wanted["rules"], found["rules"] = sorted(expected.rules or ()), sorted(verdict.rules)
    if "quorum" in given:
        wanted["quorum"] = expected.quorum
        found["quorum"] = max((need.quorum for need in verdict.requirements), default=0)
    if "approvers" in given:
        names = {name for need in verdict.requirements for name in need.approvers}
        wanted["approvers"], found["approvers"] = sorted(expected.approvers or ()), sorted(names)
    if "reason" in given:
        wanted["reason"], found["reason"] = expected.reason, verdict.reason
    differences = tuple(
        f"{key}: expected {_shown(value)}, got {_shown(found[key])}"
        for key, value in wanted.items() if value != found[key]
    )
    return CaseResult(case.name, differences, verdict)


def _shown(value: Any) -> str:
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)


# -- explain ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RuleAnswer:
    """What one rule said about a call.

    Attributes:
        outcome: ``matched``, ``not-matched``, ``failed-matched`` (it could not tell, which counts as a match),
            ``failed-not-matched`` or ``other-tool``.
        detail: Why it could not tell (see `ConditionError`), else None.
    """

    document: str
    rule: str
    effect: str
    tools: tuple[str, ...]
    when: str | None
    outcome: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict on a call, and what every rule of every document said."""

    verdict: Verdict
    answers: tuple[RuleAnswer, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        verdict = self.verdict
        return {
            "status": verdict.status.value,
            "reason": verdict.reason,
            "rules": list(verdict.rules),
            "errors": list(verdict.errors),
            "requirements": [need.to_json() for need in verdict.requirements],
            "answers": [asdict(answer) | {"tools": list(answer.tools)} for answer in self.answers],
        }


def explain(policy: Policy | PolicyDocument, call: PolicyInput) -> Explanation:
    """Say which rules matched a call, which failed to answer, and what follows."""
    documents = (policy,) if isinstance(policy, PolicyDocument) else policy.documents
    answers = (answer for document in documents for answer in _answers(document, call))
    return Explanation(policy.evaluate(call), tuple(answers))


def _answers(document: PolicyDocument, call: PolicyInput) -> Iterator[RuleAnswer]:
    findings = {found.rule.id: found for found in document.examine(call)}
    for rule in document.rules:
        found = findings.get(rule.id)
        outcome = "other-tool" if found is None else "matched" if found.matched else "not-matched"
        error = None if found is None else found.error
        yield RuleAnswer(
            document=document.name,
            rule=rule.id,
            effect=rule.effect.value,
            tools=rule.tools,
            when=None if rule.condition is None else rule.condition.source,
            outcome=outcome if error is None else f"failed-{outcome}",
            detail=None if error is None else error.detail,
        )


def call_input(tool: str, arguments: Mapping[str, Any], **facts: Any) -> PolicyInput:
    """Return the input for `explain`, as a guard would hand it to a policy.

    Args:
        facts: ``user``, ``tenant``, ``run``, ``agent``, ``dynamic``, ``context``, and ``turn`` (a list of
            ``{tool, args}``, the first of its turn when omitted; None: not known).

    Raises:
        ConfigurationError: a fact is unknown or of the wrong shape, or a value has no canonical form.
    """
    given = {name: value for name, value in facts.items() if value is not None or name == "turn"}
    parsed = sources.Source("call", {"tool": tool, "args": dict(arguments), **given}, {})
    try:
        return _input(parsed.validated(_Call))
    except CanonicalizationError as error:
        raise ConfigurationError(f"The call is none that a guard would pass on ({error.code}). Correct it.") from error
