"""Keys that do not count: unknown, not active, compromised, weak; other algorithms; another restore epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hitl_guard import canonical, clock, keyfile
from hitl_guard.errors import ConfigurationError, HitlGuardError, KeyInactiveError
from hitl_guard.guard import Guard
from hitl_guard.keyring import Key, Keyring, revoked, rotated
from hitl_guard.lifecycle import ledger
from hitl_guard.models import ApprovalRequest, Principal, ToolCall
from hitl_guard.signing import encode
from hitl_guard.store.base import Loaded
from hitl_guard.store.sql import SQLStore
from tests.support import BOB, CAROL, GLOBAL, OPERATOR, World, document, until
from tests.threats.attacker import EVENTS, REQUESTS, Attacker, opened, reworded
from tests.unit.rings import entry, secret, text
from tests.unit.rings import ring as ring_text

Use = Callable[[World, ToolCall, ApprovalRequest], object]

USES: dict[str, Use] = {
    "by identity": lambda world, call, _: world.run(call),
    "by request id": lambda world, call, request: world.run(call, request_id=request.id),
    "by token": lambda world, call, request: world.run(call, token=request.token),
}
"""Every way to hand in a grant."""

NAMED = {name: use for name, use in USES.items() if name != "by identity"}
"""The ways that say which grant is meant, and so never ask anew."""

MINUTE = 60_000


def key_of(world: World) -> Key:
    return world.keyring.keys[0]


def node(world: World, *keys: Key, epoch: int = 1, keyring: Keyring | None = None) -> World:
    """Return another node on the same database, with other keys; its calls have ids of their own."""
    other = world.another(keyring=keyring or Keyring(keys, epoch))
    other.calls = 1000
    return other


def fresh(world: World, age: int = 30 * MINUTE) -> Key:
    """Return a new key that has been active for ``age`` milliseconds of the database."""
    return Key.generate(world.store.now() - age)


def resealed(world: World, token: str, **changes: Any) -> str:
    """Return an envelope with other fields, signed with the installation's own key: what only a test can do."""
    fields, _ = opened(token)
    payload = canonical.canonicalize(fields | changes)
    return world.guard._desk.signer.seal("request", key_of(world), payload).decode()


class OtherClock:
    """A store whose database clock is off by ``shift`` milliseconds, from when the test sets that."""

    shift = 0

    def __init__(self, store: SQLStore) -> None:
        self._store = store

    def now(self) -> int:
        return self._store.now() + self.shift

    def load(self, *args: Any, **options: Any) -> Loaded:
        found = self._store.load(*args, **options)
        return replace(found, now=found.now + self.shift)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


# -- AT-41: an unknown key id ----------------------------------------------------------------------------------------


def test_at41_a_token_that_names_an_unknown_key_is_refused(world: World) -> None:
    call, request = world.grant()
    forged = reworded(request.token, lambda fields: fields.update(kid="k-0123456789ab"))

    with world.refused("key-unknown"):
        world.run(call, token=forged)

    assert world.state(request) == "approved"


def test_at41_a_token_with_an_unknown_key_is_refused_even_if_the_right_key_signed_it(world: World) -> None:
    call, request = world.grant()

    with world.refused("key-unknown"):
        world.run(call, token=resealed(world, request.token, kid="k-0123456789ab"))


