"""Whether the process lives, and whether it can serve. Neither needs a login, and neither tells a secret."""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .. import clock
from ..errors import HitlGuardError
from ..lifecycle.threads import offload
from .service import Inbox
from .views import answer

READY_MS = 1_000
"""For how long an answer of ``ready`` counts, so that asking often does not load the database."""


class Health:
    """Answers for one app."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._known: tuple[int, dict[str, bool]] | None = None

    async def health(self, request: Request) -> Response:
        """Say that the process answers."""
        return answer({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Say whether store, schema, keys and live events are in order: 200, or 503 with what is not."""
        now = clock.monotonic_ms()
        if self._known is None or now - self._known[0] >= READY_MS:
            self._known = now, await offload(self._checks)
        checks = self._known[1] | {"events": self._inbox.hub.alive}
        good = all(checks.values())
        return answer({"checks": checks, "status": "ok" if good else "unavailable"}, 200 if good else 503)

    def _checks(self) -> dict[str, bool]:
        desk = self._inbox.guard._desk
        checks = {"keys": False, "schema": False, "store": False}
        # What fails stays false, and the answer says which; anything that is no error of ours is a 500 and in the log.
        with suppress(HitlGuardError):
            now = desk.store.now()
            checks["store"] = True
            desk.signer.keyring.signing_key(now)
            checks["keys"] = True
        with suppress(HitlGuardError):
            desk.store.check()
            checks["schema"] = True
        return checks


def routes(inbox: Inbox) -> list[BaseRoute]:
    """Return both routes."""
    health = Health(inbox)
    return [
        Route("/health", health.health, methods=["GET"], name="health"),
        Route("/ready", health.ready, methods=["GET"], name="ready"),
    ]
