"""Two windows, one clock: the database's. Times that make no sense are refused even under a valid signature."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hitl_guard import audit, canonical, clock, signing
from hitl_guard.cli import main
from hitl_guard.envelope import DECISION_TYPE, Vote
from hitl_guard.errors import ApprovalRequired, ExpiredError, InvalidApprovalError
from hitl_guard.lifecycle.ask import digest_of
from hitl_guard.models import ApprovalRequest
from hitl_guard.rows import Draft
from hitl_guard.store.base import Append, Loaded
from tests.support import BOB, Settings, World, until
from tests.threats.attacker import REQUESTS, Attacker, opened
from tests.threats.gates import GatedStore, told

MakeWorld = Callable[..., World]
MINUTE = 60_000
NAN = "NaN"
"""JSON has no such number; some parsers read it all the same."""


class AheadStore:
    """A real store whose database's clock is (or was) ahead by some milliseconds."""

    def __init__(self, store: Any, by: int) -> None:
        self._store, self._by = store, by

    def load(self, *args: Any, **options: Any) -> Loaded:
        found: Loaded = self._store.load(*args, **options)
        return replace(found, now=found.now + self._by)

    def now(self) -> int:
        return int(self._store.now()) + self._by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def ahead(world: World, by: int) -> World:
    store: Any = AheadStore(world.store, by)
    return world.another(store=store)


def suspended(world: World, at: int | None) -> World:
    """Return a node that reads the store while its clock says ``at``, and goes on now."""
    assert at is not None
    store: Any = GatedStore(world.store, lambda: None, now=at)
    return world.another(store=store)


def types_of(world: World, request: ApprovalRequest) -> list[str]:
    return [event.type for event in world.store.load(request.tenant, request_id=request.id).events]


def resigned(world: World, purpose: str, fields: dict[str, Any], name: str, value: Any) -> str:
    """Return a signed text in which one field has another value (`NAN` too), under the world's own key."""
    (key,) = world.keyring.keys
    payload = canonical.canonicalize(fields | {name: 0 if value is NAN else value})
    if value is NAN:
        payload = re.sub(rb'("%b"):0' % name.encode(), rb"\1:NaN", payload)
        assert b"NaN" in payload
    return signing.Signer(world.keyring).seal(purpose, key, payload).decode()


# -- AT-37, AT-38, X04: the windows ----------------------------------------------------------------------------------


def test_at37_a_decision_after_its_window_is_refused_and_the_request_is_expired(make_world: MakeWorld) -> None:
    world = make_world(settings=Settings(decide_within=1))
    call = world.call()
    request = world.guard.request(call)
    until(world.store, request.decide_by)

    with world.refused("expired", "decide-by", kind="decision:refused"):
        world.approve(request)

    assert types_of(world, request) == ["request:expired"]
    assert world.state(request) == "expired"
    with world.refused("expired"):
        world.run(call, request_id=request.id)
    with world.refused("expired", "decide-by", kind="decision:refused"):
        world.deny(request)
    assert types_of(world, request) == ["request:expired"]


def test_at37_an_overdue_request_reads_as_expired_before_anyone_wrote_that_down(world: World) -> None:
    node = world.another(settings=Settings(decide_within=1))
    call = node.call()
    request = node.guard.request(call)
    until(world.store, request.decide_by)

    assert world.state(request) == "expired"
    assert list(world.guard.pending()) == []
    assert types_of(world, request) == []
    with world.refused("expired"):
        world.run(call, request_id=request.id)

    assert world.guard.sweep() == 1
    assert types_of(world, request) == ["request:expired"]


def test_at38_a_grant_is_refused_after_its_execution_window(make_world: MakeWorld) -> None:
    world = make_world()
    call, request = world.grant(execute_within=1)
    assert request.execute_by is not None
    until(world.store, request.execute_by)

    with world.refused("expired"):
        world.run(call, request_id=request.id)
    with world.refused("expired"):
        world.run(call, token=request.token)

    assert world.state(request) == "expired"
    again = world.ask(call)
    assert (again.id != request.id, again.state) == (True, "pending")
    assert types_of(world, request) == ["request:approved", "request:expired"]
    assert world.effects == []