def test_at41_a_stored_record_that_names_an_unknown_key_is_refused(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    call, request = world.grant()
    forged = reworded(request.token, lambda fields: fields.update(kid="k-0123456789ab"))

    with (
        attacker.edited(REQUESTS, {"envelope": forged.encode()}, id=request.id.encode()),
        world.refused("key-unknown"),
    ):
        world.run(call)

    assert world.run(call) == "done"


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_at41_a_node_with_other_keys_accepts_nothing_of_ours(world: World, use: Use) -> None:
    call, request = world.grant()
    stranger = node(world, fresh(world))

    with stranger.refused("key-unknown"):
        use(stranger, call, request)

    assert world.run(call) == "done"


def test_at41_a_node_with_other_keys_decides_nothing_of_ours(world: World) -> None:
    request = world.guard.request(world.call())
    stranger = node(world, fresh(world))

    with stranger.refused("key-unknown", kind="decision:refused"):
        stranger.approve(request)

    assert world.state(request) == "pending"


# -- AT-42: a key that is not active yet -----------------------------------------------------------------------------


def test_at42_a_guard_does_not_start_when_its_only_key_is_not_active_yet(world: World) -> None:
    ring = Keyring([Key.generate(clock.epoch_ms() + 60 * MINUTE)])

    with pytest.raises(ConfigurationError) as caught:
        Guard(policy=world.policy, keyring=ring, store=world.store)

    assert caught.value.code == "config-error"
    assert isinstance(caught.value.__cause__, KeyInactiveError)
    assert world.store.chains() == []


def test_at42_nothing_is_signed_before_the_key_is_active_by_the_databases_clock(world: World) -> None:
    late = OtherClock(world.store)
    other = world.another(store=late)
    late.shift = -120 * MINUTE

    with pytest.raises(HitlGuardError) as caught:
        other.run(other.call())

    assert caught.value.code == "key-inactive"
    assert (world.effects, world.audited(), list(world.store.request_histories())) == ([], [], [])


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_at42_a_key_that_is_not_active_yet_verifies_nothing(world: World, use: Use) -> None:
    call, request = world.grant()
    early = key_of(world).changed(activates_at=world.store.now() + 60 * MINUTE)
    other = node(world, early, fresh(world))

    with other.refused("key-inactive", "pre-active"):
        use(other, call, request)


def test_at42_a_record_made_before_its_keys_time_is_refused(world: World) -> None:
    call, request = world.grant()
    before = key_of(world).activates_at - 1
    forged = resealed(world, request.token, issued_at=before)

    with world.refused("key-inactive", "made-before"):
        world.run(call, token=forged)


# -- AT-43, AT-44: a deactivated key ---------------------------------------------------------------------------------


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_at43_a_grant_made_before_the_rotation_runs_after_it(world: World, use: Use) -> None:
    call, request = world.grant()
    ring, new = rotated(world.keyring, now=world.store.now(), refresh_ms=10)
    old = ring.keys[0]
    assert old.deactivates_at is not None
    until(world.store, old.deactivates_at)
    other = node(world, keyring=ring)

    assert use(other, call, request) == "done"

    assert len(world.effects) == 1
    assert (old.state_at(world.store.now()), ring.signing_key(world.store.now())) == ("deactivated", new)
    assert ledger.verify(other.guard._desk).findings == ()


def test_at43_a_request_pending_over_the_rotation_is_decided_with_the_new_key_and_runs(world: World) -> None:
    call = world.call()
    request = world.guard.request(call)
    ring, _ = rotated(world.keyring, now=world.store.now(), refresh_ms=10)
    assert ring.keys[0].deactivates_at is not None
    until(world.store, ring.keys[0].deactivates_at)
    other = node(world, keyring=ring)

    other.approve(request)

    assert other.run(call) == "done"
    assert len(world.effects) == 1


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_at44_a_record_made_after_its_keys_deactivation_is_refused(world: World, use: Use) -> None:
    old, end = key_of(world), world.store.now()
    until(world.store, end + 1)
    call, request = world.grant()
    other = node(world, old.changed(deactivates_at=end), fresh(world))

    with other.refused("key-inactive", "made-after"):
        use(other, call, request)


def test_at44_a_request_made_after_its_keys_deactivation_cannot_be_approved(world: World) -> None:
    old, end = key_of(world), world.store.now()
    until(world.store, end + 1)
    request = world.guard.request(world.call())
    other = node(world, old.changed(deactivates_at=end), fresh(world))

    with other.refused("key-inactive", "made-after", kind="decision:refused"):
        other.approve(request)


def test_at44_a_decision_made_after_its_keys_deactivation_is_refused(world: World) -> None:
    call = world.call()
    request = world.guard.request(call)
    end = world.store.now() + 1
    until(world.store, end)
    world.approve(request)
    other = node(world, key_of(world).changed(deactivates_at=end), fresh(world))

    with other.refused("key-inactive", "made-after"):
        other.run(call)


# -- AT-45: a compromised or destroyed key ---------------------------------------------------------------------------


def revoked_rings(world: World) -> dict[str, Keyring]:
    now = world.store.now()
    compromised, _ = revoked(world.keyring, key_of(world).id, now=now, reason="laptop lost")
    gone = Key(key_of(world).id, None, activates_at=key_of(world).activates_at, state="destroyed")
    return {"compromised": compromised, "destroyed": Keyring([gone, fresh(world)])}


@pytest.mark.parametrize("state", ["compromised", "destroyed"])
@pytest.mark.parametrize("use", NAMED.values(), ids=NAMED)
def test_at45_an_old_grant_of_a_revoked_key_is_refused(world: World, use: Use, state: str) -> None:
    call, request = world.grant()
    other = node(world, keyring=revoked_rings(world)[state])

    with other.refused("key-revoked", state):
        use(other, call, request)


@pytest.mark.parametrize("state", ["compromised", "destroyed"])
@pytest.mark.parametrize("approve", [True, False])
def test_at45_an_old_request_of_a_revoked_key_cannot_be_decided(world: World, state: str, approve: bool) -> None:
    request = world.guard.request(world.call())
    other = node(world, keyring=revoked_rings(world)[state])

    with other.refused("key-revoked", state, kind="decision:refused"):
        (other.approve if approve else other.deny)(request)


@pytest.mark.parametrize("use", NAMED.values(), ids=NAMED)
def test_at45_a_grant_is_refused_when_only_its_decision_is_of_the_revoked_key(world: World, use: Use) -> None:
    call = world.call()
    request = world.guard.request(call)
    second = fresh(world)
    node(world, key_of(world), second).approve(request)
    other = node(world, key_of(world), second.changed(state="compromised"))

    with other.refused("key-revoked", "compromised"):
        use(other, call, request)


def test_at45_what_a_revoked_key_holds_is_listed_for_a_new_request(world: World) -> None:
    request = world.guard.request(world.call())
    other = node(world, keyring=revoked_rings(world)["compromised"])

    page = other.guard.pending()

    assert page.requests == ()
    assert [(one.request_id, one.code, one.key_id) for one in page.damaged] == [
        (request.id, "key-revoked", key_of(world).id)
    ]


@pytest.mark.parametrize("state", ["compromised", "destroyed"])
def test_at45_after_a_revocation_everything_waits_for_an_operator_and_then_calls_are_asked_anew(
    world: World, state: str
) -> None:
    world.guard.pause(by=OPERATOR, tool="wire")
    call, old = world.grant()
    other = node(world, keyring=revoked_rings(world)[state])

    with other.refused("paused", "restored"):
        other.run(call)
    # What the revoked key signed is not believed, so single pauses are set again before everything is resumed.
    assert other.guard._desk.read("default").control.pauses == {("all", "")}
    other.guard.pause(by=OPERATOR, tool="wire")
    other.guard.resume(by=GLOBAL, everywhere=True)
    with other.refused("paused", "all"):
        other.run(call)
    other.confirm()

    with other.refused("paused", "tool"):
        other.run(other.call("wire"))
    again = other.ask(call)
    assert (again.id != old.id, again.state) == (True, "pending")
    other.approve(again)
    assert other.run(call) == "done"
    assert len(world.effects) == 1


@pytest.mark.parametrize("state", ["compromised", "destroyed"])
def test_at45_a_call_that_was_made_under_the_revoked_key_stays_spent(world: World, state: str) -> None:
    call, _ = world.grant()
    world.run(call)
    other = node(world, keyring=revoked_rings(world)[state])
    other.confirm()

    with other.refused("consumed", "spent"):
        other.run(call)


def test_at45_a_control_row_forged_with_the_compromised_key_lifts_no_pause_before_an_operator_looks(
    attacked: tuple[World, Attacker],
) -> None:
    world, attacker = attacked
    world.guard.pause(by=OPERATOR)
    row = attacker.row("control")
    fields, _ = opened(row["body"].decode())
    payload = canonical.canonicalize(fields | {"pauses": []})
    forged = world.guard._desk.signer.seal("control", key_of(world), payload)
    attacker.set("control", {"body": forged}, tenant=b"default")
    other = node(world, keyring=revoked_rings(world)["compromised"])

    with other.refused("paused", "restored"):
        other.run(other.call("ping"))

    assert "store-rolled-back" in [finding.code for finding in ledger.verify(world.guard._desk).findings]


@pytest.mark.parametrize(
    "changes",
    [{"pauses": None}, {"pauses": [["all"]]}, {"pauses": [["everything", ""]]}, {"pauses": [["tool", 7]]},
     {"pauses": ["all"]}, {"policy": 7}, {"tenant": "other"}, {"version": 7}, {"more": 1}, {"alg": "none"},
     {"epoch": 9}],
    ids=repr,
)
def test_at45_a_control_row_of_the_compromised_key_stops_everything_whatever_it_says(
    attacked: tuple[World, Attacker], changes: dict[str, Any]
) -> None:
    world, attacker = attacked
    world.guard.pause(by=OPERATOR)
    fields, _ = opened(attacker.row("control")["body"].decode())
    forged = world.guard._desk.signer.seal("control", key_of(world), canonical.canonicalize(fields | changes))
    attacker.set("control", {"body": forged}, tenant=b"default")
    other = node(world, keyring=revoked_rings(world)["compromised"])

    with other.refused("paused", "restored"):
        other.run(other.call("ping"))
    other.confirm()
    assert other.run(other.call("ping")) == "done"


# -- AT-47: the algorithm label --------------------------------------------------------------------------------------

LABELS = [
    "none", "None", "NONE", "", "hs256", "Hs256", "HS384", "HS512", "RS256", "EdDSA", " HS256", "HS256\0", None, 0,
    True, ["HS256"], {"alg": "HS256"},
]


@pytest.mark.parametrize("label", LABELS, ids=repr)
def test_at47_another_algorithm_label_is_refused(world: World, label: Any) -> None:
    call, request = world.grant()
    forged = reworded(request.token, lambda fields: fields.update(alg=label))

    with world.refused("invalid-signature", "mismatch"):
        world.run(call, token=forged)


@pytest.mark.parametrize("label", LABELS, ids=repr)
def test_at47_another_algorithm_label_is_refused_even_if_the_right_key_signed_it(world: World, label: Any) -> None:
    call, request = world.grant()

    with world.refused("invalid-signature", "mismatch"):
        world.run(call, token=resealed(world, request.token, alg=label))


@pytest.mark.parametrize("label", ["none", "HS512"])
def test_at47_a_token_of_another_algorithm_without_a_mac_is_refused(world: World, label: str) -> None:
    call, request = world.grant()
    forged = reworded(request.token, lambda fields: fields.update(alg=label)).partition(".")[0]

    for token in (forged, f"{forged}."):
        with world.refused("invalid-signature"):
            world.run(call, token=token)


def test_at47_a_token_without_an_algorithm_label_is_refused(world: World) -> None:
    call, request = world.grant()
    forged = reworded(request.token, lambda fields: fields.pop("alg"))

    with world.refused("invalid-signature", "mismatch"):
        world.run(call, token=forged)


def test_at47_a_stored_record_of_another_algorithm_is_refused(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    call, request = world.grant()
    forged = reworded(request.token, lambda fields: fields.update(alg="none"))
    attacker.set(REQUESTS, {"envelope": forged.encode()}, id=request.id.encode())

    with world.refused("invalid-signature", "mismatch"):
        world.run(call)


# -- AT-48: hostile key ids ------------------------------------------------------------------------------------------

KEY_IDS = {
    "path": "../../etc/passwd", "absolute": "/etc/passwd", "file URL": "file:///etc/passwd",
    "SQL quote": "' OR '1'='1' --", "NUL": "k1\0", "newline": "k1\nadmin: approved", "escape code": "\x1b[2Jk1",
    "long": "k" * 100_000, "empty": "", "template": "{key.id}${jndi:x}%s%n", "bidirectional": "\u202ek1",
    "astral": "\U0001f511", "space": " ",
}


@pytest.fixture
def filed(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A node whose key ring comes from a file that must not be looked at again."""
    path = tmp_path / "keys.json"
    keyfile.create(path, world.keyring.dump())
    other = node(world, keyring=Keyring.from_file(path, refresh_s=3600))

    def refuse(*_: object) -> None:
        raise AssertionError("a key id made the guard read a file")

    monkeypatch.setattr(keyfile, "read", refuse)
    return other


@pytest.mark.parametrize("key_id", KEY_IDS.values(), ids=KEY_IDS)
def test_at48_a_hostile_key_id_is_unknown_and_shows_nowhere(filed: World, key_id: str, tmp_path: Path) -> None:
    call, request = filed.grant()
    forged = reworded(request.token, lambda fields: fields.update(kid=key_id))
    before = sorted(path.name for path in tmp_path.iterdir())

    told: list[str] = []
    with filed.refused("key-unknown"):
        try:
            filed.run(call, token=forged)
        except HitlGuardError as error:
            told.append(f"{error} {error!r} {error.__dict__}")
            raise

    assert not key_id.strip() or key_id not in f"{told} {filed.audited()}"
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert [key.id for key in filed.guard._desk.signer.keyring.keys] == [key_of(filed).id]
    assert filed.run(call) == "done"


@pytest.mark.parametrize("key_id", [7, None, True, ["k1"], {"id": "k1"}, 1.5], ids=repr)
def test_at48_a_key_id_that_is_no_text_is_malformed(world: World, key_id: Any) -> None:
    call, request = world.grant()
    forged = reworded(request.token, lambda fields: fields.update(kid=key_id))

    with world.refused("invalid-approval", "malformed"):
        world.run(call, token=forged)


@pytest.mark.parametrize("key_id", KEY_IDS.values(), ids=KEY_IDS)
def test_at48_a_stored_event_with_a_hostile_key_id_is_refused(attacked: tuple[World, Attacker], key_id: str) -> None:
    world, attacker = attacked
    call, request = world.grant()
    attacker.set(EVENTS, {"key_id": key_id.encode()}, request_id=request.id.encode(), version=1)

    with world.refused("key-unknown"):
        world.run(call)

    assert "key-unknown" in [finding.code for finding in ledger.verify(world.guard._desk).findings]


# -- AT-49: weak keys ------------------------------------------------------------------------------------------------

PASSWORD = b"correct horse battery staple, and then some more words"
WEAK = {
    "no keys": ring_text(),
    "empty secret": ring_text(entry(1, secret="")),
    "31 bytes": ring_text(entry(1, secret=text(secret(1)[:31]))),
    "zeros": ring_text(entry(1, secret=text(bytes(32)))),
    "one byte repeated": ring_text(entry(1, secret=text(b"\xfe" * 64))),
    "16 bytes pasted twice": ring_text(entry(1, secret=text(secret(1)[:16] * 2))),
    "password": ring_text(entry(1, secret=text(PASSWORD))),
    "hex of a key": ring_text(entry(1, secret=text(secret(1).hex().encode()))),
    "same secret under two ids": ring_text(entry(1), entry(2, secret=text(secret(1)))),
    "same id twice": ring_text(entry(1), entry(2, id="k1")),
    "no secret": ring_text({"id": "k1", "activates_at": 1}),
    "not JSON": PASSWORD.decode(),
    "not set": "",
}


@pytest.mark.parametrize("keys", WEAK.values(), ids=WEAK)
def test_at49_a_guard_does_not_start_with_weak_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    store = SQLStore(f"sqlite:///{tmp_path / 'approvals.db'}")
    store.setup()
    monkeypatch.setenv("HITL_GUARD_KEYS", keys)

    with pytest.raises(ConfigurationError) as caught:
        Guard(policy=document(), store=store)

    assert caught.value.code == "config-error"
    assert text(secret(1))[:20] not in str(caught.value)
    assert PASSWORD.decode() not in str(caught.value)
    store.close()


@pytest.mark.parametrize("raw", [b"", secret(1)[:31], PASSWORD, bytes(32), None, "x" * 64], ids=repr)
def test_at49_a_weak_key_cannot_be_made_in_code(raw: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Key("k1", raw, activates_at=1)

    assert caught.value.code == "config-error"


# -- the restore epoch -----------------------------------------------------------------------------------------------


def raised(world: World, epoch: int = 2) -> World:
    """Return a node whose operator has restored a backup and so raised the epoch."""
    return node(world, key_of(world), epoch=epoch)


@pytest.mark.parametrize("use", NAMED.values(), ids=NAMED)
def test_at63_a_raised_epoch_voids_a_grant(world: World, use: Use) -> None:
    call, request = world.grant()
    restored = raised(world)

    with restored.refused("invalid-approval", "epoch"):
        use(restored, call, request)


def test_at63_a_raised_epoch_voids_what_was_pending(world: World) -> None:
    request = world.guard.request(world.call())
    restored = raised(world)

    with restored.refused("invalid-approval", "epoch", kind="decision:refused"):
        restored.approve(request)

    assert [one.request_id for one in restored.guard.pending().damaged] == [request.id]


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_at63_a_node_of_an_older_epoch_accepts_nothing_of_the_newer_one(world: World, use: Use) -> None:
    later = raised(world)
    call, request = later.grant()

    with world.refused("invalid-approval", "epoch"):
        use(world, call, request)

    assert use(later, call, request) == "done"


def test_at63_what_a_later_epoch_controls_stops_a_node_of_an_older_one(world: World) -> None:
    raised(world).guard.pause(by=OPERATOR, tool="wire")

    with world.refused("invalid-approval", "epoch"):
        world.run(world.call("ping"))


def test_at63_after_a_restore_everything_is_paused_until_an_operator_resumes(world: World) -> None:
    world.guard.pause(by=OPERATOR, tool="wire")
    call, old = world.grant()
    restored = raised(world)

    for asked in (call, restored.call("ping"), restored.call("wire")):
        with restored.refused("paused", "restored"):
            restored.run(asked)
        with restored.refused("paused", "restored"):
            restored.guard.request(asked)
    restored.confirm()

    with restored.refused("paused", "tool"):
        restored.run(restored.call("wire"))
    again = restored.ask(call)
    assert (again.id != old.id, again.state) == (True, "pending")
    restored.approve(again)
    assert restored.run(call) == "done"
    assert len(world.effects) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda guard: guard.pause(by=OPERATOR, tool="wire"),
        lambda guard: guard.pause(by=OPERATOR, agent="bot"),
        lambda guard: guard.pause(by=OPERATOR),
        lambda guard: guard.resume(by=OPERATOR, tool="wire"),
        lambda guard: guard.resume(by=OPERATOR, agent="bot"),
    ],
    ids=["pause a tool", "pause an agent", "pause everything", "resume a tool", "resume an agent"],
)
def test_at63_only_resuming_everything_ends_the_standstill_after_a_restore(
    world: World, change: Callable[[Guard], None]
) -> None:
    world.guard.request(world.call())
    restored = raised(world)
    restored.guard.resume(by=GLOBAL, everywhere=True)

    change(restored.guard)

    with restored.refused("paused", "all"):
        restored.run(restored.call("ping"))
    restored.confirm()
    assert restored.run(restored.call("ping")) == "done"


@pytest.mark.parametrize("by", [BOB, CAROL, Principal("eve", roles=("operators", "Operator"))], ids=lambda by: by.id)
def test_at63_nobody_but_an_operator_ends_the_standstill(world: World, by: Principal) -> None:
    world.guard.request(world.call())
    restored = raised(world)

    with restored.refused("not-authorised", "role", kind="decision:refused"):
        restored.guard.resume(by=by)

    with restored.refused("paused", "restored"):
        restored.run(restored.call("ping"))


def test_at63_what_is_of_an_earlier_epoch_is_void_yet_not_damaged(world: World) -> None:
    call, _ = world.grant()
    world.run(call)
    world.grant()
    restored = raised(world, 7)

    report = ledger.verify(restored.guard._desk)

    assert report.findings == ()
    assert report.requests == 2


def test_at63_what_is_of_a_later_epoch_is_reported(world: World) -> None:
    raised(world).grant()

    codes = {finding.code for finding in ledger.verify(world.guard._desk).findings}

    assert codes == {"invalid-approval"}


def test_at47_the_mac_alone_makes_no_token(world: World) -> None:
    """Whatever names no algorithm, key and payload of ours is refused before a key is looked up."""
    call, request = world.grant()
    mac = request.token.partition(".")[2]

    for token in (mac, f".{mac}", f"{encode(b'{}').decode()}.{mac}"):
        with world.refused("invalid-approval"):
            world.run(call, token=token)
