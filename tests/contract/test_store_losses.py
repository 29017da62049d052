"""What the store does when it loses connections, events or its file, and in a forked child."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from hitl_guard.audit import anchored_heads
from hitl_guard.errors import StoreRolledBackError, StoreUnavailableError
from hitl_guard.store import anchors
from hitl_guard.store.base import AddRequest
from hitl_guard.store.sql import SQLStore
from tests.contract.build import (
    REFUSAL,
    RUN,
    approved,
    claim,
    events_of,
    request,
    seal,
)
from tests.databases import Database


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


def _kill(database: Database) -> None:
    """End every session of the store's on the server."""
    if database.kind == "postgresql":
        database.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    else:
        sessions = database.execute(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )
        for (session,) in sessions:
            database.execute(f"KILL {session}")


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
class TestLostConnections:
    def test_a_restarted_server_costs_one_failure(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database(kind)
        store = open_store(database)
        row, first = approved(store)
        store.load("tenant")
        store.controls()
        _kill(database)

        with pytest.raises(StoreUnavailableError):
            store.load("tenant")

        assert store.load("tenant", request_id=row.id).events == (first,)
        assert store.controls() == []
        written = store.write([claim(row, first)], seal)
        assert written is not None
        opened = store.chain_events(written.events[0].chain)[0]
        assert anchored_heads(opened) == [(first.chain, first.seq, first.mac)]

    def test_one_broken_connection_condemns_all_of_its_age(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database(kind)
        store = open_store(database)
        both = threading.Barrier(2)

        def meet(draft: Any, link: Any) -> Any:
            if draft.type != "chain:opened":
                both.wait(60)
            return seal(draft, link)

        threads = [threading.Thread(target=store.write, args=([REFUSAL], meet)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.chains()) == 2
        _kill(database)

        with pytest.raises(StoreUnavailableError):
            store.write([REFUSAL], seal)

        assert store.write([REFUSAL], seal) is not None
        assert len(store.chains()) == 3

    def test_a_chain_that_was_left_must_still_be_there_when_the_next_is_opened(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database(kind)
        store = open_store(database)
        row, first = approved(store)
        _kill(database)
        database.execute("DELETE FROM hitl_guard_events WHERE version = 1")
        with pytest.raises(StoreUnavailableError):
            store.write([REFUSAL], seal)

        with pytest.raises(StoreRolledBackError):
            store.write([REFUSAL], seal)

        assert store.chains() == [first.chain]
        assert events_of(store, row) == ()


class TestLosses:
    def test_a_write_is_refused_once_the_chains_head_was_deleted(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        store.write([REFUSAL], seal)
        database.execute("DELETE FROM hitl_guard_events WHERE seq = 2")

        with pytest.raises(StoreRolledBackError) as caught:
            store.write([claim(row, first)], seal)

        assert (caught.value.code, caught.value.detail) == ("store-rolled-back", "chain")
        assert events_of(store, row) == (first,)

    def test_a_loss_is_final_for_this_process(self, database: Database, store: SQLStore) -> None:
        approved(store)
        database.execute("DELETE FROM hitl_guard_events WHERE seq = 1")
        for _ in range(2):
            with pytest.raises(StoreRolledBackError):
                store.write([REFUSAL], seal)

        with pytest.raises(StoreRolledBackError):
            store.write([AddRequest(request(), RUN, 9)], seal)

    def test_a_forged_event_in_the_writers_next_place_is_noticed(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        database.execute(
            "INSERT INTO hitl_guard_events (chain, seq, type, tenant, at, body, previous, epoch, key_id, mac) "
            "SELECT chain, 2, type, tenant, at, body, previous, epoch, key_id, mac FROM hitl_guard_events WHERE seq = 1"
        )

        with pytest.raises(StoreRolledBackError):
            store.write([claim(row, first)], seal)

    def test_an_edited_head_is_noticed(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        database.execute("UPDATE hitl_guard_events SET mac = :mac WHERE seq = 1", {"mac": bytes(32)})

        with pytest.raises(StoreRolledBackError):
            store.write([claim(row, first), REFUSAL], seal)

    def test_a_loss_is_noticed_when_the_chain_is_anchored(
        self, database: Database, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(anchors, "ANCHOR_EVERY", 1)
        store.write([REFUSAL], seal)
        database.execute("DELETE FROM hitl_guard_events WHERE seq = 1")

        with pytest.raises(StoreRolledBackError):
            store.write([REFUSAL], seal)

    @pytest.mark.parametrize("loss", ["renamed over", "deleted", "copied back"])
    def test_a_sqlite_file_that_is_not_the_one_that_was_opened_is_noticed(
        self, loss: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database("sqlite")
        store = open_store(database)
        row, first = approved(store)
        path = Path(str(make_url(database.url).database))
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        if loss == "renamed over":
            copy.rename(path)
        else:
            path.unlink()
            if loss == "copied back":
                path.write_bytes(copy.read_bytes())

        uses: list[Callable[[], object]] = [
            lambda: store.write([claim(row, first)], seal), lambda: store.load("tenant"), store.controls,
        ]
        for use in uses:
            with pytest.raises(StoreRolledBackError) as caught:
                use()
            assert caught.value.detail in ("file", "chain")

    def test_a_sqlite_file_that_is_replaced_during_the_commit_is_noticed(
        self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        database = make_database("sqlite")
        store = open_store(database)
        row, first = approved(store)
        path = Path(str(make_url(database.url).database))
        commit = store._dialect.commit

        def replaced(raw: Any) -> None:
            commit(raw)
            path.rename(path.with_suffix(".old"))

        monkeypatch.setattr(store._dialect, "commit", replaced)

        with pytest.raises(StoreRolledBackError):
            store.write([claim(row, first)], seal)

class TestForks:
    def test_a_forked_child_has_connections_and_a_chain_of_its_own(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        store.controls()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
            child = os.fork()
        if child == 0:
            status = 1
            try:
                written = store.write([claim(row, first)], seal)
                again = store.write([REFUSAL], seal)
                fine = (
                    written is not None and again is not None and written.events[0].chain != first.chain
                    and again.events[0].chain == written.events[0].chain and store.controls() == []
                )
                status = 0 if fine else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert store.write([claim(row, first)], seal) is None
        written = store.write([REFUSAL], seal)
        assert written is not None
        assert written.events[0].chain == first.chain
        assert len(store.chains()) == 2
