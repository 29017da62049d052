"""Making and changing the schema."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import make_url

from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.store import hot, migrations, schema
from hitl_guard.store.base import AddSegment, PutRun
from hitl_guard.store.dialects import mariadb
from hitl_guard.store.sql import SQLStore
from tests.contract.build import (
    added,
    approved,
    claim,
    digest,
    events_of,
    in_processes,
    run_node,
    run_row,
    seal,
    segment,
    set_control,
)
from tests.databases import KINDS, Database

VERSION = f"SELECT version_num FROM {schema.VERSION_TABLE}"


@pytest.fixture(params=KINDS)
def empty(request: pytest.FixtureRequest, make_database: Callable[..., Database]) -> Database:
    return make_database(request.param, empty=True)


def _set_up(url: str) -> str:
    store = SQLStore(url)
    try:
        store.setup()
        store.check()
    except ConfigurationError as error:
        return repr(error)
    finally:
        store.close()
    return "fine"


def _set_up_as_of(database: Database, revision: str) -> None:
    """Make the schema that a version of the code made whose last revision was this one."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with database.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()


def _older(store: SQLStore) -> SQLStore:
    """Let the store list requests as the versions did that knew neither requester nor approvers."""
    steps, dialect = store._writer._steps, store._dialect
    insert = f"INSERT INTO {schema.open_requests.name} (listed_until, request_id, tenant, run)"
    steps._open = dialect.statement(f"{insert} VALUES (:listed_until, :id, :tenant_digest, :run)")
    steps._open_answering = f"{steps._open} RETURNING {dialect.answer}"
    steps._whole_request = dialect.statement(
        f"WITH added AS ({hot.add_request(dialect.words)} RETURNING id) {insert} "
        f"SELECT :listed_until, id, :tenant_digest, :run FROM added RETURNING {dialect.answer}"
    )
    return store


def _differences(database: Database) -> list[object]:
    """Return where the tables are not those of this version."""
    with database.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        return list(compare_metadata(context, schema.metadata))


def test_the_migrations_make_exactly_the_schema(empty: Database, open_store: Callable[..., SQLStore]) -> None:
    open_store(empty).setup()

    assert _differences(empty) == []


def test_the_revisions_are_those_of_the_migrations() -> None:
    folder = Path(migrations.__file__).parent / "versions"

    assert [path.name[:4] for path in sorted(folder.glob("*.py"))] == list(schema.REVISIONS)


@pytest.mark.parametrize("revision", schema.REVISIONS[:-1])
def test_a_database_of_every_earlier_version_is_upgraded_without_loss(
    empty: Database, open_store: Callable[..., SQLStore], revision: str
) -> None:
    _set_up_as_of(empty, revision)
    assert empty.execute(VERSION) == [(revision,)]
    store = open_store(empty)
    with pytest.raises(ConfigurationError, match="db upgrade") as caught:
        store.check()
    assert caught.value.detail == "schema-older"
    older = _older(open_store(empty))
    set_control(older, 1)
    row, first = approved(older, until=1)
    pending = added(older, until=2)
    chains = {chain: store.chain_events(chain) for chain in store.chains()}
    histories, controls = list(store.request_histories()), store.controls()

    store.setup()

    store.check()
    assert _differences(empty) == []
    assert empty.execute(VERSION) == [(schema.REVISIONS[-1],)]
    assert {chain: store.chain_events(chain) for chain in store.chains()} == chains
    assert (list(store.request_histories()), store.controls()) == (histories, controls)
    assert [found for _, found, _ in store.open_requests(tenant=None, limit=9)] == [row, pending]
    written = store.write([claim(row, first), PutRun(run_row(), (run_node(),)), AddSegment(segment(0))], seal)
    assert written is not None
    assert events_of(store, row) == (first, *written.events)
    assert [found for _, found, _ in store.open_requests(tenant=None, limit=9)] == [pending]
    assert [found for _, found, _ in store.ended_requests(tenant="tenant", limit=9)] == [row]
    assert store.list_runs(digest("owner")) == (1, [(run_node(), run_row())])
    assert store.segments(digest("thread")) == [segment(0)]


@pytest.mark.parametrize(
    "revision", [*(pytest.param(one, marks=pytest.mark.slow) for one in schema.REVISIONS[:-2]), schema.REVISIONS[-2]]
)
def test_eight_processes_may_upgrade_at_once(empty: Database, revision: str) -> None:
    _set_up_as_of(empty, revision)

    assert in_processes(_set_up, [empty.url] * 8) == ["fine"] * 8
    assert _differences(empty) == []


def test_an_interrupted_upgrade_is_taken_up_again(empty: Database, open_store: Callable[..., SQLStore]) -> None:
    store = open_store(empty)
    store.setup()
    row, first = approved(store)
    empty.execute("DROP TABLE hitl_guard_segments")
    index = "DROP INDEX hitl_guard_run_nodes_owner"
    empty.execute(index + (" ON hitl_guard_run_nodes" if empty.kind == "mariadb" else ""))
    empty.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0001'")

    store.setup()

    store.check()
    assert _differences(empty) == []
    assert events_of(store, row) == (first,)


