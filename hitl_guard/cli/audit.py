"""`hitl-guard audit`: is everything in the store what was signed, and is anything missing?"""

from __future__ import annotations

import dataclasses

import click

from ._common import Setup, counted, json_option, say, say_json, setup_options


@click.group()
def audit() -> None:
    """Verify the audit chains."""


@audit.command()
@setup_options(tenant=False)
@json_option
@click.pass_context
def verify(ctx: click.Context, setup: Setup, as_json: bool) -> None:
    """Verify every chain, request and control row of all tenants against the keys.

    Exit code 1 when anything was edited, moved or removed from the middle.
    """
    from ..lifecycle import ledger
    from ..render import escape

    with setup.store() as store:
        report = ledger.verify(setup.desk(store))
    if as_json:
        say_json(dataclasses.asdict(report))
    else:
        for found in report.findings:
            say(f"{escape(found.where)}: {escape(found.code)}: {escape(found.message)}")
        parts = (report.chains, "chain"), (report.events, "event"), (report.requests, "request")
        if report.void:
            say(f"{counted(len(report.void), 'record')} of revoked keys: void, and not verified.")
        say(f"{', '.join(counted(*part) for part in parts)}; {counted(len(report.findings), 'finding')}.")
    if report.findings:
        ctx.exit(1)
