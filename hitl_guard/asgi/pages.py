"""The routes of the inbox's pages and forms, and of the three files they need."""

from __future__ import annotations

from starlette.routing import Route

from .page_actions import ACTIONS
from .page_looks import LOOKS, static
from .page_renderer import PageRenderer
from .service import Inbox


def routes(inbox: Inbox) -> list[Route]:
    """Return the routes of all pages, relative to the mount."""
    renderer = PageRenderer(inbox)
    return [
        Route("/static/{name}", static, methods=["GET"]),
        *(Route(path, renderer.endpoint(path, handler), methods=["GET"]) for path, handler in LOOKS.items()),
        *(Route(path, renderer.endpoint(path, handler), methods=["POST"]) for path, handler in ACTIONS.items()),
    ]
