"""What the store does when the database fails: at connect, read, write and commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hitl_guard.audit import anchored_heads
from hitl_guard.errors import StoreUnavailableError, UnavailableError
from hitl_guard.rows import ControlRow, Draft
from hitl_guard.store.base import AddRequest, Append, SetControl, Step
from hitl_guard.store.sql import SQLStore
from tests.contract.build import (
    HOUR,
    REFUSAL,
    RUN,
    added,
    approved,
    claim,
    control,
    event,
    events_of,
    request,
    seal,
)
from tests.databases import Database


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


class TestLostReplies:
    def test_at61_a_commit_that_was_applied_is_found_again(self, store: SQLStore, plan: dict[str, Any]) -> None:
        row, first = approved(store)
        plan.update(broken=True, applied=True)

        written = store.write([claim(row, first, before=store.now() + HOUR)], seal)

        assert written is not None
        assert events_of(store, row) == (first, *written.events)
        assert store.write([claim(row, first)], seal) is None

    def test_at61_a_commit_that_was_not_applied_is_unknown_and_can_be_tried_again(
        self, store: SQLStore, plan: dict[str, Any]
    ) -> None:
        row, first = approved(store)
        plan.update(broken=True, applied=False)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([claim(row, first, before=store.now() + HOUR)], seal)

        assert caught.value.detail == "commit-unknown"
        assert events_of(store, row) == (first,)
        assert store.write([claim(row, first)], seal) is not None

    def test_at61_a_commit_that_is_known_of_too_late_is_not_granted(
        self, store: SQLStore, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, first = approved(store)
        limit = store.now() + HOUR

        def later() -> None:
            monkeypatch.setattr(store._dialect, "clock", lambda _: limit)

        plan.update(broken=True, applied=True, then=later)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([claim(row, first, before=limit)], seal)

        assert caught.value.detail == "commit-unknown"
        assert len(events_of(store, row)) == 2

    def test_at61_a_commit_that_nobody_can_look_for_is_unknown(
        self, store: SQLStore, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, first = approved(store)

        def unreachable(raw: Any, *_rest: Any) -> Any:
            raise store._dialect.error[0]("unreachable")

        def cut() -> None:
            monkeypatch.setattr(store._dialect, "run", unreachable)

        plan.update(broken=True, applied=True, then=cut)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([claim(row, first)], seal)

        assert caught.value.detail == "commit-unknown"

    @pytest.mark.parametrize("applied", [False, True])
    @pytest.mark.parametrize(
        "steps",
        [
            lambda: [AddRequest(request(id="r" * 22), RUN, 9)],
            lambda: [SetControl(ControlRow("tenant", 1, b"body"))],
            lambda: control(1),
            lambda: [Append(Draft("call:refused", "tenant", 5, b"{}")), AddRequest(request(id="r" * 22), RUN, 9)],
        ],
        ids=["request", "control", "control and event", "event and request"],
    )
    def test_any_write_is_looked_for(
        self, store: SQLStore, plan: dict[str, Any], steps: Callable[[], list[Step]], applied: bool
    ) -> None:
        approved(store)
        plan.update(broken=True, applied=applied)

        if applied:
            assert store.write(steps(), seal) is not None
            assert store.write(steps(), seal) is None
        else:
            with pytest.raises(StoreUnavailableError) as caught:
                store.write(steps(), seal)
            assert caught.value.detail == "commit-unknown"
            assert store.write(steps(), seal) is not None

    def test_another_writers_success_is_not_taken_for_ones_own(
        self, database: Database, store: SQLStore, open_store: Callable[..., SQLStore], plan: dict[str, Any]
    ) -> None:
        other = open_store(database)

        def meanwhile() -> None:
            assert other.write([SetControl(ControlRow("tenant", 1, b"theirs"))], seal) is not None

        plan.update(broken=True, applied=False, then=meanwhile)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([SetControl(ControlRow("tenant", 1, b"ours"))], seal)

        assert caught.value.detail == "commit-unknown"
        assert store.controls() == [ControlRow("tenant", 1, b"theirs")]

    @pytest.mark.parametrize("applied", [False, True])
    def test_a_chain_that_could_not_be_opened_for_certain_writes_nothing_else(
        self, store: SQLStore, plan: dict[str, Any], applied: bool
    ) -> None:
        row = added(store)
        plan.update(broken=True, applied=applied)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([Append(event(row, 1))], seal)

        assert caught.value.detail in ("lost", "refused")
        assert events_of(store, row) == ()
        assert store.write([Append(event(row, 1))], seal) is not None
        assert len(store.chains()) == (2 if applied else 1)

    def test_a_connection_whose_commit_failed_is_not_used_again(self, store: SQLStore, plan: dict[str, Any]) -> None:
        row, first = approved(store)
        plan.update(broken=True, applied=True)
        written = store.write([claim(row, first)], seal)
        assert written is not None

        after = store.write([REFUSAL], seal)

        assert after is not None
        assert after.events[0].chain != first.chain
        opened = store.chain_events(after.events[0].chain)[0]
        assert anchored_heads(opened) == [(first.chain, written.events[0].seq, written.events[0].mac)]


class TestFailures:
    @pytest.mark.parametrize(
        "url", ["postgresql://nobody:hunter2@127.0.0.1:1/x", "mariadb://nobody:hunter2@127.0.0.1:1/x"]
    )
    def test_at60_a_server_that_is_down_refuses_every_use(self, url: str) -> None:
        store = SQLStore(url)

        for use in (store.now, store.check, store.setup, lambda: store.write(control(1), seal)):
            with pytest.raises(StoreUnavailableError) as caught:
                use()
            assert "hunter2" not in str(caught.value)

    def test_at60_a_file_that_is_no_database_refuses_every_use(self, tmp_path: Path) -> None:
        path = tmp_path / "approvals.db"
        path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
        store = SQLStore(f"sqlite:///{path}")

        for use in (store.now, store.check, store.setup, lambda: store.write(control(1), seal)):
            with pytest.raises(StoreUnavailableError):
                use()

    @pytest.mark.parametrize("where", ["run", "change", "begin"])
    def test_at60_a_write_that_fails_changes_nothing(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        row, first = approved(store)

        def fail(*_: Any) -> Any:
            raise store._dialect.error[0](1234, "disk on fire")

        with monkeypatch.context() as patch:
            patch.setattr(store._dialect, where, fail)
            with pytest.raises(UnavailableError) as caught:
                store.write([claim(row, first), SetControl(ControlRow("tenant", 1, b"body"))], seal)

        assert caught.value.code == "store-unavailable"
        assert "82" not in str(caught.value)
        assert events_of(store, row) == (first,)
        assert store.write([claim(row, first)], seal) is not None

    def test_at60_a_read_that_fails_says_so(self, store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> Any:
            raise store._dialect.error[0](1234, "disk on fire")

        def interrupt(*_: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(store._dialect, "run", fail)
        with pytest.raises(StoreUnavailableError):
            store.load("tenant")
        monkeypatch.setattr(store._dialect, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.load("tenant")
        monkeypatch.undo()

        assert store.load("tenant").request is None

    def test_a_rollback_that_fails_costs_the_connection(self, store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
        row, first = approved(store)

        def fail(*_: Any) -> Any:
            raise store._dialect.error[0](1234, "disk on fire")

        with monkeypatch.context() as patch:
            patch.setattr(store._dialect, "run", fail)
            patch.setattr(store._dialect, "change", fail)
            patch.setattr(store._dialect, "rollback", fail)
            with pytest.raises(StoreUnavailableError):
                store.write([claim(row, first), SetControl(ControlRow("tenant", 1, b"body"))], seal)

        written = store.write([claim(row, first)], seal)
        assert written is not None
        assert written.events[0].chain != first.chain

    def test_a_head_that_cannot_be_looked_for_is_no_answer(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, first = approved(store)
        run = store._dialect.run

        def fail(raw: Any, sql: str, parameters: Any) -> Any:
            if "h.seq" in sql and not sql.startswith(("INSERT", "WITH")):
                raise store._dialect.error[0](1234, "disk on fire")
            return run(raw, sql, parameters)

        monkeypatch.setattr(store._dialect, "run", fail)

        with pytest.raises(StoreUnavailableError):
            store.write([claim(row, first, before=0)], seal)

    def test_a_lock_that_is_not_released_ends_the_wait(
        self, database: Database, open_store: Callable[..., SQLStore]
    ) -> None:
        store = open_store(database, timeout_ms=1000)
        row, first = approved(store)
        with database.connect() as blocker:
            blocker.begin()
            blocker.exec_driver_sql("UPDATE hitl_guard_control SET version = version")
            if database.kind != "sqlite":
                blocker.exec_driver_sql(
                    "INSERT INTO hitl_guard_events (chain, seq, request_id, version, type, tenant, at, body, previous, "
                    "epoch, key_id, mac) SELECT 'x', 0, request_id, 2, type, tenant, at, body, previous, epoch, "
                    "key_id, mac FROM hitl_guard_events WHERE version = 1"
                )

            alone: list[Step] = [claim(row, first)]
            among: list[Step] = [claim(row, first), REFUSAL]
            for steps in (alone, among):
                with pytest.raises(StoreUnavailableError) as caught:
                    store.write(steps, seal)
                assert caught.value.detail == "timeout"
            blocker.rollback()

        patient = open_store(database)
        assert patient.write([claim(row, first)], seal) is not None

    def test_a_caller_waits_for_a_connection_but_not_for_ever(
        self, database: Database, open_store: Callable[..., SQLStore]
    ) -> None:
        store = open_store(database, pool_size=1, timeout_ms=20)
        row, first = approved(open_store(database))
        store.write([REFUSAL], seal)
        inside, done = threading.Event(), threading.Event()

        def hold(draft: Any, link: Any) -> Any:
            inside.set()
            assert done.wait(60)
            return seal(draft, link)

        holder = threading.Thread(target=store.write, args=([Append(Draft("call:refused", "t", 5, b"{}"))], hold))
        holder.start()
        assert inside.wait(60)
        try:
            with pytest.raises(StoreUnavailableError) as caught:
                store.write([claim(row, first)], seal)
            assert caught.value.detail == "timeout"
        finally:
            done.set()
            holder.join()

    def test_lists_wait_for_a_connection_but_not_for_ever(
        self, database: Database, open_store: Callable[..., SQLStore]
    ) -> None:
        store = open_store(database, timeout_ms=20)
        held = [store._connections._cold.connect() for _ in range(2)]
        try:
            with pytest.raises(StoreUnavailableError) as caught:
                store.controls()
            assert caught.value.detail == "timeout"
        finally:
            for connection in held:
                connection.close()

    def test_a_statement_that_the_database_refuses_says_so(self, store: SQLStore, database: Database) -> None:
        database.reusable = False
        database.execute("ALTER TABLE hitl_guard_control RENAME COLUMN body TO no_body")

        with pytest.raises(StoreUnavailableError) as caught:
            store.controls()
        assert caught.value.detail == "refused"
        with pytest.raises(StoreUnavailableError):
            store.load("tenant")
