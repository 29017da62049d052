"""One renderer for every surface: nothing signed is left out, and nothing in it goes unseen (AT-58, AT-59)."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard import canonical
from hitl_guard.errors import CanonicalizationError
from hitl_guard.models import ApprovalRequest, Decision, Requirement
from hitl_guard.render import arguments, ascii_only, escape, left, quoted, request_json, request_text, utc, warnings
from hitl_guard.render.layout import LONG_TEXT

NOW = 1_800_000_000_000
BIDI_CONTROLS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
UNSEEN = {
    "ESC": "\x1b", "BEL": "\x07", "NUL": "\x00", "backspace": "\x08", "DEL": "\x7f", "CSI": "\x9b", "OSC": "\x9d",
    "next line": "\x85", "soft hyphen": "\xad", "no-break space": "\xa0", "figure space": "\u2007",
    "ideographic space": "\u3000", "ogham space": "\u1680", "zero-width space": "\u200b", "joiner": "\u200d",
    "word joiner": "\u2060", "byte order mark": "\ufeff", "line separator": "\u2028", "paragraph separator": "\u2029",
    "grapheme joiner": "\u034f", "variation selector": "\ufe0f", "late variation selector": "\U000e0101",
    "mongolian selector": "\u180b", "tag": "\U000e0041", "private use": "\ue000", "far private use": "\U0010fffd",
    "unassigned": "\u0378", "noncharacter": "\ufffe", "lone surrogate": "\ud800", "hangul filler": "\u3164",
    "choseong filler": "\u115f", "halfwidth filler": "\uffa0", "khmer vowel": "\u17b4", "khitan filler": "\U00016fe4",
    "empty braille": "\u2800", "empty note": "\U0001d159", "interlinear": "\ufff9",
    "egyptian blank": "\U00013441", "egyptian half blank": "\U00013442",
} | {f"bidi {ord(one):04x}": one for one in BIDI_CONTROLS}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e15, 1e15) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def is_plain(text: str) -> bool:
    """Whether a terminal draws every character of ``text`` as itself: an independent, stricter look."""
    return all(one in " \n" or unicodedata.category(one)[0] not in "CZ" for one in text)


def signed(value: Any) -> bytes:
    return canonical.canonicalize(value)


def request(value: Any = None, **changes: Any) -> ApprovalRequest:
    plain = ApprovalRequest(
        id="r" * 22, tenant="acme", user="ana", run_id="run-1", call_id="call-1", occurrence=0, binding="call",
        agent="bot", tool="refund", canonical=signed({"amount": 82} if value is None else value),
        fingerprint="f" * 64, policy_version="b" * 64, requirements=(Requirement(),), rules=("refunds",),
        reason="Money leaves the house.", state="pending", issued_at=NOW, decide_by=NOW + 3_600_000, execute_by=None,
        key_id="k-1", supersedes=None, votes=(), version=0, token="token",
    )
    return replace(plain, **changes)


def decision(**changes: Any) -> Decision:
    plain = Decision(
        request_id="r" * 22, tenant="acme", fingerprint="f" * 64, policy_version="b" * 64, approver="bob", roles=(),
        channel="cli", approve=True, reason=None, at=NOW, nonce="n" * 22,
    )
    return replace(plain, **changes)


# Characters


@pytest.mark.parametrize("character", UNSEEN.values(), ids=UNSEEN)
def test_at58_a_character_that_would_not_be_seen_is_an_escape(character: str) -> None:
    shown = escape(f"a{character}b")

    assert shown.isascii()
    assert json.loads(f'"{shown}"') == f"a{character}b"


@pytest.mark.parametrize("text", ["plain", "e\u0301t\xe9", "\u4f60\u597d", "\U0001f600", "\u0645\u0631\u062d"])
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    assert escape(text) == text


def test_breaks_and_tabs_are_short_escapes_and_the_text_stays_on_one_line() -> None:
    assert escape("a\r\n\tb") == "a\\r\\n\\tb"


def test_an_escape_that_somebody_typed_cannot_be_taken_for_one_that_was_made() -> None:
    assert escape("\\u202e") == "\\\\u202e"


@pytest.mark.parametrize("text", ["\u0301a", "a \u0301b", 'a"\u0301b', "a\u200b\u0301b", "\u0301\u0301"])
def test_a_mark_without_a_letter_of_its_own_is_an_escape(text: str) -> None:
    assert "\u0301" not in escape(text)


def test_a_quoted_text_cannot_end_its_quotes() -> None:
    assert json.loads(quoted('say "yes"\u202e \\')) == 'say "yes"\u202e \\'
    assert quoted('a"b') == '"a\\"b"'


def test_ascii_only_leaves_nothing_for_a_narrow_terminal_to_choke_on() -> None:
    assert ascii_only("a\xe9\U0001f600\n") == "a\\u00e9\\ud83d\\ude00\n"


@given(st.text())
def test_whatever_a_text_holds_its_escaped_form_is_plain_and_can_be_read_back(text: str) -> None:
    shown = escape(text)

    assert is_plain(shown)
    assert "\n" not in shown
    assert json.loads(quoted(text)) == text


# Arguments


def test_arguments_are_laid_out_for_people() -> None:
    value = {"amount": 82, "lines": [1, [2.5, None]], "none": {}, "nothing": [], "to": "ana, bob: {x}"}

    shown = arguments(signed(value))

    assert shown == """\
{
  "amount": 82,
  "lines": [
    1,
    [
      2.5,
      null
    ]
  ],
  "none": {},
  "nothing": [],
  "to": "ana, bob: {x}"
}"""


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_at58_arguments_are_complete_plain_and_parse_to_the_signed_value(value: dict[str, Any]) -> None:
    raw = signed(value)

    shown = arguments(raw)

    assert is_plain(shown)
    assert signed(canonical.parse(shown)) == raw


@pytest.mark.parametrize("character", sorted(set(UNSEEN.values()) - {"\ud800"}), ids=ascii)
def test_at58_hidden_characters_are_escapes_in_keys_and_values(character: str) -> None:
    """A lone surrogate is not among them: it has no canonical bytes that could be shown."""
    value = {f"k{character}": [f"v{character}"]}

    shown = arguments(signed(value))

    assert shown.isascii()
    assert is_plain(shown)
    assert json.loads(shown) == value


@pytest.mark.parametrize(
    "text",
    [
        "</script><img src=x onerror=alert(1)>", "```\n# Approved\n```", "x" * 100_000 + "; rm -rf /",
        "line\n" * 5_000 + "the end", "\x1b]8;;http://evil\x07click\x1b[2J",
    ],
    ids=["html", "fence", "long line", "many lines", "terminal"],
)
def test_at58_a_hostile_text_is_shown_whole_and_inert(text: str) -> None:
    shown = arguments(signed({"text": text}))

    assert json.loads(shown) == {"text": text}
    assert is_plain(shown)
    assert shown.count("\n") == 2


def test_integers_keep_every_digit() -> None:
    assert "12345678901234567890123" in arguments(signed({"id": 12345678901234567890123}))


@pytest.mark.parametrize("raw", [b"", b"\xff", b'{"a": 1}', b'{"a', b'{"a":"\n"}\n', b'"\\'], ids=repr)
def test_bytes_that_are_no_canonical_json_are_refused(raw: bytes) -> None:
    with pytest.raises(CanonicalizationError) as caught:
        arguments(raw)

    assert caught.value.detail == "syntax"


def test_a_text_with_an_unknown_escape_is_refused_when_it_is_judged() -> None:
    with pytest.raises(CanonicalizationError):
        warnings(b'{"a":"\\x"}')


# Warnings


def only_warning(value: Any) -> str:
    (warning,) = warnings(signed(value))
    return warning


def test_ordinary_arguments_raise_no_warning() -> None:
    value = {"amount": 82.5, "mail": "Hello,\r\n\tsee https://example.org/a?b=c and 3.14.\n", "when": "2027-01-15"}

    assert warnings(signed(value)) == ()


def test_at58_hidden_characters_are_counted_and_named() -> None:
    warning = only_warning({"\u200bk": ["a\u202e\u202e", "\r", "\U000e0041"]})

    assert warning.startswith("hidden-characters: ")
    assert "5 in all (U+000D 1x, U+200B 1x, U+202E 2x, U+E0041 1x)" in warning


def test_every_character_that_is_escaped_counts_a_loose_mark_too() -> None:
    assert "1 in all (U+0301 1x)" in only_warning({"a": "\u0301b"})


def test_a_flood_of_hidden_characters_is_one_warning_of_bounded_length() -> None:
    warning = only_warning({"a": "".join(map(chr, range(0x80, 0xA0)))})

    assert "32 in all" in warning
    assert warning.endswith("and 27 more).")


def test_text_that_is_not_composed_is_pointed_out() -> None:
    assert only_warning({"name": "e\u0301"}).startswith("non-nfc: ")


def test_an_integer_that_others_may_round_is_pointed_out() -> None:
    assert only_warning({"id": 2**53 + 1}).startswith("big-integer: ")


@pytest.mark.parametrize(
    ("text", "scripts"),
    [
        ("https://\u0430pple.com/pay", "\\u0430pple.com has CYRILLIC and LATIN"),
        ("mail bob@g\u03bfogle.com", "g\\u03bfogle.com has GREEK and LATIN"),
        ("p\u0430yp\u0430l\u3002com", "CYRILLIC and LATIN"),
        ("\uff47oogle.com", "FULLWIDTH and LATIN"),
    ],
)
def test_a_host_name_of_several_alphabets_is_pointed_out(text: str, scripts: str) -> None:
    warning = only_warning({"text": text})

    assert warning.startswith("mixed-script-host: ")
    assert scripts in warning
    assert warning.isascii()


def test_a_host_name_of_one_alphabet_is_not_pointed_out() -> None:
    value = {"a": "\u043f\u0440\u0438\u043c\u0435\u0440.\u0440\u0444", "b": "\u65e5\u672c\u306e\u30c6.\ud55c\uad6d"}

    assert warnings(signed(value)) == ()


def test_punycode_is_decoded_beside_the_raw_name() -> None:
    mixed, puny = warnings(signed({"url": "https://XN--80ak6aa92e.com"}))

    assert mixed.startswith("mixed-script-host: ")
    assert puny.startswith("punycode-host: ")
    assert "XN--80ak6aa92e.com reads \u0430\u0440\u0440\u04cf\u0435.com = " in puny
    assert "= \\u0430\\u0440\\u0440\\u04cf\\u0435.com)." in puny


@pytest.mark.parametrize(
    "label",
    [
        "xn--\u0430", "xn--99999999999", "xn--a-\xe9", "xn--" + "9" * 300, "xn--" + "a" * 60,
        "xn--80ak6aa92e" + ".a" * 120,
    ],
)
def test_malformed_punycode_is_said_to_be_malformed(label: str) -> None:
    puny = next(one for one in warnings(signed({"url": f"{label}.com"})) if one.startswith("punycode-host: "))

    assert "reads as nothing valid" in puny


def test_punycode_as_long_as_a_name_may_be_is_decoded() -> None:
    longest = "xn--" + "a" * 54 + "-zp5d"

    assert "as nothing valid" not in "".join(warnings(signed({"url": f"{longest}.com"})))


def test_at58_of_a_host_name_without_end_its_end_is_named() -> None:
    hosts = ["xn--80ak6aa92e." * 50 + "evil.org", "p\u0430y." * 99 + "evil.com"]

    mixed, puny = warnings(signed({"urls": hosts}))

    assert "y.evil.com has CYRILLIC and LATIN" in mixed
    assert "xn--80ak6aa92e.evil.org reads as nothing valid" in puny
    assert mixed.count("(...") == puny.count("(...") == 1
    assert max(len(mixed), len(puny)) < 300


HOSTILE: dict[str, Any] = {
    "one label of punycode": lambda size: "xn--" + "9" * size + ".com",
    "labels of punycode": lambda size: "xn--80ak6aa92e." * (size // 15) + "com",
    "hosts of punycode": lambda size: " ".join(f"xn--80ak6aa92e{number}.com" for number in range(size // 20)),
    "hosts of two alphabets": lambda size: " ".join(f"\u0430pple{number}.com" for number in range(size // 12)),
    "marks out of order": lambda size: "\u1e69" + "\u0301\u0323" * (size // 2),
    "marks in order": lambda size: "\u1e69" + "\u0323" * (size // 2) + "\u0301" * (size // 2),
    "digits": lambda size: "\u0661" * size,
    "dots": lambda size: "a." * (size // 2),
    "no end": lambda size: "a" * size,
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_at69_sixteen_times_as_long_a_text_takes_about_sixteen_times_the_work(shape: str) -> None:
    def work(size: int) -> float:
        data = signed({"text": HOSTILE[shape](size)})
        spent = []
        for _ in range(3):
            before = process_time()
            warnings(data)
            spent.append(process_time() - before)
        return min(spent)

    # What grows with the square of the length takes 256 times the work.
    assert work(64_000) < 60 * work(4_000)


def test_a_long_text_is_pointed_out_with_its_length() -> None:
    warning = only_warning({"a": "x" * LONG_TEXT, "b": "y" * (LONG_TEXT - 1)})

    assert warning == f"long-text: 1 of the texts are long, up to {LONG_TEXT} characters; read each to its end."


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_a_warning_is_plain_whatever_the_arguments_hold(value: dict[str, Any]) -> None:
    for warning in warnings(signed(value)):
        assert is_plain(warning)
        assert len(warning) < 50_000


# A whole request


def fields(text: str) -> dict[str, list[str]]:
    """Return the lines below the arguments, by their label."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n\n")[-1].splitlines():
        found.setdefault(line[:13].rstrip(), []).append(line[13:])
    return found


