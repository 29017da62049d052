"""One proxy from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from ...guard import Guard
from .gate import Caller, Gate
from .listing import Listing
from .pausing import Pausing
from .relay import Relay, Upstream
from .stdio import PATIENCE_S, Line, Pipes

_LOG = logging.getLogger("hitl_guard.mcp_proxy")


class Server(Upstream, Protocol):
    """A server that was started, or is reached elsewhere."""

    def lines(self) -> AsyncIterator[Line]:
        """Yield its lines, until it ends."""

    def close(self) -> None:
        """Tell it that nothing more comes."""

    async def stop(self, *, patience_s: float = PATIENCE_S) -> int:
        """End it, and return the exit code."""


async def run(
    guard: Guard, server: Server, *, identity: str, caller: Caller, inbox: str | None, effects: Mapping[str, str],
) -> int:
    """Serve one client over this process's standard input and output until it or the server ends.

    Args:
        identity: The server's identity, part of each tool's definition.
        inbox: The inbox's address, for links, or None.

    Returns:
        The server's exit code.
    """
    pipes = Pipes()
    listing, pausing = Listing(guard, identity), Pausing(inbox)
    gate = Gate(guard, caller, listing, pausing, effects)
    relay = Relay(server, gate, listing, pausing, pipes.write)
    stopped = asyncio.create_task(_on_signals().wait())
    gone = asyncio.create_task(pipes.gone.wait())
    downward = asyncio.create_task(_pump(pipes.lines(), relay.from_client))
    upward = asyncio.create_task(_pump(server.lines(), relay.from_server))
    try:
        await asyncio.wait({downward, upward, stopped, gone}, return_when=asyncio.FIRST_COMPLETED)
        relay.hang_up()
        server.close()
        if not stopped.done():  # the client left: what runs may still end
            await asyncio.wait({upward, stopped}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        code = await server.stop(patience_s=PATIENCE_S if upward.done() else 0.0)
        await asyncio.wait({upward}, timeout=PATIENCE_S)  # what it wrote last
        return code
    finally:
        for task in (downward, upward, stopped, gone):
            task.cancel()
        await relay.end(patience_s=PATIENCE_S)


def _on_signals() -> asyncio.Event:
    """Return what is set when this process is told to end."""
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # where the loop has no signals, they end the process
            asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told


async def _pump(lines: AsyncIterator[Line], handle: Callable[[Line], Awaitable[None]]) -> None:
    try:
        async for line in lines:
            await handle(line)
    except Exception as error:  # noqa: BLE001  a fault of ours ends the proxy, and says so
        _LOG.error("The proxy ends by %s.", type(error).__name__)
