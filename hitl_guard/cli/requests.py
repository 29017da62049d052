"""`hitl-guard requests`: what waits for a person, and the person's answer."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import click

from ..errors import CanonicalizationError, DecisionError
from ._common import Duration, Setup, counted, json_option, say, say_json, setup_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..lifecycle.listing import Damaged, Page
    from ..models import ApprovalRequest

_STATES = ("pending", "approved", "executing", "suspended", "in_doubt")
_TYPED = 8
"""Digits of the fingerprint that a person types to confirm."""
_DASHED_ID = re.compile(r"-[A-Za-z0-9_-]{21}")
_FEWEST = 16
"""Digits of a fingerprint that ``--fingerprint`` needs at least."""


def _digits(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (_FEWEST <= len(value) <= 64 and set(value) <= set("0123456789abcdef")):
        raise click.BadParameter(f"give what `requests show` printed: {_FEWEST} to 64 hex digits", ctx, param)
    return value


class _WithId(click.Command):
    """A command about one request: an id may start with a dash, and is no option then."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put a space before such an id, which no id has; the argument takes it away again."""
        return super().parse_args(ctx, [f" {arg}" if _DASHED_ID.fullmatch(arg) else arg for arg in args])


_fingerprint = click.option("--fingerprint", metavar="HEX", callback=_digits,
                            help=f"The one that was shown, or its first {_FEWEST} digits or more.")
_request_id = click.argument("request_id", metavar="ID", callback=lambda _ctx, _param, value: value.strip())


@click.group()
def requests() -> None:
    """List, show and decide approval requests.

    The command line trusts whoever runs it: with keys and database at hand, --as is a statement, not a proof.
    """


@requests.command("list")
@setup_options()
@click.option("--all-tenants", is_flag=True, help="List every tenant's requests.")
@click.option("--run", "run_id", metavar="ID", help="Only those of this run.")
@click.option("--state", "states", multiple=True, type=click.Choice([*_STATES, "all"]), default=["pending"],
              show_default=True, help="Only those in this state. Repeatable.")
@click.option("--ended", is_flag=True, help="List those that ended instead, the newest first.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many at most.")
@json_option
def list_(
    setup: Setup, all_tenants: bool, run_id: str | None, states: tuple[str, ...], ended: bool, limit: int,
    as_json: bool,
) -> None:
    """List open requests, the most urgent first. The arguments stand in `requests show ID`, complete."""
    wanted = _STATES if "all" in states else states
    if ended and (all_tenants or wanted != ("pending",)):
        raise click.UsageError("--ended lists one tenant's requests in every state that is an end.")
    with setup.store() as store:
        guard, tenant = setup.guard(store), None if all_tenants else setup.tenant

        def page(after: str | None) -> Page:
            if ended:
                return guard.ended(tenant=setup.tenant, run_id=run_id, limit=500, after=after)
            return guard.pending(tenant=tenant, run_id=run_id, states=wanted, limit=500, after=after)

        found, damaged, more = _collect(page, limit)
        now = store.now()
    if as_json:
        from ..render import request_json

        say_json({
            "damaged": [dataclasses.asdict(one) for one in damaged], "more": more, "now": now,
            "requests": [request_json(request) for request in found],
        })
        return
    for request in found:
        say(_line(request, now))
    for one in damaged:
        say(_damaged_line(one))
    if not found and not damaged:
        say("Nothing ended." if ended else "Nothing waits.")
    if more:
        click.echo("There are more; see --limit.", err=True)


def _collect(
    page_after: Callable[[str | None], Page], limit: int
) -> tuple[list[ApprovalRequest], list[Damaged], bool]:
    """Return up to ``limit`` requests, the damaged ones met on the way, and whether there are more."""
    found: list[ApprovalRequest] = []
    damaged: list[Damaged] = []
    after: str | None = None
    while True:
        page = page_after(after)
        found += page
        damaged += page.damaged
        after = page.next
        if after is None or len(found) > limit:
            return found[:limit], damaged, len(found) > limit


def _line(request: ApprovalRequest, now: int) -> str:
    from ..render import escape, left, quoted, utc

    def word(text: str) -> str:
        # With a space in it, a name could pass for the columns behind it.
        return quoted(text) if " " in text else escape(text)

    until = {"pending": request.decide_by, "approved": request.execute_by}.get(request.state)
    when = "" if until is None else f"  until {utc(until)} ({left(until, now)})"
    votes = f"  {counted(len(request.votes), 'decision')}" if request.votes else ""
    return (
        f"{escape(request.id)}  {escape(request.state)}{when}  {word(request.tool)}  for {word(request.user)} in "
        f"{word(request.tenant)}  run {word(request.run_id)}{votes}"
    )


