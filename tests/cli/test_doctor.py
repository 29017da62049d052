"""`hitl-guard doctor`: a sound set-up passes, and each thing that can be wrong has its line."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hitl_guard import clock
from hitl_guard.keyring import Key, Keyring, rotated
from hitl_guard.lifecycle.settle import settle
from hitl_guard.render import utc
from tests.cli.site import POLICY, Site, site

__all__ = ["site"]

CASES = """\
cases:
  - name: a refund asks
    call: {tool: refund, args: {amount: 82}}
    expect: {status: user-approval, rules: [refunds]}
  - name: an unknown tool asks
    call: {tool: other}
    expect: {status: user-approval}
"""


@pytest.fixture
def sound(site: Site) -> Site:
    """A site with golden cases for its policy."""
    site.policy.with_name("policy_test.yaml").write_text(CASES)
    return site


def checks(site: Site, *arguments: str, **environ: str | None) -> tuple[int, list[dict[str, Any]]]:
    result = site.run("doctor", "--json", *arguments, **environ)
    data = json.loads(result.stdout)
    assert data["ok"] is (result.exit_code == 0)
    return result.exit_code, data["checks"]


def lines(found: list[dict[str, Any]], name: str) -> list[tuple[str, str]]:
    return [(check["status"], check["message"]) for check in found if check["name"] == name]


def key(start: int, **fields: Any) -> Key:
    return Key(f"k{start}", Key.generate(0).secret(), activates_at=start, **fields)


def test_a_sound_set_up_passes_every_check(sound: Site) -> None:
    sound.ask()

    code, found = checks(sound)

    assert code == 0
    assert {check["name"] for check in found} == {
        "python", "sqlite", "policy", "keys", "store", "clock", "files", "control", "requests"
    }
    assert [check for check in found if check["status"] == "fail"] == []
    assert ("ok", f"{sound.policy}: 2 of 2 cases pass.") in lines(found, "policy")
    assert ("ok", f"It loads; its version is {sound.guard().policy_version}.") in lines(found, "policy")
    assert lines(found, "requests") == [("ok", "1 open request verified.")]


def test_the_text_view_has_one_line_for_each_check(sound: Site) -> None:
    result = sound.run("doctor")

    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == len(checks(sound)[1])
    assert {line.split()[0] for line in result.stdout.splitlines()} <= {"ok", "warn"}


def test_an_old_sqlite_fails(sound: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))

    code, found = checks(sound)

    assert code == 1
    assert lines(found, "sqlite")[0][0] == "fail"


# Keys


def test_missing_keys_fail_and_the_rest_is_looked_at(sound: Site) -> None:
    code, found = checks(sound, HITL_GUARD_KEYS_FILE=None)

    assert code == 1
    assert lines(found, "keys")[0][0] == "fail"
    assert "hitl-guard keys generate" in lines(found, "keys")[0][1]
    assert lines(found, "store")[0][0] == "ok"
    assert lines(found, "requests") == [("fail", "Not checked, since keys or store failed: mend those first.")]


def test_a_key_file_that_others_may_read_fails(sound: Site) -> None:
    sound.keys.chmod(0o644)

    code, found = checks(sound)

    assert code == 1
    assert "[config-error: file-mode]" in lines(found, "keys")[0][1]


def test_key_states_and_the_next_rotation_are_told(sound: Site) -> None:
    keyring, new = rotated(Keyring.from_file(sound.keys), now=clock.epoch_ms(), refresh_ms=3_600_000)
    sound.write_keys(keyring)

    code, found = checks(sound)

    signing = keyring.keys[0].id
    assert code == 0
    assert lines(found, "keys")[-1] == (
        "ok", f"1 active, 1 pre-active; {signing} signs; the next rotation is at {utc(new.activates_at)}."
    )


def test_a_key_that_ends_soon_without_a_follower_is_pointed_out(sound: Site) -> None:
    now = clock.epoch_ms()
    sound.write_keys(Keyring([key(now - 3_600_000, deactivates_at=now + 3_600_000)]))

    code, found = checks(sound)

    assert code == 0
    assert lines(found, "keys")[-1][0] == "warn"
    assert "none follows" in lines(found, "keys")[-1][1]


def test_a_ring_without_an_active_key_fails(sound: Site) -> None:
    sound.write_keys(Keyring([key(1, deactivates_at=2)]))

    code, found = checks(sound)

    assert code == 1
    assert "[key-inactive: no-active-key]" in lines(found, "keys")[-1][1]


# Policy


def test_a_policy_that_is_not_given_is_said_to_be_unchecked(sound: Site) -> None:
    code, found = checks(sound, HITL_GUARD_POLICY=None)

    assert code == 0
    assert lines(found, "policy") == [("warn", "Not checked: give --policy FILE or set HITL_GUARD_POLICY.")]


def test_a_status_as_policy_has_no_file_to_check(sound: Site) -> None:
    _, found = checks(sound, "--policy", "user-approval")

    assert [status for status, _ in lines(found, "policy")] == ["ok"]


def test_a_policy_without_cases_is_pointed_out(site: Site) -> None:
    code, found = checks(site)

    assert code == 0
    assert any(status == "warn" and "cases" in message for status, message in lines(found, "policy"))


def test_a_policy_that_does_not_load_fails(sound: Site) -> None:
    sound.policy.write_text(POLICY.replace("effect: require_approval", "effect: maybe"))

    code, found = checks(sound)

    assert code == 1
    assert [status for status, _ in lines(found, "policy")] == ["fail"]


def test_a_failing_case_fails(sound: Site) -> None:
    sound.policy.with_name("policy_test.yaml").write_text(CASES.replace("rules: [refunds]", "rules: [leads]"))

    code, found = checks(sound)

    assert code == 1
    assert any(status == "fail" and "'a refund asks' fails" in message for status, message in lines(found, "policy"))


def test_cases_that_do_not_load_fail(sound: Site) -> None:
    sound.policy.with_name("policy_test.yaml").write_text("cases: []")

    code, found = checks(sound)

    assert code == 1
    assert "fail" in [status for status, _ in lines(found, "policy")]


def test_a_rule_that_lint_points_out_is_named(sound: Site) -> None:
    sound.policy.write_text(POLICY.replace("    tools: [wire]", "    tools: [wire]\n    channels: [fax]"))

    _, found = checks(sound)

    assert any(status == "warn" and "rule two-people" in message for status, message in lines(found, "policy"))


def test_a_policy_file_that_others_may_change_is_pointed_out(sound: Site) -> None:
    sound.policy.chmod(0o666)

    _, found = checks(sound)

    assert ("warn", f"Other users may change {sound.policy}: chmod go-w.") in lines(found, "policy")


# Store


def test_a_missing_address_fails(sound: Site) -> None:
    code, found = checks(sound, HITL_GUARD_STORE=None)

    assert code == 1
    assert lines(found, "store") == [("fail", "No store is given: use --store URL or set HITL_GUARD_STORE.")]


@pytest.mark.parametrize("url", ["sqlite://", "nonsense", "sqlite:///{}/none/approvals.db"])
def test_a_store_that_cannot_be_used_fails(sound: Site, tmp_path: Path, url: str) -> None:
    code, found = checks(sound, "--store", url.format(tmp_path))

    assert code == 1
    assert lines(found, "store")[0][0] == "fail"


def test_at39_a_clock_that_is_far_off_is_pointed_out(sound: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = clock.epoch_ms() - 600_000
    monkeypatch.setattr(clock, "epoch_ms", lambda: behind)

    code, found = checks(sound)

    assert code == 0
    assert lines(found, "clock")[0][0] == "warn"


def test_a_database_file_that_others_may_read_is_pointed_out(sound: Site) -> None:
    sound.database.chmod(0o644)

    _, found = checks(sound)

    assert lines(found, "files")[0][0] == "warn"


def test_only_a_file_has_a_mode(sound: Site) -> None:
    from hitl_guard.cli.doctor import _database_file

    assert list(_database_file("postgresql://host/name")) == []


# What is in the store


def test_a_pause_and_another_restore_epoch_are_told(sound: Site) -> None:
    sound.run("control", "pause", "--role", "operator")

    paused = checks(sound)
    sound.write_keys(Keyring(Keyring.from_file(sound.keys).keys, epoch=2))
    restored = checks(sound)

    assert paused[0] == 0
    assert lines(paused[1], "control")[0] == (
        "warn", "Tenant default: 1 pause in force; see `hitl-guard control show`."
    )
    assert restored[0] == 1
    assert lines(restored[1], "control")[0][0] == "fail"


def test_a_control_row_that_was_put_back_fails(sound: Site) -> None:
    sound.run("control", "pause", "--role", "operator")
    sound.tamper("DELETE FROM hitl_guard_events WHERE type = ?", b"control:changed")
    sound.tamper("UPDATE hitl_guard_control SET body = ?", b"forged")

    code, found = checks(sound)

    assert code == 1
    assert [status for status, _ in lines(found, "control")] == ["fail"]


def test_a_control_row_that_does_not_verify_is_named_and_hides_no_other(sound: Site) -> None:
    for tenant in ("aaa", "bbb", "ccc"):
        sound.run("control", "pause", "--role", "operator", "--tenant", tenant)
    sound.tamper("UPDATE hitl_guard_control SET body = ? WHERE tenant = ?", b"forged", b"bbb")

    code, found = checks(sound)

    told = {message.partition(":")[0]: status for status, message in lines(found, "control")}
    assert code == 1
    assert told == {"Tenant aaa": "warn", "Tenant bbb": "fail", "Tenant ccc": "warn"}


@pytest.mark.parametrize(("tenant", "option"), [
    ("acme", "--tenant acme"), ("x; touch pwned", "--tenant 'x; touch pwned'"), ("`id`'", "--tenant '`id`'\"'\"''"),
    ("a\\b", "--tenant NAME"), ("a\nb\u202e", "--tenant NAME"),
])
def test_a_tenant_that_nobody_verified_runs_nothing_in_the_command_that_is_advised(
    sound: Site, tenant: str, option: str
) -> None:
    sound.run("control", "pause", "--tenant", tenant, "--role", "operator")
    sound.run("control", "pause", "--everywhere", "--role", "global-operator")
    sound.write_keys(Keyring(Keyring.from_file(sound.keys).keys, epoch=2))

    code, found = checks(sound)
    text = sound.run("doctor").stdout

    told = lines(found, "control")
    assert (code, {status for status, _ in told}) == (1, {"fail"})
    for wanted in (f"{option} --role operator", "--everywhere --role global-operator"):
        assert any(f"`hitl-guard control resume {wanted}`." in message for _, message in told)
        assert f"`hitl-guard control resume {wanted}`." in text


def test_damaged_requests_fail_and_are_named(sound: Site) -> None:
    ids = [sound.ask().id for _ in range(7)]
    sound.tamper("UPDATE hitl_guard_requests SET arguments = ?", b"{}")

    code, found = checks(sound)

    status, message = lines(found, "requests")[1]
    assert (code, status) == (1, "fail")
    assert message.startswith("7 requests damaged, to be asked again: ")
    assert sum(f"{one} (invalid-signature)" in message for one in ids) == 5
    assert " and 2 more. " in message


def test_a_call_in_doubt_is_named(sound: Site) -> None:
    request, permit = sound.claim()
    sound.guard().settle(permit, "in_doubt")

    code, found = checks(sound)

    assert code == 0
    assert lines(found, "in-doubt") == [(
        "warn",
        f"1 call started whose outcome nobody knows: {request.id}. Find out, then run `hitl-guard requests resolve`.",
    )]


def test_a_suspended_call_is_open_and_in_nobodys_doubt(sound: Site) -> None:
    _, permit = sound.claim()
    settle(sound.guard()._desk, permit, "suspended", None)

    code, found = checks(sound)

    assert code == 0
    assert lines(found, "requests") == [("ok", "1 open request verified.")]
    assert lines(found, "in-doubt") == []


def test_every_page_of_requests_is_looked_at(sound: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitl_guard.lifecycle.listing.MAX_PAGE", 2)
    for _ in range(5):
        sound.ask()

    assert lines(checks(sound)[1], "requests") == [("ok", "5 open requests verified.")]
