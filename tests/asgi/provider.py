"""A small OpenID Connect provider on loopback, whose tokens a test can spoil."""

from __future__ import annotations

import base64
import hashlib
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from hitl_guard import clock

CLIENT, SECRET = "inbox", "a client secret of the inbox, long enough"


class OidcServer:
    """Logs everybody in at once as `person`.

    Attributes:
        person: Claims about who logs in. spoil: Claims that replace the right ones (None removes one).
        header: Parameters of the ID token's header that replace the right ones.
        asked: The last authorization request's parameters.
    """

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.keys: list[Any] = [RSAKey.generate_key(2048, {"kid": "one"})]
        self.metadata: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.reset()
        self.app = Starlette(routes=[
            Route("/.well-known/openid-configuration", self._discovery), Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]), Route("/jwks", self._jwks),
        ])

    def reset(self) -> None:
        """Be honest again."""
        self.person: dict[str, Any] = {"sub": "bob", "name": "Bob the Lead", "groups": ["approvers", "staff"]}
        self.spoil: dict[str, Any] = {}
        self.header: dict[str, Any] = {}
        self.sign_with: Any = None
        self.asked: dict[str, str] = {}
        self.fetches = 0
        self.metadata = {}
        self.broken = self.tokenless = False

    async def _discovery(self, request: Request) -> Response:
        return JSONResponse({
            "authorization_endpoint": f"{self.issuer}/authorize", "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/jwks", "token_endpoint": f"{self.issuer}/token",
            "authorization_response_iss_parameter_supported": True,
        } | self.metadata, 500 if self.broken else 200)

    async def _jwks(self, request: Request) -> Response:
        self.fetches += 1
        return JSONResponse(KeySet(self.keys).as_dict(private=False))

    async def _authorize(self, request: Request) -> Response:
        self.asked = dict(request.query_params)
        code = secrets.token_urlsafe(16)
        self.codes[code] = self.asked
        back = {"code": code, "iss": self.issuer, "state": self.asked["state"]}
        return RedirectResponse(f"{self.asked['redirect_uri']}?{urlencode(back)}", 303)

    async def _token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        asked = self.codes.pop(form.get("code", ""), None)
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".replace(" ", "+").encode()).decode()
        known = request.headers.get("authorization") in (f"Basic {basic}", _basic())
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or not known or asked["code_challenge"] != challenge:
            return JSONResponse({"error": "invalid_grant"}, 400)
        if asked["redirect_uri"] != form.get("redirect_uri"):
            return JSONResponse({"error": "invalid_grant"}, 400)
        token = {"access_token": "opaque", "expires_in": 60, "token_type": "Bearer"}
        return JSONResponse(token if self.tokenless else token | {"id_token": self._id_token(asked)})

    def _id_token(self, asked: dict[str, str]) -> str:
        now = clock.epoch_ms() // 1000
        claims = {"aud": CLIENT, "exp": now + 60, "iat": now, "iss": self.issuer, "nonce": asked["nonce"]}
        claims |= self.person | self.spoil
        header = {"alg": "RS256", "kid": self.keys[-1].kid} | self.header
        key = self.sign_with or self.keys[-1]
        return jwt.encode(header, {name: value for name, value in claims.items() if value is not None}, key,
                          algorithms=["RS256", "HS256"])


def _basic() -> str:
    return "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()


def shared_secret() -> OctKey:
    """Return the client's secret as a key, for a token that somebody signed with what the client knows."""
    return OctKey.import_key(SECRET)


@contextmanager
def running() -> Iterator[OidcServer]:
    """Run a provider on a free port of loopback."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    provider = OidcServer(listener.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(provider.app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        yield provider
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
