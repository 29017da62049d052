"""An OpenID Connect provider: discovery, the authorization code, and the ID token, each verified before it is used."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .. import clock
from ..errors import ConfigurationError, NotAuthorisedError, UnavailableError
from ..models import check_text

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import AsyncOAuth2Client  # type: ignore[import-untyped]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures of an ID token that are accepted: asymmetric ones, so that no secret of ours can make one."""

KNOWN_MS = 3_600_000
"""For how long discovery document and keys are used before they are fetched again, in milliseconds."""

RETRY_MS = 10_000
"""The shortest time between two fetches of keys because of an unknown key id, in milliseconds."""

TIMEOUT_S = 10.0
LEEWAY_S = 60


class Provider:
    """One provider, as one client of it. Its documents are fetched when they are needed, and kept for a while."""

    def __init__(self, issuer: str, client_id: str, client_secret: str | None, scopes: str) -> None:
        try:
            import authlib.integrations.httpx_client  # type: ignore[import-untyped]
            import joserfc.jwt  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                "OpenID Connect needs the packages authlib and httpx: install hitl-guard[oidc].", detail="oidc"
            ) from error
        self._http = _http()
        self._client = authlib.integrations.httpx_client.AsyncOAuth2Client
        self.client_id = check_text("client_id", client_id)
        self._issuer = _address("issuer", issuer)
        self._secret, self._scopes = client_secret, scopes
        self._metadata: tuple[int, dict[str, Any]] | None = None
        self._keys: tuple[int, dict[str, Any]] | None = None

    async def authorization_url(self, *, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Return where the browser is sent to log in."""
        metadata = await self._discovered()
        async with self._session(redirect_uri) as client:
            address, _ = client.create_authorization_url(
                metadata["authorization_endpoint"], state=state, code_verifier=verifier, nonce=nonce
            )
        return str(address)

    async def claims(
        self, *, code: str, issuer: str | None, redirect_uri: str, verifier: str, nonce: str, now: int
    ) -> Mapping[str, Any]:
        """Exchange the code and return the verified claims of the ID token, in this order:

        1. the issuer that the answer names, where the provider says that it does (RFC 9207); 2. the code, with the
        PKCE verifier; 3. the signature; 4. issuer, audience and authorized party; 5. times; 6. the nonce.

        Args:
            now: The database's clock, epoch milliseconds.

        Raises:
            NotAuthorisedError: ``detail`` login: the provider or the token says no. UnavailableError: no answer.
        """
        metadata = await self._discovered()
        named = metadata.get("authorization_response_iss_parameter_supported") is True
        if issuer not in ((self._issuer,) if named else (None, self._issuer)):  # 1
            raise _no()
        token = await self._exchanged(metadata, code, redirect_uri, verifier)  # 2
        unverified = token.get("id_token")
        if not isinstance(unverified, str):
            raise _no()
        return await self._verified(unverified, token, nonce, now)

    async def _exchanged(
        self, metadata: Mapping[str, Any], code: str, redirect_uri: str, verifier: str
    ) -> Mapping[str, Any]:
        from authlib.common.errors import AuthlibBaseError  # type: ignore[import-untyped]

        try:
            async with self._session(redirect_uri) as client:
                token: Mapping[str, Any] = await client.fetch_token(
                    metadata["token_endpoint"], code=code, code_verifier=verifier, grant_type="authorization_code"
                )
        except (AuthlibBaseError, ValueError) as error:
            raise _no() from error
        except self._http.HTTPError as error:
            raise _silent() from error
        return token

    async def _verified(
        self, unverified: str, token: Mapping[str, Any], nonce: str, now: int
    ) -> Mapping[str, Any]:
        from authlib.oidc.core import CodeIDToken  # type: ignore[import-untyped]
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError
        from joserfc.jwk import KeySet

        options = {
            "aud": {"essential": True, "value": self.client_id}, "iss": {"essential": True, "value": self._issuer},
        }
        params = {"access_token": token.get("access_token"), "client_id": self.client_id, "nonce": nonce}
        try:
            try:
                read = jwt.decode(unverified, KeySet.import_key_set(await self._key_set()), algorithms=ALGORITHMS)  # 3
            except InvalidKeyIdError:
                keys = KeySet.import_key_set(await self._key_set(renew=True))
                read = jwt.decode(unverified, keys, algorithms=ALGORITHMS)
            claims = CodeIDToken(read.claims, read.header, options, params)
            claims.validate(now=now // 1000, leeway=LEEWAY_S)  # 4, 5, 6
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise _no() from error
        if claims.get("nonce") != nonce or claims.get("iss") != self._issuer:
            raise _no()
        return dict(claims)

    # -- documents -----------------------------------------------------------------------------------------------

    async def _discovered(self) -> dict[str, Any]:
        if self._metadata is None or clock.monotonic_ms() - self._metadata[0] >= KNOWN_MS:
            found = await self._fetched(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != self._issuer:
                raise ConfigurationError("The provider names another issuer than the settings do.", detail="issuer")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                _address(name, found.get(name))
            self._metadata = clock.monotonic_ms(), found
        return self._metadata[1]

    async def _key_set(self, *, renew: bool = False) -> Any:
        age = KNOWN_MS if self._keys is None else clock.monotonic_ms() - self._keys[0]
        if self._keys is None or age >= (RETRY_MS if renew else KNOWN_MS):
            metadata = await self._discovered()
            self._keys = clock.monotonic_ms(), await self._fetched(metadata["jwks_uri"])
        return self._keys[1]

    async def _fetched(self, address: str) -> dict[str, Any]:
        try:
            async with self._http.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False) as client:
                response = await client.get(address)
            found = response.json() if response.status_code == 200 else None
        except (self._http.HTTPError, ValueError) as error:
            raise _silent() from error
        if not isinstance(found, dict):
            raise _silent()
        return found

    def _session(self, redirect_uri: str) -> AsyncOAuth2Client:
        return self._client(
            self.client_id, self._secret, scope=self._scopes, redirect_uri=redirect_uri,
            code_challenge_method="S256", timeout=TIMEOUT_S,
            token_endpoint_auth_method="client_secret_basic" if self._secret else "none",
        )


def _http() -> Any:
    """Return the HTTP package that authlib uses: the newer one where it is installed."""
    name = "httpx2" if importlib.util.find_spec("httpx2") is not None else "httpx"
    return importlib.import_module(name)


def _address(name: str, value: object) -> str:
    """Return an address of the provider: HTTPS, or HTTP on this machine for tests."""
    parts = urlsplit(value) if isinstance(value, str) else None
    local = parts is not None and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts is None or not parts.netloc or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise ConfigurationError(f"The provider's '{name}' must be an https address.", detail="oidc")
    return str(value)


def _no() -> NotAuthorisedError:
    return NotAuthorisedError("The login was not completed: log in again.", detail="login")


def _silent() -> UnavailableError:
    return UnavailableError("The login provider did not answer; try again.", detail="provider")
