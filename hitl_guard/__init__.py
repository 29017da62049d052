"""Human approval of an agent's tool calls: unforgeable, single-use, provable.

The public names resolve lazily (PEP 562), so that ``import hitl_guard`` stays cheap and imports no framework.
"""

from typing import TYPE_CHECKING

from .lazy import names_of

if TYPE_CHECKING:
    from . import errors
    from .aio import AsyncGuard
    from .errors import ApprovalRequired, HitlGuardError, InvalidApprovalError, InvalidSignatureError, NoEffect
    from .guard import Guard
    from .keyring import Keyring
    from .lifecycle.credentials import Assertion, Challenge, Credential, Registration
    from .lifecycle.running import current_permit
    from .lifecycle.settings import Settings
    from .models import ApprovalRequest, Decision, Permit, Principal, ToolCall, ToolDefinition
    from .policy.code import code_policy
    from .policy.combined import Policy
    from .policy.core import Verdict
    from .policy.documents import load_policy
    from .store.sql import SQLStore

__version__ = "0.1.0"

__all__ = [
    "ApprovalRequest",
    "ApprovalRequired",
    "Assertion",
    "AsyncGuard",
    "Challenge",
    "Credential",
    "Decision",
    "Guard",
    "HitlGuardError",
    "InvalidApprovalError",
    "InvalidSignatureError",
    "Keyring",
    "NoEffect",
    "Permit",
    "Policy",
    "Principal",
    "Registration",
    "SQLStore",
    "Settings",
    "ToolCall",
    "ToolDefinition",
    "Verdict",
    "code_policy",
    "current_permit",
    "errors",
    "load_policy",
]

_HOMES = {
    "aio": ("AsyncGuard",),
    "errors": ("ApprovalRequired", "HitlGuardError", "InvalidApprovalError", "InvalidSignatureError", "NoEffect"),
    "guard": ("Guard",),
    "keyring": ("Keyring",),
    "lifecycle.credentials": ("Assertion", "Challenge", "Credential", "Registration"),
    "lifecycle.running": ("current_permit",),
    "lifecycle.settings": ("Settings",),
    "models": ("ApprovalRequest", "Decision", "Permit", "Principal", "ToolCall", "ToolDefinition"),
    "policy.code": ("code_policy",),
    "policy.combined": ("Policy",),
    "policy.core": ("Verdict",),
    "policy.documents": ("load_policy",),
    "store.sql": ("SQLStore",),
}

# Hidden from type checkers, which would otherwise believe that every misspelt name exists.
if not TYPE_CHECKING:
    __getattr__, __dir__ = names_of(__name__, _HOMES)
