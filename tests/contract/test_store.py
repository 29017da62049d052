"""The Store contract, on every database."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy import event as listening

from hitl_guard.audit import anchored_heads
from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.rows import EVERYWHERE, ControlRow, Draft, EventRow, Link, control_record
from hitl_guard.store import anchors, hot
from hitl_guard.store.base import AddRequest, Append, SetControl, Step
from hitl_guard.store.sql import SQLStore
from tests.contract.build import (
    HOUR,
    RUN,
    added,
    approved,
    claim,
    control,
    event,
    events_of,
    genuine,
    request,
    seal,
    set_control,
)
from tests.databases import Database

NEAR_TENANTS = [
    "tenant", "Tenant", "tenant ", " tenant", "tenant\0", "ténant", "te\u0301nant", "tenant\u200b", "\U0001d565enant",
]


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


class TestReading:
    def test_an_empty_store_answers_with_nothing_but_the_time(self, store: SQLStore) -> None:
        before = store.now()

        loaded = store.load("tenant", request_id="nobody", spend_key=bytes(32))

        assert loaded.control is None
        assert loaded.request is None
        assert loaded.events == ()
        assert not loaded.spent
        assert not loaded.control_overtaken
        assert before <= loaded.now <= store.now()
        assert store.load("tenant").request is None
        assert (store.chains(), store.controls(), list(store.request_histories())) == ([], [], [])

    def test_the_time_is_the_databases_own(self, database: Database, store: SQLStore) -> None:
        clock = {
            "sqlite": "SELECT CAST(strftime('%s', 'now') AS INTEGER)",
            "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
            "mariadb": "SELECT UNIX_TIMESTAMP()",
        }[database.kind]

        earlier = int(database.execute(clock)[0][0])
        now = store.now()
        later = int(database.execute(clock)[0][0]) + 1

        assert earlier * 1000 <= now <= later * 1000

    def test_a_request_comes_back_as_it_was_stored(self, store: SQLStore) -> None:
        everything = bytes(range(256))
        row = added(store, envelope=everything, arguments=everything * 4096, details=b"")

        loaded = store.load("tenant", request_id=row.id)

        assert loaded.request == row
        assert loaded.events == ()

    def test_events_come_back_as_they_were_sealed_in_order_of_their_versions(self, store: SQLStore) -> None:
        row, first = approved(store)
        written = store.write([claim(row, first)], seal)
        assert written is not None

        loaded = store.load("tenant", request_id=row.id, spend_key=written.events[0].spend_key)

        assert loaded.events == (first, *written.events)
        assert all(genuine(found) for found in loaded.events)
        assert loaded.spent

    def test_another_tenants_request_looks_like_an_unknown_one(self, store: SQLStore) -> None:
        row, _ = approved(store)

        loaded = store.load("other", request_id=row.id)

        assert loaded.request is None
        assert loaded.events == ()

    def test_an_identity_finds_its_latest_generation(self, store: SQLStore) -> None:
        first, _ = approved(store)
        latest = added(store, identity=first.identity, generation=1)
        store.write([Append(event(latest, 1, "request:denied"))], seal)

        loaded = store.load("tenant", identity=first.identity)

        assert loaded.request == latest
        assert [found.type for found in loaded.events] == ["request:denied"]

    def test_what_a_new_call_needs_is_what_the_whole_reading_says(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        store.write([claim(row, first, spend_key=b"k" * 32)], seal)
        set_control(store, 1)
        set_control(store, 2)

        new = store.load_new("tenant", identity=b"n" * 32, spend_key=b"l" * 32)
        spent = store.load_new("tenant", identity=b"n" * 32, spend_key=b"k" * 32)
        whole = store.load("tenant", identity=b"n" * 32, spend_key=b"l" * 32)

        assert new is not None
        assert spent is not None
        assert replace(new, now=whole.now) == whole
        assert (new.spent, spent.spent) == (False, True)
        assert new.now <= whole.now <= store.now()
        assert store.load_new("tenant", identity=row.identity, spend_key=None) is None
        database.execute("UPDATE hitl_guard_control SET version = 1")
        overtaken = store.load_new("tenant", identity=b"n" * 32, spend_key=None)
        assert overtaken is not None
        assert overtaken.control_overtaken
        other = store.load_new("other", identity=b"n" * 32, spend_key=None)
        assert other is not None
        assert other.control is None
        assert not other.control_overtaken

    @pytest.mark.parametrize(
        "change", [str.swapcase, lambda id_: id_ + " ", lambda id_: id_ + "\0", lambda id_: id_ + "\ud800"]
    )
    def test_an_id_is_compared_byte_for_byte(self, store: SQLStore, change: Callable[[str], str]) -> None:
        row = added(store, id="abcdefghijklmnopqrstuv")

        assert store.load("tenant", request_id=change(row.id)).request is None
        assert store.load("tenant", request_id=row.id).request == row

    def test_tenants_that_look_alike_are_different_tenants(self, store: SQLStore) -> None:
        for number, tenant in enumerate(NEAR_TENANTS, start=1):
            assert set_control(store, 1, tenant) is not None
            for version in range(2, number + 1):
                assert set_control(store, version, tenant) is not None
        rows = {tenant: added(store, tenant=tenant) for tenant in NEAR_TENANTS}

        for number, tenant in enumerate(NEAR_TENANTS, start=1):
            found = store.load(tenant, request_id=rows[tenant].id)
            assert found.control == ControlRow(tenant, number, b"signed")
            assert found.request == rows[tenant]
            assert [row for _, row, _ in store.open_requests(tenant=tenant, limit=99)] == [rows[tenant]]
        for tenant, other in itertools.permutations(NEAR_TENANTS, 2):
            assert store.load(tenant, request_id=rows[other].id).request is None

    def test_a_text_that_is_no_unicode_is_found_by_nobody(self, store: SQLStore) -> None:
        row = added(store)

        assert store.load("\ud800", request_id=row.id).request is None

    def test_columns_that_a_forger_filled_with_nonsense_become_values_that_no_mac_fits(
        self, database: Database, store: SQLStore
    ) -> None:
        row, first = approved(store)
        database.execute("UPDATE hitl_guard_events SET tenant = :x, key_id = :x", {"x": b"\xff\xfe"})
        if database.kind == "sqlite":
            database.execute("UPDATE hitl_guard_events SET mac = 'text', seq = seq, at = 'yesterday', version = 1.5")

        loaded = store.load("tenant", request_id=row.id)

        assert loaded.request == row
        assert loaded.events != (first,)
        assert not genuine(loaded.events[0])
        assert store.chain_events(first.chain) != []


class TestAppending:
    def test_the_answer_tells_the_time_after_the_write(self, store: SQLStore) -> None:
        row = added(store)
        before = store.now()

        written = store.write([Append(event(row, 1))], seal)

        assert written is not None
        assert before <= written.now <= store.now()
        assert events_of(store, row) == written.events

    def test_a_first_event_needs_its_request(self, store: SQLStore) -> None:
        missing = request()

        assert store.write([Append(event(missing, 1))], seal) is None
        assert list(store.request_histories()) == []

    def test_an_event_of_no_request_needs_nothing(self, store: SQLStore) -> None:
        refusal = Draft("call:refused", "tenant", 5, b"{}")

        written = store.write([Append(refusal)], seal)

        assert written is not None
        assert store.chain_events(written.events[0].chain, after=0) == list(written.events)

    def test_a_version_is_taken_once(self, store: SQLStore) -> None:
        row, first = approved(store)

        assert store.write([Append(event(row, 1, "request:denied"))], seal) is None
        assert events_of(store, row) == (first,)

    def test_an_event_needs_the_mac_of_the_one_before(self, store: SQLStore) -> None:
        row, first = approved(store)

        assert store.write([Append(event(row, 2), previous_mac=bytes(32))], seal) is None
        assert store.write([Append(event(row, 3), previous_mac=first.mac)], seal) is None
        assert store.write([Append(event(row, 2))], seal) is None
        assert events_of(store, row) == (first,)

    def test_an_event_is_not_written_once_the_one_before_was_deleted(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        added(store)
        store.write([Append(Draft("call:refused", "tenant", 5, b"{}"))], seal)
        database.execute("DELETE FROM hitl_guard_events WHERE version = 1")

        assert store.write([claim(row, first)], seal) is None
        assert not store.load("tenant", spend_key=claim(row, first).draft.spend_key).spent

    def test_a_spend_key_is_spent_once(self, store: SQLStore) -> None:
        row, first = approved(store)
        other, second = approved(store)
        assert store.write([claim(row, first, spend_key=b"k" * 32)], seal) is not None

        assert store.write([claim(other, second, spend_key=b"k" * 32)], seal) is None
        assert events_of(store, other) == (second,)
        assert store.load("tenant", spend_key=b"k" * 32).spent
        assert not store.load("tenant", spend_key=b"l" * 32).spent

    def test_nothing_is_written_at_or_after_its_end(self, store: SQLStore) -> None:
        row, first = approved(store)

        assert store.write([claim(row, first, before=store.now())], seal) is None
        assert store.write([claim(row, first, before=0)], seal) is None
        assert store.write([claim(row, first, before=store.now() + HOUR)], seal) is not None

    def test_nothing_is_written_under_another_control_version(self, store: SQLStore) -> None:
        row, first = approved(store)
        assert store.write([claim(row, first, control=("tenant", 1))], seal) is None
        set_control(store, 1)
        set_control(store, 2)

        assert store.write([claim(row, first, control=("tenant", 1))], seal) is None
        assert store.write([claim(row, first, control=("other", 2))], seal) is None
        assert store.write([claim(row, first, control=("tenant", 2))], seal) is not None

    def test_nothing_is_written_under_another_version_of_the_row_of_all_tenants(self, store: SQLStore) -> None:
        row, first = approved(store)
        set_control(store, 1)
        assert store.write([claim(row, first, control=("tenant", 1), everywhere=1)], seal) is None
        set_control(store, 1, EVERYWHERE)
        set_control(store, 2, EVERYWHERE)

        assert store.write([claim(row, first, control=("tenant", 1), everywhere=1)], seal) is None
        assert store.write([claim(row, first, control=("tenant", 2), everywhere=2)], seal) is None
        found = store.load("tenant")
        assert found.everywhere == ControlRow(EVERYWHERE, 2, b"signed")
        assert (found.control, found.control_overtaken) == (ControlRow("tenant", 1, b"signed"), False)
        assert store.write([claim(row, first, control=("tenant", 1), everywhere=2)], seal) is not None

    def test_a_row_of_all_tenants_that_is_older_than_its_events_is_told(self, store: SQLStore) -> None:
        store.write(control(1, EVERYWHERE)[1:], seal)

        for found in (store.load("tenant"), store.load_new("tenant", identity=b"i" * 32, spend_key=None)):
            assert found is not None
            assert (found.everywhere, found.everywhere_overtaken, found.control_overtaken) == (None, True, False)

    @pytest.mark.parametrize(
        ("follows", "before", "controlled", "unlist"),
        list(itertools.product(["", "request", "event"], [False, True], [0, 1, 2], [False, True])),
    )
    def test_every_shape_of_a_step_is_written_alone_and_among_others(
        self, store: SQLStore, follows: str, before: bool, controlled: int, unlist: bool
    ) -> None:
        set_control(store, 1)
        set_control(store, 1, EVERYWHERE)
        demands: dict[str, Any] = {
            "before": store.now() + HOUR if before else None,
            "control": ("tenant", 1) if controlled else None, "everywhere": 1 if controlled == 2 else None,
            "unlist": unlist and follows != "",
        }

        def step() -> Append:
            if follows == "":
                return Append(Draft("call:refused", "tenant", 5, b"{}"), **demands)
            if follows == "request":
                return Append(event(added(store), 1), **demands)
            row, first = approved(store)
            return Append(event(row, 2), previous_mac=first.mac, **demands)

        alone = store.write([step()], seal)
        among = store.write([AddRequest(request(), RUN, 9), step()], seal)

        for written in (alone, among):
            assert written is not None
            assert written.events[0] in store.chain_events(written.events[0].chain)

    def test_a_seal_that_refuses_leaves_nothing_behind(self, store: SQLStore) -> None:
        row, first = approved(store)

        def refuse(draft: Draft, link: Link) -> EventRow:
            raise ConfigurationError("no key")

        with pytest.raises(ConfigurationError):
            store.write([claim(row, first)], refuse)
        with pytest.raises(ConfigurationError):
            store.write([AddRequest(request(), RUN, 9), claim(row, first)], refuse)

        assert store.write([claim(row, first)], seal) is not None
        assert len(list(store.request_histories())) == 1

    def test_an_interrupted_write_leaves_nothing_behind(self, store: SQLStore) -> None:
        row, first = approved(store)

        def interrupt(draft: Draft, link: Link) -> EventRow:
            raise KeyboardInterrupt

        alone: list[Step] = [claim(row, first)]
        among: list[Step] = [AddRequest(request(), RUN, 9), claim(row, first)]
        for steps in (alone, among):
            with pytest.raises(KeyboardInterrupt):
                store.write(steps, interrupt)

        assert store.write([claim(row, first)], seal) is not None
        assert len(list(store.request_histories())) == 1

    def test_a_number_that_no_database_holds_is_refused(self, store: SQLStore) -> None:
        row, first = approved(store)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([Append(event(row, 2, at=2**80), previous_mac=first.mac)], seal)

        assert caught.value.detail in ("refused", "lost")
        assert store.write([claim(row, first)], seal) is not None


class TestWholeWrites:
    def test_all_steps_are_written_in_order(self, store: SQLStore) -> None:
        row = request()
        last = Append(event(row, 2, "grant:claimed"), unlist=True)
        steps: list[Step] = [AddRequest(row, RUN, 9), Append(event(row, 1)), last]

        written = store.write(steps, seal)

        assert written is not None
        assert [item.type for item in written.events] == ["request:approved", "grant:claimed"]
        assert events_of(store, row) == written.events
        assert store.open_requests(tenant=None, limit=9) == []

    def test_an_event_follows_what_the_same_write_wrote_and_nothing_else(self, store: SQLStore) -> None:
        row, first = approved(store)
        new, other = request(), request()

        assert store.write([AddRequest(new, RUN, 9), Append(event(new, 1)), Append(event(row, 2))], seal) is None
        assert store.write([AddRequest(new, RUN, 9), Append(event(new, 2))], seal) is None
        assert store.write([AddRequest(other, RUN, 9), Append(event(other, 1)), Append(event(other, 3))], seal) is None
        assert events_of(store, row) == (first,)
        assert len(list(store.request_histories())) == 1

    def test_one_unmet_demand_undoes_every_step(self, store: SQLStore) -> None:
        row, first = approved(store)
        new = request()

        written = store.write([AddRequest(new, RUN, 9), claim(row, first), Append(event(row, 1))], seal)

        assert written is None
        assert store.load("tenant", request_id=new.id).request is None
        assert events_of(store, row) == (first,)
        assert store.write([claim(row, first)], seal) is not None

    def test_the_earliest_end_counts_for_the_whole_write(self, store: SQLStore) -> None:
        row, first = approved(store)
        other, second = approved(store)
        now = store.now()

        assert store.write([claim(row, first, before=now + HOUR), claim(other, second, before=now)], seal) is None
        assert store.write([claim(row, first, before=now + HOUR), claim(other, second)], seal) is not None

    def test_the_clock_is_compared_again_after_the_last_step(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, first = approved(store)
        limit = store.now() + HOUR
        monkeypatch.setattr(store._dialect, "clock", lambda raw: limit)

        assert store.write([claim(row, first, before=limit), SetControl(ControlRow("tenant", 1, b""))], seal) is None
        assert events_of(store, row) == (first,)

    @pytest.mark.parametrize("taken", ["id", "identity"])
    def test_a_request_is_added_once(self, store: SQLStore, taken: str) -> None:
        row = added(store)
        again = request(**{taken: getattr(row, taken)})

        assert store.write([AddRequest(again, RUN, 9)], seal) is None
        assert store.write([AddRequest(again, RUN, 9), Append(event(row, 1))], seal) is None
        assert [found for _, found, _ in store.open_requests(tenant=None, limit=9)] == [row]
        assert events_of(store, row) == ()


class TestControl:
    def test_a_control_row_is_replaced_version_by_version(self, store: SQLStore) -> None:
        assert set_control(store, 2) is None
        assert set_control(store, 1) is not None
        assert set_control(store, 1) is None
        assert set_control(store, 3) is None
        assert set_control(store, 2) is not None

        assert store.load("tenant").control == ControlRow("tenant", 2, b"signed")
        assert store.controls() == [ControlRow("tenant", 2, b"signed")]
        assert not store.load("tenant").control_overtaken

    def test_an_old_control_row_that_was_put_back_shows(self, database: Database, store: SQLStore) -> None:
        set_control(store, 1)
        set_control(store, 2)

        database.execute("UPDATE hitl_guard_control SET version = 1")
        assert store.load("tenant").control_overtaken

        database.execute("DELETE FROM hitl_guard_control")
        assert store.load("tenant").control_overtaken
        assert store.load("tenant").control is None
        assert not store.load("other").control_overtaken

    def test_the_rows_of_all_tenants_are_listed(self, store: SQLStore) -> None:
        for tenant in ("b", "a"):
            set_control(store, 1, tenant)

        assert sorted(row.tenant for row in store.controls()) == ["a", "b"]

    def test_a_control_row_alone_can_be_written(self, store: SQLStore) -> None:
        written = store.write([SetControl(ControlRow("tenant", 1, b"body"))], seal)

        assert written is not None
        assert written.events == ()
        assert store.load("tenant").control == ControlRow("tenant", 1, b"body")


class TestChains:
    def test_a_writers_first_event_opens_its_chain(self, store: SQLStore) -> None:
        row, _ = approved(store)
        store.write([Append(event(row, 1))], seal)
        set_control(store, 1)

        (chain,) = store.chains()
        found = store.chain_events(chain)
        assert [item.type for item in found] == ["chain:opened", "request:approved", "control:changed"]
        assert [item.seq for item in found] == [0, 1, 2]
        assert [item.previous for item in found] == [bytes(32), found[0].mac, found[1].mac]
        assert all(genuine(item) for item in found)
        assert anchored_heads(found[0]) == []

    def test_a_chain_is_read_page_by_page(self, store: SQLStore) -> None:
        for _ in range(4):
            store.write([Append(Draft("call:refused", "tenant", 5, b"{}"))], seal)
        (chain,) = store.chains()

        whole = store.chain_events(chain)

        assert len(whole) == 5
        assert store.chain_events(chain, limit=2) == whole[:2]
        assert store.chain_events(chain, after=2, limit=2) == whole[3:5]
        assert store.chain_events("unknown") == []

    def test_an_anchor_records_where_the_other_chains_moved(
        self, database: Database, open_store: Callable[..., SQLStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(anchors, "ANCHOR_EVERY", 4)
        first, second = open_store(database), open_store(database)
        refusal = Append(Draft("call:refused", "tenant", first.now(), b"{}"))
        written = first.write([refusal], seal)
        assert written is not None
        head = written.events[0]

        second.write([refusal], seal)
        (own,) = set(first.chains()) - {head.chain}
        assert anchored_heads(second.chain_events(own)[0]) == [(head.chain, head.seq, head.mac)]

        for _ in range(4):
            second.write([refusal], seal)
        found = second.chain_events(own)
        types = ["chain:opened", *["call:refused"] * 4, "chain:anchored", "call:refused"]
        assert [item.type for item in found] == types
        assert anchored_heads(found[5]) == []

        written = first.write([refusal], seal)
        assert written is not None
        moved = written.events[0]
        for _ in range(4):
            second.write([refusal], seal)
        assert anchored_heads(second.chain_events(own)[10]) == [(moved.chain, moved.seq, moved.mac)]

    def test_a_chain_that_fell_silent_is_looked_at_no_more_until_it_writes_again(
        self, database: Database, open_store: Callable[..., SQLStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(anchors, "ANCHOR_EVERY", 2)
        first, second = open_store(database), open_store(database)
        refusal = Append(Draft("call:refused", "tenant", first.now(), b"{}"))
        first.write([Append(Draft("call:refused", "tenant", 5, b"{}"))], seal)
        (silent,) = first.chains()
        listed = "SELECT count(*) FROM hitl_guard_chains WHERE chain = :chain"

        for _ in range(5):
            second.write([refusal], seal)
        assert database.execute(listed, {"chain": silent.encode()})[0][0] == 0

        first.write([refusal], seal)
        assert [item.type for item in first.chain_events(silent)][2:] == ["chain:anchored", "call:refused"]
        assert database.execute(listed, {"chain": silent.encode()})[0][0] == 1


class TestLists:
    def test_open_requests_come_most_urgent_first_and_page_by_page(self, store: SQLStore) -> None:
        rows = [added(store, until=until) for until in (30, 10, 20, 20)]
        rows[2:] = sorted(rows[2:], key=lambda row: row.id.encode())
        urgent = [rows[1], rows[2], rows[3], rows[0]]

        assert [row for _, row, _ in store.open_requests(tenant=None, limit=9)] == urgent
        assert [row for _, row, _ in store.open_requests(tenant=None, limit=2)] == urgent[:2]
        after = store.open_requests(tenant=None, limit=9, after=(20, urgent[1].id))
        assert [row for _, row, _ in after] == urgent[2:]

    def test_open_requests_are_found_by_tenant_and_by_run(self, store: SQLStore) -> None:
        mine = added(store, until=1)
        other_run = added(store, until=2, run=b"s" * 32)
        foreign = added(store, tenant="other", until=3)

        def found(**which: object) -> list[str]:
            return [row.id for _, row, _ in store.open_requests(limit=9, **which)]  # type: ignore[arg-type]

        assert found(tenant=None) == [mine.id, other_run.id, foreign.id]
        assert found(tenant="tenant") == [mine.id, other_run.id]
        assert found(tenant="tenant", run=RUN) == [mine.id]
        assert found(tenant=None, run=RUN) == [mine.id, foreign.id]
        assert found(tenant="nobody") == []

    def test_a_request_leaves_the_list_with_the_event_that_says_so(self, store: SQLStore) -> None:
        row, first = approved(store, until=5)
        assert store.open_requests(tenant="tenant", limit=9) == [(5, row, (first,))]

        assert store.write([claim(row, first, spend_key=None)], seal) is not None

        assert store.open_requests(tenant="tenant", limit=9) == []

    def test_a_refused_event_leaves_the_list_as_it_is(self, store: SQLStore) -> None:
        row, first = approved(store, until=5)

        assert store.write([claim(row, first, before=0)], seal) is None

        assert store.open_requests(tenant="tenant", limit=9) == [(5, row, (first,))]

    def test_a_list_takes_two_queries_however_long_it_is(self, store: SQLStore) -> None:
        for _ in range(12):
            approved(store)
        store.open_requests(tenant=None, limit=1)
        queries: list[str] = []

        def count(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
            queries.append(statement)

        listening.listen(Engine, "before_cursor_execute", count)
        try:
            found = store.open_requests(tenant="tenant", limit=12)
        finally:
            listening.remove(Engine, "before_cursor_execute", count)

        assert len(found) == 12
        assert all(len(events) == 1 for _, _, events in found)
        assert len(queries) == 2

    def test_histories_hold_everything_that_has_a_request_id(self, database: Database, store: SQLStore) -> None:
        set_control(store, 1)
        pairs = [approved(store) for _ in range(5)]
        bare = added(store)
        orphan, lonely = approved(store)
        database.execute("DELETE FROM hitl_guard_requests WHERE id = :id", {"id": orphan.id.encode()})

        whole = list(store.request_histories())

        assert list(store.request_histories(limit=2)) == whole
        assert [id_ for _, id_, _ in whole] == sorted(id_ for _, id_, _ in whole)
        found = {id_: (row, events) for row, id_, events in whole}
        assert found.pop(control_record("tenant"))[0] is None
        assert found.pop(orphan.id) == (None, (lonely,))
        assert found.pop(bare.id) == (bare, ())
        assert found == {row.id: (row, (first,)) for row, first in pairs}
        assert list(store.request_histories(after=whole[3][1])) == whole[4:]


class TestSetUp:
    @pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
    def test_a_database_without_the_schema_says_what_to_run(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        store = open_store(make_database(kind, empty=True))
        uses: list[Callable[[], object]] = [
            store.check, lambda: store.load("tenant"), store.controls, lambda: store.write(control(1), seal),
            lambda: store.write([AddRequest(request(), RUN, 9)], seal),
        ]

        for use in uses:
            with pytest.raises(ConfigurationError, match="db upgrade") as caught:
                use()
            assert caught.value.detail == "schema"

    def test_a_store_can_be_used_again_after_it_was_closed(self, store: SQLStore) -> None:
        row, first = approved(store)

        store.close()
        store.close()

        assert store.write([claim(row, first)], seal) is not None

    def test_a_connection_in_use_is_closed_when_it_comes_back_to_a_closed_store(self, store: SQLStore) -> None:
        row, first = approved(store)

        def close(draft: Draft, link: Link) -> EventRow:
            store.close()
            return seal(draft, link)

        assert store.write([claim(row, first)], close) is not None
        assert store._connections.writers._idle == []

    @pytest.mark.parametrize(
        "url",
        [
            "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true", "sqlite:///x.db?cache=shared",
            "mysql://root@127.0.0.1", "mariadb://user:hunter2@host", "oracle://user:hunter2@host/x",
            "postgresql+psycopg2://user:hunter2@host/x", "hunter2", "", "://user:hunter2@",
            "postgresql://u:hunter2@h:port/x",
        ],
    )
    def test_a_url_that_cannot_serve_is_refused_without_repeating_it(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            SQLStore(url)

        assert caught.value.detail == "url"
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None

    @pytest.mark.parametrize(
        "url", [f"{kind}://user:hunter2@host/x" for kind in ("postgresql", "postgres", "mysql", "mariadb")]
    )
    def test_a_store_never_shows_its_password(self, url: str) -> None:
        store = SQLStore(url)

        assert "hunter2" not in repr(store)

    @pytest.mark.parametrize("limits", [{"pool_size": 0}, {"timeout_ms": 0}])
    def test_a_limit_of_nothing_is_refused(self, limits: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError) as caught:
            SQLStore("sqlite:///x.db", **limits)

        assert caught.value.detail == "limits"

    def test_a_missing_driver_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "hitl_guard.store.dialects.mariadb", None)

        with pytest.raises(ConfigurationError, match=r"hitl-guard\[mariadb\]") as caught:
            SQLStore("mariadb://host/x")

        assert caught.value.detail == "driver"

    def test_the_contract_loads_no_database_library(self) -> None:
        code = (
            "import sys, hitl_guard.store.base; assert 'sqlalchemy' not in sys.modules; "
            "from hitl_guard.store import SQLStore; SQLStore('sqlite:///x.db'); "
            "assert not {'alembic', 'psycopg', 'pymysql'} & set(sys.modules)"
        )

        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_the_store_package_has_no_other_names(self) -> None:
        import hitl_guard.store as package

        with pytest.raises(AttributeError):
            package.MemoryStore  # noqa: B018


def test_every_shape_has_a_statement_of_its_own() -> None:
    words = hot.Words(clock="clock()", share=" FOR SHARE", skip=" ON CONFLICT DO NOTHING")
    flags = itertools.product([False, True], repeat=3)
    shapes = [hot.Shape(follows, *flag) for follows, flag in itertools.product(["", "request", "event"], list(flags))]

    assert len({hot.append(words, shape) for shape in shapes}) == len(shapes)
