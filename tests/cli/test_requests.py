"""`hitl-guard requests`: what waits for a person, and the person's answer, at a terminal."""

from __future__ import annotations

import getpass
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hitl_guard.cli._common import Nobody, say
from hitl_guard.errors import ApprovalDeniedError
from hitl_guard.guard import Guard
from hitl_guard.keyring import Keyring
from hitl_guard.lifecycle import ask
from hitl_guard.lifecycle.settle import settle
from hitl_guard.models import ApprovalRequest
from hitl_guard.render import request_json, utc
from tests.cli.site import POLICY, Site, refusal, site
from tests.support import until

__all__ = ["site"]

HOSTILE = "\x1b[2J\x9b\u202e\u200b\U000e0041\r"


def approve(site: Site, request: ApprovalRequest, *options: str, **environ: str | None) -> str:
    """Approve and return what was printed."""
    result = site.run("requests", "approve", request.id, "--fingerprint", request.fingerprint, *options, **environ)
    assert result.exit_code == 0, result.stderr
    return result.stdout


# list


def test_list_names_what_waits_the_most_urgent_first(site: Site) -> None:
    late = site.ask(guard=site.guard(decide_within=7_200_000))
    soon = site.ask(site.call("mail"), guard=site.guard(decide_within=3_600_000))

    result = site.run("requests", "list")

    first, second = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert first.startswith(f"{soon.id}  pending  until ")
    assert first.endswith("  mail  for ana in default  run run-1")
    assert second.startswith(f"{late.id}  pending")


def test_list_as_json_is_the_one_renderer_s_view(site: Site) -> None:
    request = site.ask(site.call(arguments={"note": HOSTILE}))

    result = site.run("requests", "list", "--json")

    listed = json.loads(result.stdout)
    assert listed["requests"] == [request_json(request)]
    assert (listed["damaged"], listed["more"]) == ([], False)
    assert request.issued_at <= listed["now"]
    assert result.stdout.isascii()


def test_list_of_nothing_says_so(site: Site) -> None:
    assert site.run("requests", "list").stdout == "Nothing waits.\n"


def test_x10_list_shows_what_ended_the_newest_first(site: Site) -> None:
    assert site.run("requests", "list", "--ended").stdout == "Nothing ended.\n"
    request, other = site.ask(), site.ask(site.call(run_id="run-2"))
    for one in (request, other):
        site.run("requests", "deny", one.id)
    waiting = site.ask()

    lines = site.run("requests", "list", "--ended").stdout.splitlines()
    of_run = json.loads(site.run("requests", "list", "--ended", "--run", "run-2", "--json").stdout)

    assert sorted(line.split()[:2] for line in lines) == sorted([[request.id, "denied"], [other.id, "denied"]])
    assert [(one["id"], one["state"]) for one in of_run["requests"]] == [(other.id, "denied")]
    assert waiting.id in site.run("requests", "list").stdout


@pytest.mark.parametrize("other", [("--all-tenants",), ("--state", "approved")])
def test_x10_list_of_what_ended_is_of_one_tenant_and_every_end(site: Site, other: tuple[str, ...]) -> None:
    assert site.run("requests", "list", "--ended", *other).exit_code == 2


def test_list_can_be_narrowed_to_tenant_run_and_state(site: Site) -> None:
    pending, other, approved = site.ask(), site.ask(site.call(tenant="acme", run_id="run-2")), site.ask()
    approve(site, approved)

    def listed(*options: str) -> list[str]:
        return [line.split()[0] for line in site.run("requests", "list", *options).stdout.splitlines()]

    assert listed() == [pending.id]
    assert listed("--tenant", "acme", "--run", "run-2") == [other.id]
    assert listed("--tenant", "acme", "--run", "run-1") == ["Nothing"]
    assert listed("--all-tenants") == [pending.id, other.id]
    assert listed("--state", "approved") == [approved.id]
    assert sorted(listed("--state", "all")) == sorted([pending.id, approved.id])


