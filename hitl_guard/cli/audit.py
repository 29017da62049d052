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
@click.option("--origin", "origins", multiple=True, metavar="ORIGIN",
              help="Where the approval page is, e.g. https://approvals.example.org: a passkey's answer from elsewhere "
                   "is a finding. Repeatable; when omitted, the domain that the passkey was registered for decides.")
@json_option
@click.pass_context
def verify(ctx: click.Context, setup: Setup, origins: tuple[str, ...], as_json: bool) -> None:
    """Verify every chain, request, control row and passkey of all tenants against the keys.

    What a passkey proved is verified again against the decision itself, with the public key that was registered. Exit
    code 1 when anything was edited, moved or removed from the middle.
    """
    from ..lifecycle import ledger
    from ..render import escape

    with setup.store() as store:
        report = ledger.verify(setup.desk(store), origins=origins)
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
