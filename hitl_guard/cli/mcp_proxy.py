"""``hitl-guard mcp-proxy``: an MCP server's tool calls wait for their approval, without a line of code."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import click

from ..errors import ConfigurationError
from ._common import Setup, _system_user, setup_options
from .loading import called, loaded

if TYPE_CHECKING:
    from ..guard import Guard
    from ..integrations.mcp_proxy.gate import Caller
    from ..lifecycle.settings import Settings


EFFECTS = ("none", "idempotent", "probeable", "opaque")
"""As `hitl_guard.models.EFFECTS`, which takes more to import than a page of help may."""


@click.command("mcp-proxy")
@setup_options(policy=True)
@click.option("--guard", "guard_name", metavar="MODULE:NAME",
              help="Your own Guard or AsyncGuard, or a function that returns it, in the place of --store, --keys and "
                   "--policy: with its settings.")
@click.option("--url", metavar="URL", help="The server behind a URL (Streamable HTTP), in the place of a command.")
@click.option("--authorization", envvar="HITL_GUARD_MCP_AUTHORIZATION", metavar="VALUE",
              help="With --url: the Authorization header. Set HITL_GUARD_MCP_AUTHORIZATION instead: other users of "
                   "this machine can read options.")
@click.option("--run", "run_id", envvar="HITL_GUARD_MCP_RUN", metavar="NAME",
              help="The run that calls belong to; the server's identity when omitted.")
@click.option("--user", envvar="HITL_GUARD_MCP_USER", metavar="NAME",
              help="Whom the client works for; the system's user when omitted.")
@click.option("--agent", metavar="NAME", help="The agent's name, so that it can be paused.")
@click.option("--inbox", envvar="HITL_GUARD_INBOX", metavar="URL", help="The inbox's address, for links to requests.")
@click.option("--effect", "effects", multiple=True, metavar="TOOL=EFFECT",
              help=f"What a tool promises: {', '.join(EFFECTS)}. An error of the first two leaves nothing in doubt. "
                   "Repeatable.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def mcp_proxy(
    setup: Setup, guard_name: str | None, url: str | None, authorization: str | None, run_id: str | None,
    user: str | None, agent: str | None, inbox: str | None, effects: tuple[str, ...], command: tuple[str, ...],
) -> None:
    """Stand between an MCP client and an MCP server: hitl-guard mcp-proxy [OPTIONS] -- COMMAND [ARG]...

    The client is served over standard input and output. Tool calls go through the guard; all else passes unchanged.
    """
    if bool(command) == bool(url):
        raise click.UsageError("Give the server's command after '--', or --url URL.")
    source = click.get_current_context().get_parameter_source("authorization")
    if url is None and source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--authorization is for a server behind --url.")
    promised = _effects(effects)
    _check_address("--inbox", inbox)
    _check_address("--url", url)
    identity = _identity(command, url)
    logging.basicConfig(stream=sys.stderr, format="hitl-guard mcp-proxy: %(message)s", level=logging.WARNING)
    from ..integrations.mcp_proxy.gate import Caller

    caller = Caller(user or _system_user(), run_id or f"mcp:{identity}", setup.tenant, agent)
    with _guard(setup, guard_name, inbox) as guard:
        code = asyncio.run(_run(guard, command, url, authorization, identity, caller, inbox, promised))
    sys.exit(code)


async def _run(
    guard: Guard, command: tuple[str, ...], url: str | None, authorization: str | None, identity: str,
    caller: Caller, inbox: str | None, effects: dict[str, str],
) -> int:
    from ..integrations.mcp_proxy import proxy
    from ..integrations.mcp_proxy.stdio import Child

    server: proxy.Server
    if url is None:
        server = await Child.start(command)
    else:
        from ..integrations.mcp_proxy.http import Remote

        server = Remote(url, authorization)
    return await proxy.run(guard, server, identity=identity, caller=caller, inbox=inbox, effects=effects)


@contextmanager
def _guard(setup: Setup, name: str | None, inbox: str | None) -> Iterator[Guard]:
    """Yield the guard: the host's own, or one of the command's options."""
    from ..aio import AsyncGuard
    from ..guard import Guard

    if name is None:
        with setup.store() as store:
            policy = setup.policy()
            settings = _settings(inbox) if inbox is not None and policy.needs_passkey else None
            yield Guard(policy=policy, store=store, keyring=setup.keyring(), settings=settings)
        return
    context = click.get_current_context()
    given = [option for option in ("store_url", "keys", "policies")
             if context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError("--guard has its own store, keys and policy: leave --store, --keys and --policy out.")
    found = loaded("--guard", name)
    if not isinstance(found, (Guard, AsyncGuard)) and callable(found):
        found = called("--guard", name, found)
    if isinstance(found, AsyncGuard):
        found = found.guard
    if not isinstance(found, Guard):
        raise ConfigurationError(f"--guard {name} is no Guard or AsyncGuard, and no function that returns one.")
    try:
        yield found
    finally:
        found.close()


def _settings(inbox: str) -> Settings:
    """Return the settings for a policy that demands passkeys: they belong to the inbox."""
    from .serve import _settings as settings_of

    parts = urlsplit(inbox)
    return settings_of(urlunsplit((parts.scheme, parts.netloc, "", "", "")))


def _effects(given: tuple[str, ...]) -> dict[str, str]:
    effects: dict[str, str] = {}
    for entry in given:
        tool, _, effect = entry.rpartition("=")
        if not tool or effect not in EFFECTS:
            raise click.UsageError(f"--effect {entry} is not TOOL=EFFECT with one of: {', '.join(EFFECTS)}.")
        effects[tool] = effect
    return effects


def _check_address(option: str, address: str | None) -> None:
    if address is None:
        return
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise click.UsageError(f"{option} is an address like https://host.example/path.")


def _identity(command: tuple[str, ...], url: str | None) -> str:
    """Return the server's identity: a name for people, and a digest of all of it, which may hold secrets."""
    digest = hashlib.sha256(json.dumps([*command] if url is None else url).encode()).hexdigest()[:32]
    if url is None:
        name = command[0].replace("\\", "/").rpartition("/")[2]
    else:
        parts = urlsplit(url)
        name = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
    return f"{name[:200]}#{digest}"