def test_list_shows_until_when_an_approved_call_may_run_and_how_many_decided(site: Site) -> None:
    request = site.ask()
    approve(site, request, "--execute-within", "5m")

    line = site.run("requests", "list", "--state", "approved").stdout

    execute_by = site.get(request).execute_by
    assert execute_by is not None
    assert f"  approved  until {utc(execute_by)} (in " in line
    assert line.endswith("  run run-1  1 decision\n")


def test_list_says_when_there_are_more(site: Site) -> None:
    soon = site.ask(guard=site.guard(decide_within=3_600_000))
    site.ask()

    result = site.run("requests", "list", "--limit", "1")

    assert result.stdout.split()[0] == soon.id
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == "There are more; see --limit.\n"


def test_list_reads_on_when_a_page_holds_nothing_that_is_wanted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitl_guard.lifecycle.listing.MAX_PAGE", 1)
    approved, pending = site.ask(guard=site.guard(decide_within=3_600_000)), site.ask()
    approve(site, approved)

    assert site.run("requests", "list").stdout.split()[0] == pending.id


def test_list_names_damaged_requests_beside_the_good_ones(site: Site) -> None:
    good, bad = site.ask(), site.ask()
    site.tamper("UPDATE hitl_guard_requests SET arguments = ? WHERE id = ?", b'{"amount":820}', bad.id.encode())

    text, data = site.run("requests", "list"), json.loads(site.run("requests", "list", "--json").stdout)

    assert text.exit_code == 0
    assert f"{bad.id}  damaged (invalid-signature, key {bad.key_id}): it must be asked again\n" in text.stdout
    assert [one["id"] for one in data["requests"]] == [good.id]
    assert data["damaged"] == [{"code": "invalid-signature", "key_id": bad.key_id, "request_id": bad.id}]


def test_list_names_a_request_whose_envelope_was_destroyed(site: Site) -> None:
    bad = site.ask()
    site.tamper("UPDATE hitl_guard_requests SET envelope = ?", b"\x1b[2J")

    assert site.run("requests", "list").stdout == f"{bad.id}  damaged (invalid-approval): it must be asked again\n"


def test_at58_no_field_reaches_the_terminal_unescaped(site: Site) -> None:
    request = site.ask(site.call(f"mail{HOSTILE}", {HOSTILE: HOSTILE}, user=f"ana{HOSTILE}", run_id=f"run{HOSTILE}",
                                 agent=f"bot{HOSTILE}", tenant=f"acme{HOSTILE}"))

    listed = site.run("requests", "list", "--all-tenants").stdout
    shown = site.run("requests", "show", request.id, "--tenant", f"acme{HOSTILE}").stdout

    for output in (listed, shown):
        assert output.isascii()
        assert output.replace("\n", "").isprintable()
        assert "ana\\u001b[2J\\u009b\\u202e\\u200b\\udb40\\udc41\\r" in output


# show


def test_show_begins_with_the_complete_arguments_and_ends_with_the_fingerprint(site: Site) -> None:
    request = site.ask(site.call(arguments={"to": "x" * 3_000 + "rm -rf /", "amount": 82}))

    result = site.run("requests", "show", request.id)

    assert result.exit_code == 0
    assert result.stdout.startswith("Arguments, complete")
    assert '"amount": 82' in result.stdout
    assert f'"{"x" * 3_000}rm -rf /"' in result.stdout
    assert "  ! long-text: " in result.stdout
    assert result.stdout.endswith(f"Fingerprint  {request.fingerprint}\n")


def test_show_as_json_has_the_exact_signed_text(site: Site) -> None:
    request = site.ask(site.call(arguments={"b": "\u202e", "a": 1}))

    result = site.run("requests", "show", request.id, "--json")

    shown = json.loads(result.stdout)
    assert shown["request"]["canonical"].encode() == request.canonical
    assert shown["request"] == request_json(request)
    assert result.stdout.isascii()


