"""`hitl-guard audit verify`: what somebody without a key did to the database is named."""

from __future__ import annotations

import json

import pytest

from tests.cli.site import Site, refusal, site

__all__ = ["site"]


@pytest.fixture
def lived(site: Site) -> Site:
    """A site with one call that ran and one that was denied."""
    _, permit = site.claim()
    site.guard().settle(permit, "succeeded")
    assert site.run("requests", "deny", site.ask().id).exit_code == 0
    return site


def findings(site: Site) -> list[tuple[str, str]]:
    result = site.run("audit", "verify", "--json")
    assert result.exit_code == 1
    return [(found["where"].split()[0], found["code"]) for found in json.loads(result.stdout)["findings"]]


def test_an_untouched_store_verifies_without_a_policy(lived: Site) -> None:
    text = lived.run("audit", "verify", HITL_GUARD_POLICY=None)
    data = json.loads(lived.run("audit", "verify", "--json").stdout)

    assert text.exit_code == 0
    assert text.stdout.endswith(" 2 requests; 0 findings.\n")
    assert (data["requests"], data["findings"]) == (2, [])
    assert data["events"] > data["chains"] > 1


def test_a_deleted_event_is_found(lived: Site) -> None:
    lived.tamper("DELETE FROM hitl_guard_events WHERE type = ?", b"grant:claimed")

    assert {("chain", "gap"), ("request", "store-rolled-back")} <= set(findings(lived))


def test_an_edited_event_is_found(lived: Site) -> None:
    lived.tamper("UPDATE hitl_guard_events SET type = ? WHERE type = ?", b"request:approved", b"request:denied")

    assert ("chain", "invalid-signature") in findings(lived)


def test_edited_arguments_are_found(lived: Site) -> None:
    lived.tamper("UPDATE hitl_guard_requests SET arguments = ?", b'{"amount":820}')

    assert findings(lived) == [("request", "invalid-signature"), ("request", "invalid-signature")]


def test_a_deleted_request_is_found(lived: Site) -> None:
    lived.tamper("DELETE FROM hitl_guard_requests")

    assert findings(lived) == [("request", "missing"), ("request", "missing")]


def test_findings_are_lines_before_the_counts_and_nothing_in_them_is_obeyed(lived: Site) -> None:
    lived.tamper("UPDATE hitl_guard_events SET chain = ? WHERE type = ?", b"\x1b[2J\xe2\x80\xae", b"request:denied")

    result = lived.run("audit", "verify")

    assert result.exit_code == 1
    assert "chain \\u001b[2J\\u202e " in result.stdout
    assert result.stdout.isascii()
    assert result.stdout.replace("\n", "").isprintable()
    assert " findings.\n" in result.stdout.splitlines(keepends=True)[-1]


def test_a_revoked_key_is_found_wherever_it_signed(lived: Site) -> None:
    key_id = json.loads(lived.run("keys", "list", "--json").stdout)["keys"][0]["id"]
    lived.run("keys", "revoke", key_id, HITL_GUARD_STORE=None)

    result = lived.run("audit", "verify", "--json")
    report = json.loads(result.stdout)

    assert (result.exit_code, report["findings"]) == (0, [])
    assert {one["code"] for one in report["void"]} == {"key-revoked"}


def test_without_keys_nothing_is_said_to_be_sound(lived: Site) -> None:
    assert refusal(lived.run("audit", "verify", HITL_GUARD_KEYS_FILE=None)) == "config-error: missing"