def _damaged_line(one: Damaged) -> str:
    from ..render import escape

    key = "" if one.key_id is None else f", key {escape(one.key_id)}"
    return f"{escape(one.request_id)}  damaged ({escape(one.code)}{key}): it must be asked again"


@requests.command(cls=_WithId)
@setup_options(actor=True)
@_request_id
@click.option("--reveal", "places", multiple=True, metavar="POINTER",
              help="Show this secret argument, e.g. /password; the audit log has who did. Repeatable.")
@json_option
def show(setup: Setup, request_id: str, places: tuple[str, ...], as_json: bool) -> None:
    """Show one request: its complete arguments first, with every unseen character as an escape.

    What the tool's schema marks secret is masked.
    """
    from ..render import request_json, request_text

    with setup.store() as store:
        guard = setup.guard(store)
        request = guard.get(request_id, tenant=setup.tenant)
        for place in places:
            guard.reveal(request.id, place, by=setup.principal())
        now = store.now()
    if as_json:
        say_json({"now": now, "request": request_json(request, revealed=places)})
    else:
        say(request_text(request, now=now, revealed=places).rstrip("\n"))


@requests.command(cls=_WithId)
@setup_options(policy=True, actor=True)
@_request_id
@_fingerprint
@click.option("--edit", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True),
              help="Approve the arguments in this file (- is stdin) instead.")
@click.option("--execute-within", type=Duration(), help="Shorten the time to run, e.g. 5m.")
@click.option("--reason", metavar="TEXT", help="Kept with the decision.")
def approve(
    setup: Setup, request_id: str, fingerprint: str | None, edit: str | None, execute_within: int | None,
    reason: str | None,
) -> None:
    """Approve a request.

    Without --fingerprint the whole request is shown first, and the first digits of its fingerprint are asked for.
    """
    from ..render import escape, utc

    if edit == "-" and fingerprint is None:
        raise click.UsageError("With --edit - give --fingerprint too: stdin cannot be both file and answer.")
    arguments = None if edit is None else _content(edit)
    with setup.store() as store:
        guard = setup.guard(store, deciding=True)
        request = guard.get(request_id, tenant=setup.tenant)
        if arguments is not None:
            _check_unmasked(request, arguments)
        shown = _confirmed(request, arguments, store.now()) if fingerprint is None else _full(request, fingerprint)
        decision = guard.decide(
            request.id, approver=setup.principal(), approve=True, fingerprint=shown, reason=reason, arguments=arguments,
            channel="cli", execute_within=execute_within,
        )
        made = guard.get(decision.request_id, tenant=setup.tenant)
    if made.id != request.id:
        say(f"Request {escape(made.id)} took the place of {escape(request.id)}, with the edited arguments.")
    if decision.state == "approved" and made.execute_by is not None:
        say(f"Approved {escape(made.id)} ({made.fingerprint}); it may run until {utc(made.execute_by)}.")
    else:
        say(f"Recorded for {escape(made.id)} ({made.fingerprint}); the request is {escape(decision.state)}.")


def _content(path: str) -> bytes:
    with click.open_file(path, "rb") as file:
        content: bytes = file.read()
    return content


def _check_unmasked(request: ApprovalRequest, edited: bytes) -> None:
    """Refuse arguments in which a mask stands where the secret was: it would run as the value.

    Raises:
        DecisionError: they hold one.
    """
    from .. import canonical
    from ..render.secrets import left_masked

    try:
        value = canonical.parse(edited)
    except CanonicalizationError:
        return  # the guard says, and audits, what is wrong
    if left_masked(request.input_schema, value):
        raise DecisionError(
            "The edited arguments hold a mask where the secret was: put the value there, or leave it out.",
            code="unsupported-value", detail="masked",
        )


def _full(request: ApprovalRequest, given: str) -> str:
    """Return the whole fingerprint for its first digits; one that does not fit stays as it is, and is refused."""
    return request.fingerprint if request.fingerprint.startswith(given) else given