def test_a_store_that_was_open_during_the_upgrade_goes_on(empty: Database, open_store: Callable[..., SQLStore]) -> None:
    _set_up_as_of(empty, "0001")
    running = _older(open_store(empty))
    row, first = approved(running)

    open_store(empty).setup()

    written = running.write([claim(row, first)], seal)
    assert written is not None
    assert written.events[0].chain == first.chain
    assert running.load_run(digest("run"))[1] is None


def test_setting_up_again_changes_nothing(empty: Database, open_store: Callable[..., SQLStore]) -> None:
    store = open_store(empty)
    store.setup()
    row = added(store)

    store.setup()

    store.check()
    assert store.load("tenant", request_id=row.id).request == row
    assert empty.execute(VERSION) == [(schema.REVISIONS[-1],)]


def test_eight_processes_may_set_up_at_once(empty: Database) -> None:
    answers = in_processes(_set_up, [empty.url] * 8)

    assert answers == ["fine"] * 8
    assert empty.execute(VERSION) == [(schema.REVISIONS[-1],)]


def test_tables_of_the_application_are_left_alone(empty: Database, open_store: Callable[..., SQLStore]) -> None:
    empty.execute("CREATE TABLE events (id INTEGER)")
    empty.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
    empty.execute("INSERT INTO alembic_version VALUES ('theirs')")

    open_store(empty).setup()

    assert empty.execute("SELECT * FROM alembic_version") == [("theirs",)]
    assert empty.execute("SELECT * FROM events") == []


def test_an_interrupted_set_up_is_taken_up_again(empty: Database, open_store: Callable[..., SQLStore]) -> None:
    store = open_store(empty)
    store.setup()
    empty.execute("DROP TABLE hitl_guard_chains")
    empty.execute("DROP INDEX hitl_guard_events_spend" + (" ON hitl_guard_events" if empty.kind == "mariadb" else ""))
    empty.execute(f"DELETE FROM {schema.VERSION_TABLE}")
    with pytest.raises(ConfigurationError) as caught:
        store.check()
    assert caught.value.detail == "schema-older"

    store.setup()

    store.check()
    assert _differences(empty) == []


@pytest.mark.parametrize("versions", [["9999"], ["0001", "9999"]])
def test_a_database_of_a_newer_version_is_refused(
    empty: Database, open_store: Callable[..., SQLStore], versions: list[str]
) -> None:
    store = open_store(empty)
    store.setup()
    empty.execute(f"DELETE FROM {schema.VERSION_TABLE}")
    for version in versions:
        empty.execute(f"INSERT INTO {schema.VERSION_TABLE} VALUES (:version)", {"version": version})

    for use in (store.check, store.setup):
        with pytest.raises(ConfigurationError, match="older than the database") as caught:
            use()
        assert caught.value.detail == "schema-newer"
    assert empty.execute(VERSION) == [(version,) for version in versions]


def test_a_database_of_an_older_version_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "REVISIONS", ("7001", "7002"))

    with pytest.raises(ConfigurationError, match="db upgrade") as caught:
        schema.demand(["7001"])
    assert caught.value.detail == "schema-older"
    with pytest.raises(ConfigurationError, match="db upgrade"):
        schema.demand([])
    schema.demand(["7002"])


def test_an_older_database_is_migrated(
    empty: Database, open_store: Callable[..., SQLStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(empty)
    store.setup()
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "7000"))

    store.setup()  # there is no 7000 to run, but what is known to be older is not refused

    with pytest.raises(ConfigurationError) as caught:
        store.check()
    assert caught.value.detail == "schema-older"


def test_a_migration_that_never_ends_is_not_waited_for(
    make_database: Callable[..., Database], open_store: Callable[..., SQLStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = make_database("mariadb", empty=True)
    monkeypatch.setattr(mariadb, "MIGRATION_WAIT_S", 0)
    with database.connect() as other:
        other.exec_driver_sql("SELECT GET_LOCK(CONCAT('hitl_guard_', MD5(DATABASE())), 0)")

        with pytest.raises(StoreUnavailableError) as caught:
            open_store(database).setup()

    assert caught.value.detail == "timeout"


def test_a_new_sqlite_file_is_its_owners_alone(make_database: Callable[..., Database]) -> None:
    database = make_database("sqlite", empty=True)
    path = Path(str(make_url(database.url).database))

    _set_up(database.url)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_sqlite_file_in_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    store = SQLStore(f"sqlite:///{tmp_path / 'missing' / 'approvals.db'}")

    with pytest.raises(ConfigurationError) as caught:
        store.setup()

    assert caught.value.detail == "file"


def test_a_relative_sqlite_path_means_the_folder_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SQLStore("sqlite:///approvals.db")
    os.chdir("/")

    store.setup()

    assert (tmp_path / "approvals.db").exists()
    store.close()


def test_a_database_that_cannot_be_changed_says_so(
    make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
) -> None:
    database = make_database("postgresql", empty=True)
    database.execute(f"CREATE TABLE {schema.VERSION_TABLE} (something INTEGER)")

    with pytest.raises(StoreUnavailableError) as caught:
        open_store(database).setup()

    assert caught.value.detail == "refused"
