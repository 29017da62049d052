"""A browser without a script, and what it is shown."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

import httpx

from hitl_guard.models import ApprovalRequest, ToolDefinition

if TYPE_CHECKING:
    from tests.asgi.conftest import House

SCHEMA: dict[str, Any] = {
    "type": "object", "additionalProperties": False,
    "properties": {
        "to": {"type": "string"}, "copies": {"type": "integer"}, "pin": {"type": "string", "x-secret": True},
    },
}
MAIL = {"to": "kim@example.org", "copies": 1, "pin": "0000-1111"}


class Visitor:
    """A browser without a script: it goes to pages and posts their forms."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.page = ""

    async def go(self, path: str) -> httpx.Response:
        """Look at a page."""
        return self._seen(await self.client.get(path))

    async def post(self, path: str, form: dict[str, Any] | None = None, **options: Any) -> httpx.Response:
        """Post a form with the token of the page that was seen last."""
        token = re.search(r'data-token="([^"]+)"', self.page)
        data = {"csrf_token": token[1] if token else ""} | (form or {})
        return self._seen(await self.client.post(path, data=data, **options))

    def _seen(self, answer: httpx.Response) -> httpx.Response:
        if answer.headers.get("content-type", "").startswith("text/html"):
            self.page = answer.text
        return answer


def words(page: str) -> str:
    """Return the text of a page."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", page)))


def mail(house: House, **changed: Any) -> ApprovalRequest:
    """Ask for a call that has a secret argument."""
    definition = ToolDefinition("mail", "Sends mail.", SCHEMA)
    return house.ask("mail", MAIL | changed, definition=definition)


def link(request: ApprovalRequest, rest: str = "") -> str:
    """Return the path of a request's page, or of one of its forms."""
    return f"/requests/{request.id}{rest}"
