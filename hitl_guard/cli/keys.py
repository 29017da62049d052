"""`hitl-guard keys`: the life of a key, from its making to its revocation. No command shows a secret but `generate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ._common import Duration

if TYPE_CHECKING:
    from ..keyring import Key

_LAST_DATE_MS = 253_402_300_799_999  # the end of the year 9999, where calendars of programs end

PAGE = 500
"""How many open requests are read at a time."""


def _file_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--file", "path", envvar="HITL_GUARD_KEYS_FILE", metavar="FILE", type=click.Path(dir_okay=False),
        help="The key file; HITL_GUARD_KEYS_FILE when omitted.",
    )(command)


def _needed(path: str | None) -> str:
    if path is None:
        raise click.UsageError(
            "Give --file FILE or set HITL_GUARD_KEYS_FILE. Keys in HITL_GUARD_KEYS are changed where that variable is "
            "set."
        )
    return path


@click.group()
def keys() -> None:
    """Make, list, rotate and revoke keys."""


@keys.command()
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False), help="Create this file (mode 0600).")
def generate(out: str | None) -> None:
    """Make a new key ring with one key that is active now.

    Without --out it is printed as one line, for HITL_GUARD_KEYS.
    """
    from .. import clock, keyfile
    from ..keyring import CLOCK_ALLOWANCE_MS, Key, Keyring

    key = Key.generate(clock.epoch_ms() - CLOCK_ALLOWANCE_MS)
    keyring = Keyring((key,))
    if out is None:
        click.echo(keyring.dump().reveal(), nl=False)
        click.echo("This is key material: keep it where your secrets are, and set HITL_GUARD_KEYS to it.", err=True)
        return
    keyfile.create(out, keyring.dump(indent=2))
    click.echo(f"Key {key.id} is active. Set HITL_GUARD_KEYS_FILE to the new file.")


@keys.command("list")
@click.option("--file", "path", metavar="FILE", type=click.Path(dir_okay=False),
              help="The key file; the keys of the environment when omitted.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(path: str | None, as_json: bool) -> None:
    """List the keys, their states and times (this host's clock). Secrets are never shown."""
    from .. import clock
    from ..keyring import Keyring

    keyring = Keyring.from_env() if path is None else Keyring.from_file(path)
    now = clock.epoch_ms()
    rows = [_row(key, now) for key in keyring.keys]
    if as_json:
        click.echo(json.dumps({"epoch": keyring.epoch, "keys": rows, "now": now}))
        return
    click.echo(f"Restore epoch {keyring.epoch}")
    for row in rows:
        end = "" if row["deactivates_at"] is None else f"  until {_when(row['deactivates_at'])}"
        reason = "" if row["reason"] is None else f"  ({row['reason']})"
        click.echo(f"{row['id']}  {row['state']}  from {_when(row['activates_at'])}{end}{reason}")


@keys.command()
@_file_option
@click.option("--refresh", default="60s", show_default=True, type=Duration(),
              help="The longest time until every node has loaded the changed key ring.")
def rotate(path: str | None, refresh: int) -> None:
    """Add a key that takes over one refresh interval from now.

    The keys before it are deactivated one more interval later. What they signed stays good.
    """
    from .. import clock, keyfile
    from ..keyring import Keyring, rotated

    made: list[Key] = []

    def change(content: keyfile.Sealed) -> keyfile.Sealed:
        keyring, new = rotated(Keyring.from_json(content.reveal()), now=clock.epoch_ms(), refresh_ms=refresh)
        made.append(new)
        return keyring.dump(indent=2)

    keyfile.edit(_needed(path), change)
    click.echo(f"Key {made[0].id} signs from {_when(made[0].activates_at)}.")


@keys.command()
@click.argument("key_id")
@_file_option
@click.option("--reason", help="Kept beside the key, and shown by `keys list`.")
@click.option("--store", envvar="HITL_GUARD_STORE", metavar="URL", help="List the open requests that it affects.")
def revoke(key_id: str, path: str | None, reason: str | None, store: str | None) -> None:
    """Mark a key as compromised: nothing that it signed is accepted any more, at once.

    When no key would be active, a new one is made in the same write.
    """
    from .. import clock, keyfile
    from ..keyring import Keyring, revoked

    made: list[Key] = []

    def change(content: keyfile.Sealed) -> keyfile.Sealed:
        keyring, new = revoked(
            Keyring.from_json(content.reveal()), key_id, now=clock.epoch_ms(), reason=reason or None
        )
        made.extend(() if new is None else (new,))
        return keyring.dump(indent=2)

    keyfile.edit(_needed(path), change)
    click.echo(f"Key {key_id} is revoked.")
    for new in made:
        click.echo(f"Key {new.id} was made and is active.")
    if store is None:
        click.echo("Give --store URL to list the open requests that must be asked again.")
        return
    _report(affected_requests(store, key_id))


def affected_requests(store_url: str, key_id: str) -> list[dict[str, str]]:
    """Return the open requests that a revoked key takes down, the most urgent first.

    The store is read without verifying: a record that a revoked key signed no longer verifies.

    Returns:
        Objects of ``request`` (id), ``tenant`` and ``signed`` (what the key signed: ``request``, ``event``, or
        ``unreadable`` when the stored envelope names no key at all).

    Raises:
        ConfigurationError: the URL or the schema is not usable.
        StoreUnavailableError: the database does not answer.
    """
    from ..store.sql import SQLStore

    found: list[dict[str, str]] = []
    store = SQLStore(store_url)
    try:
        store.check()
        after: tuple[int, str] | None = None
        while page := store.open_requests(tenant=None, limit=PAGE, after=after):
            for _, row, events in page:
                signed = _signed(row.envelope, [event.key_id for event in events], key_id)
                if signed is not None:
                    found.append({"request": row.id, "signed": signed, "tenant": row.tenant})
            last = page[-1][0], page[-1][1].id
            if after is not None and last <= after:
                break  # an edited list would come again for ever
            after = last
    finally:
        store.close()
    return found


def _signed(envelope: bytes, event_keys: list[str], key_id: str) -> str | None:
    from ..errors import InvalidApprovalError
    from ..signing import unverified_key_id

    try:
        if unverified_key_id(envelope) == key_id:
            return "request"
    except InvalidApprovalError:
        return "unreadable"
    return "event" if key_id in event_keys else None


def _report(affected: list[dict[str, str]]) -> None:
    click.echo(f"{len(affected)} open request{'' if len(affected) == 1 else 's'} must be asked again.")
    click.echo("Tenants whose control row it signed are paused now; `hitl-guard doctor` names them.")
    for entry in affected:
        # As JSON, since a row may have been written by an attacker: no control or bidirectional character gets through.
        click.echo(json.dumps(entry))
    if affected:
        click.echo("`hitl-guard requests sweep` takes what is void now off the list of open requests.")


def _row(key: Key, now: int) -> dict[str, Any]:
    return {
        "activates_at": key.activates_at, "deactivates_at": key.deactivates_at, "id": key.id, "reason": key.reason,
        "state": key.state_at(now),
    }


def _when(time: int) -> str:
    if time > _LAST_DATE_MS:
        return f"{time} ms"
    return datetime.fromtimestamp(time // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
