"""`hitl-guard db`: the schema is made, kept and judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.site import Site, refusal, site

__all__ = ["site"]


def test_upgrade_makes_the_tables_and_may_be_run_again(site: Site, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"

    before = site.run("db", "check", "--store", url)
    first, second = site.run("db", "upgrade", "--store", url), site.run("db", "upgrade", "--store", url)
    after = site.run("db", "check", "--store", url)

    assert refusal(before) == "config-error: schema"
    assert first.stdout == second.stdout == after.stdout == "The schema is this version's.\n"
    assert (first.exit_code, second.exit_code, after.exit_code) == (0, 0, 0)


def test_check_speaks_json_and_needs_no_keys(site: Site) -> None:
    result = site.run("db", "check", "--json", HITL_GUARD_KEYS_FILE=None)

    assert (result.exit_code, json.loads(result.stdout)) == (0, {"schema": "current"})


@pytest.mark.parametrize("command", ["check", "upgrade"])
def test_a_newer_schema_is_refused(site: Site, command: str) -> None:
    site.tamper("UPDATE hitl_guard_version SET version_num = '9999'")

    result = site.run("db", command)

    assert refusal(result) == "config-error: schema-newer"
    assert "newer hitl_guard" in result.stderr


@pytest.mark.parametrize("command", ["check", "upgrade"])
@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "oracle://x/y", "no url", "postgresql://u:hunter2@/x?y=z=z"])
def test_an_unusable_address_is_refused_without_showing_a_password(site: Site, command: str, url: str) -> None:
    result = site.run("db", command, "--store", url)

    assert result.exit_code == 1
    assert "hunter2" not in result.output


@pytest.mark.parametrize("command", ["check", "upgrade"])
def test_a_missing_address_is_wrong_usage(site: Site, command: str) -> None:
    assert site.run("db", command, HITL_GUARD_STORE=None).exit_code == 2