def test_an_unknown_id_and_another_tenant_s_look_the_same(site: Site) -> None:
    request = site.ask(site.call(tenant="acme"))

    foreign, unknown = site.run("requests", "show", request.id), site.run("requests", "show", "x" * 22)

    assert refusal(foreign) == refusal(unknown) == "invalid-approval: unknown"
    assert foreign.stderr == unknown.stderr


def test_a_changed_record_is_refused_and_not_shown(site: Site) -> None:
    request = site.ask()
    site.tamper("UPDATE hitl_guard_requests SET arguments = ?", b'{"amount":820}')

    result = site.run("requests", "show", request.id)

    assert refusal(result).startswith("invalid-signature")
    assert result.stdout == ""


def test_an_id_may_start_with_a_dash(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "new_id", lambda: "-h" + "x" * 20)
    request = site.ask()

    assert f"Request      {request.id}\n" in site.run("requests", "show", request.id).stdout
    assert request.id in approve(site, request)
    assert site.run("requests", "revoke", request.id).exit_code == 0
    assert site.get(request).state == "revoked"


def test_a_terminal_that_cannot_show_a_character_gets_its_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", narrow)

    say("na\xefve \u4f60")
    say("na\xefve")

    narrow.seek(0)
    assert narrow.read() == "na\\u00efve \\u4f60\nna\xefve\n"


# approve


def test_an_approval_by_fingerprint_lets_the_call_run_once(site: Site) -> None:
    call = site.call()
    request = site.ask(call)

    printed = approve(site, request)

    assert printed.startswith(f"Approved {request.id} ({request.fingerprint}); it may run until ")
    assert site.guard().run(call, lambda amount: amount) == 82
    vote = site.get(request).votes[0]
    assert (vote.approver, vote.channel, vote.roles) == ("bob", "cli", ())


def test_the_first_sixteen_digits_are_enough_and_the_whole_is_printed(site: Site) -> None:
    request = site.ask()

    result = site.run("requests", "approve", request.id, "--fingerprint", request.fingerprint[:16], "--reason", "fine")

    assert request.fingerprint in result.stdout
    assert site.get(request).votes[0].reason == "fine"


@pytest.mark.parametrize("given", ["", "a" * 15, "g" * 16, "A" * 16, "a" * 65, " " + "a" * 20])
def test_what_is_no_fingerprint_is_wrong_usage(site: Site, given: str) -> None:
    request = site.ask()

    assert site.run("requests", "approve", request.id, "--fingerprint", given).exit_code == 2
    assert site.get(request).state == "pending"


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_the_fingerprint_of_another_page_is_refused_and_audited(site: Site, verb: str) -> None:
    request, other = site.ask(), site.ask(site.call(arguments={"amount": 820}))

    result = site.run("requests", verb, request.id, "--fingerprint", other.fingerprint[:16])

    assert refusal(result) == "args-mismatch: stale"
    assert site.get(request).state == "pending"
    events = [event for chain in site.store.chains() for event in site.store.chain_events(chain)]
    assert [json.loads(event.body)["code"] for event in events if event.type == "decision:refused"] == ["args-mismatch"]


def test_without_a_fingerprint_the_request_is_shown_and_its_first_digits_are_asked_for(site: Site) -> None:
    request = site.ask(site.call(arguments={"note": "\u202e"}))

    result = site.run("requests", "approve", request.id, input=f"{request.fingerprint[:8]}\n")

    assert result.exit_code == 0
    assert result.stdout.startswith('Arguments, complete, as they were signed (14 bytes):\n{\n  "note": "\\u202e"\n}\n')
    assert "type the first 8 digits of the fingerprint: " in result.stdout
    assert site.get(request).state == "approved"


