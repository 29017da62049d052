"""What was verified once is known by its bytes: no edit, no lost key and no clock gets by with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hitl_guard import clock
from hitl_guard.errors import HitlGuardError
from hitl_guard.keyring import Keyring, revoked, rotated
from hitl_guard.lifecycle import record as records
from hitl_guard.lifecycle import verified
from hitl_guard.models import ApprovalRequest
from hitl_guard.rows import EventRow, RequestRow
from tests.support import World, ring, world

__all__ = ["world"]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the ids of the requests that are really verified."""
    seen: list[str] = []
    real = records.verify

    def verify(row: RequestRow, *args: Any, **options: Any) -> records.Record:
        seen.append(row.id)
        return real(row, *args, **options)

    monkeypatch.setattr(records, "verify", verify)
    return seen


def reloading(world: World, keys: Keyring, folder: Path) -> tuple[Path, World]:
    """Return a key file and a node that loads it anew whenever it changes."""
    file = folder / "keys.json"
    file.write_bytes(keys.dump().reveal())
    file.chmod(0o600)
    return file, world.another(keyring=Keyring.from_file(file, refresh_s=0))


def stored(world: World, request: ApprovalRequest) -> tuple[RequestRow, tuple[EventRow, ...]]:
    loaded = world.store.load(request.tenant, request_id=request.id)
    assert loaded.request is not None
    return loaded.request, loaded.events


def test_the_same_bytes_are_verified_once_and_every_new_event_again(world: World, looked: list[str]) -> None:
    request = world.guard.request(world.call())
    looked.clear()

    for _ in range(3):
        assert world.state(request) == "pending"
    assert looked == [request.id]
    world.approve(request)
    looked.clear()
    for _ in range(3):
        assert world.state(request) == "approved"
    assert looked == [request.id]


@pytest.mark.parametrize("change", [
    lambda row, events: (replace(row, arguments=b'{"amount":9500,"order":"A-17"}'), events),
    lambda row, events: (replace(row, envelope=row.envelope[:-1] + bytes([row.envelope[-1] ^ 1])), events),
    lambda row, events: (replace(row, details=row.details.replace(b"leaves", b"enters")), events),
    lambda row, events: (replace(row, generation=7), events),
    lambda row, events: (replace(row, tenant="other"), events),
    lambda row, events: (replace(row, identity=b"i" * 32), events),
    lambda row, events: (row, (replace(events[0], body=events[0].body.replace(b"request", b"Request")),)),
    lambda row, events: (row, (replace(events[0], mac=b"m" * 32),)),
    lambda row, events: (row, (replace(events[0], version=2),)),
    lambda row, events: (row, (*events, *events)),
], ids=["arguments", "envelope", "details", "generation", "tenant", "identity", "event", "mac", "version", "events"])
def test_x07_an_edit_of_a_request_that_was_verified_before_is_found(
    world: World, change: Callable[[RequestRow, tuple[EventRow, ...]], tuple[RequestRow, tuple[EventRow, ...]]]
) -> None:
    _, request = world.grant()
    row, events = stored(world, request)
    desk = world.guard._desk
    assert desk.verify(row, events, world.store.now()).state == "approved"
    edited = change(row, events)
    assert edited != (row, events)

    with pytest.raises(HitlGuardError):
        desk.verify(*edited, world.store.now())

    assert desk.verify(row, events, world.store.now()).state == "approved"


def test_x07_an_event_that_was_taken_away_is_not_remembered_as_if_it_were_there(world: World) -> None:
    _, request = world.grant()
    row, events = stored(world, request)
    desk = world.guard._desk
    assert desk.verify(row, events, world.store.now()).state == "approved"

    assert desk.verify(row, (), world.store.now()).state == "pending"


def test_what_is_known_still_reads_by_the_clock(world: World, looked: list[str]) -> None:
    call, request = world.grant()
    row, events = stored(world, request)
    desk = world.guard._desk
    now = world.store.now()
    first = desk.verify(row, events, now)
    assert first.execute_by is not None
    looked.clear()

    assert desk.verify(row, events, first.execute_by).state == "expired"
    assert desk.verify(row, events, first.execute_by - 1).state == "approved"
    assert looked == []
    world.guard.authorize(call)
    row, events = stored(world, request)
    run_by = desk.verify(row, events, world.store.now()).run_by
    assert run_by is not None
    assert [desk.verify(row, events, at).state for at in (run_by - 1, run_by)] == ["executing", "in_doubt"]


def test_a_clock_that_goes_back_has_everything_verified_again(world: World, looked: list[str]) -> None:
    _, request = world.grant()
    row, events = stored(world, request)
    desk = world.guard._desk
    looked.clear()

    desk.verify(row, events, world.store.now() - 60_000)

    assert looked == [request.id]


def test_at45_a_key_that_is_revoked_counts_no_more_for_what_was_verified_before(world: World, tmp_path: Path) -> None:
    keys = ring()
    file, node = reloading(world, keys, tmp_path)
    call, request = node.grant()
    assert node.state(request) == "approved"

    gone, _ = revoked(keys, keys.keys[0].id, now=clock.epoch_ms())
    file.write_bytes(gone.dump().reveal())

    with node.refused("key-revoked"):
        node.run(call, request_id=request.id)


def test_x06_after_a_rotation_everything_is_verified_once_more(
    world: World, looked: list[str], tmp_path: Path
) -> None:
    keys = ring()
    file, node = reloading(world, keys, tmp_path)
    _, request = node.grant()
    looked.clear()

    file.write_bytes(rotated(keys, now=clock.epoch_ms(), refresh_ms=1)[0].dump().reveal())

    assert [node.state(request) for _ in range(3)] == ["approved"] * 3
    assert looked == [request.id]


def test_a_process_keeps_so_many_requests_and_no_large_one(
    world: World, looked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "MOST", 2)
    requests = [world.guard.request(world.call()) for _ in range(3)]
    large = world.guard.request(world.call(arguments={"text": "x" * verified.LARGEST}))
    for request in (*requests, large):
        world.state(request)
    looked.clear()

    for request in (requests[1], requests[2], large, requests[0]):
        world.state(request)

    assert looked == [large.id, requests[0].id]


def test_at45_what_was_verified_under_older_keys_never_counts_under_newer_ones(
    world: World, looked: list[str], tmp_path: Path
) -> None:
    """Whatever other threads do meanwhile: an entry says itself which keys it was verified with."""
    keys = ring()
    file, node = reloading(world, keys, tmp_path)
    _, request = node.grant()
    row, events = stored(world, request)
    desk = node.guard._desk
    desk.verify(row, events, world.store.now())
    before = dict(desk._verified._known)
    gone, _ = revoked(keys, keys.keys[0].id, now=clock.epoch_ms())
    file.write_bytes(gone.dump().reveal())
    with pytest.raises(HitlGuardError):
        desk.verify(row, events, world.store.now())

    desk._verified._known.update(before)  # as a thread that had begun under the older keys puts it back

    with pytest.raises(HitlGuardError) as refused:
        desk.verify(row, events, world.store.now())
    assert refused.value.code == "key-revoked"
