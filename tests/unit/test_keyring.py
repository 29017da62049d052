"""Who signs and verifies when: key states, rotation and revocation."""

from __future__ import annotations

from typing import Any

import pytest

from hitl_guard.errors import KeyInactiveError, KeyRevokedError, KeyUnknownError
from hitl_guard.keyring import CLOCK_ALLOWANCE_MS, Key, Keyring, revoked, rotated

from .rings import MINUTE, NOW, key, secret


def test_a_key_has_the_state_that_its_times_say_to_the_millisecond() -> None:
    subject = key(deactivates_at=NOW + 10)

    states = [subject.state_at(time) for time in (0, NOW - 1, NOW, NOW + 9, NOW + 10, NOW + 10**6)]

    assert states == ["pre-active", "pre-active", "active", "active", "deactivated", "deactivated"]


def test_a_key_without_end_stays_active() -> None:
    assert key().state_at(2**53 - 1) == "active"


@pytest.mark.parametrize("state", ["compromised", "destroyed"])
def test_a_revoked_key_is_revoked_at_any_time(state: Any) -> None:
    subject = Key("k1", None if state == "destroyed" else secret(1), activates_at=NOW, state=state)

    assert {subject.state_at(time) for time in (0, NOW, 2**53)} == {state}


def test_a_compromised_key_keeps_its_secret_so_that_old_records_can_be_examined() -> None:
    assert key(state="compromised").secret() == secret(1)


def test_a_destroyed_key_has_no_secret_to_give() -> None:
    with pytest.raises(KeyRevokedError) as caught:
        Key("k1", None, activates_at=NOW, state="destroyed").secret()

    assert (caught.value.code, caught.value.detail) == ("key-revoked", "destroyed")


def test_a_key_does_not_change() -> None:
    subject = key()

    with pytest.raises(AttributeError):
        subject.activates_at = 0
    with pytest.raises(AttributeError):
        del subject.id

    assert (subject.id, subject.activates_at) == ("k1", NOW)


def test_keys_are_compared_and_hashed_by_identity() -> None:
    one, other = key(), key()

    assert one != other
    assert {one: 1}.get(other) is None


def test_a_generated_key_is_usable_and_new_each_time() -> None:
    one, other = Key.generate(NOW), Key.generate(NOW + 1)

    keyring = Keyring((one, other))

    assert keyring.signing_key(NOW) is one
    assert (len(one.secret()), one.id == other.id, one.secret() == other.secret()) == (32, False, False)


def test_the_newest_active_key_signs() -> None:
    keyring = Keyring((key(1, deactivates_at=NOW + 30), key(2, activates_at=NOW + 10), key(3, activates_at=NOW + 20)))

    signers = [keyring.signing_key(time).id for time in (NOW, NOW + 9, NOW + 10, NOW + 19, NOW + 20, NOW + 99)]

    assert signers == ["k1", "k1", "k2", "k2", "k3", "k3"]


def test_at42_a_pre_active_key_does_not_sign() -> None:
    keyring = Keyring((key(activates_at=NOW + 1),))

    with pytest.raises(KeyInactiveError) as caught:
        keyring.signing_key(NOW)

    assert (caught.value.code, caught.value.detail) == ("key-inactive", "no-active-key")


def test_at42_a_pre_active_key_does_not_verify() -> None:
    keyring = Keyring((key(1), key(2, activates_at=NOW + 1)))

    with pytest.raises(KeyInactiveError) as caught:
        keyring.verifying_key("k2", made_at=NOW, now=NOW)

    assert (caught.value.code, caught.value.detail) == ("key-inactive", "pre-active")


def test_a_record_made_before_its_key_was_active_is_refused() -> None:
    with pytest.raises(KeyInactiveError) as caught:
        Keyring((key(),)).verifying_key("k1", made_at=NOW - 1, now=NOW)

    assert (caught.value.code, caught.value.detail) == ("key-inactive", "made-before")


@pytest.mark.parametrize("state", ["compromised", "deactivated", "destroyed"])
def test_no_key_signs_once_the_only_one_is_out_of_use(state: str) -> None:
    if state == "deactivated":
        subject = key(deactivates_at=NOW + 1)
    else:
        subject = Key("k1", None if state == "destroyed" else secret(1), activates_at=NOW, state=state)  # type: ignore[arg-type]

    with pytest.raises(KeyInactiveError):
        Keyring((subject,)).signing_key(NOW + 1)


def test_at43_a_deactivated_key_verifies_what_it_signed_before() -> None:
    subject = key(deactivates_at=NOW + 10)

    found = Keyring((subject,)).verifying_key("k1", made_at=NOW + 9, now=NOW + 10**9)

    assert found is subject


@pytest.mark.parametrize("made_at", [NOW + 10, NOW + 11])
def test_at44_a_deactivated_key_does_not_verify_what_was_made_after_its_end(made_at: int) -> None:
    keyring = Keyring((key(deactivates_at=NOW + 10),))

    with pytest.raises(KeyInactiveError) as caught:
        keyring.verifying_key("k1", made_at=made_at, now=NOW + 20)

    assert (caught.value.code, caught.value.detail) == ("key-inactive", "made-after")


@pytest.mark.parametrize("state", ["compromised", "destroyed"])
def test_at45_a_revoked_key_verifies_nothing_however_old(state: Any) -> None:
    keyring = Keyring((Key("k1", None if state == "destroyed" else secret(1), activates_at=0, state=state), key(2)))

    with pytest.raises(KeyRevokedError) as caught:
        keyring.verifying_key("k1", made_at=1, now=NOW)

    assert (caught.value.code, caught.value.detail) == ("key-revoked", state)


