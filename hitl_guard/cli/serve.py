"""``hitl-guard serve``: the inbox and its API on a server of their own, and the demo."""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from ..errors import ConfigurationError
from ._common import Setup, say, setup_options
from .loading import called, loaded

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ..agent import Agent
    from ..guard import Guard
    from ..lifecycle.settings import Settings


@click.command()
@setup_options(tenant=False, policy=True)
@click.option("--authenticate", metavar="MODULE:NAME",
              help="Your function from the request to a Principal or None, or an authenticator of hitl_guard.asgi.")
@click.option("--guard", "guard_name", metavar="MODULE:NAME",
              help="Your own Guard or AsyncGuard, or a function that returns it, in the place of --store, --keys and "
                   "--policy: with its settings. Passkeys need its 'rp_id' and 'rp_origins'.")
@click.option("--agents", "agents_name", metavar="MODULE:NAME",
              help="With --guard: your Agent, a list of them, or a function that returns it; the runs are shown.")
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Any address but this machine's own needs TLS or --proxy.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(1, 65535), help="The port.")
@click.option("--origin", metavar="URL", help="The address that people type, e.g. https://approvals.example. "
                                               "Needed with --proxy and with any other host.")
@click.option("--tls-certificate", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="The certificate with its chain (PEM).")
@click.option("--tls-key", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="The certificate's private key (PEM).")
@click.option("--proxy", "proxies", multiple=True, metavar="NETWORK",
              help="Only peers of this network may connect; TLS ends there. Repeatable.")
@click.option("--demo", "is_demo", is_flag=True,
              help="A demo agent with a database of its own, and login links for three people.")
def serve(
    setup: Setup, authenticate: str | None, guard_name: str | None, agents_name: str | None, host: str, port: int,
    origin: str | None, tls_certificate: str | None, tls_key: str | None, proxies: tuple[str, ...], is_demo: bool,
) -> None:
    """Serve the inbox. It refuses to start without keys, store, policy and authenticator."""
    local = _is_local(host)
    if bool(tls_certificate) != bool(tls_key):
        raise click.UsageError("Give --tls-certificate and --tls-key together.")
    if not (local or tls_certificate or proxies):
        raise click.UsageError(
            f"--host {host} is reached from other machines: give --tls-certificate and --tls-key, or --proxy NETWORK."
        )
    if origin is None and (proxies or not local):
        raise click.UsageError("Give --origin URL: the address that people type.")
    origin = origin or f"{'https' if tls_certificate else 'http'}://localhost:{port}"
    options = {"host": host, "port": port, "ssl_certfile": tls_certificate, "ssl_keyfile": tls_key}
    _check_guard(guard_name, agents_name, is_demo)
    if is_demo:
        if not local:
            raise click.UsageError("The demo runs on this machine only.")
        _check_packages("uvicorn", "webauthn")
        from .serve_demo import Demo

        _check_port(host, port)
        with tempfile.TemporaryDirectory(prefix="hitl-guard-demo-") as folder:
            demo = Demo(Path(folder), origin)
            demo.introduce()
            _listen(demo.app, options, demo.inbox.close)
        return
    if authenticate is None:
        raise ConfigurationError(
            "Give --authenticate MODULE:NAME: the inbox must know who is looking. 'hitl-guard serve --demo' shows it "
            "with login links.", detail="authenticator",
        )
    _check_packages("uvicorn", *(["webauthn"] if guard_name is None and _settings(origin).rp_id else []))
    who = loaded("--authenticate", authenticate)
    with _guard(setup, guard_name, origin) as guard:
        agents = _agents(agents_name)
        _serve(guard, agents, who, origin, proxies, options)


def _serve(
    guard: Guard, agents: list[Agent], authenticate: Any, origin: str, proxies: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    from ..asgi import create_app
    from ..asgi.proxy import BehindProxy

    app = create_app(guard, authenticate=authenticate, agents=agents, origins=[origin])
    _check_port(options["host"], options["port"])
    say(f"The inbox is on {origin}")
    _listen(BehindProxy(app, proxies) if proxies else app, options, app.state.inbox.close)


def _check_guard(guard: str | None, agents: str | None, is_demo: bool) -> None:
    """Refuse options that would be left unused: what was given and does nothing misleads."""
    if is_demo and (guard or agents):
        raise click.UsageError("The demo has a guard and an agent of its own.")
    if agents and not guard:
        raise click.UsageError("Give --guard too: agents are listed for the guard that they have.")
    context = click.get_current_context()
    given = [name for name in ("store_url", "keys", "policies")
             if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if guard and given:
        raise click.UsageError("--guard has its own store, keys and policy: leave --store, --keys and --policy out.")


@contextmanager
def _guard(setup: Setup, name: str | None, origin: str) -> Iterator[Guard]:
    """Yield the guard: the host's own, or one of the command's options. Its store is closed in the end."""
    if name is None:
        with setup.store() as store:
            yield setup.guard(store, deciding=True, settings=_settings(origin))
        return
    from ..aio import AsyncGuard
    from ..guard import Guard

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


def _agents(name: str | None) -> list[Agent]:
    if name is None:
        return []
    from ..agent import Agent

    found = loaded("--agents", name)
    if not isinstance(found, Agent) and callable(found):
        found = called("--agents", name, found)
    if isinstance(found, Agent):
        return [found]
    if not isinstance(found, (list, tuple)):
        raise ConfigurationError(f"--agents {name} is no Agent, no list of agents, and no function that returns one.")
    return list(found)  # create_app refuses what is no agent, or has another guard


def _settings(origin: str) -> Settings:
    from ..lifecycle.settings import Settings

    parts = urlsplit(origin)
    if parts.hostname is None:
        raise click.UsageError("--origin is an address like https://approvals.example.")
    if parts.scheme != "https" and parts.hostname != "localhost":
        return Settings()  # browsers make no passkeys there
    return Settings(rp_id=parts.hostname, rp_origins=(origin,))


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_packages(*names: str) -> None:
    """Refuse to start, before anything is said, where packages are missing: all of them are named at once."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"'hitl-guard serve' needs {' and '.join(missing)}: install hitl-guard[serve].", detail="extra"
        )


def _check_port(host: str, port: int) -> None:
    """Refuse to start where another program listens already, or where this one may not."""
    addresses: list[Any] = []
    with suppress(socket.gaierror):  # the server will say that there is no such host
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigurationError(f"Port {port} is in use: end what listens there, or give another --port."
                                         ) from error
            if error.errno == errno.EACCES:
                raise ConfigurationError(f"Port {port} is not open to this user: give another --port.") from error


def _listen(app: ASGIApp, options: dict[str, Any], end_streams: Callable[[], Awaitable[None]]) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Before the server waits for open responses: a live stream would be one to the end of its patience.
            await end_streams()
            await super().shutdown(sockets)

    # No header of a client or a proxy changes whom the app takes for its peer.
    config = uvicorn.Config(
        app, **options, access_log=False, log_level="warning", proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=3,
    )
    server = Server(config)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(1)  # it has said why