def test_at38_the_approver_can_only_shorten_the_execution_window(world: World) -> None:
    within = Settings().execute_within
    request = world.guard.request(world.call())

    world.approve(request, execute_within=10 * within)

    granted = world.guard.get(request.id)
    assert granted.execute_by == granted.votes[0].at + within


def test_x04_both_windows_end_exactly_where_they_say(make_world: MakeWorld) -> None:
    world = make_world()
    request = world.guard.request(world.call())
    call, granted = world.grant()
    assert granted.execute_by is not None

    at_the_end = suspended(world, request.decide_by)
    assert told(lambda: at_the_end.approve(request)) == "expired"
    late, in_time = suspended(world, granted.execute_by), suspended(world, granted.execute_by - 1)
    assert told(lambda: late.run(call, request_id=granted.id)) == "expired"
    assert told(lambda: in_time.run(call, request_id=granted.id)) == "ok"
    assert len(world.effects) == 1


def test_x04_the_claim_itself_compares_with_the_databases_clock(make_world: MakeWorld) -> None:
    """The node read in time and was suspended; when it goes on, every check has passed, and the time too."""
    world = make_world()
    call, request = world.grant(execute_within=1)
    assert request.execute_by is not None
    until(world.store, request.execute_by)
    node = suspended(world, request.execute_by - 1)

    with node.refused("expired"):
        node.run(call, request_id=request.id)

    assert types_of(world, request) == ["request:approved"]


def test_x04_the_decision_itself_compares_with_the_databases_clock(make_world: MakeWorld) -> None:
    world = make_world(settings=Settings(decide_within=1))
    request = world.guard.request(world.call())
    until(world.store, request.decide_by)
    node = suspended(world, request.decide_by - 1)

    with node.refused("expired", kind="decision:refused"):
        node.approve(request)

    assert types_of(world, request) == ["request:expired"]


def test_x04_a_suspended_automatic_approval_is_judged_anew(make_world: MakeWorld) -> None:
    world = make_world()
    world.grant()
    node = suspended(world, world.store.now() - 2 * Settings().execute_within)

    assert node.run(node.call("ping", call_id="by-the-policy")) == "done"

    assert len(world.effects) == 1


# -- AT-39: whose clock ----------------------------------------------------------------------------------------------


