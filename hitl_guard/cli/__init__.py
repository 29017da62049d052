"""The command line: `hitl-guard`. Sub-commands load when they are called, so that `--help` starts at once.

Exit codes: 0 ok, 1 refused or a failed check, 2 wrong usage.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from ..errors import HitlGuardError

COMMANDS: dict[str, tuple[str, str]] = {
    "audit": ("audit:audit", "Verify the audit chains."),
    "control": ("control:control", "Pause and resume tools, agents or everything."),
    "db": ("db:db", "Create, upgrade or check the database schema."),
    "demo": ("demo:demo", "Tell the whole story on a temporary database."),
    "doctor": ("doctor:doctor", "Check keys, store, clocks and policy of this set-up."),
    "keys": ("keys:keys", "Make, list, rotate and revoke keys."),
    "mcp-proxy": ("mcp_proxy:mcp_proxy", "Stand between an MCP client and an MCP server."),
    "policy": ("policy:policy", "Lint, test and explain policy documents."),
    "requests": ("requests:requests", "List, show and decide approval requests."),
    "serve": ("serve:serve", "Serve the inbox and its API."),
}
"""Name → (module of this package and attribute, the line that `--help` shows without importing the module)."""


class Refused(click.ClickException):
    """One of our errors, for the terminal: its message and its slugs, exit code 1."""

    exit_code = 1

    def __init__(self, error: HitlGuardError) -> None:
        slugs = error.code if error.detail is None else f"{error.code}: {error.detail}"
        super().__init__(f"{error} [{slugs}]")


class LazyGroup(click.Group):
    """A group whose commands are imported when one of them is called; it ends our errors with exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None when there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(f".{module}", __name__), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from `COMMANDS` alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what we raise on purpose is shown without a traceback."""
        try:
            return super().invoke(ctx)
        except HitlGuardError as error:
            raise Refused(error) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hitl-guard", message="hitl-guard %(version)s")
def main() -> None:
    """Human approval of an agent's tool calls: unforgeable, single-use, provable."""
