"""The policy that a guard asks: documents and code together, one version, one verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from .. import fingerprint
from ..errors import ConfigurationError
from .code import (
    CodePolicy,
    Resolve,
    Runner,
    ToolApprovals,
    ToolPolicy,
    ToolsPolicy,
    check_require_approval,
    check_tool_approval,
    declared,
    functions,
    verdicts_of,
)
from .core import PolicyInput, Status, Verdict, strictest
from .documents import PolicyDocument, load_policy

RequireApproval = bool | Callable[..., Any]
ToolApproval = str | Mapping[str, Any] | Callable[..., Any]
Documents = str | PathLike[str] | PolicyDocument | Sequence[str | PathLike[str] | PolicyDocument]


_MOST_CONSTANTS = 1_000


class Policy:
    """Documents and code policies, combined: the strictest verdict wins, and code never lifts what a document demands.

    Args:
        documents: One or more documents or paths of YAML files. Each is asked, each default included.
        require_approval: True, False or a function ``(info: CallInfo) -> bool``.
        tool_approval: A status for every tool, a map from tool name to a status or a function ``(arguments, info)``, or
            a function ``(info)`` for all tools (see `hitl_guard.policy.code`).
        timeout_s: Seconds that an async function may take.

    Raises:
        ConfigurationError: a part is malformed, contradicts another one, or there is none at all.
    """

    def __init__(
        self, documents: Documents = (), *, require_approval: RequireApproval | None = None,
        tool_approval: ToolApproval | None = None, timeout_s: float = 5.0,
    ) -> None:
        check_require_approval(require_approval, parameters=1)
        check_tool_approval(tool_approval)
        if type(timeout_s) not in (int, float) or not 0 < timeout_s < 86_400:
            raise ConfigurationError("'timeout_s' is a number of seconds above 0 and below 86400. Correct it.")
        self.documents = _loaded(documents)
        if not self.documents and require_approval is None and tool_approval is None:
            raise ConfigurationError(
                "The policy is empty. Give a policy file, or say what is meant; require_approval=True always asks."
            )
        self.require_approval = require_approval
        self.tool_approval = _frozen(tool_approval)
        self._replaced = frozenset(tool_approval) if isinstance(tool_approval, ToolApprovals) else frozenset()
        if isinstance(tool_approval, ToolsPolicy):
            self._replaced = tool_approval.tools
        self.timeout_s = float(timeout_s)
        self._constants: dict[tuple[str, Any], Verdict] = {}
        _check_ids(self.documents)
        _check_versions(functions(self.require_approval, self.tool_approval))

    @classmethod
    def of(cls, thing: Any) -> Policy:
        """Make a policy of what a host passes as ``policy=``.

        Args:
            thing: A `Policy`; a document or the path of one; one of the four statuses; a bool (``require_approval``); a
                function ``(info) -> status`` or a map from tool name (``tool_approval``); or a list of such parts with
                any number of documents, at most one bool and at most one status, function or map.

        Raises:
            ConfigurationError: it is something else.
        """
        if isinstance(thing, Policy):
            return thing
        documents: list[Any] = []
        code: dict[str, Any] = {}
        for part in thing if isinstance(thing, (list, tuple)) else [thing]:
            kind = _kind(part)
            if kind == "documents":
                documents.append(part)
            elif kind in code:
                raise ConfigurationError(f"The policy has two parts that are '{kind}'. Keep one.")
            else:
                code[kind] = part
        return cls(documents, **code)

    @cached_property
    def version(self) -> str:
        """The policy version, 64 hex digits: over documents' bytes, static settings and declared functions."""
        code = declared(self.require_approval, self.tool_approval)
        return fingerprint.policy_version((document.source for document in self.documents), code)

    @cached_property
    def is_static(self) -> bool:
        """Whether no function of the host is asked: then an answer takes no longer than its rules."""
        settings = self.tool_approval.values() if isinstance(self.tool_approval, Mapping) else (self.tool_approval,)
        return not any(callable(setting) for setting in (self.require_approval, *settings))

    def replaces(self, tool: str) -> bool:
        """Whether ``tool_approval`` has an entry that replaces the tool's own default (see `code.ToolApprovals`).

        Any other setting only adds to it: a function that has no opinion lifts nothing.
        """
        return tool in self._replaced

    @cached_property
    def needs_recheck(self) -> bool:
        """Whether a rule wants the approvers' roles looked up again at the claim (``recheck_approvers``)."""
        rules = (rule for document in self.documents for rule in document.rules)
        return any(rule.requirement is not None and rule.requirement.recheck_approvers for rule in rules)

    @cached_property
    def needs_passkey(self) -> bool:
        """Whether a rule wants decisions that are proven with a passkey (``evidence: passkey``)."""
        rules = (rule for document in self.documents for rule in document.rules)
        return any(rule.requirement is not None and rule.requirement.evidence != "hmac" for rule in rules)

    def check_tools(self, names: Iterable[str]) -> None:
        """Check the ``tool_approval`` map against the registered tools.

        Raises:
            ConfigurationError: the map names a tool that is not registered, so that its entry would guard nothing.
        """
        if isinstance(self.tool_approval, (Mapping, ToolsPolicy)):
            named = self._replaced if isinstance(self.tool_approval, ToolsPolicy) else set(self.tool_approval)
            unknown = sorted(named - set(names))
            if unknown:
                raise ConfigurationError(
                    f"The tool_approval map names tools that are not registered: {', '.join(unknown)}. Register them "
                    "or correct the names."
                )

    def evaluate(
        self, call: PolicyInput, *, tool_policy: ToolPolicy | None = None, resolve: Resolve | None = None
    ) -> Verdict:
        """Return the verdict on one call. Nothing that a rule, a function or the call holds makes it raise.

        Args:
            tool_policy: The tool's own setting, where it has one.
            resolve: Runs the awaitable of an async function; without it such a function cannot answer.
        """
        written = [document.evaluate(call) for document in self.documents]
        if any(verdict.status is Status.DENIED for verdict in written):
            return strictest(written)
        coded = verdicts_of(
            call, require_approval=self.require_approval, tool_approval=self.tool_approval, tool_policy=tool_policy,
            runner=Runner(resolve, self.timeout_s),
        )
        verdicts = written + coded
        # One that asks nobody has nothing to be combined with, and no requirements to be filled in.
        alone = len(verdicts) == 1 and (not coded or verdicts[0].status is not Status.USER_APPROVAL)
        return verdicts[0] if alone else strictest(verdicts)

    def constant(self, tool: str, *, tool_policy: ToolPolicy | None = None) -> Verdict | None:
        """Return the verdict on every call of a tool where the policy looks at nothing but its name, else None."""
        own = None if tool_policy is None else tool_policy.require_approval
        if self.documents or not self.is_static or callable(own):
            return None
        verdict = self._constants.get((tool, own))
        if verdict is None:
            verdict = self.evaluate(PolicyInput(tool, {}, "", "", "", None, None), tool_policy=tool_policy)
            if len(self._constants) >= _MOST_CONSTANTS:  # names of tools may be a model's
                self._constants.clear()
            self._constants[tool, own] = verdict
        return verdict


