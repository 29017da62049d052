"""What speaks HTTP: the approver's inbox and API, who the approver is, and the drop-in middleware for chat endpoints.

The names resolve lazily (PEP 562): the middleware needs no template engine, and the inbox no OpenID Connect client.
"""

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .app import create_app
    from .identity import Identity, request_user, trusted_header
    from .middleware import ApprovalMiddleware
    from .oidc import OidcLogin

__all__ = ["ApprovalMiddleware", "Identity", "OidcLogin", "create_app", "request_user", "trusted_header"]

_HOMES = {
    "app": ("create_app",),
    "identity": ("Identity", "request_user", "trusted_header"),
    "middleware": ("ApprovalMiddleware",),
    "oidc": ("OidcLogin",),
}

# Hidden from type checkers, which would otherwise believe that every misspelt name exists.
if not TYPE_CHECKING:
    __getattr__, __dir__ = names_of(__name__, _HOMES)
