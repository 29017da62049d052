"""Events: what their MAC covers, under which keys they count, and how a flood of them is kept small."""

from __future__ import annotations

import hmac
import json
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard import audit
from hitl_guard.audit import EVENT_TYPES, Limiter, Sealer, anchor_body, anchored_heads
from hitl_guard.errors import CanonicalizationError, HitlGuardError, KeyInactiveError
from hitl_guard.keyring import Key, Keyring
from hitl_guard.lifecycle.state import TRANSITIONS
from hitl_guard.rows import Draft, EventRow, Link
from hitl_guard.signing import Examiner, Signer

from .rings import MINUTE, NOW, key, secret

LINK = Link("c" * 22, 3, bytes(range(32)))
CLAIM = Draft("grant:claimed", "acme", NOW, b'{"claim":"x"}', "r" * 22, 2, bytes(range(32, 64)))
REFUSAL = Draft("call:refused", "", NOW, b'{"code":"consumed"}')


def sealer(*keys: Key, epoch: int = 1) -> Sealer:
    return Sealer(Signer(Keyring(keys or (key(1),), epoch)))


def refusal(judge: Sealer, row: EventRow, now: int = NOW) -> tuple[str, str | None]:
    with pytest.raises(HitlGuardError) as caught:
        judge.verify(row, now=now)
    return caught.value.code, caught.value.detail


# -- the MAC ---------------------------------------------------------------------------------------------------------


def test_an_events_mac_is_over_lengths_header_and_body_as_published() -> None:
    row = sealer(epoch=7)(CLAIM, LINK)

    header = json.dumps([
        "hitl-event", 1, "HS256", "k1", 7, "c" * 22, 3, bytes(range(32)).hex(), "grant:claimed", "acme", NOW,
        "r" * 22, 2, bytes(range(32, 64)).hex(),
    ], separators=(",", ":")).encode()
    body = b'{"claim":"x"}'
    message = len(header).to_bytes(8, "big") + header + len(body).to_bytes(8, "big") + body
    derived = hmac.digest(hmac.digest(bytes(32), secret(1), "sha256"), b"hitl-guard/v1/event\x01", "sha256")
    assert row.mac == hmac.digest(derived, b"hitl-guard/v1/event\0" + message, "sha256")
    assert (row.epoch, row.key_id, row.chain, row.seq, row.previous) == (7, "k1", LINK.chain, LINK.seq, LINK.previous)
    assert (row.type, row.tenant, row.at, row.body) == (CLAIM.type, CLAIM.tenant, CLAIM.at, CLAIM.body)
    assert (row.request_id, row.version, row.spend_key) == (CLAIM.request_id, CLAIM.version, CLAIM.spend_key)


@pytest.mark.parametrize("draft", [CLAIM, REFUSAL], ids=["of a request", "of none"])
def test_what_was_sealed_verifies(draft: Draft) -> None:
    judge = sealer()

    judge.verify(judge(draft, LINK), now=NOW + MINUTE)


CHANGES: dict[str, Any] = {
    "type": "call:succeeded", "tenant": "acmE", "at": NOW + 1, "body": b'{"claim":"y"}', "request_id": "q" * 22,
    "version": 3, "spend_key": bytes(32), "chain": "d" * 22, "seq": 4, "previous": bytes(32), "epoch": 2,
    "mac": bytes(32),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_of_an_event_is_covered(name: str) -> None:
    judge = sealer()
    row = judge(CLAIM, LINK)

    assert refusal(judge, replace(row, **{name: CHANGES[name]})) == ("invalid-signature", "mismatch")


@pytest.mark.parametrize("name", ["request_id", "version", "spend_key"])
def test_taking_away_or_adding_an_optional_field_is_noticed(name: str) -> None:
    judge = sealer()

    without: dict[str, Any] = {name: None}
    assert refusal(judge, replace(judge(CLAIM, LINK), **without))[1] == "mismatch"
    assert refusal(judge, replace(judge(REFUSAL, LINK), **{name: getattr(CLAIM, name)}))[1] == "mismatch"


@pytest.mark.parametrize(
    "mac", [b"", bytes(16), bytes(31), bytes(33)], ids=["none", "16 bytes", "31 bytes", "33 bytes"]
)
def test_only_a_full_mac_counts(mac: bytes) -> None:
    judge = sealer()
    row = judge(CLAIM, LINK)

    assert refusal(judge, replace(row, mac=mac)) == ("invalid-signature", "mismatch")
    assert refusal(judge, replace(row, mac=row.mac[: len(mac)] if len(mac) < 32 else row.mac + b"\0"))[1] == "mismatch"


def test_text_cannot_be_moved_between_neighbouring_fields() -> None:
    judge = sealer()
    texts = ['a","b', "a\\", "a|b\n", "\0", "", "a]"]

    macs = {
        judge(Draft("call:refused", tenant, NOW, b"{}", one, 1), replace(LINK, chain=chain)).mac
        for tenant in texts for one in texts for chain in texts
    }

    assert len(macs) == len(texts) ** 3


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_two_events_share_a_mac_only_when_their_bodies_are_equal(one: bytes, other: bytes) -> None:
    judge = sealer()

    same = judge(replace(REFUSAL, body=one), LINK).mac == judge(replace(REFUSAL, body=other), LINK).mac

    assert same is (one == other)


# -- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["", "call:refuseD", "call:refused ", "request:created", "grant:revived"])
def test_an_unknown_type_is_refused_even_if_it_was_sealed(kind: str) -> None:
    judge = sealer()

    assert refusal(judge, judge(replace(REFUSAL, type=kind), LINK)) == ("invalid-signature", "type")


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES))
def test_every_known_type_verifies(kind: str) -> None:
    judge = sealer()

    judge.verify(judge(replace(REFUSAL, type=kind), LINK), now=NOW)