@pytest.mark.parametrize("typed", ["y", "", "00000000", "yes please"])
def test_other_digits_approve_nothing(site: Site, typed: str) -> None:
    request = site.ask()

    result = site.run("requests", "approve", request.id, input=f"{typed}\n")

    assert result.exit_code == 1
    assert result.stderr.endswith("[args-mismatch: typed]\n")
    assert site.get(request).state == "pending"


def test_no_answer_approves_nothing(site: Site) -> None:
    request = site.ask()

    result = site.run("requests", "approve", request.id, input="")

    assert result.exit_code == 1
    assert site.get(request).state == "pending"


@pytest.mark.parametrize("name", ["ana", "ANA", "  ana "])
def test_at50_the_requester_cannot_approve(site: Site, name: str) -> None:
    request = site.ask()

    result = site.run("requests", "approve", request.id, "--fingerprint", request.fingerprint, "--as", name)

    assert refusal(result) == "not-authorised: self-approval"
    assert site.get(request).state == "pending"


def test_at51_a_role_that_the_rule_wants_must_be_stated(site: Site) -> None:
    request = site.ask(site.call("close_account"))
    options = ["requests", "approve", request.id, "--fingerprint", request.fingerprint]

    refused, approved = site.run(*options, "--role", "clerk"), site.run(*options, "--role", "clerk", "--role", "lead")

    assert refusal(refused) == "not-authorised: role"
    assert approved.exit_code == 0
    assert site.get(request).votes[0].roles == ("clerk", "lead")


def test_at52_one_of_two_votes_leaves_the_request_pending(site: Site) -> None:
    request = site.ask(site.call("wire"))

    first, second = approve(site, request), approve(site, request, "--as", "carol")

    assert first == f"Recorded for {request.id} ({request.fingerprint}); the request is pending.\n"
    assert second.startswith(f"Approved {request.id}")


def test_who_acts_is_the_system_s_user_unless_said_otherwise(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "dora")
    request = site.ask()

    approve(site, request, HITL_GUARD_AS=None)

    assert site.get(request).votes[0].approver == "dora"


