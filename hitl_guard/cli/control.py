"""`hitl-guard control`: the kill switch, of a tenant or of all, and the mutes of a tenant."""

from __future__ import annotations

import click

from ._common import Command, Setup, json_option, say, say_json, setup_options


@click.group()
def control() -> None:
    """Pause and resume tools, agents or everything; lift what approvers muted."""


def _target(command: Command) -> Command:
    for option in (
        click.option("--reason", metavar="TEXT", help="Kept in the audit log."),
        click.option("--everywhere", is_flag=True, help="In all tenants; needs --role global-operator."),
        click.option("--agent", metavar="ID", help="This agent only."),
        click.option("--tool", metavar="NAME", help="This tool only."),
    ):
        command = option(command)
    return command


@control.command()
@setup_options()
@json_option
def show(setup: Setup, as_json: bool) -> None:
    """Show what is paused and muted, and which policy version must be in force."""
    from ..lifecycle.control import at
    from ..render import escape, left, utc

    with setup.store() as store:
        reading = setup.desk(store).read(setup.tenant)
    row, now = at(reading.control, reading.now), reading.now
    pauses, everywhere = sorted(row.pauses), sorted(row.everywhere)
    if as_json:
        say_json({
            "everywhere": [{"kind": kind, "name": name} for kind, name in everywhere],
            "everywhere_restored": row.everywhere_restored, "mutes": [mute.to_json() for mute in row.mutes], "now": now,
            "pauses": [{"kind": kind, "name": name} for kind, name in pauses], "policy": row.policy,
            "restored": row.restored, "tenant": row.tenant, "version": row.version,
        })
        return
    if row.restored:
        say("From another restore epoch, or signed with a revoked key: everything is paused. Set single pauses anew, "
            "then resume.")
    if row.everywhere_restored:
        say("The row of all tenants is from another restore epoch, or signed with a revoked key: everything is paused "
            "everywhere. Set single pauses anew, then resume with --everywhere.")
    for found, where in ((pauses, ""), (everywhere, " in all tenants")):
        for kind, name in found:
            say(("everything" if kind == "all" else f"{escape(kind)} {escape(name)}") + f" is paused{where}")
    if not pauses and not everywhere:
        say("No pause is set.")
    for mute in row.mutes:
        until = f"{utc(mute.until)} ({left(mute.until, now)})"
        say(f"{escape(mute.tool)} for {escape(mute.user)} is muted until {until}, by {escape(mute.by)} with "
            f"{escape(mute.request_id)}")
    say(f"Control row version {row.version}; policy in force: {escape(row.policy or 'as each host has it')}")


@control.command()
@setup_options(actor=True)
@_target
def pause(setup: Setup, tool: str | None, agent: str | None, everywhere: bool, reason: str | None) -> None:
    """Stop a tool, an agent, or everything, before its next call; in the tenant, or --everywhere.

    Needs --role operator; with --everywhere --role global-operator.
    """
    _check(tool, agent)
    with setup.store() as store:
        setup.guard(store).pause(
            by=setup.principal(), tool=tool, agent=agent, reason=reason, everywhere=everywhere
        )
    say(f"Paused {_what(tool, agent, everywhere)}.")


@control.command()
@setup_options(actor=True)
@_target
def resume(setup: Setup, tool: str | None, agent: str | None, everywhere: bool, reason: str | None) -> None:
    """Take one pause away; without --tool and --agent the one of everything (single pauses stay).

    After a restored backup this also confirms the pauses that the backup has: of each tenant, and --everywhere.
    Needs --role operator; with --everywhere --role global-operator.
    """
    _check(tool, agent)
    with setup.store() as store:
        setup.guard(store).resume(
            by=setup.principal(), tool=tool, agent=agent, reason=reason, everywhere=everywhere
        )
        left = setup.guard(store).control(setup.tenant)
    say(f"Resumed {_what(tool, agent, everywhere)}.")
    if not everywhere and (left.everywhere or left.everywhere_restored):
        say("Something is still paused in all tenants: see 'hitl-guard control show'.")


@control.command()
@setup_options(actor=True)
@click.option("--user", metavar="ID", required=True, help="The requester.")
@click.option("--tool", metavar="NAME", required=True, help="The tool.")
@click.option("--reason", metavar="TEXT", help="Kept in the audit log.")
def unmute(setup: Setup, user: str, tool: str, reason: str | None) -> None:
    """Let a requester's calls of a tool be asked about again: your own mute, or with --role operator everybody's."""
    from ..render import escape

    if "" in (user, tool):
        raise click.UsageError("--user and --tool need a name.")
    with setup.store() as store:
        setup.guard(store).unmute(by=setup.principal(), user=user, tool=tool, reason=reason)
    say(f"Unmuted the tool {escape(tool)} for {escape(user)}.")


def _check(tool: str | None, agent: str | None) -> None:
    if tool is not None and agent is not None:
        raise click.UsageError("Give --tool or --agent, one at a time.")
    if "" in (tool, agent):
        raise click.UsageError("--tool and --agent need a name.")


def _what(tool: str | None, agent: str | None, everywhere: bool) -> str:
    from ..render import escape

    what = "everything" if agent is None else f"the agent {escape(agent)}"
    if tool is not None:
        what = f"the tool {escape(tool)}"
    return f"{what} in all tenants" if everywhere else what