@pytest.fixture
def skewed(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set this host's clock off against the database's."""
    real = clock.epoch_ms

    def skew(by: int) -> None:
        monkeypatch.setattr(clock, "epoch_ms", lambda: real() + by)

    return skew


@pytest.mark.parametrize("skew", [10 * MINUTE, -10 * MINUTE, 48 * 60 * MINUTE, -48 * 60 * MINUTE])
def test_at39_the_databases_clock_decides_whatever_this_hosts_says(
    make_world: MakeWorld, skewed: Callable[[int], None], skew: int
) -> None:
    world = make_world()
    pending = world.guard.request(world.call())
    call, granted = world.grant(execute_within=5 * MINUTE)
    late, ended = world.grant(execute_within=1)
    assert ended.execute_by is not None
    until(world.store, ended.execute_by)

    skewed(skew)
    node = world.another()

    node.approve(pending)
    assert node.run(call, request_id=granted.id) == "done"
    with node.refused("expired"):
        node.run(late, request_id=ended.id)
    assert len(world.effects) == 1


@pytest.mark.parametrize(("skew", "level"), [(0, "ok"), (10 * MINUTE, "warn"), (-10 * MINUTE, "warn")])
def test_at39_doctor_reports_a_host_whose_clock_is_off(
    attacked: tuple[World, Attacker], tmp_path: Path, skewed: Callable[[int], None], skew: int, level: str
) -> None:
    world, attacker = attacked
    keys = tmp_path / "keys.json"
    keys.write_bytes(world.keyring.dump().reveal())
    keys.chmod(0o600)
    skewed(skew)

    answer = CliRunner().invoke(main, ["doctor", "--store", attacker.database.url, "--keys", str(keys), "--json"])

    (found,) = [check for check in json.loads(answer.output)["checks"] if check["name"] == "clock"]
    assert found["status"] == level


# -- AT-40: times that make no sense ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [Settings().skew + MINUTE, 10 * MINUTE, 365 * 24 * 60 * MINUTE])
def test_at40_a_grant_from_the_future_is_not_valid_yet(make_world: MakeWorld, by: int) -> None:
    world = make_world()
    call = world.call()
    future = ahead(world, by)
    request = future.guard.request(call)
    future.approve(request)

    with world.refused("not-yet-valid"):
        world.run(call, request_id=request.id)
    with world.refused("not-yet-valid"):
        world.run(call)

    assert world.state(request) == "approved"
    assert future.run(call) == "done"


def test_at40_a_request_from_the_future_cannot_be_decided_yet(make_world: MakeWorld) -> None:
    world = make_world()
    request = ahead(world, 10 * MINUTE).guard.request(world.call())

    with world.refused("not-yet-valid", kind="decision:refused"):
        world.approve(request)
    with world.refused("not-yet-valid", kind="decision:refused"):
        world.deny(request)

    assert world.state(request) == "pending"


def test_at40_a_decision_from_the_future_is_not_valid_yet(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call()
    request = world.guard.request(call)
    ahead(world, 10 * MINUTE).approve(request)

    with world.refused("not-yet-valid"):
        world.run(call, request_id=request.id)


def test_at40_clocks_may_differ_a_little(world: World) -> None:
    call = world.call()
    near = ahead(world, Settings().skew - 10_000)
    request = near.guard.request(call)
    near.approve(request)

    assert world.run(call, request_id=request.id) == "done"


ODD_TIMES = [-1, 0.5, 1_700_000_000_000.5, -0.5, NAN, 10**18, 2**53, "1700000000000", "", True, None, [], {}]
EARLIER = object()
"""A decide-by that is not after the time at which the request was made."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("issued_at", "decide_by", "execute_within") for value in ODD_TIMES),
        ("execute_within", 0), ("decide_by", EARLIER), ("decide_by", 0),
    ],
)
def test_at40_an_envelope_with_odd_times_is_refused_under_a_valid_key(
    attacked: tuple[World, Attacker], name: str, value: Any
) -> None:
    world, attacker = attacked
    call = world.call()
    request = world.guard.request(call)
    fields, _ = opened(request.token)
    if value is EARLIER:
        value = fields["issued_at"]
    token = resigned(world, "request", fields, name, value)
    attacker.set(REQUESTS, {"envelope": token.encode()}, id=request.id.encode())

    with world.refused("invalid-approval", "malformed"):
        world.run(call, request_id=request.id)
    with world.refused("invalid-approval", "malformed"):
        world.run(call, token=token)
    with world.refused("invalid-approval", "malformed"):
        world.run(call)
    with world.refused("invalid-approval", "malformed", kind="decision:refused"):
        world.approve(request)

    assert [damaged.code for damaged in world.guard.pending().damaged] == ["invalid-approval"]


def approved_with(world: World, request: ApprovalRequest, **odd: Any) -> None:
    """Record an approval that the world's own key signed, with odd times in it."""
    now = world.store.now()
    row = world.store.load(request.tenant, request_id=request.id).request
    assert row is not None
    vote = Vote(
        tenant=request.tenant, request_id=request.id, fingerprint=request.fingerprint,
        policy_version=request.policy_version, approver=BOB.id, kind="human", names=(BOB.id,), roles=BOB.roles,
        channel="api", credential=None, approve=True, automatic=False, reason=None, response=None, nonce="n" * 22,
        execute_by=now + MINUTE,
    )
    signer = signing.Signer(world.keyring)
    fields, _ = opened(signer.sign("decision", DECISION_TYPE, vote.to_fields(), now=now).decode())
    text = signer.seal("decision", world.keyring.keys[0], canonical.canonicalize(fields)).decode()
    for name, value in odd.items():
        text = resigned(world, "decision", fields, name, value)
        fields = fields | {name: 0 if value is NAN else value}
    body = audit.body(decision=text, request=digest_of(row))
    draft = Draft("request:approved", request.tenant, now, body, request.id, 1)
    assert world.store.write([Append(draft)], audit.Sealer(signer)) is not None