def test_a_system_that_does_not_say_who_acts_is_wrong_usage(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("no such user")

    monkeypatch.setattr(getpass, "getuser", nobody)
    request = site.ask()

    result = site.run("requests", "approve", request.id, "--fingerprint", request.fingerprint, HITL_GUARD_AS=None)

    assert result.exit_code == 2
    assert "--as" in result.stderr
    assert site.get(request).state == "pending"


def test_the_window_to_run_can_be_shortened(site: Site) -> None:
    request = site.ask()

    approve(site, request, "--execute-within", "5m")

    after = site.get(request)
    assert after.execute_by == after.votes[0].at + 300_000


@pytest.mark.parametrize("duration", ["0s", "5", "-5m", "5 m", "\u0665m", "1w", "9999999999s", ""])
def test_what_is_no_duration_is_wrong_usage(site: Site, duration: str) -> None:
    request = site.ask()

    result = site.run(
        "requests", "approve", request.id, "--fingerprint", request.fingerprint, f"--execute-within={duration}"
    )

    assert result.exit_code == 2
    assert site.get(request).state == "pending"


def test_a_decision_under_another_policy_is_refused(site: Site) -> None:
    request = site.ask()
    other = site.folder / "other.yaml"
    other.write_text(POLICY.replace("name: tests", "name: other"))

    result = site.run("requests", "approve", request.id, "--fingerprint", request.fingerprint, "--policy", str(other))

    assert refusal(result) == "policy-changed"
    assert site.get(request).state == "pending"


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_a_decision_without_any_policy_is_wrong_usage(site: Site, verb: str) -> None:
    result = site.run("requests", verb, site.ask().id, "--fingerprint", "a" * 64, HITL_GUARD_POLICY=None)

    assert result.exit_code == 2
    assert "HITL_GUARD_POLICY" in result.stderr


def test_the_policy_may_be_a_status_and_several_files(site: Site, tmp_path: Path) -> None:
    more = tmp_path / "a folder" / "more.yaml"
    more.parent.mkdir()
    more.write_text(POLICY.replace("name: tests", "name: more").replace("id: ", "id: more-"))
    by_status = site.ask(guard=site.guard("user-approval"))
    by_files = site.ask(guard=site.guard([site.policy, more]))

    approve(site, by_status, "--policy", "user-approval")
    approve(site, by_files, "--policy", str(site.policy), "--policy", str(more))

    assert site.get(by_status).state == site.get(by_files).state == "approved"


def test_a_policy_that_looks_approvers_up_again_can_be_decided_under(site: Site) -> None:
    site.policy.write_text(POLICY.replace("approvers: [lead]", "approvers: [lead]\n    recheck_approvers: true"))

    class Leads:
        def roles_of(self, tenant: str, principal_id: str) -> list[str]:
            return ["lead"]

    guard = Guard(policy=site.policy, store=site.store, keyring=Keyring.from_file(site.keys), directory=Leads())
    call = site.call("close_account")
    request = site.ask(call, guard=guard)

    approve(site, request, "--role", "lead")

    assert guard.authorize(call).request_id == request.id


def test_the_command_line_itself_looks_nobody_up() -> None:
    assert Nobody().roles_of("default", "bob") is None


# secrets

LOGIN = {"type": "object", "properties": {
    "user": {"type": "string"}, "password": {"type": "string", "format": "password"}, "pin": {"x-secret": True},
}}


def ask_to_log_in(site: Site) -> ApprovalRequest:
    """Return a request with two secret arguments."""
    guard = site.guard()

    def mail(user: str, password: str, pin: str = "") -> None: ...

    guard.tool(mail, name="mail", input_schema=LOGIN)
    arguments = {"user": "ana", "password": "hunter2", "pin": "4711"}
    return site.ask(site.call("mail", arguments), guard=guard)


def revealed(site: Site) -> set[tuple[str, str]]:
    """Return who saw which secrets, as the audit log has it."""
    events = [event for chain in site.store.chains() for event in site.store.chain_events(chain, limit=1_000)]
    told = [json.loads(event.body) for event in events if event.type == "argument:revealed"]
    return {(one["by"], one["place"]) for one in told}


def test_x21_a_secret_argument_is_masked_in_every_form(site: Site) -> None:
    request = ask_to_log_in(site)

    shown = site.run("requests", "show", request.id).stdout
    one = json.loads(site.run("requests", "show", request.id, "--json").stdout)["request"]
    (listed,) = json.loads(site.run("requests", "list", "--json").stdout)["requests"]
    asked = site.run("requests", "approve", request.id, input="\n").stdout

    assert '"password": "[masked]"' in shown
    assert "complete but for what is masked" in shown
    assert "\n  masked: /password\n  masked: /pin\n" in shown
    assert one == listed == request_json(request)
    assert one["arguments"] == {"password": "[masked]", "pin": "[masked]", "user": "ana"}
    assert (one["canonical"], one["secrets"]) == (None, ["/password", "/pin"])
    assert not [text for text in (shown, str(one), asked) if "hunter2" in text or "4711" in text]
    assert site.guard().get(request.id).canonical == request.canonical


def test_x21_a_secret_that_is_revealed_is_in_the_audit_log_first(site: Site) -> None:
    request = ask_to_log_in(site)

    shown = site.run("requests", "show", request.id, "--reveal", "/password", "--as", "carol").stdout
    every = site.run("requests", "show", request.id, "--reveal", "/password", "--reveal", "/pin", "--json").stdout
    wrong = site.run("requests", "show", request.id, "--reveal", "/user")
    foreign = site.run("requests", "show", request.id, "--reveal", "/pin", "--tenant", "other")

    assert '"password": "hunter2"' in shown
    assert '"pin": "[masked]"' in shown
    assert json.loads(every)["request"]["canonical"] == request.canonical.decode()
    assert revealed(site) == {("carol", "/password"), ("bob", "/password"), ("bob", "/pin")}
    assert (refusal(wrong), refusal(foreign)) == ("invalid-approval: unknown",) * 2
    assert wrong.stdout == ""


@pytest.mark.parametrize("options", [(), ("--fingerprint",)])
def test_x21_an_edit_with_a_mask_in_place_of_a_secret_is_refused(site: Site, options: tuple[str, ...]) -> None:
    request, file = ask_to_log_in(site), site.folder / "edit.json"
    given = [*options, *[request.fingerprint for _ in options]]
    file.write_text('{"user":"eve","password":"[masked]"}')

    result = site.run("requests", "approve", request.id, "--edit", str(file), *given)

    assert refusal(result) == "unsupported-value: masked"
    assert site.get(request).state == "pending"


def test_x21_an_edited_secret_is_masked_too(site: Site) -> None:
    request, file = ask_to_log_in(site), site.folder / "edit.json"
    file.write_text('{"user":"eve","password":"swordfish"}')

    result = site.run("requests", "approve", request.id, "--edit", str(file), input=request.fingerprint[:8] + "\n")

    assert result.exit_code == 0
    assert "swordfish" not in result.output
    assert '"user": "eve"' in result.stdout


# edit


def test_an_edit_takes_the_request_s_place_and_its_arguments_run(site: Site, tmp_path: Path) -> None:
    call = site.call("mail", {"to": "everybody"})
    request = site.ask(call)
    edited = tmp_path / "edited.json"
    edited.write_text('{"to": "bob\u202e"}')

    result = site.run("requests", "approve", request.id, "--edit", str(edited), input=f"{request.fingerprint[:8]}\n")

    permit = site.guard().authorize(call)
    assert result.exit_code == 0
    assert 'These arguments are approved instead:\n{\n  "to": "bob\\u202e"\n}\n  ! hidden-characters: ' in result.stdout
    assert f"Request {permit.request_id} took the place of {request.id}, with the edited arguments.\n" in result.stdout
    assert f"Approved {permit.request_id} ({permit.fingerprint})" in result.stdout
    assert (permit.arguments, permit.edited) == ({"to": "bob\u202e"}, True)


def test_an_edit_may_come_over_stdin_with_a_fingerprint(site: Site) -> None:
    call = site.call("mail", {"to": "everybody"})
    request = site.ask(call)

    result = site.run(
        "requests", "approve", request.id, "--fingerprint", request.fingerprint, "--edit", "-", input='{"to":"bob"}'
    )

    assert result.exit_code == 0
    assert site.guard().authorize(call).arguments == {"to": "bob"}


def test_an_edit_over_stdin_without_a_fingerprint_is_wrong_usage(site: Site) -> None:
    request = site.ask(site.call("mail"))

    result = site.run("requests", "approve", request.id, "--edit", "-", input='{"to":"bob"}')

    assert result.exit_code == 2
    assert site.get(request).state == "pending"


@pytest.mark.parametrize("text", ['{"to":"a","to":"b"}', "[]", "{", "\xff", '{"to": 1e999}'])
def test_an_edit_that_is_no_strict_json_object_changes_nothing(site: Site, text: str) -> None:
    request = site.ask(site.call("mail"))

    result = site.run(
        "requests", "approve", request.id, "--fingerprint", request.fingerprint, "--edit", "-",
        input=text.encode("latin-1"),
    )

    assert refusal(result).startswith("unsupported-value")
    assert site.get(request).state == "pending"


def test_an_edit_that_the_rule_does_not_allow_is_refused(site: Site) -> None:
    request = site.ask()

    result = site.run(
        "requests", "approve", request.id, "--fingerprint", request.fingerprint, "--edit", "-", input='{"amount":1}'
    )

    assert refusal(result) == "not-authorised: edit"
    assert site.get(request).state == "pending"


# deny


def test_a_denial_hands_the_model_the_reason_or_a_value(site: Site) -> None:
    by_reason, by_value, silent = site.call(), site.call(), site.call()

    reasoned = site.run("requests", "deny", site.ask(by_reason).id, "--reason", "Not today.")
    answered = site.run("requests", "deny", site.ask(by_value).id, "--respond", '{"use": "voucher"}')
    silently = site.run("requests", "deny", site.ask(silent).id)

    assert {reasoned.exit_code, answered.exit_code, silently.exit_code} == {0}
    assert reasoned.stdout.startswith("Denied ")
    for call, reason, response in (
        (by_reason, "Not today.", None),
        (by_value, "Tool call was not approved by the user", {"use": "voucher"}),
        (silent, "Tool call was not approved by the user", None),
    ):
        with pytest.raises(ApprovalDeniedError) as denied:
            site.guard().authorize(call)
        assert (denied.value.reason, denied.value.response) == (reason, response)


def test_a_denial_may_name_the_fingerprint_that_was_shown(site: Site) -> None:
    request = site.ask()

    result = site.run("requests", "deny", request.id, "--fingerprint", request.fingerprint[:20])

    assert (result.exit_code, site.get(request).state) == (0, "denied")


@pytest.mark.parametrize("text", ["voucher", "{", "null", '{"a":1,"a":2}', ""])
def test_a_response_that_is_no_value_is_wrong_usage(site: Site, text: str) -> None:
    request = site.ask()

    result = site.run("requests", "deny", request.id, "--respond", text)

    assert result.exit_code == 2
    assert "--respond" in result.stderr
    assert site.get(request).state == "pending"


def test_a_second_and_other_decision_is_refused(site: Site) -> None:
    request = site.ask()
    approve(site, request)

    assert refusal(site.run("requests", "deny", request.id)) == "already-decided: approved"


# revoke, resolve, sweep


def test_an_approved_request_can_be_withdrawn_before_it_runs_once(site: Site) -> None:
    request = site.ask()
    approve(site, request)

    first = site.run("requests", "revoke", request.id, "--reason", "wrong order", HITL_GUARD_POLICY=None)
    second = site.run("requests", "revoke", request.id)

    assert (first.exit_code, first.stdout) == (0, f"Revoked {request.id}.\n")
    assert refusal(second) == "revoked"
    assert site.get(request).state == "revoked"


def test_a_suspended_call_is_listed_until_it_is_withdrawn(site: Site) -> None:
    request, permit = site.claim()
    settle(site.guard()._desk, permit, "suspended", None)

    listed = site.run("requests", "list", "--state", "suspended").stdout
    resolved = site.run("requests", "resolve", request.id, "failed", "--reason", "x", "--role", "operator", "--force")
    revoked = site.run("requests", "revoke", request.id)

    assert listed == f"{request.id}  suspended  {request.tool}  for ana in default  run run-1  1 decision\n"
    assert refusal(resolved) == "invalid-approval: suspended"
    assert revoked.stdout == f"Revoked {request.id}.\n"
    assert site.run("requests", "list", "--state", "all").stdout == "Nothing waits.\n"


def test_a_call_in_doubt_is_resolved_by_an_operator_with_a_reason(site: Site) -> None:
    request, permit = site.claim()
    site.guard().settle(permit, "in_doubt")
    options = ["requests", "resolve", request.id, "succeeded", "--reason", "The bank says so."]

    refused, resolved = site.run(*options), site.run(*options, "--role", "operator")

    assert refusal(refused) == "not-authorised: role"
    assert resolved.stdout == f"Resolved {request.id}: succeeded.\n"
    assert site.get(request).state == "succeeded"


def test_a_call_whose_worker_may_live_is_resolved_by_force_only(site: Site) -> None:
    request, _ = site.claim()
    options = ["requests", "resolve", request.id, "failed", "--reason", "The host burned down.", "--role", "operator"]

    refused, forced = site.run(*options), site.run(*options, "--force")

    assert refusal(refused) == "in-doubt: running"
    assert forced.exit_code == 0
    assert site.get(request).state == "failed"


@pytest.mark.parametrize("options", [("succeeded",), ("approved", "--reason", "x"), ("pending", "--reason", "x")])
def test_a_resolution_needs_a_reason_and_a_known_outcome(site: Site, options: tuple[str, ...]) -> None:
    request, _ = site.claim()

    assert site.run("requests", "resolve", request.id, *options, "--role", "operator").exit_code == 2
    assert site.get(request).state == "executing"


def test_a_sweep_writes_down_what_is_overdue(site: Site) -> None:
    overdue = site.ask(guard=site.guard(decide_within=1))
    waiting = site.ask()
    until(site.store, overdue.decide_by)

    first, second = site.run("requests", "sweep"), site.run("requests", "sweep")

    assert (first.stdout, second.stdout) == ("Recorded 1 overdue request.\n", "Recorded 0 overdue requests.\n")
    assert [site.get(request).state for request in (overdue, waiting)] == ["expired", "pending"]


def test_at45_after_a_revocation_a_sweep_takes_void_requests_off_and_the_doctor_is_content(site: Site) -> None:
    for _ in range(2):
        site.ask()
    (key,) = Keyring.from_file(site.keys).keys
    advice = site.run("keys", "revoke", key.id).stdout
    site.run("control", "resume", "--role", "operator")
    site.run("control", "resume", "--everywhere", "--role", "global-operator")
    ill = site.run("doctor")

    swept = site.run("requests", "sweep", HITL_GUARD_POLICY=None)

    assert "`hitl-guard requests sweep`" in advice
    assert "`hitl-guard requests sweep`" in ill.stdout
    assert swept.stdout == (
        "Recorded 0 overdue requests.\n"
        "Took 2 void requests off the list: of a revoked key or an earlier restore epoch. "
        "They stay stored; what is still wanted must be asked again.\n"
    )
    assert (ill.exit_code, site.run("doctor").exit_code) == (1, 0)
    audit = site.run("audit", "verify")
    assert (audit.exit_code, "of revoked keys: void" in audit.stdout) == (0, True)


# The set-up


@pytest.mark.parametrize("arguments", [("list",), ("show", "x"), ("sweep",), ("revoke", "x")])
def test_a_missing_store_is_wrong_usage(site: Site, arguments: tuple[str, ...]) -> None:
    result = site.run("requests", *arguments, HITL_GUARD_STORE=None)

    assert result.exit_code == 2
    assert "HITL_GUARD_STORE" in result.stderr


def test_a_database_without_tables_says_what_to_do(site: Site, tmp_path: Path) -> None:
    result = site.run("requests", "list", "--store", f"sqlite:///{tmp_path / 'other.db'}")

    assert refusal(result) == "config-error: schema"
    assert "hitl-guard db upgrade" in result.stderr


def test_missing_keys_are_refused(site: Site) -> None:
    assert refusal(site.run("requests", "list", HITL_GUARD_KEYS_FILE=None)) == "config-error: missing"


def test_the_key_file_may_be_an_option(site: Site) -> None:
    request = site.ask()

    result = site.run("requests", "list", "--keys", str(site.keys), HITL_GUARD_KEYS_FILE=None)

    assert result.stdout.split()[0] == request.id


def test_the_keys_of_another_site_verify_nothing_here(site: Site, tmp_path: Path) -> None:
    request = site.ask()
    site.run("keys", "generate", "--out", str(tmp_path / "other.json"))

    result = site.run("requests", "show", request.id, "--keys", str(tmp_path / "other.json"))

    assert refusal(result) == "key-unknown"


def test_at58_a_name_with_spaces_does_not_pass_for_the_columns_of_the_list(site: Site) -> None:
    site.guard().request(replace(site.call(), tool="refund  for ceo in default  run x"))

    assert '"refund  for ceo in default  run x"  for ' in site.run("requests", "list").stdout