UNKNOWN: list[Any] = [
    "k2", "", "K1", "k1 ", "../k1", "k1' OR '1'='1", "k1\0", "k1\n", "k" * 100_000, None, 1, ["k1"], b"k1",
]


@pytest.mark.parametrize("key_id", UNKNOWN, ids=lambda value: repr(value)[:20])
def test_at41_at48_an_unknown_key_id_is_refused_and_does_not_enter_the_message(key_id: Any) -> None:
    with pytest.raises(KeyUnknownError) as caught:
        Keyring((key(),)).verifying_key(key_id, made_at=NOW, now=NOW)

    assert caught.value.code == "key-unknown"
    assert caught.value.args == ("The key id is not in the key ring: check that every node has the same keys.",)
    assert not hasattr(caught.value, "key_id")


def test_a_rotation_overlaps_by_one_refresh_interval() -> None:
    old = Keyring((key(1),), epoch=3)

    keyring, new = rotated(old, now=NOW + 10, refresh_ms=MINUTE)

    assert new.activates_at == NOW + 10 + MINUTE
    assert keyring.keys[0].deactivates_at == NOW + 10 + 2 * MINUTE
    assert keyring.epoch == 3
    assert keyring.signing_key(NOW + MINUTE).id == "k1"
    assert keyring.signing_key(NOW + 10 + MINUTE) is new


def test_at46_no_node_refuses_what_another_signs_while_a_rotation_spreads() -> None:
    late = Keyring((key(1),))
    early, _ = rotated(late, now=NOW, refresh_ms=MINUTE)

    # A node loads the new ring at most one interval after it was written; until then it signs by the old one.
    for time in range(NOW, NOW + 3 * MINUTE, 1_000):
        for signer in (early, late) if time < NOW + MINUTE else (early,):
            used = signer.signing_key(time)
            for verifier in (early, late) if time < NOW + MINUTE else (early,):
                assert verifier.verifying_key(used.id, made_at=time, now=time).id == used.id


def test_a_second_rotation_ends_the_key_that_has_not_started_yet() -> None:
    once, second = rotated(Keyring((key(1),)), now=NOW, refresh_ms=MINUTE)

    twice, third = rotated(once, now=NOW + 1, refresh_ms=MINUTE)

    assert [each.deactivates_at for each in twice.keys] == [NOW + 2 * MINUTE, NOW + 1 + 2 * MINUTE, None]
    assert [each.id for each in twice.keys] == ["k1", second.id, third.id]


def test_rotations_in_the_same_millisecond_keep_one_signing_key() -> None:
    once, second = rotated(Keyring((key(1),)), now=NOW, refresh_ms=MINUTE)

    _, third = rotated(once, now=NOW, refresh_ms=MINUTE)

    assert third.activates_at == second.activates_at + 1


def test_a_rotation_leaves_ended_revoked_and_later_keys_alone() -> None:
    ended, bad, later = key(2, deactivates_at=NOW + 5), key(3, state="compromised"), key(4, activates_at=NOW + 10**9)

    keyring, _ = rotated(
        Keyring((key(1), ended, bad, later)), now=NOW, refresh_ms=MINUTE
    )

    assert keyring.keys[1:4] == (ended, bad, later)


def test_a_rotation_without_an_active_key_makes_one_that_signs_at_once() -> None:
    ended = key(1, deactivates_at=NOW + 1)

    keyring, new = rotated(Keyring((ended,)), now=NOW + 1, refresh_ms=MINUTE)

    assert keyring.signing_key(NOW + 1) is new
    assert new.activates_at == NOW + 1 - CLOCK_ALLOWANCE_MS


def test_a_revoked_key_is_refused_at_once_and_replaced_when_it_was_the_last() -> None:
    keyring, new = revoked(Keyring((key(1),), epoch=2), "k1", now=NOW, reason="laptop stolen")

    assert new is not None
    assert keyring.signing_key(NOW) is new
    assert (keyring.keys[0].state, keyring.keys[0].reason, keyring.epoch) == ("compromised", "laptop stolen", 2)
    with pytest.raises(KeyRevokedError):
        keyring.verifying_key("k1", made_at=NOW, now=NOW)


def test_a_revocation_makes_no_key_while_another_is_active() -> None:
    keyring, new = revoked(Keyring((key(1), key(2, activates_at=NOW + 1))), "k1", now=NOW + 1)

    assert new is None
    assert keyring.signing_key(NOW + 1).id == "k2"


def test_a_key_that_is_only_about_to_start_does_not_stand_in_for_a_revoked_one() -> None:
    keyring, new = revoked(Keyring((key(1), key(2, activates_at=NOW + MINUTE))), "k1", now=NOW)

    assert keyring.signing_key(NOW) is new
    assert keyring.signing_key(NOW + MINUTE).id == "k2"


@pytest.mark.parametrize("state", ["compromised", "destroyed"])
def test_revoking_again_changes_nothing(state: Any) -> None:
    kept = None if state == "destroyed" else secret(1)
    before = Keyring((Key("k1", kept, activates_at=0, state=state, reason="old"), key(2)))

    after, new = revoked(before, "k1", now=NOW, reason="new")

    assert new is None
    assert after.keys == before.keys


def test_revoking_an_unknown_key_is_refused() -> None:
    with pytest.raises(KeyUnknownError):
        revoked(Keyring((key(1),)), "k9", now=NOW)


def test_a_new_key_near_the_start_of_time_has_a_time_that_exists() -> None:
    _, new = revoked(Keyring((key(1, activates_at=0),)), "k1", now=5)

    assert new is not None
    assert new.activates_at == 0
