"""`hitl-guard doctor`: is this set-up sound? Each line says ok, warn or fail, and what to do."""

from __future__ import annotations

import os
import platform
import shlex
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ..errors import HitlGuardError, RefusedError, StoreRolledBackError
from ..rows import EVERYWHERE
from ._common import Setup, counted, json_option, say, say_json, setup_options

if TYPE_CHECKING:
    from ..keyring import Key, Keyring
    from ..lifecycle.desk import Desk
    from ..store.sql import SQLStore

_OLDEST_SQLITE = (3, 35, 0)  # RETURNING
_SOON_MS = 7 * 86_400_000
_SHOWN = 5
_LISTED = ("pending", "approved", "executing", "suspended", "in_doubt")


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it is, and what to do."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str


@click.command()
@setup_options(tenant=False, policy=True)
@json_option
@click.pass_context
def doctor(ctx: click.Context, setup: Setup, as_json: bool) -> None:
    """Check keys, store, clocks and policy of this set-up. Exit code 1 when a check fails."""
    from ..render import escape

    checks = list(_checks(setup))
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        say_json({"checks": [asdict(check) for check in checks], "ok": not failed})
    else:
        for check in checks:
            say(f"{check.status:<5} {check.name:<9} {escape(check.message)}")
    if failed:
        ctx.exit(1)


def _checks(setup: Setup) -> Iterator[Check]:
    yield from _versions()
    yield from _guarded("policy", lambda: _policy(setup))
    keyring: list[Keyring] = []
    yield from _guarded("keys", lambda: _keys(setup, keyring))
    if setup.store_url is None:
        yield Check("store", "fail", "No store is given: use --store URL or set HITL_GUARD_STORE.")
        return
    try:
        with setup.store() as store:
            reachable = list(_guarded("store", lambda: _store(store, setup.store_url or "")))
            yield from reachable
            if keyring and all(check.status != "fail" for check in reachable):
                desk = setup.desk(store)
                yield from _guarded("keys", lambda: _key_states(keyring[0], store.now()))
                yield from _guarded("control", lambda: _control(desk))
                yield from _guarded("requests", lambda: _requests(desk))
            else:
                yield Check("requests", "fail", "Not checked, since keys or store failed: mend those first.")
    except HitlGuardError as error:
        yield _failed("store", error)


