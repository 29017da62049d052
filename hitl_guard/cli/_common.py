"""What the commands share: the options of a set-up, opening it, and printing without a surprise.

The command line trusts whoever runs it: with the keys and the database at hand, ``--as`` and ``--role`` are a
statement, not a proof. Nothing heavy is imported before a command runs, so that ``--help`` starts at once.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..guard import Guard
    from ..keyring import Keyring
    from ..lifecycle.desk import Desk
    from ..lifecycle.settings import Settings
    from ..models import Principal
    from ..policy.combined import Policy
    from ..store.sql import SQLStore

    _NumberType = click.ParamType[int]
else:
    _NumberType = click.ParamType  # click's older releases have no type parameter here

Command = Callable[..., Any]

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Duration(_NumberType):
    """A duration like ``500ms``, ``60s``, ``5m``, ``1h`` or ``2d``, as milliseconds; zero is refused."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the milliseconds, or fail as wrong usage."""
        match = re.fullmatch(r"([1-9][0-9]{0,8})(ms|s|m|h|d)", str(value), re.ASCII)
        if match is None:
            self.fail("give a duration like 60s, 5m or 1h", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Setup:
    """The options with which a command was called.

    Attributes:
        policies: Paths of policy files, or one of the four statuses.
        actor: Who acts, or None for the operating system's user.
    """

    store_url: str | None
    keys: str | None = None
    tenant: str = "default"
    policies: tuple[str, ...] = ()
    actor: str | None = None
    roles: tuple[str, ...] = ()

    def keyring(self) -> Keyring:
        """Load the keys: of ``--keys``, else of the environment."""
        from ..keyring import Keyring

        return Keyring.from_env() if self.keys is None else Keyring.from_file(self.keys)

    @contextmanager
    def store(self) -> Iterator[SQLStore]:
        """Open the store, without looking at its schema, and close it in the end."""
        from ..store.sql import SQLStore

        if self.store_url is None:
            raise click.UsageError("Give --store URL or set HITL_GUARD_STORE.")
        store = SQLStore(self.store_url)
        try:
            yield store
        finally:
            store.close()

    def desk(self, store: SQLStore) -> Desk:
        """Return what reading needs. Its policy denies everything, so that it can start nothing."""
        from ..lifecycle.desk import Desk
        from ..lifecycle.settings import Settings
        from ..policy.combined import Policy
        from ..signing import Signer

        store.check()
        return Desk(store, Signer(self.keyring()), Policy.of("denied"), None, Settings())

    def guard(self, store: SQLStore, *, deciding: bool = False, settings: Settings | None = None) -> Guard:
        """Return a guard.

        Args:
            deciding: The command decides, so that the policy must be given. Any other command gets a guard that denies
                everything.
        """
        from ..guard import Guard
        from ..lifecycle.settings import Settings

        policy = self.policy() if deciding else "denied"
        if deciding and settings is None:
            # A rule may demand passkeys. No page is here to ask for one: such approvals are refused, denying works.
            settings = Settings(rp_id="cli.invalid", rp_origins=("https://cli.invalid",))
        return Guard(policy=policy, store=store, keyring=self.keyring(), directory=Nobody(), settings=settings)

    def policy(self) -> Policy:
        """Load the policy that is in force at the agent's host."""
        from ..policy.combined import Policy

        if not self.policies:
            raise click.UsageError(
                "Give --policy FILE or set HITL_GUARD_POLICY: the policy that the agent's host uses, since a decision "
                "is bound to its version."
            )
        return Policy.of(list(self.policies))

    def principal(self) -> Principal:
        """Return who acts."""
        from ..models import Principal

        return Principal(self.actor or _system_user(), tenant=self.tenant, roles=self.roles)


class Nobody:
    """Answers for `Guard` where rules look up approvers at the claim: the command line never claims."""

    def roles_of(self, tenant: str, principal_id: str) -> Sequence[str] | None:
        """Return None: nobody is known here."""
        return None


def _system_user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError) as error:
        raise click.UsageError("Give --as ID or set HITL_GUARD_AS: this system does not say who you are.") from error


store_option = click.option("--store", "store_url", envvar="HITL_GUARD_STORE", metavar="URL",
                            help="The database, e.g. sqlite:///approvals.db; HITL_GUARD_STORE when omitted.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_KEYS = click.option("--keys", metavar="FILE", type=click.Path(dir_okay=False),
                     help="The key file; HITL_GUARD_KEYS or HITL_GUARD_KEYS_FILE when omitted.")
_TENANT = click.option("--tenant", default="default", show_default=True, metavar="NAME", help="The tenant.")
_POLICY = click.option("--policy", "policies", multiple=True, metavar="FILE",
                       help="The policy of the agent's host: a file or a status; HITL_GUARD_POLICY when omitted. "
                            "Repeatable.")
_ACTOR = click.option("--as", "actor", envvar="HITL_GUARD_AS", metavar="ID",
                      help="Who acts; HITL_GUARD_AS or the system's user when omitted.")
_ROLE = click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role of who acts. Repeatable.")


def setup_options(*, tenant: bool = True, policy: bool = False, actor: bool = False) -> Callable[[Command], Command]:
    """Give a command the options of a set-up; it gets them as its first argument, a `Setup`."""
    wanted: list[tuple[Callable[[Command], Command], bool]] = [
        (store_option, True), (_KEYS, True), (_TENANT, tenant), (_POLICY, policy), (_ACTOR, actor), (_ROLE, actor),
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(
            store_url: str | None, keys: str | None, tenant: str = "default", policies: tuple[str, ...] = (),
            actor: str | None = None, roles: tuple[str, ...] = (), **others: Any,
        ) -> Any:
            # Not click's envvar, which would split a path at its spaces.
            named = os.environ.get("HITL_GUARD_POLICY")
            given = policies or ((named,) if named else ())
            return command(Setup(store_url, keys, tenant, given, actor, roles), **others)

        taking: Command = wrapped
        for option, taken in reversed(wanted):
            taking = option(taking) if taken else taking
        return taking

    return decorate


def say(text: str) -> None:
    """Print a line or lines. A terminal that cannot show a character gets its escape.

    Args:
        text: Rendered already: whatever came from elsewhere went through `hitl_guard.render`.
    """
    from ..render import ascii_only

    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = ascii_only(text)
    click.echo(text)


def say_json(data: Any) -> None:
    """Print JSON in pure, printable ASCII: no control or bidirectional character reaches a terminal."""
    click.echo(json.dumps(data, indent=2))


def counted(number: int, word: str) -> str:
    """Return ``1 event``, ``2 events`` …"""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