def test_the_types_of_a_request_are_those_of_the_state_machine() -> None:
    assert {kind for _, kind in TRANSITIONS} == audit.REQUEST_EVENTS
    assert not audit.REQUEST_EVENTS & audit.OTHER_EVENTS


# -- keys ------------------------------------------------------------------------------------------------------------


def test_nothing_is_sealed_while_no_key_is_active() -> None:
    with pytest.raises(KeyInactiveError):
        sealer()(replace(REFUSAL, at=NOW - 1), LINK)


def test_an_event_counts_under_the_state_of_its_key() -> None:
    old = key(1)
    row = sealer(old)(CLAIM, LINK)

    sealer(old.changed(deactivates_at=NOW + 1), key(2)).verify(row, now=NOW + MINUTE)
    for judge, code in (
        (sealer(key(2)), "key-unknown"),
        (sealer(old.changed(state="compromised")), "key-revoked"),
        (sealer(Key("k1", None, activates_at=NOW, state="destroyed")), "key-revoked"),
        (sealer(old.changed(activates_at=NOW + 1)), "key-inactive"),
        (sealer(old.changed(activates_at=NOW - 1, deactivates_at=NOW)), "key-inactive"),
        (sealer(Key("k1", secret(2), activates_at=NOW)), "invalid-signature"),
    ):
        assert refusal(judge, row)[0] == code


def test_an_event_is_verified_across_restore_epochs_since_only_approvals_end_with_one() -> None:
    row = sealer(epoch=1)(CLAIM, LINK)

    sealer(epoch=2).verify(row, now=NOW)


def test_naming_another_key_does_not_help() -> None:
    both = sealer(key(1), key(2))
    row = both(CLAIM, LINK)
    assert row.key_id == "k1"

    assert refusal(both, replace(row, key_id="k2")) == ("invalid-signature", "mismatch")
    assert refusal(both, replace(row, key_id="k3")) == ("key-unknown", None)


def test_the_audit_examines_what_a_compromised_key_sealed() -> None:
    old = key(1)
    row = sealer(old)(CLAIM, LINK)
    examiner = Sealer(Examiner(Keyring([old.changed(state="compromised"), key(2)])))

    examiner.verify(row, now=NOW)
    assert refusal(examiner, replace(row, body=b"{}")) == ("invalid-signature", "mismatch")


# -- bodies ----------------------------------------------------------------------------------------------------------


def test_a_body_is_canonical() -> None:
    assert audit.body(code="x", amount=1.0, at=None) == b'{"amount":1,"at":null,"code":"x"}'


@pytest.mark.parametrize("fact", [{1}, "\ud800", float("inf"), {1: 2}, b"x"], ids=repr)
def test_a_body_holds_plain_data_only(fact: Any) -> None:
    with pytest.raises(CanonicalizationError):
        audit.body(fact=fact)


HEADS = st.tuples(
    st.text(alphabet="abc-_", min_size=1), st.integers(0, 2**53 - 1), st.binary(min_size=32, max_size=32)
)


@given(st.lists(HEADS))
def test_anchored_heads_are_read_back_as_they_were_recorded(heads: list[tuple[str, int, bytes]]) -> None:
    row = sealer()(replace(REFUSAL, type="chain:anchored", body=anchor_body(heads)), LINK)

    assert anchored_heads(row) == heads


# -- the limiter -----------------------------------------------------------------------------------------------------


class Clock:
    """Milliseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 5_000

    def __call__(self) -> int:
        return self.now


def test_a_burst_is_admitted_and_the_rest_is_left_out() -> None:
    limiter = Limiter(Clock(), burst=3, refill=1)

    assert [limiter.admit("consumed") for _ in range(5)] == [0, 0, 0, None, None]


def test_the_next_event_says_how_many_were_left_out() -> None:
    clock = Clock()
    limiter = Limiter(clock, burst=2, refill=10)
    for _ in range(7):
        limiter.admit("consumed")

    clock.now += 99
    left_out = limiter.admit("consumed")
    clock.now += 1

    assert left_out is None
    assert limiter.admit("consumed") == 6
    assert limiter.admit("consumed") is None
    clock.now += 100
    assert limiter.admit("consumed") == 1


def test_a_quiet_time_fills_the_bucket_to_the_burst_and_no_further() -> None:
    clock = Clock()
    limiter = Limiter(clock, burst=2, refill=1000)
    limiter.admit("consumed")

    clock.now += 3_600_000

    assert [limiter.admit("consumed") for _ in range(3)] == [0, 0, None]


def test_one_code_does_not_starve_another() -> None:
    limiter = Limiter(Clock(), burst=1)
    limiter.admit("consumed")

    assert (limiter.admit("consumed"), limiter.admit("args-mismatch")) == (None, 0)


def test_threads_share_one_bucket_without_losing_a_count() -> None:
    clock = Clock()
    limiter = Limiter(clock, burst=50, refill=1)
    admitted: list[int] = []

    def flood() -> None:
        admitted.extend(1 for _ in range(100) if limiter.admit("consumed") is not None)

    threads = [Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now += 1_000

    assert len(admitted) == 50
    assert limiter.admit("consumed") == 350