def _guarded(name: str, check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Yield a check's lines; one of our errors in it is a line, too."""
    try:
        yield from check()
    except HitlGuardError as error:
        yield _failed(name, error)


def _failed(name: str, error: HitlGuardError) -> Check:
    slugs = error.code if error.detail is None else f"{error.code}: {error.detail}"
    return Check(name, "fail", f"{error} [{slugs}]")


def _versions() -> Iterator[Check]:
    import sqlite3

    yield Check("python", "ok", f"Python {platform.python_version()} on {platform.system()}.")
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        yield Check("sqlite", "fail", f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed.")
    else:
        yield Check("sqlite", "ok", f"SQLite {sqlite3.sqlite_version}.")


def _policy(setup: Setup) -> Iterator[Check]:
    if not setup.policies:
        yield Check("policy", "warn", "Not checked: give --policy FILE or set HITL_GUARD_POLICY.")
        return
    policy = setup.policy()
    for document in policy.documents:
        yield from _document(document.file)
        if os.name == "posix" and Path(document.file).stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield Check("policy", "warn", f"Other users may change {document.file}: chmod go-w.")
    yield Check("policy", "ok", f"It loads; its version is {policy.version}.")


def _document(file: str) -> Iterator[Check]:
    from ..policy.golden import cases_path, run_cases
    from ..policy.lint import lint

    for remark in lint(file):
        rule = "" if remark.rule is None else f", rule {remark.rule}"
        yield Check("policy", "fail" if remark.severity == "error" else "warn", f"{file}{rule}: {remark.message}")
    if not cases_path(file).exists():
        return  # lint has said so
    results = run_cases(file)
    for failed in (result for result in results if not result.passed):
        yield Check("policy", "fail", f"{file}: the case '{failed.name}' fails: {'; '.join(failed.differences)}.")
    yield Check("policy", "ok", f"{file}: {sum(result.passed for result in results)} of {len(results)} cases pass.")


def _keys(setup: Setup, loaded: list[Keyring]) -> Iterator[Check]:
    keyring = setup.keyring()  # refuses a key file that others may read
    loaded.append(keyring)
    yield Check("keys", "ok", f"{counted(len(keyring.keys), 'key')} loaded; the restore epoch is {keyring.epoch}.")


def _key_states(keyring: Keyring, now: int) -> Iterator[Check]:
    from ..render import utc

    states: dict[str, list[Key]] = {}
    for key in keyring.keys:
        states.setdefault(key.state_at(now), []).append(key)
    signing = keyring.signing_key(now)  # raises when there is none
    number = ", ".join(f"{len(keys)} {state}" for state, keys in states.items())
    coming = [key.activates_at for key in states.get("pre-active", [])]
    rotation = f"the next rotation is at {utc(min(coming))}" if coming else "no rotation is planned"
    yield Check("keys", "ok", f"{number}; {signing.id} signs; {rotation}.")
    end = signing.deactivates_at
    if end is not None and end - now < _SOON_MS and not any(at <= end for at in coming):
        yield Check("keys", "warn", f"{signing.id} ends at {utc(end)} and none follows: run `hitl-guard keys rotate`.")


def _store(store: SQLStore, url: str) -> Iterator[Check]:
    from .. import clock
    from ..lifecycle.settings import Settings

    store.check()
    before = clock.epoch_ms()
    database = store.now()
    ahead = database - (before + clock.epoch_ms()) // 2
    yield Check("store", "ok", "The database answers, and its schema is this version's.")
    if abs(ahead) > Settings().skew:
        yield Check(
            "clock", "warn",
            f"The database's clock is {ahead} ms ahead of this host's. The database's counts, but keys that are made "
            "here get this host's times. Set both by NTP.",
        )
    else:
        yield Check("clock", "ok", f"The database's clock is {ahead} ms ahead of this host's.")
    yield from _database_file(url)


def _database_file(url: str) -> Iterator[Check]:
    from sqlalchemy import make_url

    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or os.name != "posix":
        return
    for file in (Path(f"{parsed.database}{ending}") for ending in ("", "-wal")):
        if file.exists() and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            yield Check("files", "warn", f"Other users may read or write {file}; arguments can be secret: chmod 600.")
            return
    yield Check("files", "ok", "Only their owner may read the database's files.")


def _control(desk: Desk) -> Iterator[Check]:
    good = True
    for row in desk.store.controls():
        for check in _control_row(desk, row.tenant):
            good = good and check.status != "fail"
            yield check
    if good:
        yield Check("control", "ok", "Every control row verifies.")


def _control_row(desk: Desk, tenant: str) -> Iterator[Check]:
    whose = "All tenants" if tenant == EVERYWHERE else f"Tenant {tenant}"
    try:
        state = desk.read(tenant).control
    except (RefusedError, StoreRolledBackError) as error:
        failed = _failed("control", error)
        yield replace(failed, message=f"{whose}: {failed.message}")
        return
    if state.restored:
        yield Check(
            "control", "fail", f"{whose}: the control row is of another restore epoch or of a revoked key, so all is "
            "paused. Look at `hitl-guard control show`, then run "
            f"`hitl-guard control resume {_options(desk, tenant)}`.",
        )
    elif state.pauses:
        pauses = counted(len(state.pauses), "pause")
        yield Check("control", "warn", f"{whose}: {pauses} in force; see `hitl-guard control show`.")


def _options(desk: Desk, tenant: str) -> str:
    """Return the options that name a control row, as a shell takes them: the tenant's name was verified by nobody."""
    from ..render import escape

    role = desk.settings.global_operator_role if tenant == EVERYWHERE else desk.settings.operator_role
    where = "--everywhere"
    if tenant != EVERYWHERE:
        # A name that is shown with escapes cannot be copied from here.
        where = f"--tenant {shlex.quote(tenant) if escape(tenant) == tenant else 'NAME'}"
    return f"{where} --role {shlex.quote(role)}"


def _requests(desk: Desk) -> Iterator[Check]:
    from ..lifecycle.listing import listed

    damaged: list[str] = []
    doubtful: list[str] = []
    number, after = 0, None
    while True:
        page = listed(desk, tenant=None, run_id=None, states=_LISTED, limit=500, after=after)
        damaged += [f"{one.request_id} ({one.code})" for one in page.damaged]
        doubtful += [request.id for request in page if request.state == "in_doubt"]
        number, after = number + len(page), page.next
        if after is None:
            break
    yield Check("requests", "ok", f"{counted(number, 'open request')} verified.")
    if damaged:
        yield Check(
            "requests", "fail",
            f"{counted(len(damaged), 'request')} damaged, to be asked again: {_named(damaged)}. What a revoked key or "
            "an earlier restore epoch signed, `hitl-guard requests sweep` takes off the list. Of the rest find out "
            "why: run `hitl-guard audit verify`.",
        )
    if doubtful:
        yield Check(
            "in-doubt", "warn",
            f"{counted(len(doubtful), 'call')} started whose outcome nobody knows: {_named(doubtful)}. Find out, then "
            "run `hitl-guard requests resolve`.",
        )


def _named(ids: list[str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more
