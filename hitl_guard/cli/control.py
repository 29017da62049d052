"""`hitl-guard control`: the kill switch of a tenant."""

from __future__ import annotations

import click

from ._common import Command, Setup, json_option, say, say_json, setup_options


@click.group()
def control() -> None:
    """Pause and resume tools, agents or everything."""


def _target(command: Command) -> Command:
    for option in (
        click.option("--reason", metavar="TEXT", help="Kept in the audit log."),
        click.option("--agent", metavar="ID", help="This agent only."),
        click.option("--tool", metavar="NAME", help="This tool only."),
    ):
        command = option(command)
    return command


@control.command()
@setup_options()
@json_option
def show(setup: Setup, as_json: bool) -> None:
    """Show what is paused, and which policy version must be in force."""
    from ..render import escape

    with setup.store() as store:
        row = setup.desk(store).read(setup.tenant).control
    pauses = sorted(row.pauses)
    if as_json:
        say_json({
            "pauses": [{"kind": kind, "name": name} for kind, name in pauses], "policy": row.policy,
            "restored": row.restored, "tenant": row.tenant, "version": row.version,
        })
        return
    if row.restored:
        say("From another restore epoch, or signed with a revoked key: everything is paused. Set single pauses anew, "
            "then resume.")
    for kind, name in pauses:
        say("everything is paused" if kind == "all" else f"{escape(kind)} {escape(name)} is paused")
    if not pauses:
        say("No pause is set.")
    say(f"Control row version {row.version}; policy in force: {escape(row.policy or 'as each host has it')}")


@control.command()
@setup_options(actor=True)
@_target
def pause(setup: Setup, tool: str | None, agent: str | None, reason: str | None) -> None:
    """Stop a tool, an agent, or everything of the tenant, before its next call. Needs --role operator."""
    _check(tool, agent)
    with setup.store() as store:
        setup.guard(store).pause(by=setup.principal(), tool=tool, agent=agent, reason=reason)
    say(f"Paused {_what(tool, agent)}.")


@control.command()
@setup_options(actor=True)
@_target
def resume(setup: Setup, tool: str | None, agent: str | None, reason: str | None) -> None:
    """Take one pause away; without --tool and --agent the one of everything (single pauses stay).

    After a restored backup this also confirms the pauses that the backup has. Needs --role operator.
    """
    _check(tool, agent)
    with setup.store() as store:
        setup.guard(store).resume(by=setup.principal(), tool=tool, agent=agent, reason=reason)
    say(f"Resumed {_what(tool, agent)}.")


def _check(tool: str | None, agent: str | None) -> None:
    if tool is not None and agent is not None:
        raise click.UsageError("Give --tool or --agent, one at a time.")
    if "" in (tool, agent):
        raise click.UsageError("--tool and --agent need a name.")


def _what(tool: str | None, agent: str | None) -> str:
    from ..render import escape

    if tool is not None:
        return f"the tool {escape(tool)}"
    return "everything" if agent is None else f"the agent {escape(agent)}"