def test_at59_the_arguments_come_first_and_complete_and_words_are_marked_as_words() -> None:
    shown = request_text(request({"query": "DROP TABLE users"}, reason="Only reads.\n\x1b[2J"), now=NOW)

    assert shown.index("DROP TABLE users") < shown.index("Only reads.")
    assert fields(shown)["Policy says"] == ['"Only reads.\\n\\u001b[2J" (words, checked by nobody)']
    assert is_plain(shown)


def test_a_request_is_shown_with_everything_that_an_approver_needs() -> None:
    needs = (
        Requirement(),
        Requirement(
            approvers=("lead", "user:eve"), quorum=2, self_approval=True, channels=("cli", "inbox"), evidence="passkey",
            edit=True, risk="high", recheck_approvers=True,
        ),
    )
    votes = (
        decision(roles=("lead",), reason='Fine "by" me'),
        decision(approver="eve", approve=False, channel="api", response={"use\u202e": "other"}),
        decision(approver="policy", automatic=True, channel="policy"),
    )

    approved = request(
        requirements=needs, votes=votes, state="approved", execute_by=NOW + 90_000, supersedes="s" * 22
    )

    shown = request_text(approved, now=NOW)

    assert shown.startswith('Arguments, complete, as they were signed (13 bytes):\n{\n  "amount": 82\n}\n\n')
    assert fields(shown) == {
        "Tool": ["refund"], "For user": ["ana"], "Agent": ["bot"], "Run": ["run-1"], "Tool call": ["call-1"],
        "Occurrence": ["0"], "Tenant": ["acme"], "Request": ["r" * 22], "Replaces": ["s" * 22], "State": ["approved"],
        "Rules": ["refunds"], "Policy says": ['"Money leaves the house." (words, checked by nobody)'],
        "Needs": [
            "one person of the tenant; never the requester",
            "2 different people of lead, user:eve; the requester too; only over: cli, inbox; evidence: passkey; "
            "arguments may be edited; rights are looked up again before the call; risk: high",
        ],
        "Asked": ["2027-01-15T08:00:00Z"], "Decide by": ["2027-01-15T09:00:00Z (in 1 h 0 min)"],
        "Run by": ["2027-01-15T08:01:30Z (in 1 min 30 s)"],
        "Decision": [
            'approved by bob as lead over cli at 2027-01-15T08:00:00Z, saying "Fine \\"by\\" me"',
            'denied by eve over api at 2027-01-15T08:00:00Z, answering for the tool {"use\\u202e": "other"}',
            "approved by the policy itself over policy at 2027-01-15T08:00:00Z",
        ],
        "Policy": ["b" * 64], "Key": ["k-1"], "Fingerprint": ["f" * 64],
    }


