"""Every command explains itself, at once: help imports nothing that a command needs only when it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

import click
import pytest
from click.testing import CliRunner

from hitl_guard.cli import COMMANDS, main

HEAVY = {
    "alembic", "cel_expr_python", "cryptography", "hitl_guard.guard", "orjson", "pydantic", "sqlalchemy", "starlette",
    "yaml",
}
READS = [
    "requests list", "requests show", "control show", "audit verify", "db check", "doctor", "keys list", "policy lint",
    "policy test", "policy explain",
]
HELP = [[], *([name] for name in COMMANDS), ["requests", "approve"], ["audit", "verify"], ["control", "pause"]]


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command below the root with its full name."""
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", found) for inner, found in command.commands.items())


@pytest.mark.parametrize("arguments", HELP)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        f"import json, sys; from hitl_guard.cli import main; main([*{arguments!r}, '--help'], standalone_mode=False); "
        "print(json.dumps(sorted(sys.modules)))"
    )

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert HEAVY & set(json.loads(result.stdout.splitlines()[-1])) == set()


def test_every_command_and_every_option_explains_itself() -> None:
    silent = [name for name, command in commands() if not command.help]
    silent += [
        f"{name} {option.name}" for name, command in commands() for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]

    assert silent == []


def test_the_root_s_line_about_a_command_is_known_without_its_module() -> None:
    shown = CliRunner().invoke(main, ["--help"], prog_name="hitl-guard").stdout

    assert [line.split()[0] for line in shown.partition("Commands:\n")[2].splitlines() if line.startswith("  ")
            and line[2] != " "] == sorted(COMMANDS)


@pytest.mark.parametrize("name", READS)
def test_every_read_speaks_json(name: str) -> None:
    found = dict(commands())[name]

    assert "--json" in [text for option in found.params for text in option.opts]


@pytest.mark.parametrize("arguments", [["nonsense"], ["requests", "nonsense"], ["--nonsense"], ["requests", "show"]])
def test_wrong_usage_is_exit_code_two(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments, prog_name="hitl-guard")

    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: hitl-guard")


def test_the_version_is_the_installed_package_s() -> None:
    result = CliRunner().invoke(main, ["--version"])

    assert (result.exit_code, result.stdout) == (0, f"hitl-guard {metadata.version('hitl-guard')}\n")
