"""What the OpenAPI document says of credentials: which ones this app's login takes, and what goes with them.

Who one is, the host's `authenticate` says. It may carry an attribute ``security_schemes``: OpenAPI security schemes by
name, any one of which is enough. `trusted_header`, `OidcLogin` and `LoginLinks` do; for any other function, which may
look at anything, the document names what `problems.problem` asks for: a bearer token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schemes = Mapping[str, Mapping[str, Any]]
"""Name → security scheme object (OpenAPI 3.1, section 4.8.27)."""

Needs = list[dict[str, list[str]]]
"""Alternatives; each is what must be sent together."""

BEARER: Schemes = {
    "bearer": {
        "type": "http", "scheme": "bearer",
        "description": "Credentials of one's own, as the host's login takes them. A client that sends them without "
                       "cookies, Origin and Sec-Fetch-Site needs no token against other sites.",
    },
}

PUBLIC: Needs = []
"""What an operation needs that needs no login."""


def cookie_scheme(name: str) -> Schemes:
    """Return the scheme of a login that is one of our cookies (see `sessions.cookie_name`)."""
    return {"login": _cookie(name, "Set by the login.")}


def _cookie(name: str, about: str) -> Mapping[str, Any]:
    return {
        "type": "apiKey", "in": "cookie", "name": f"__Host-hitl_{name}",
        "description": f"{about} On this machine over plain HTTP its name is `hitl_{name}`.",
    }


def header_scheme(name: str) -> Schemes:
    """Return the scheme of a login that a proxy makes (see `identity.trusted_header`)."""
    return {
        "proxy": {
            "type": "apiKey", "in": "header", "name": name,
            "description": "The person's id, set by the proxy. It counts from the proxy's networks alone.",
        },
    }


def logins_of(authenticate: object) -> Schemes:
    """Return the schemes by which an authenticator knows people."""
    found: Schemes = getattr(authenticate, "security_schemes", BEARER)
    return found


def components(logins: Schemes, *, header: str) -> dict[str, Any]:
    """Return the document's ``securitySchemes``; ``header`` carries the token against other sites."""
    ours: Schemes = {
        "session": _cookie("session", "Set by the first page, and by `/api/session`, beside the login."),
        "csrf": {
            "type": "apiKey", "in": "header", "name": header,
            "description": "The token of `/api/session`, for that cookie and that person. The request must also say "
                           "that it comes from this site: `Sec-Fetch-Site: same-origin`, or an Origin of the app.",
        },
    }
    return {name: dict(scheme) for name, scheme in {**logins, **ours}.items()}


def to_read(logins: Schemes) -> Needs:
    """Return what an operation needs that changes nothing."""
    return [{name: []} for name in logins]


def to_change(logins: Schemes) -> Needs:
    """Return what an API operation needs that changes something: what a browser sends by itself is not enough."""
    return [{name: []} if _is_own(scheme) else {name: [], "session": [], "csrf": []} for name, scheme in logins.items()]


def to_post_a_form(logins: Schemes) -> Needs:
    """Return what a page's form needs; its token is a field of the form."""
    return [{name: [], "session": []} for name in logins]


def _is_own(scheme: Mapping[str, Any]) -> bool:
    """Whether no browser sends such credentials by itself (see `sessions.is_no_browser`)."""
    return scheme["type"] in ("http", "oauth2", "openIdConnect") and scheme.get("scheme", "bearer").lower() == "bearer"
