"""`hitl-guard control`: the kill switch, from a terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hitl_guard.errors import ApprovalDeniedError, PausedError
from hitl_guard.keyring import Keyring
from hitl_guard.models import ApprovalRequest
from tests.cli.site import POLICY, Site, refusal, site

__all__ = ["site"]

OPERATOR = ("--role", "operator")
GLOBAL = ("--role", "global-operator")


def shown(site: Site, *options: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(site.run("control", "show", "--json", *options).stdout)
    return data


def test_a_tenant_without_a_control_row_has_nothing_paused(site: Site) -> None:
    now = shown(site).pop("now")
    assert shown(site) | {"now": now} == {
        "everywhere": [], "everywhere_restored": False, "mutes": [], "now": now, "pauses": [], "policy": None,
        "restored": False, "tenant": "default", "version": 0,
    }
    assert site.run("control", "show", HITL_GUARD_POLICY=None).stdout == (
        "No pause is set.\nControl row version 0; policy in force: as each host has it\n"
    )


@pytest.mark.parametrize(
    ("target", "words", "line", "pause"),
    [
        ((), "everything", "everything is paused", {"kind": "all", "name": ""}),
        (("--tool", "refund"), "the tool refund", "tool refund is paused", {"kind": "tool", "name": "refund"}),
        (("--agent", "bot\u202e"), "the agent bot\\u202e", "agent bot\\u202e is paused",
         {"kind": "agent", "name": "bot\u202e"}),
    ],
)
def test_a_pause_stops_the_next_call_until_it_is_resumed(
    site: Site, target: tuple[str, ...], words: str, line: str, pause: dict[str, str]
) -> None:
    call = site.call(agent="bot\u202e")
    request = site.ask(call)
    site.run("requests", "approve", request.id, "--fingerprint", request.fingerprint)

    paused = site.run("control", "pause", *target, *OPERATOR, "--reason", "incident", HITL_GUARD_POLICY=None)
    state, text = shown(site), site.run("control", "show").stdout
    with pytest.raises(PausedError):
        site.guard().authorize(call)
    resumed = site.run("control", "resume", *target, *OPERATOR)

    assert (paused.exit_code, paused.stdout) == (0, f"Paused {words}.\n")
    assert state["pauses"] == [pause]
    assert text.splitlines()[0] == line
    assert (resumed.exit_code, resumed.stdout) == (0, f"Resumed {words}.\n")
    assert shown(site)["pauses"] == []
    assert site.guard().authorize(call).request_id == request.id


def test_a_pause_concerns_its_tenant_only(site: Site) -> None:
    site.run("control", "pause", "--tenant", "acme", *OPERATOR)

    assert shown(site)["pauses"] == []
    assert shown(site, "--tenant", "acme")["pauses"] == [{"kind": "all", "name": ""}]
    assert site.ask().state == "pending"


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_the_kill_switch_needs_the_operator_s_role(site: Site, verb: str) -> None:
    result = site.run("control", verb, "--role", "clerk")

    assert refusal(result).startswith("not-authorised")
    assert "operator" in result.stderr
    assert shown(site)["version"] == 0


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("target", [("--tool", "a", "--agent", "b"), ("--tool", ""), ("--agent", "")])
def test_an_unclear_target_is_wrong_usage(site: Site, verb: str, target: tuple[str, ...]) -> None:
    assert site.run("control", verb, *target, *OPERATOR).exit_code == 2
    assert shown(site)["version"] == 0


def test_after_a_restore_everything_is_paused_until_an_operator_resumes(site: Site) -> None:
    site.run("control", "pause", "--tool", "wire", *OPERATOR)
    site.write_keys(Keyring(Keyring.from_file(site.keys).keys, epoch=2))

    before, text = shown(site), site.run("control", "show").stdout
    resumed = site.run("control", "resume", *OPERATOR).stdout

    assert (before["restored"], before["pauses"]) == (True, [{"kind": "tool", "name": "wire"}])
    assert "another restore epoch" in text
    assert "Single pauses and the policy in force stay as they were." in text
    assert "tool wire is paused" in text.splitlines()
    assert (shown(site)["restored"], shown(site)["pauses"]) == (False, before["pauses"])
    assert resumed == "Resumed everything.\nStill paused: tool wire.\n"


def test_after_a_restore_without_any_pause_nothing_says_that_no_pause_is_set(site: Site) -> None:
    site.ask()
    site.run("control", "pause", "--everywhere", *GLOBAL)
    site.run("control", "resume", "--everywhere", *GLOBAL)
    site.write_keys(Keyring(Keyring.from_file(site.keys).keys, epoch=2))

    text = site.run("control", "show").stdout
    one = site.run("control", "resume", *OPERATOR).stdout
    both = site.run("control", "resume", "--everywhere", *GLOBAL).stdout

    assert text.count("another restore epoch: everything is paused") == 2
    assert "No pause is set" not in text
    assert "anew" not in text
    assert one == "Resumed everything.\nStill paused in all tenants: everything, until it is confirmed.\n"
    assert both == "Resumed everything in all tenants.\n"
    assert "No pause is set." in site.run("control", "show").stdout


def test_after_a_revocation_single_pauses_are_to_be_set_anew(site: Site) -> None:
    site.run("control", "pause", "--tool", "wire", *OPERATOR)
    (key,) = Keyring.from_file(site.keys).keys
    site.run("keys", "revoke", key.id)

    text = site.run("control", "show").stdout

    assert "of a revoked key" in text
    assert "set single pauses and the policy in force anew before that" in text
    assert "wire" not in text


def test_a_resumption_says_what_is_paused_still_and_whether_anything_changed(site: Site) -> None:
    for options in (("--tool", "wire"), ("--agent", "bot\u202e"), ("--tool", "mail", "--everywhere")):
        site.run("control", "pause", *options, *OPERATOR, *GLOBAL)

    def resumed(*options: str) -> list[str]:
        return site.run("control", "resume", *options, *OPERATOR, *GLOBAL).stdout.splitlines()

    rest = ["Still paused: agent bot\\u202e, tool wire.", "Still paused in all tenants: tool mail."]
    assert resumed() == ["Nothing changed: everything was not paused as a whole.", *rest]
    assert resumed("--tool", "mail") == ["Nothing changed: the tool mail was not paused.", *rest]
    assert resumed("--tool", "wire") == ["Resumed the tool wire.", "Still paused: agent bot\\u202e.", rest[1]]
    assert resumed("--everywhere") == ["Nothing changed: everything in all tenants was not paused as a whole.", rest[1]]
    assert resumed("--tool", "mail", "--everywhere") == ["Resumed the tool mail in all tenants."]
    assert resumed("--agent", "bot\u202e") == ["Resumed the agent bot\\u202e."]


PATTERN = POLICY.replace("tools: [refund]", 'tools: ["refund*"]')


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (("--tool", "refnud\u202e"), True),
        (("--tool", "refnud\u202e", "--everywhere"), True),
        (("--tool", "refund"), False),
        (("--tool", "asked_for"), False),
        (("--tool", "asked_for", "--tenant", "acme"), True),
        (("--agent", "bot"), False),
        ((), False),
        (("--tool", "refnud", "--policy", "user-approval"), False),
        (("--tool", "refnud", "--policy", "gone.yaml"), False),
        (("--tool", "refund_all", "--policy", "pattern.yaml"), False),
        (("--tool", "wired", "--policy", "pattern.yaml"), True),
    ],
)
def test_a_pause_of_a_tool_that_nobody_knows_is_set_and_pointed_out(
    site: Site, options: tuple[str, ...], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(site.folder)
    (site.folder / "pattern.yaml").write_text(PATTERN)
    site.ask(site.call("asked_for"))

    result = site.run("control", "pause", *options, *OPERATOR, *GLOBAL)

    assert result.exit_code == 0
    assert result.stdout.startswith("Paused ")
    assert (result.stderr != "") is warned
    if warned:
        assert result.stderr.startswith(f"No policy rule names a tool '{options[1]}'".replace("\u202e", "\\u202e"))


def test_a_pause_without_a_policy_at_hand_says_nothing_of_its_tools(site: Site) -> None:
    result = site.run("control", "pause", "--tool", "refnud", *OPERATOR, HITL_GUARD_POLICY=None)

    assert (result.exit_code, result.stderr) == (0, "")


def test_a_control_row_that_was_edited_is_refused(site: Site) -> None:
    site.run("control", "pause", *OPERATOR)
    site.tamper("DELETE FROM hitl_guard_control")

    assert refusal(site.run("control", "show")) == "store-rolled-back: control"


def denied(site: Site, *options: str) -> ApprovalRequest:
    request = site.ask(site.call(user="ana\u202e"))
    assert site.run("requests", "deny", request.id, *options).exit_code == 0
    return request


def test_x16_a_mute_is_made_with_a_denial_shown_and_lifted_by_who_made_it(site: Site) -> None:
    request = denied(site, "--mute", "1h", "--reason", "Enough.")

    (mute,) = shown(site)["mutes"]
    line = site.run("control", "show", HITL_GUARD_POLICY=None).stdout.splitlines()[1]
    with pytest.raises(ApprovalDeniedError) as refused:
        site.guard().request(site.call(user="ana\u202e"))
    lifted = site.run("control", "unmute", "--user", "ana\u202e", "--tool", "refund", "--reason", "calm again")

    assert {name: mute[name] for name in ("user", "tool", "by", "request_id")} == {
        "user": "ana", "tool": "refund", "by": "bob", "request_id": request.id,
    }
    assert line.startswith("refund for ana is muted until ")
    assert line.endswith(f"by bob with {request.id}")
    assert (refused.value.detail, refused.value.reason) == ("muted", "Enough.")
    assert (lifted.exit_code, lifted.stdout) == (0, "Unmuted the tool refund for ana\\u202e.\n")
    assert shown(site)["mutes"] == []


def test_x16_others_mutes_are_lifted_by_an_operator_alone(site: Site) -> None:
    denied(site, "--mute", "2d")
    lift = ("control", "unmute", "--user", "ana", "--tool", "refund", "--as", "carol")

    assert refusal(site.run(*lift)).startswith("not-authorised")
    assert site.run(*lift, *OPERATOR).exit_code == 0
    assert shown(site)["mutes"] == []


@pytest.mark.parametrize("target", [(), ("--user", "ana"), ("--tool", "a"), ("--user", "", "--tool", "a")])
def test_x16_an_unclear_unmuting_is_wrong_usage(site: Site, target: tuple[str, ...]) -> None:
    assert site.run("control", "unmute", *target, *OPERATOR).exit_code == 2