def test_what_a_request_has_not_is_said_or_left_out() -> None:
    shown = fields(request_text(request(agent=None, call_id=None, rules=(), reason=None), now=NOW))

    assert shown["Agent"] == ["none"]
    assert shown["Tool call"] == ["any (deny and retry)"]
    assert shown["Rules"] == ["none"]
    assert not {"Policy says", "Run by", "Replaces", "Decision"} & set(shown)


def test_at58_no_field_of_a_request_reaches_the_terminal_unescaped() -> None:
    evil = "\x1b[2J\u202e\u200b\n"
    needs = (Requirement(approvers=(evil,), channels=(evil,), evidence=evil, risk=evil),)
    votes = (decision(approver=evil, roles=(evil,), channel=evil, reason=evil, response=evil),)
    hostile = request(
        {evil: evil}, id=evil, tenant=evil, user=evil, run_id=evil, call_id=evil, agent=evil, tool=evil, rules=(evil,),
        reason=evil, state=evil, key_id=evil, supersedes=evil, requirements=needs, votes=votes,
    )

    harmless = replace(hostile, tool="x", user="x", reason="x", canonical=signed({"a": "\u202e"}))

    shown = request_text(hostile, now=NOW)

    assert is_plain(shown)
    assert shown.count("\n") == request_text(harmless, now=NOW).count("\n")