def _confirmed(request: ApprovalRequest, edited: bytes | None, now: int) -> str:
    """Show the request, and return its fingerprint when the person types how it starts.

    Raises:
        DecisionError: something else was typed.
    """
    from .. import canonical
    from ..render import arguments, request_text, warnings
    from ..render.request import masked_data
    from ..render.secrets import secret_pointers

    say(request_text(request, now=now))
    if edited is not None:
        raw = canonical.canonicalize(canonical.parse(edited), exact=True)
        raw = masked_data(raw, secret_pointers(request.input_schema, canonical.decode(raw)))
        say("These arguments are approved instead:\n" + arguments(raw))
        for warning in warnings(raw):
            say(f"  ! {warning}")
    question = f"To approve, type the first {_TYPED} digits of the fingerprint"
    typed: str = click.prompt(question, default="", show_default=False)
    if typed.strip() != request.fingerprint[:_TYPED]:
        raise DecisionError(
            "Not approved: the fingerprint does not start with these digits.", code="args-mismatch", detail="typed"
        )
    return request.fingerprint


@requests.command(cls=_WithId)
@setup_options(policy=True, actor=True)
@_request_id
@_fingerprint
@click.option("--reason", metavar="TEXT", help="The model gets it.")
@click.option("--respond", metavar="JSON", help="The model gets this value in place of the tool's result.")
@click.option("--mute", type=Duration(), help="Deny this requester's calls of this tool unasked for so long, e.g. 1h.")
def deny(
    setup: Setup, request_id: str, fingerprint: str | None, reason: str | None, respond: str | None, mute: int | None
) -> None:
    """Deny a request."""
    from ..render import escape

    value = None if respond is None else _json_value(respond)
    with setup.store() as store:
        guard = setup.guard(store, deciding=True)
        request = guard.get(request_id, tenant=setup.tenant)
        shown = request.fingerprint if fingerprint is None else _full(request, fingerprint)
        decision = guard.decide(
            request.id, approver=setup.principal(), approve=False, fingerprint=shown, reason=reason, respond=value,
            channel="cli", mute=mute,
        )
    say(f"Denied {escape(decision.request_id)}.")


def _json_value(text: str) -> Any:
    from .. import canonical

    try:
        value = canonical.parse(text)
    except CanonicalizationError as error:
        message = f"this is no strict JSON ({error.detail or error.code}); a text needs quotes"
        raise click.BadParameter(message, param_hint="--respond") from error
    if value is None:
        raise click.BadParameter("null is no response; leave --respond out", param_hint="--respond")
    return value


@requests.command(cls=_WithId)
@setup_options(actor=True)
@_request_id
@click.option("--reason", metavar="TEXT", help="Kept in the audit log.")
def revoke(setup: Setup, request_id: str, reason: str | None) -> None:
    """Withdraw an open request, also an approved one that has not run."""
    from ..render import escape

    with setup.store() as store:
        setup.guard(store).revoke(request_id, by=setup.principal(), reason=reason)
    say(f"Revoked {escape(request_id)}.")


@requests.command(cls=_WithId)
@setup_options(actor=True)
@_request_id
@click.argument("outcome", type=click.Choice(["succeeded", "failed", "abandoned"]))
@click.option("--reason", metavar="TEXT", required=True, help="How you know. Kept in the audit log.")
@click.option("--force", is_flag=True, help="Even while the worker may still be running.")
def resolve(setup: Setup, request_id: str, outcome: str, reason: str, force: bool) -> None:
    """Close a call whose outcome nobody knows. Needs --role operator.

    None of the outcomes revives the grant: to run the call again, it must be asked again.
    """
    from ..render import escape

    with setup.store() as store:
        state = setup.guard(store).resolve(request_id, outcome, by=setup.principal(), reason=reason, force=force)
    say(f"Resolved {escape(request_id)}: {escape(state)}.")


@requests.command()
@setup_options(tenant=False)
@click.option("--limit", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="How many at most.")
def sweep(setup: Setup, limit: int) -> None:
    """Tidy the list of open requests, of all tenants.

    Writes down what is overdue: requests that expired, calls without a receipt. Takes off the list what is void: signed
    with a key that was revoked since, or before the restore epoch was raised. What is damaged stays listed.
    """
    from ..lifecycle import listing

    with setup.store() as store:
        swept = listing.sweep(setup.desk(store), limit=limit)
    say(f"Recorded {counted(swept.overdue, 'overdue request')}.")
    if swept.void:
        say(f"Took {counted(swept.void, 'void request')} off the list: of a revoked key or an earlier restore epoch. "
            "They stay stored; what is still wanted must be asked again.")