def _frozen(setting: Any) -> Any:
    """Return a copy that the host's later changes do not reach."""
    return {key: _frozen(entry) for key, entry in setting.items()} if isinstance(setting, Mapping) else setting


def _kind(part: object) -> str:
    if isinstance(part, bool):
        return "require_approval"
    if isinstance(part, (Mapping, CodePolicy)) or (isinstance(part, str) and part in set(Status)) or callable(part):
        return "tool_approval"
    if isinstance(part, (str, PathLike, PolicyDocument)):
        return "documents"
    raise ConfigurationError(
        "A policy is a policy file's path, a document, a status, True or False, a function or a map of tools. Give one."
    )


def _loaded(documents: Documents) -> tuple[PolicyDocument, ...]:
    given = [documents] if isinstance(documents, (str, PathLike, PolicyDocument)) else documents
    if not isinstance(given, (list, tuple)):
        raise ConfigurationError("'documents' is a path, a document, or a list of them. Correct it.")
    loaded = []
    for part in given:
        if isinstance(part, PolicyDocument):
            loaded.append(part)
        elif isinstance(part, (str, PathLike)):
            loaded.append(load_policy(Path(part)))
        else:
            raise ConfigurationError("'documents' holds something that is neither a path nor a document. Remove it.")
    return tuple(loaded)


def _check_ids(documents: Iterable[PolicyDocument]) -> None:
    """Refuse equal rule ids in different documents: an approver must be able to tell which rule asked."""
    owners: dict[str, PolicyDocument] = {}
    for document in documents:
        for rule in document.rules:
            owner = owners.setdefault(rule.id, document)
            if owner is not document:
                raise ConfigurationError(
                    f"The rule id '{rule.id}' stands in {owner.file} and in {document.file}. Rename one."
                )


def _check_versions(declared_functions: Iterable[CodePolicy]) -> None:
    versions: dict[str, str] = {}
    for function in declared_functions:
        if versions.setdefault(function.name, function.version) != function.version:
            raise ConfigurationError(f"The code policy '{function.name}' is declared with two versions. Keep one.")