def test_at40_the_signed_approval_of_these_tests_counts_as_long_as_its_times_make_sense(world: World) -> None:
    call = world.call()
    request = world.guard.request(call)

    approved_with(world, request)

    assert world.run(call, request_id=request.id) == "done"


@pytest.mark.parametrize("name", ["execute_by", "issued_at"])
@pytest.mark.parametrize("value", [-1, 0, 0.5, NAN, 10**18, 2**53, "1700000000000", True, None, []])
def test_at40_a_decision_with_odd_times_is_refused_under_a_valid_key(world: World, name: str, value: Any) -> None:
    call = world.call()
    request = world.guard.request(call)
    approved_with(world, request, **{name: value})

    # A decision of the year 1970 is older than the key that signed it.
    code = "key-inactive" if (name, value) == ("issued_at", 0) and type(value) is int else "invalid-approval"
    with world.refused(code):
        world.run(call, request_id=request.id)
    with world.refused(code):
        world.run(call)


@pytest.mark.parametrize("beyond", [1, MINUTE, 365 * 24 * 60 * MINUTE])
def test_at40_a_decision_cannot_widen_the_execution_window_that_was_signed(world: World, beyond: int) -> None:
    call = world.call()
    request = world.guard.request(call)
    now = world.store.now()
    approved_with(world, request, issued_at=now, execute_by=now + Settings().execute_within + beyond)

    with world.refused("invalid-approval", "window"):
        world.run(call, request_id=request.id)


@pytest.mark.parametrize("before", [0, 1])
def test_at40_a_decision_that_ends_before_it_was_made_is_refused(world: World, before: int) -> None:
    call = world.call()
    request = world.guard.request(call)
    now = world.store.now()
    approved_with(world, request, issued_at=now, execute_by=now - before)

    with world.refused("invalid-approval", "window"):
        world.run(call, request_id=request.id)


def test_at37_a_decision_dated_after_the_decision_window_does_not_count(world: World) -> None:
    call = world.call()
    request = world.guard.request(call)
    approved_with(world, request, issued_at=request.decide_by, execute_by=request.decide_by + 1)

    with world.refused("invalid-approval", "window"):
        world.run(call, request_id=request.id)


@pytest.mark.parametrize("run_by", [-1, 0.5, 10**18, "soon", True, None, []])
def test_at40_a_claim_with_an_odd_time_is_refused_under_a_valid_key(world: World, run_by: Any) -> None:
    call, request = world.grant()
    loaded = world.store.load(request.tenant, request_id=request.id)
    assert loaded.request is not None
    body = audit.body(claim="c" * 22, request=digest_of(loaded.request), run_by=run_by)
    draft = Draft("grant:claimed", request.tenant, loaded.now, body, request.id, 2)
    step = Append(draft, previous_mac=loaded.events[-1].mac)
    assert world.store.write([step], audit.Sealer(signing.Signer(world.keyring))) is not None

    with world.refused("invalid-approval", "malformed"):
        world.run(call, request_id=request.id)
    with pytest.raises(InvalidApprovalError):
        world.guard.get(request.id)


def test_at37_an_expired_request_is_asked_anew_by_the_same_call(world: World) -> None:
    node = world.another(settings=Settings(decide_within=1))
    call = node.call()
    request = node.ask(call)
    until(world.store, request.decide_by)

    again = world.ask(call)

    assert again.id != request.id
    assert types_of(world, request) == ["request:expired"]
    with pytest.raises(ExpiredError):
        world.guard.authorize(call, request_id=request.id)
    with pytest.raises(ApprovalRequired):
        world.guard.authorize(call)
