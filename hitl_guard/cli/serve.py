"""``hitl-guard serve``: the inbox and its API on a server of their own, and the demo."""

from __future__ import annotations

import importlib
import inspect
import ipaddress
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from ..errors import ConfigurationError, HitlGuardError
from ._common import Setup, say, setup_options

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
              help="With --guard: a list of your agents, or a function that returns it; their runs are shown too.")
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
        from .serve_demo import Demo

        with tempfile.TemporaryDirectory(prefix="hitl-guard-demo-") as folder:
            demo = Demo(Path(folder), origin)
            demo.introduce()
            _listen(demo.app, options)
        return
    if authenticate is None:
        raise ConfigurationError(
            "Give --authenticate MODULE:NAME: the inbox must know who is looking. 'hitl-guard serve --demo' shows it "
            "with login links.", detail="authenticator",
        )
    who = _loaded("--authenticate", authenticate)
    with _guard(setup, guard_name, origin) as guard:
        agents = _agents(agents_name)
        _serve(guard, agents, who, origin, proxies, options)


def _serve(
    guard: Guard, agents: list[Agent], authenticate: Any, origin: str, proxies: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    from ..asgi import create_app
    from ..asgi.proxy import BehindProxy

    app: ASGIApp = create_app(guard, authenticate=authenticate, agents=agents, origins=[origin])
    say(f"The inbox is on {origin}")
    _listen(BehindProxy(app, proxies) if proxies else app, options)


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

    found = _loaded("--guard", name)
    if not isinstance(found, (Guard, AsyncGuard)) and callable(found):
        found = _called("--guard", name, found)
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
    found = _loaded("--agents", name)
    if callable(found):
        found = _called("--agents", name, found)
    if not isinstance(found, (list, tuple)):
        raise ConfigurationError(f"--agents {name} is no list of agents, and no function that returns one.")
    return list(found)  # create_app refuses what is no agent, or has another guard


def _called(option: str, name: str, function: Any) -> Any:
    try:
        made = function()
    except HitlGuardError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{option} {name} failed with {type(error).__name__}: call it yourself to see where."
                                 ) from error
    if inspect.iscoroutine(made):
        made.close()
        raise ConfigurationError(f"{option} {name} is asynchronous: give a function that returns it at once.")
    return made


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


def _loaded(option: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except HitlGuardError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{option} {name} cannot be loaded ({type(error).__name__}): give MODULE:NAME of what Python can import "
            "here (PYTHONPATH says where it looks)."
        ) from error
    return found


def _listen(app: ASGIApp, options: dict[str, Any]) -> None:
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigurationError("'hitl-guard serve' needs a server: install hitl-guard[serve].") from error
    # No header of a client or a proxy changes whom the app takes for its peer.
    uvicorn.run(
        app, **options, access_log=False, log_level="warning", proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=3,
    )
