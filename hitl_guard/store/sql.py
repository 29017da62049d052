"""`SQLStore`: the Store contract over SQLite, PostgreSQL and MariaDB/MySQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, select, text

from ..errors import ConfigurationError
from ..rows import ControlRow, CredentialRow, EventRow, RequestRow, RunNode, RunRow, Seal, Segment
from . import credentials, hot, lists, runs, schema, values
from .base import Found, Loaded, Place, Step, Wanted, Written
from .connections import Connections
from .dialects import dialect_for
from .writer import Writer

_EVENTS = [schema.events.c[name] for name in hot.EVENT_COLUMNS]


class SQLStore:
    """Keeps requests and events in a SQL database. Thread-safe; a forked child opens connections of its own.

    Args:
        url: ``sqlite:///path`` (four slashes for an absolute path), ``postgresql://…`` (psycopg 3) or
            ``mariadb://…``/``mysql://…`` (PyMySQL). In-memory SQLite is refused: an approval must survive a restart.
        pool_size: The most connections for reads, and the most for writes (SQLite has one writer).
        timeout_ms: The limit of every wait: for a connection, a lock, a statement.
        notify: PostgreSQL only: each write tells the processes that listen (see `wait_for_changes`), so that a page
            shows it at once. Without it they look now and then, which costs writers nothing: PostgreSQL commits
            transactions that notify one after another, under one lock for the whole server. One writer loses nothing
            by it, eight at once lost almost half of their throughput.

    Attributes:
        notifies: As ``notify`` was given.

    Raises:
        ConfigurationError: the URL is malformed or unsupported, or its driver is missing; or the database cannot
            notify.
    """

    def __init__(self, url: str, *, pool_size: int = 8, timeout_ms: int = 10_000, notify: bool = False) -> None:
        if pool_size < 1 or timeout_ms < 1:
            raise ConfigurationError("pool_size and timeout_ms must be at least 1.", detail="limits")
        self._dialect = dialect_for(url, timeout_ms=timeout_ms)
        self.notifies = notify
        if notify:
            self._dialect.notify()
        self._connections = Connections(self._dialect, pool_size=pool_size, timeout_ms=timeout_ms)
        self._writer = Writer(self._dialect, self._connections)
        self._load_run = self._dialect.statement(runs.load(self._dialect.words))
        self._count_open, self._heads = map(self._dialect.statement, (hot.COUNT_OPEN, hot.HEADS))

    @property
    def reads_at_once(self) -> bool:
        """Whether a read waits for nobody: SQLite reads a file's pages, in WAL mode no writer stops it, and a reader's
        connection is idle."""
        return self._dialect.name == "sqlite" and self._connections.reader_idle()

    def __repr__(self) -> str:
        return f"<SQLStore {self._dialect.name}>"

    def setup(self) -> None:
        """Create or migrate the schema, under a lock; safe to call from many processes at once.

        Raises:
            ConfigurationError: the database is newer than this version of hitl_guard.
            StoreUnavailableError: the database cannot be reached or refuses.
        """
        from .migrations import upgrade  # loads Alembic, which no other method needs

        upgrade(self._dialect)

    def check(self) -> None:
        """Raise `ConfigurationError` unless the schema is exactly this version's."""
        statement = text(f"SELECT version_num FROM {schema.VERSION_TABLE}")
        found = self._connections.query(lambda connection: list(connection.scalars(statement)))
        schema.demand(found)

    def now(self) -> int:
        """Return the database's clock in epoch milliseconds."""
        return self._connections.read(self._dialect.clock)

    def load(
        self, tenant: str, *, request_id: str | None = None, identity: bytes | None = None,
        spend_key: bytes | None = None,
    ) -> Loaded:
        """Read what one operation needs in one go. By id *and* tenant, or the latest generation of an identity."""
        by = "id" if request_id is not None else "identity" if identity is not None else ""
        parameters = hot.load_parameters(tenant, request_id, identity, spend_key)
        return self._connections.read(lambda raw: self._dialect.load(raw, by, parameters))

    def load_new(self, tenant: str, *, identity: bytes, spend_key: bytes | None) -> Loaded | None:
        """Read what a call needs that was never asked for, with less work than `load`; None: it was."""
        parameters = hot.load_parameters(tenant, None, identity, spend_key)
        return self._connections.read(self._dialect.load_new, parameters)

    def write(self, steps: Sequence[Step], seal: Seal) -> Written | None:
        """Commit all steps durably, or nothing. None: a demand no longer held, or a unique key was taken; read again.

        Raises:
            StoreUnavailableError: nothing was written (``refused``, ``timeout``, ``lost``), or the outcome is
                unknown (``commit-unknown``) and a later read will tell.
            StoreRolledBackError: an event that this process wrote is gone; every later write refuses, too.
        """
        return self._writer.write(steps, seal)

    def open_requests(
        self, *, tenant: str | None, limit: int, after: tuple[int, str] | None = None, run: bytes | None = None
    ) -> list[tuple[int, RequestRow, tuple[EventRow, ...]]]:
        """Return ``(listed_until, row, events)`` in two queries, ordered by ``(listed_until, request id)``."""
        return self._listed(lists.open_ones(tenant, run, limit, after))

    def ended_requests(
        self, *, tenant: str, limit: int, after: tuple[int, str] | None = None, run: bytes | None = None
    ) -> list[tuple[int, RequestRow, tuple[EventRow, ...]]]:
        """Return ``(time of the end, row, events)`` in two queries, the newest first (see `Store.ended_requests`)."""
        return [(-place, row, events) for place, row, events in self._listed(lists.ended(tenant, run, limit, after))]

    def look(self, wanted: Wanted, *, limit: int, after: Place | None = None) -> Found:
        """Return up to ``limit`` requests of a list for one viewer, in three queries (see `Store.look`)."""
        lines = lists.looked_at(wanted, limit, after)

        def work(connection: Connection) -> Found:
            places, more = lists.in_order([] if lines is None else connection.execute(lines), limit)
            ids = [values.pack(id_) for _, _, id_ in places]
            query = select(*lists.REQUESTS).where(schema.requests.c.id.in_(ids))
            rows = {row.id: row for row in map(values.request_row, connection.execute(query))}
            events = _events_of(connection, ids)
            return Found(
                tuple((one, rows[one[2]], tuple(events[one[2]])) for one in places if one[2] in rows), more
            )

        return self._connections.query(work)

    def desk_samples(self, tenant: str, *, known: Sequence[bytes], limit: int) -> list[RequestRow]:
        """Return an open request of each of up to ``limit`` desks that have some, but for the ``known`` ones."""
        query = lists.samples(tenant, known, limit)
        return self._connections.query(
            lambda connection: [values.request_row(row) for row in connection.execute(query)]
        )

    def count_open(
        self, *, run: bytes, requester: bytes, desk: bytes, now: int, limits: tuple[int, int, int]
    ) -> tuple[int, int, int]:
        """Return how many listed requests people have before them, each up to its limit (see the contract)."""
        parameters = {
            "run": run, "requester": requester, "desk": desk, "now": now,
            "run_limit": limits[0], "requester_limit": limits[1], "desk_limit": limits[2],
        }
        (found,) = self._connections.read(lambda raw: self._dialect.run(raw, self._count_open, parameters))
        return values.number(found[0]), values.number(found[1]), values.number(found[2])

    def wait_for_changes(self, timeout_ms: int) -> bool:
        """Wait until some process has written, at most so long; only with ``notify``, else False at once.

        It listens on a connection of its own and goes on listening between two calls.

        Returns:
            Whether to look now: something was written, or it has just begun to listen.
        """
        return self._connections.listen(lambda raw: self._dialect.heard(raw, timeout_ms))

    def heads(self) -> list[tuple[str, int]]:
        """Return ``(chain, number of its last event)`` of every chain that a writer may still write."""
        rows = self._connections.read(lambda raw: self._dialect.run(raw, self._heads, {}))
        return [(values.text(row[0]), values.number(row[2])) for row in rows]

    def added_requests(self, since: int, *, limit: int) -> list[tuple[int, str, str]]:
        """Return ``(time of asking, tenant, request id)`` of open requests asked at ``since`` or later, oldest first.
        """
        query = lists.added(since, limit)
        return self._connections.query(lambda connection: [
            (values.number(at), values.text(tenant), values.text(id_)) for at, tenant, id_ in connection.execute(query)
        ])

    def chains(self) -> list[str]:
        """Return the ids of all chains that have events."""
        query = select(schema.events.c.chain).distinct().order_by(schema.events.c.chain)
        return self._connections.query(lambda connection: [values.text(chain) for chain in connection.scalars(query)])

    def chain_events(self, chain: str, *, after: int = -1, limit: int = 1000) -> list[EventRow]:
        """Return a chain's events in order, from ``seq > after``."""
        column = schema.events.c
        query = (
            select(*_EVENTS)
            .where(column.chain == values.pack(chain), column.seq > after)
            .order_by(column.seq)
            .limit(limit)
        )
        return self._connections.query(lambda connection: [values.event_row(row) for row in connection.execute(query)])

    def request_histories(
        self, *, after: str = "", limit: int = 500
    ) -> Iterator[tuple[RequestRow | None, str, tuple[EventRow, ...]]]:
        """Yield ``(request row or None, request id, events by version)`` in order of request id, to the last.

        Args:
            after: Start behind this request id.
            limit: How many are read at a time.
        """
        last = values.pack(after)
        while batch := self._connections.query(partial(_histories, last=last, limit=limit)):
            for key, row, events in batch:
                yield row, values.text(key), events
            last = batch[-1][0]

    def controls(self) -> list[ControlRow]:
        """Return every control row."""
        column = schema.control.c
        query = select(column.tenant, column.version, column.body).order_by(column.tenant_digest)
        return self._connections.query(
            lambda connection: [
                ControlRow(values.text(tenant), values.number(version), values.raw(body))
                for tenant, version, body in connection.execute(query)
            ]
        )

    def credentials(
        self, *, owner: bytes | None = None, key: bytes | None = None
    ) -> list[tuple[CredentialRow, int]]:
        """Return passkeys with the version of each one's last event (see `Store.credentials`)."""
        return self._connections.query(lambda connection: credentials.listed(connection, owner, key))

    def last_version(self, request_id: str) -> int:
        """Return the version of the last event of a request or record; 0: it has none."""
        return self._connections.query(lambda connection: credentials.versions(connection, [request_id])[request_id])

    def load_run(self, key: bytes) -> tuple[int, RunRow | None]:
        """Return the database's clock (epoch milliseconds) and the suspended run, or None, as of one moment."""
        return self._connections.read(lambda raw: runs.loaded(self._dialect.run(raw, self._load_run, {"run": key})))

    def list_runs(
        self, owner: bytes, *, thread: bytes | None = None, resource: bytes | None = None,
        created_from: int | None = None, created_to: int | None = None, limit: int | None = None, offset: int = 0,
    ) -> tuple[int, list[tuple[RunNode, RunRow]]]:
        """Return how many runs an owner has in suspended trees, and one page of them, each with its tree's root.

        The newest come first, those of one millisecond by key. ``created_from`` and ``created_to`` are inclusive
        (epoch milliseconds). The number is counted before paging, and a moment earlier.
        """
        return self._connections.query(
            lambda connection: runs.listed(
                connection, owner, thread, resource, created_from, created_to, limit, offset
            )
        )

    def segments(
        self, thread: bytes, *, first: int = 0, below: int | None = None, run: bytes | None = None
    ) -> list[Segment]:
        """Return a conversation's segments in order, from ``first``: those below ``below``, and any that ``run`` wrote.

        Without ``below`` all of them.
        """
        query = runs.segments_of(thread, first=first, below=below, run=run)
        return self._connections.query(lambda connection: [runs.segment(row) for row in connection.execute(query)])

    def last_segments(self, thread: bytes, limit: int | None) -> list[Segment]:
        """Return a conversation's newest ``limit`` segments (None: all), in ascending order."""
        query = runs.newest_segments(thread, limit)
        found = self._connections.query(lambda connection: [runs.segment(row) for row in connection.execute(query)])
        return found[::-1]

    def close(self) -> None:
        """Release every connection."""
        self._connections.close()

    def _listed(self, query: Select[Any]) -> list[tuple[int, RequestRow, tuple[EventRow, ...]]]:
        """Return ``(place in the list, row, events)`` of what a query of `lists` finds, in its order."""
        def work(connection: Connection) -> list[tuple[int, RequestRow, tuple[EventRow, ...]]]:
            rows = [(values.number(row[0]), values.request_row(row[1:])) for row in connection.execute(query)]
            events = _events_of(connection, [values.pack(row.id) for _, row in rows])
            return [(place, row, tuple(events[row.id])) for place, row in rows]

        return self._connections.query(work)


def _events_of(connection: Connection, ids: Iterable[bytes]) -> dict[str, list[EventRow]]:
    column = schema.events.c
    query = select(*_EVENTS).where(column.request_id.in_(list(ids))).order_by(column.request_id, column.version)
    found: dict[str, list[EventRow]] = defaultdict(list)
    for row in connection.execute(query):
        event = values.event_row(row)
        found[event.request_id or ""].append(event)
    return found


def _histories(
    connection: Connection, last: bytes, limit: int
) -> list[tuple[bytes, RequestRow | None, tuple[EventRow, ...]]]:
    """Return the next ``limit`` request ids of either table with what belongs to them."""
    keys: set[bytes] = set()
    for column in (schema.requests.c.id, schema.events.c.request_id):
        query = select(column).where(column > last).distinct().order_by(column).limit(limit)
        keys.update(values.raw(key) for key in connection.scalars(query))
    batch = sorted(keys)[:limit]
    requests = select(*lists.REQUESTS).where(schema.requests.c.id.in_(batch))
    rows = {values.pack(row.id): row for row in map(values.request_row, connection.execute(requests))}
    events = _events_of(connection, batch)
    return [(key, rows.get(key), tuple(events[values.text(key)])) for key in batch]
