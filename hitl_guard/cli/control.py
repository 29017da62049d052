"""`hitl-guard control`: the kill switch, of a tenant or of all, and the mutes of a tenant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from ..errors import HitlGuardError
from ._common import Command, Setup, json_option, say, say_json, setup_options

if TYPE_CHECKING:
    from ..lifecycle.control import Control
    from ..store.sql import SQLStore


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
        say(_standstill("", kept=not _is_lost(row.pauses) or row.policy is not None or bool(row.mutes)))
    if row.everywhere_restored:
        say(_standstill(" in all tenants", kept=not _is_lost(row.everywhere)))
    for found, where in ((pauses, ""), (everywhere, " in all tenants")):
        for pause in found:
            say(f"{_named(*pause)} is paused{where}")
    if not (pauses or everywhere or row.restored or row.everywhere_restored):
        say("No pause is set.")
    for mute in row.mutes:
        until = f"{utc(mute.until)} ({left(mute.until, now)})"
        say(f"{escape(mute.tool)} for {escape(mute.user)} is muted until {until}, by {escape(mute.by)} with "
            f"{escape(mute.request_id)}")
    say(f"Control row version {row.version}; policy in force: {escape(row.policy or 'as each host has it')}")


def _standstill(where: str, *, kept: bool) -> str:
    """Return what to say of a row under which everything is paused until an operator confirms it.

    Args:
        kept: Whether the row's own pauses are known: what a revoked key signed is not believed.
    """
    resume = "'hitl-guard control resume --everywhere'" if where else "'hitl-guard control resume'"
    if kept:
        return (f"The control row is of another restore epoch: everything is paused{where} until you run {resume}. "
                "Single pauses and the policy in force stay as they were.")
    return (f"The control row is of a revoked key, or of another restore epoch: everything is paused{where} until you "
            f"run {resume}. Of a revoked key, set single pauses and the policy in force anew before that.")


def _is_lost(pauses: Iterable[tuple[str, str]]) -> bool:
    """Whether nothing but everything is paused, as a row of a revoked key reads, whatever it says."""
    return set(pauses) == {("all", "")}


@control.command()
@setup_options(policy=True, actor=True)
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
        if tool is not None and _is_unheard_of(setup, store, tool):
            from ..render import escape

            click.echo(f"No policy rule names a tool '{escape(tool)}', and nobody has asked for it in this tenant: "
                       "check the name.", err=True)


def _is_unheard_of(setup: Setup, store: SQLStore, tool: str) -> bool:
    """Whether a policy was given, no rule of it is about the tool, and no request of the tenant either."""
    from ..lifecycle.listing import wanted

    try:
        documents = setup.policy().documents if setup.policies else ()
        if not documents or any(document.covering(tool) for document in documents):
            return False
        every = wanted(
            tenant=setup.tenant, now=store.now(), states=None, run_id=None, tool=tool, requester=None, own=None,
            foreign=(),
        )
        return not store.look(every, limit=1).rows
    except HitlGuardError:
        return False  # the pause is set; what a policy or a store cannot tell now is no reason to fail


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
        guard = setup.guard(store)
        before = guard.control(setup.tenant)
        guard.resume(by=setup.principal(), tool=tool, agent=agent, reason=reason, everywhere=everywhere)
        left = guard.control(setup.tenant)
    what, whole = _what(tool, agent, everywhere), tool is None and agent is None
    pauses, restored = before.pauses, before.restored
    if everywhere:
        pauses, restored = before.everywhere, before.everywhere_restored
    if _pause(tool, agent) in pauses or (whole and restored):
        say(f"Resumed {what}.")
    else:
        say(f"Nothing changed: {what} was not paused{' as a whole' if whole else ''}.")
    _say_left(left, everywhere)


def _say_left(left: Control, everywhere: bool) -> None:
    """Say what is paused still; a tenant's own pauses only after a change of the tenant's."""
    rows = [(left.pauses, left.restored, ""), (left.everywhere, left.everywhere_restored, " in all tenants")]
    for pauses, restored, where in rows[everywhere:]:
        names = ["everything, until it is confirmed"] * restored + [_named(*pause) for pause in sorted(pauses)]
        if names:
            say(f"Still paused{where}: {', '.join(names)}.")


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


def _pause(tool: str | None, agent: str | None) -> tuple[str, str]:
    """Return the pause that is meant, as a control row has it."""
    if tool is not None:
        return "tool", tool
    return ("all", "") if agent is None else ("agent", agent)


def _named(kind: str, name: str) -> str:
    from ..render import escape

    return "everything" if kind == "all" else f"{escape(kind)} {escape(name)}"


def _what(tool: str | None, agent: str | None, everywhere: bool) -> str:
    from ..render import escape

    what = "everything" if agent is None else f"the agent {escape(agent)}"
    if tool is not None:
        what = f"the tool {escape(tool)}"
    return f"{what} in all tenants" if everywhere else what
