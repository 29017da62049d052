"""`hitl-guard db`: the database's schema."""

from __future__ import annotations

import click

from ._common import Setup, json_option, say, say_json, store_option


@click.group()
def db() -> None:
    """Create, upgrade or check the database schema."""


@db.command()
@store_option
def upgrade(store_url: str | None) -> None:
    """Create the tables, or bring them to this version. Safe to run from many hosts at once."""
    with Setup(store_url).store() as store:
        store.setup()
        store.check()
    say("The schema is this version's.")


@db.command()
@store_option
@json_option
def check(store_url: str | None, as_json: bool) -> None:
    """Check that the schema is exactly this version's. Exit code 1 when it is not, or nobody can tell."""
    with Setup(store_url).store() as store:
        store.check()
    if as_json:
        say_json({"schema": "current"})
    else:
        say("The schema is this version's.")
