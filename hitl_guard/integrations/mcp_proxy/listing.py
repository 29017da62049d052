"""What a server says of its tools: pinned for the calls to come, and without the tools that never run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from ...errors import CanonicalizationError, ConfigurationError, ToolChangedError
from ...guard import Guard
from ...models import ToolDefinition, check_text
from ...policy.core import Status
from . import frames
from .frames import Frame

MAX_PAGES = 1_000
"""Pages of one list. A server whose list never ends has no known tool."""

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Frame]]
"""Sends the server a request of the proxy's own and returns the answer."""

_LOG = logging.getLogger("hitl_guard.mcp_proxy")


class Listing:
    """The tools of one server, as it listed them last.

    Args:
        server: The server's identity; part of each definition.
    """

    def __init__(self, guard: Guard, server: str) -> None:
        self._guard = guard
        self._server = server
        self._tools: dict[str, ToolDefinition] = {}
        self._told: dict[str, ToolDefinition] = {}
        self._stale: set[str] = set()
        self._complete = False
        self._lock = asyncio.Lock()

    def forget(self, tool: str | None = None) -> None:
        """Look at the server's list again before the next call of a tool, or of any."""
        if tool is None:
            self._complete = False
        else:
            self._stale.add(tool)

    async def definition(self, tool: str, ask: Ask, meta: Mapping[str, Any]) -> ToolDefinition | None:
        """Return a tool's definition; the server is asked where it is not known for sure. None: there is none.

        Args:
            meta: What a request must say about itself in the protocol's version (``_meta``).
        """
        if not self._known(tool):
            async with self._lock:
                if not self._known(tool):
                    await self._load(ask, meta)
        return self._tools.get(tool)

    def check_known(self, definition: ToolDefinition) -> None:
        """Return unless the definition is news to the client: one call is refused for that, the next one asks anew.

        Raises:
            ToolChangedError: the client was told of another one, or called another one, last.
        """
        before = self._told.get(definition.name)
        self._told[definition.name] = definition
        if before not in (None, definition):
            raise ToolChangedError("The server changed this tool since it was listed or called: list the tools again.")

    def _known(self, tool: str) -> bool:
        return self._complete and tool in self._tools and tool not in self._stale

    async def _load(self, ask: Ask, meta: Mapping[str, Any]) -> None:
        """Ask for all pages. Whatever is no list leaves no tool known."""
        self._tools, self._stale, self._complete = {}, set(), True  # a change while it loads makes it incomplete again
        loaded: dict[str, ToolDefinition] = {}
        params: dict[str, Any] = {"_meta": dict(meta)} if meta else {}
        cursors: set[str] = set()
        for _ in range(MAX_PAGES):
            result = (await ask(frames.LIST, params)).result
            page = self._read(result)
            if page is None or loaded.keys() & page.keys():
                break
            loaded |= page
            cursor = result.get("nextCursor")
            if cursor is None:
                self._tools = loaded
                return
            if type(cursor) is not str or cursor in cursors:
                break
            cursors.add(cursor)
            params = {**params, "cursor": cursor}
        _LOG.error("The server's list of tools cannot be used: its tools do not run.")
        self._complete = False

    def seen(self, request: Frame, answer: Frame) -> bytes:
        """Note a page that the client asked for; return the line for the client, without tools that never run."""
        page = self._read(answer.result)
        if page is None:
            return answer.line
        self._told |= page
        whole = request.params.get("cursor") is None and answer.result.get("nextCursor") is None
        if whole:
            self._tools, self._stale, self._complete = page, set(), True
        elif any(self._tools.get(name) != definition for name, definition in page.items()):
            self._complete = False  # one page of several brings news: the proxy reads them all before the next call
        hidden = frozenset(self._hidden(answer.result["tools"]))
        return frames.without(answer.line, ("result", "tools"), hidden) if hidden else answer.line

    def _read(self, result: Mapping[str, Any]) -> dict[str, ToolDefinition] | None:
        """Return a page's usable tools, without those that it names twice; None where it is no page."""
        tools = result.get("tools")
        if type(tools) is not list:
            return None
        names = [_name(tool) for tool in tools]
        known = [name for name in names if name is not None]
        if len(set(known)) != len(known):
            _LOG.error("The server lists one tool twice: nobody can tell which one runs, so neither does.")
        usable = {
            name: definition
            for name, tool in zip(names, tools, strict=True)
            if name is not None and names.count(name) == 1 and (definition := self._pinned(name, tool)) is not None
        }
        self._guard._desk.know(usable)
        return usable

    def _pinned(self, name: str, tool: Mapping[str, Any]) -> ToolDefinition | None:
        try:
            return ToolDefinition(name, tool.get("description"), tool["inputSchema"], self._server)
        except (KeyError, ConfigurationError):
            _LOG.error("The server describes a tool in a way that cannot be used: it does not run.")
            return None

    def _hidden(self, tools: list[Any]) -> Iterator[int]:
        """Yield the places of tools that the policy denies whatever their arguments."""
        for place, tool in enumerate(tools):
            name = _name(tool)
            if name is not None and self._never(name):
                yield place

    def _never(self, tool: str) -> bool:
        policy = self._guard._desk.policy
        verdict = policy.constant(tool)
        if verdict is not None:
            return verdict.status is Status.DENIED
        for document in policy.documents:  # the strictest document wins, so one that always denies is enough
            rules = document.covering(tool)
            if not rules and document.default is Status.DENIED:
                return True
            if any(rule.effect is Status.DENIED and rule.condition is None for rule in rules):
                return True
        return False


def _name(tool: object) -> str | None:
    """Return a listed tool's name; None where it has none that can be used."""
    try:
        return check_text("tool", tool.get("name")) if isinstance(tool, dict) else None
    except (ConfigurationError, CanonicalizationError):
        return None
