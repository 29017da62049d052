"""Whether the process lives, and whether it can serve. Neither needs a login, and neither tells a secret."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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

CHECKS_S = 3.0
"""How long the checks may take together, in seconds; what is not known by then is not in order."""


class Health:
    """Answers for one app."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._known: tuple[int, dict[str, bool]] | None = None
        desk = inbox.guard._desk
        self._checks: dict[str, Callable[[], object]] = {
            "keys": lambda: desk.signer.keyring.signing_key(desk.store.now()),
            "schema": lambda: desk.store.check(), "store": lambda: desk.store.now(),
        }
        self._running: dict[str, asyncio.Task[bool]] = {}

    async def health(self, request: Request) -> Response:
        """Say that the process answers."""
        return answer({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Say whether store, schema, keys and live events are in order: 200, or 503 with what is not."""
        now = clock.monotonic_ms()
        if self._known is None or now - self._known[0] >= READY_MS:
            self._known = now, await self._checked()
        checks = self._known[1] | {"events": self._inbox.hub.alive}
        good = all(checks.values())
        return answer({"checks": checks, "status": "ok" if good else "unavailable"}, 200 if good else 503)

    async def _checked(self) -> dict[str, bool]:
        """Run every check at the same time. One that hangs is not started a second time while it does."""
        for name, check in self._checks.items():
            if name not in self._running or self._running[name].done():
                self._running[name] = asyncio.create_task(_passes(check))
        running = dict(self._running)
        await asyncio.wait(running.values(), timeout=CHECKS_S)
        return {name: task.done() and task.result() for name, task in sorted(running.items())}


async def _passes(check: Callable[[], object]) -> bool:
    """Whether a check fails with no error of ours; any other error is a 500, and in the server's log."""
    try:
        await offload(check)
    except HitlGuardError:
        return False
    return True


def routes(inbox: Inbox) -> list[BaseRoute]:
    """Return both routes."""
    health = Health(inbox)
    return [
        Route("/health", health.health, methods=["GET"], name="health"),
        Route("/ready", health.ready, methods=["GET"], name="ready"),
    ]