def test_warnings_stand_right_below_the_arguments() -> None:
    shown = request_text(request({"a": "\u202e"}), now=NOW)

    assert '"a": "\\u202e"\n}\n  ! hidden-characters: ' in shown


def test_the_json_view_has_the_signed_text_its_value_and_every_id_and_time() -> None:
    needs = (Requirement(approvers=("lead",)),)

    shown = request_json(request({"b": 2**60, "a": "\u202e"}, votes=(decision(roles=("lead",)),), requirements=needs))

    assert json.loads(json.dumps(shown)) == {
        "agent": "bot", "arguments": {"a": "\u202e", "b": 2**60}, "binding": "call", "call_id": "call-1",
        "canonical": '{"a":"\u202e","b":1152921504606846976}', "decide_by": NOW + 3_600_000, "execute_by": None,
        "fingerprint": "f" * 64, "id": "r" * 22, "issued_at": NOW, "key_id": "k-1", "occurrence": 0,
        "policy_version": "b" * 64, "reason": "Money leaves the house.", "requirements": [needs[0].to_json()],
        "rules": ["refunds"], "run_id": "run-1", "secrets": [], "state": "pending", "supersedes": None,
        "tenant": "acme",
        "tool": "refund", "user": "ana", "version": 0,
        "votes": [{
            "approve": True, "approver": "bob", "at": NOW, "automatic": False, "channel": "cli",
            "evidence": "hmac", "fingerprint": "f" * 64, "reason": None, "response": None, "roles": ["lead"],
        }],
        "warnings": list(warnings(signed({"a": "\u202e", "b": 2**60}))),
    }


# Times


@pytest.mark.parametrize(
    ("time", "shown"),
    [(0, "1970-01-01T00:00:00Z"), (NOW + 999, "2027-01-15T08:00:00Z"), (253_402_300_800_000, "253402300800000 ms"),
     (-1, "-1 ms")],
)
def test_times_are_utc_or_plain_numbers_beyond_the_calendar(time: int, shown: str) -> None:
    assert utc(time) == shown


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (-1, "over"), (0, "over"), (1, "in 0 s"), (59_000, "in 59 s"), (61_000, "in 1 min 1 s"),
        (86_400_000, "in 1 d 0 h"),
    ],
)
def test_the_time_that_is_left_is_said_in_words(length: int, words: str) -> None:
    assert left(NOW + length, NOW) == words
