"""The routes of the inbox's pages and forms, and of the three files they need."""

from __future__ import annotations

from starlette.routing import Route

from .page_actions import ACTIONS
from .page_desk import Desk
from .page_looks import LOOKS, static
from .service import Inbox


def routes(inbox: Inbox) -> list[Route]:
    """Return the routes of all pages, relative to the mount."""
    desk = Desk(inbox)
    return [
        Route("/static/{name}", static, methods=["GET"]),
        *(Route(path, desk.endpoint(handler), methods=["GET"]) for path, handler in LOOKS.items()),
        *(Route(path, desk.endpoint(handler), methods=["POST"]) for path, handler in ACTIONS.items()),
    ]
