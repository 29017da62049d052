"""Every exception that hitl_guard raises on purpose. Imports nothing of ours.

Each error carries a stable slug in ``code`` and, where one exists, a finer slug in ``detail``. Callers and tests
compare those, never the message. Messages say what to do; they never hold arguments, tokens, keys or MACs.
"""

from __future__ import annotations

from typing import Any, ClassVar


def _rebuild(cls: type[HitlGuardError], message: str, state: dict[str, Any]) -> HitlGuardError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class HitlGuardError(Exception):
    """The base of everything we raise on purpose.

    Args:
        message: One short sentence for an operator.
        code: A stable slug; the class's own when omitted.
        detail: A finer slug below ``code``, or None.
        attributes: Further facts, set as attributes (ids and slugs only).
    """

    default_code: ClassVar[str] = "error"
    code: str
    detail: str | None

    def __init__(self, message: str, *, code: str | None = None, detail: str | None = None, **attributes: Any) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.detail = detail
        for name, value in attributes.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class ConfigurationError(HitlGuardError):
    """The guard refuses to start or to serve: something in the set-up is missing, weak or unknown.

    ``messages``: in a batch, the tool messages that were made before, so that no result is lost.
    """

    default_code = "config-error"
    messages: tuple[dict[str, Any], ...] = ()


class CanonicalizationError(HitlGuardError):
    """A value has no canonical form without loss (``unsupported-value``) or exceeds a limit (``too-large``)."""

    default_code = "unsupported-value"


class ApprovalRequired(HitlGuardError):  # noqa: N818  a signal, hence no "Error"
    """The call waits for a person. ``request`` is the open request; ``requests`` all of them, for a batch.

    ``messages`` holds the tool messages that a batch already produced, so that no result is lost.
    """

    default_code = "approval-required"
    request: Any
    requests: tuple[Any, ...]
    messages: tuple[dict[str, Any], ...]

    def __init__(self, *requests: Any, messages: tuple[dict[str, Any], ...] = ()) -> None:
        if not requests:
            raise ConfigurationError("ApprovalRequired needs the request that is waited for.")
        super().__init__("The call needs an approval. Have another person decide it, then run the same call again.")
        self.request = requests[0]
        self.requests = requests
        self.messages = messages


class RefusedError(HitlGuardError):
    """The tool must not run."""

    default_code = "refused"


class PolicyDeniedError(RefusedError):
    """The policy denies the call (or failed to answer when it was asked again)."""

    default_code = "policy-denied"
    reason: str | None = None


class ApprovalDeniedError(RefusedError):
    """A person said no. ``reason`` goes to the model; ``response`` is a value that a person answered for the tool."""

    default_code = "denied"
    reason: str | None = None
    response: Any = None


class PausedError(RefusedError):
    """An operator paused this tool, agent, tenant or everything."""

    default_code = "paused"


class LimitError(RefusedError):
    """A configured limit was reached."""

    default_code = "limit-exceeded"


class InvalidApprovalError(RefusedError):
    """There is no approval that this call may use."""

    default_code = "invalid-approval"


class ExpiredError(InvalidApprovalError):
    """The decision window or the execution window is over."""

    default_code = "expired"


class NotYetValidError(InvalidApprovalError):
    """The record was issued in the future, beyond the allowed skew."""

    default_code = "not-yet-valid"


class ConsumedError(InvalidApprovalError):
    """The approval was spent before."""

    default_code = "consumed"


class RevokedError(InvalidApprovalError):
    """A person withdrew the approval before it was used."""

    default_code = "revoked"


class SupersededError(InvalidApprovalError):
    """Another request took this one's place."""

    default_code = "superseded"


class ArgsMismatchError(InvalidApprovalError):
    """The tool name or the arguments are not the approved ones."""

    default_code = "args-mismatch"


class ScopeMismatchError(InvalidApprovalError):
    """The user, run, tool-call id or occurrence is not the approved one."""

    default_code = "scope-mismatch"


class ToolChangedError(InvalidApprovalError):
    """The tool's definition is not the one that was approved."""

    default_code = "tool-changed"


class PolicyChangedError(InvalidApprovalError):
    """The policy is not the one that was approved under."""

    default_code = "policy-changed"


class NotAuthorisedError(InvalidApprovalError):
    """The decision does not count: no right, self-approval, quorum not met."""

    default_code = "not-authorised"


class InDoubtError(InvalidApprovalError):
    """The call was started and its outcome is unknown; an operator must resolve it."""

    default_code = "in-doubt"


class InvalidSignatureError(RefusedError):
    """A MAC is missing, malformed or wrong."""

    default_code = "invalid-signature"


class KeyUnknownError(InvalidSignatureError):
    """The key id is not in the keyring."""

    default_code = "key-unknown"


class KeyInactiveError(InvalidSignatureError):
    """The key is not active yet, or the record was made outside the key's period."""

    default_code = "key-inactive"


class KeyRevokedError(InvalidSignatureError):
    """The key is compromised or destroyed: nothing that it signed is accepted."""

    default_code = "key-revoked"


class DecisionError(HitlGuardError):
    """The approver's side: a decision was not accepted and nothing changed."""

    default_code = "invalid-approval"


class AgentError(HitlGuardError):
    """The built-in agent loop cannot do what was asked; nothing changed.

    ``code``: ``run-not-found``, ``call-not-suspended``, ``call-ambiguous``, ``run-busy``, ``invalid-resume-data`` or
    ``invalid-page``.
    """

    default_code = "run-not-found"


class UnavailableError(HitlGuardError):
    """The guard cannot tell. Fails closed, and is never the same as "denied".

    ``messages``: in a batch, the tool messages that were made before, so that no result is lost.
    """

    default_code = "store-unavailable"
    messages: tuple[dict[str, Any], ...] = ()


class StoreUnavailableError(UnavailableError):
    """The store cannot be read or written. Nothing was spent, or a later read will tell."""

    default_code = "store-unavailable"


class AuditUnavailableError(UnavailableError):
    """A mandatory audit event could not be written. ``result``: what the tool returned, if it had run already."""

    default_code = "audit-unavailable"
    result: Any = None


class KeyUnavailableError(UnavailableError):
    """The key source cannot be read."""

    default_code = "key-unavailable"


class StoreRolledBackError(UnavailableError):
    """The store lost something that it held before: events were deleted, or an old copy was put back."""

    default_code = "store-rolled-back"


class NoEffect(Exception):  # noqa: N818  raised by users' tools: "I failed, and nothing happened"
    """A tool raises this to report that it failed before it had any effect, so that the outcome is known."""
