"""``hitl-guard demo chat``: a server for a ``useChat`` front end, with a model that wants to delete files."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigurationError
from ._common import say

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.types import ASGIApp

    from ..models import Principal

POLICY = b"""\
version: 1
name: demo-chat
default: deny
rules:
  - id: deletions
    tools: [deleteFile]
    effect: require_approval
    reason: It deletes data.
    self_approval: true
    channels: [chat]
"""
"""The chat's own user confirms what the agent does for him: nobody else does, and nowhere else."""

DEFAULT_USER = "alice"


class ChatDemo:
    """The server as one app: ``/api/chat``, ``/effects``, and the page if there is one.

    Args:
        folder: Where the database goes. page: A folder of static files to serve at ``/``, or None.

    Attributes:
        app: Serve it. deleted: The arguments of every real run of the tool.
    """

    def __init__(self, folder: Path, page: Path | None = None) -> None:
        from starlette.applications import Starlette
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import JSONResponse
        from starlette.routing import BaseRoute, Mount, Route
        from starlette.staticfiles import StaticFiles

        from .. import clock
        from ..agent import Agent, Tool
        from ..guard import Guard
        from ..integrations.ai_sdk.chat import Chat
        from ..keyring import Keyring
        from ..keys import Key
        from ..policy.documents import PolicyDocument
        from ..store import SQLStore

        store = SQLStore(f"sqlite:///{folder / 'approvals.db'}")
        store.setup()
        self.guard = Guard(
            policy=PolicyDocument.from_source(POLICY, "demo-chat.yaml"), store=store,
            keyring=Keyring([Key.generate(clock.epoch_ms() - 60_000)]),
        )
        self.deleted: list[dict[str, Any]] = []
        tool = Tool("deleteFile", execute=self._delete, description="Delete a file or a folder.", input_schema=_SCHEMA)
        self.chat = Chat(Agent("file-bot", model=_model, tools=[tool], guard=self.guard, memory=True),
                         authenticate=_who)

        async def effects(_request: Request) -> JSONResponse:
            return JSONResponse({"executions": len(self.deleted)})

        routes: list[BaseRoute] = [*self.chat.routes("/api/chat"), Route("/effects", effects, methods=["GET"])]
        if page is not None:
            routes.append(Mount("/", StaticFiles(directory=page, html=True)))
        self.app: ASGIApp = TrustedHostMiddleware(
            Starlette(routes=routes, lifespan=self._lifespan), allowed_hosts=["localhost", "127.0.0.1"]
        )

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        await self.chat.close()
        self.guard.close()

    def _delete(self, args: dict[str, Any]) -> str:
        self.deleted.append(args)
        return f"deleted {args['path']}"


_SCHEMA = {
    "additionalProperties": False,
    "properties": {
        "options": {
            "additionalProperties": False, "properties": {"recursive": {"type": "boolean"}}, "type": "object",
        },
        "path": {"type": "string"},
    },
    "required": ["path", "options"], "type": "object",
}


def _who(connection: HTTPConnection) -> Principal:
    """Return whom the header names: a demo has no login."""
    from ..models import Principal

    return Principal(connection.headers.get("x-demo-user") or DEFAULT_USER)


async def _model(messages: list[dict[str, Any]], _tools: Any, _settings: Any) -> dict[str, Any]:
    """Want to delete what each message of the user names, once; then tell how that ended."""
    last = messages[-1]
    if last["role"] == "tool":
        return {"content": f"It ended like this: {last['content']}"}
    said = str(last.get("content") or "")
    found = re.search(r"/\S+", said)
    arguments = {"options": {"recursive": True}, "path": found[0] if found else "/srv/cache"}
    count = sum(1 for message in messages if message["role"] == "user")
    function = {"arguments": json.dumps(arguments), "name": "deleteFile"}
    return {"content": None, "tool_calls": [{"function": function, "id": f"call_{count}", "type": "function"}]}


@click.command()
@click.option("--port", default=8090, show_default=True, type=click.IntRange(1, 65535), help="The port.")
@click.option("--page", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Static files to serve beside it.")
def chat(port: int, page: Path | None) -> None:
    """Serve a chat on this machine: POST /api/chat for useChat, GET /effects. Its user is the header x-demo-user."""
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigurationError("'hitl-guard demo chat' needs a server: install hitl-guard[serve].") from error

    with tempfile.TemporaryDirectory(prefix="hitl-guard-chat-") as folder:
        demo = ChatDemo(Path(folder), page)
        say(f"The chat is on http://localhost:{port}{'/' if page else '/api/chat'}, and ends with Ctrl-C.")
        uvicorn.run(
            demo.app, host="127.0.0.1", port=port, log_level="warning", access_log=False,
            timeout_graceful_shutdown=2,
        )
