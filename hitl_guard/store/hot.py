"""The statements of the hot path, written once with ``:name`` parameters, and what `load` answers with.

Each dialect supplies four words (`Words`) and turns ``:name`` into its driver's style. Statements are built once per
shape. `tests/contract/test_store.py` runs every shape on every database.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..rows import CONTROL_PREFIX, CREDENTIAL_PREFIX, EVERYWHERE, ControlRow, EventRow
from . import schema
from .base import AddRequest, Append, Loaded
from .values import event_row, number, pack, raw, request_row, text

EVENTS = schema.events.name
REQUESTS = schema.requests.name
OPEN = schema.open_requests.name
CONTROL = schema.control.name
CHAINS = schema.chains.name

EVENT_COLUMNS = (
    "type", "tenant", "at", "body", "request_id", "version", "spend_key", "chain", "seq", "previous", "epoch", "key_id",
    "mac",
)
REQUEST_COLUMNS = ("id", "tenant", "identity", "generation", "envelope", "arguments", "details")

_NAMES = ", ".join(EVENT_COLUMNS)
_VALUES = ", ".join(f":{name}" for name in EVENT_COLUMNS)


@dataclass(frozen=True, slots=True)
class Words:
    """What differs between the databases' SQL.

    Attributes:
        clock: An expression for the database's clock *now* (not at the transaction's or statement's start), in epoch
            milliseconds as an integer.
        share: How a SELECT locks the rows it reads against change until the transaction ends.
        dual: What a SELECT without a table needs between its list and its WHERE.
        skip: How an INSERT reports a taken unique key as zero rows instead of an error, where that is possible.
        binary: A constant of bytes, its hex digits left to be filled in.
    """

    clock: str
    share: str = ""
    dual: str = ""
    skip: str = ""
    binary: str = "x'{}'"

    def constants(self, text: str) -> str:
        """Return a part of a statement with the clock, and the keys of what reaches every tenant, written out.

        (A constant in the text costs a reading less than one more parameter.)
        """
        digest, record = _tenant_keys(EVERYWHERE)
        written = [self.binary.format(key.hex()) for key in (digest, record)]
        return text.format(clock=self.clock, everywhere_digest=written[0], everywhere_record=written[1])


@dataclass(frozen=True, slots=True)
class Shape:
    """Which demands one `Append` makes; each shape is one statement.

    Attributes:
        follows: ``"event"`` (the request's previous event), ``"request"`` (the request row) or ``""`` (nothing).
        before: Whether the clock has a limit.
        control, everywhere: Whether the control row, and the one of all tenants, must still have their versions.
        chained: Whether the writer's chain has a previous event.
    """

    follows: str
    before: bool
    control: bool
    chained: bool
    everywhere: bool = False


def shape_of(step: Append, *, seq: int) -> Shape:
    """Return the demands of ``step`` at place ``seq`` of its chain (see `Append.previous_mac`)."""
    draft = step.draft
    if step.previous_mac is not None:
        follows = "event"
    elif draft.request_id is None or draft.request_id.startswith((CONTROL_PREFIX, CREDENTIAL_PREFIX)):
        follows = ""
    else:
        # Above version 1 without a MAC: no event has the MAC NULL, so it is never written (see `Steps.run`).
        follows = "request" if draft.version == 1 else "event"
    return Shape(follows, step.before is not None, step.control is not None, seq > 0, step.everywhere is not None)


def append(words: Words, shape: Shape) -> str:
    """Return ``INSERT … SELECT … WHERE`` for one event: it inserts one row, or none if a demand no longer holds."""
    demands = ["1 = 1"]
    if shape.before:
        demands.append(f"{words.clock} < :before")
    for which in ("control",) * shape.control + ("everywhere",) * shape.everywhere:
        demands.append(
            f"EXISTS (SELECT 1 FROM {CONTROL} c WHERE c.tenant_digest = :{which}_tenant "
            f"AND c.version = :{which}_version{words.share})"
        )
    if shape.follows == "event":
        demands.append(
            f"EXISTS (SELECT 1 FROM {EVENTS} p WHERE p.request_id = :request_id AND p.version = :follows "
            "AND p.mac = :previous_mac)"
        )
    elif shape.follows == "request":
        demands.append(f"EXISTS (SELECT 1 FROM {REQUESTS} q WHERE q.id = :request_id)")
    if shape.chained:
        demands.append(f"EXISTS ({_PREDECESSOR})")
    return f"INSERT INTO {EVENTS} ({_NAMES}) SELECT {_VALUES}{words.dual} WHERE {' AND '.join(demands)}{words.skip}"


_PREDECESSOR = f"SELECT 1 FROM {EVENTS} h WHERE h.chain = :chain AND h.seq = :head AND h.mac = :previous"
PREDECESSOR = _PREDECESSOR
"""One row while the writer's chain still ends where this process left it."""

UNLIST = (
    f"UPDATE {OPEN} SET listed_until = CASE WHEN LENGTH(desk) = 0 THEN {schema.ENDED_UNSEEN} - :at ELSE 0 - :at END "
    f"WHERE request_id = :request_id "
    f"AND listed_until = (SELECT q.listed_until FROM {REQUESTS} q WHERE q.id = :request_id)"
)
"""Moves a request from the list of open ones to that of ended ones; it matches nothing a second time."""


def append_parameters(step: Append, row: EventRow) -> dict[str, Any]:
    """Return the parameters of `append` for ``step``, whose draft was sealed as ``row``."""
    parameters: dict[str, Any] = {
        "type": row.type.encode(),
        "tenant": pack(row.tenant),
        "at": row.at,
        "body": row.body,
        "request_id": None if row.request_id is None else pack(row.request_id),
        "version": row.version,
        "spend_key": row.spend_key,
        "chain": row.chain.encode(),
        "seq": row.seq,
        "previous": row.previous,
        "epoch": row.epoch,
        "key_id": pack(row.key_id),
        "mac": row.mac,
        "head": row.seq - 1,
    }
    if step.previous_mac is not None or (row.version or 0) > 1:
        parameters["previous_mac"] = step.previous_mac
        parameters["follows"] = (row.version or 0) - 1
    if step.before is not None:
        parameters["before"] = step.before
    if step.control is not None:
        parameters["control_tenant"] = _tenant_keys(step.control[0])[0]
        parameters["control_version"] = step.control[1]
    if step.everywhere is not None:
        parameters["everywhere_tenant"] = _tenant_keys(EVERYWHERE)[0]
        parameters["everywhere_version"] = step.everywhere
    return parameters


_OPEN_NAMES = "listed_until, request_id, tenant, run, requester, desk, added_at, tool"
_OPEN_VALUES = ":tenant_digest, :run, :requester, :desk, :added_at, :tool"


def add_request(words: Words) -> str:
    """Return the INSERT of a request row."""
    names, values = ", ".join(REQUEST_COLUMNS), ", ".join(f":{name}" for name in REQUEST_COLUMNS)
    return f"INSERT INTO {REQUESTS} ({names}, listed_until) VALUES ({values}, :listed_until){words.skip}"


ADD_OPEN = f"INSERT INTO {OPEN} ({_OPEN_NAMES}) VALUES (:listed_until, :id, {_OPEN_VALUES})"


def add_whole_request(words: Words, answer: str) -> str:
    """Return one statement that inserts a request and lists it (PostgreSQL only); it returns ``answer``."""
    return (
        f"WITH added AS ({add_request(words)} RETURNING id) INSERT INTO {OPEN} ({_OPEN_NAMES}) "
        f"SELECT :listed_until, id, {_OPEN_VALUES} FROM added RETURNING {answer}"
    )


def request_parameters(step: AddRequest) -> dict[str, Any]:
    """Return the parameters of `add_request`, `ADD_OPEN` and `add_whole_request`."""
    row = step.row
    tenant = pack(row.tenant)
    return {
        "id": pack(row.id),
        "tenant": tenant,
        "identity": row.identity,
        "generation": row.generation,
        "envelope": row.envelope,
        "arguments": row.arguments,
        "details": row.details,
        "tenant_digest": hashlib.sha256(tenant).digest(),
        "run": step.run,
        "requester": step.requester,
        "desk": step.desk,
        "added_at": step.added_at,
        "tool": step.tool,
        "listed_until": step.listed_until,
    }


def _open_of(which: str, column: str) -> str:
    # The first comparison of times is what the partial indexes say of themselves, word for word.
    return (
        f"SELECT {column} FROM {OPEN} WHERE {which} = :{which} AND listed_until > 0 AND listed_until > :now "
        f"LIMIT :{which}_limit"
    )


def _counted(which: str) -> str:
    return f"(SELECT COUNT(*) FROM ({_open_of(which, '1 AS one')}) {which}_rows)"


_COUNTED_OF_RUN = (
    f"(SELECT COUNT(*) FROM (SELECT 1 AS one FROM ({_open_of('requester', 'run')}) own_rows WHERE run = :run "
    f"LIMIT :run_limit) run_rows)"
)
# Among the requester's own: anybody may name anybody's run, and must neither fill it nor make the count slow.

COUNT_OPEN = f"SELECT {_COUNTED_OF_RUN}, {_counted('requester')}, {_counted('desk')}"
"""How many open requests people have before them: of a requester in a run, of the requester, of a desk. Each is counted
up to its limit. What no person was asked about has no requester."""


def add_chain(words: Words) -> str:
    """Return the INSERT that registers a chain in the cache unless it is there."""
    return (
        f"INSERT INTO {CHAINS} (chain, anchored_seq) SELECT :chain, :anchored_seq{words.dual} "
        f"WHERE NOT EXISTS (SELECT 1 FROM {CHAINS} WHERE chain = :chain){words.skip}"
    )


def insert_control(words: Words) -> str:
    """Return the INSERT of a tenant's first control row."""
    return (
        f"INSERT INTO {CONTROL} (tenant_digest, tenant, version, body) "
        f"VALUES (:tenant_digest, :tenant, :version, :body){words.skip}"
    )


UPDATE_CONTROL = (
    f"UPDATE {CONTROL} SET tenant = :tenant, version = :version, body = :body "
    "WHERE tenant_digest = :tenant_digest AND version = :replaced"
)

HEADS = (
    f"SELECT c.chain, c.anchored_seq, h.seq, h.mac, h.at FROM {CHAINS} c JOIN {EVENTS} h ON h.chain = c.chain "
    f"AND h.seq = (SELECT MAX(m.seq) FROM {EVENTS} m WHERE m.chain = c.chain) ORDER BY c.chain"
)
"""Every chain in the cache with its last event, in one order, so that two anchorings cannot deadlock."""

DROP_CHAIN = f"DELETE FROM {CHAINS} WHERE chain = :chain AND anchored_seq = :anchored_seq"
ANCHORED = f"UPDATE {CHAINS} SET anchored_seq = :anchored_seq WHERE chain = :chain"
LAST = f"SELECT mac FROM {EVENTS} WHERE chain = :chain AND seq = :seq"

ENVELOPE = f"SELECT envelope FROM {REQUESTS} WHERE id = :id"
CONTROL_BODY = f"SELECT body FROM {CONTROL} WHERE tenant_digest = :tenant_digest"


_OVERTAKEN, _EVERYWHERE_OVERTAKEN = (
    f"CASE WHEN EXISTS (SELECT 1 FROM {EVENTS} o WHERE o.request_id = {record} "
    f"AND o.version > COALESCE({row}.version, 0)) THEN 1 ELSE 0 END"
    for record, row in ((":control_record", "c"), ("{everywhere_record}", "w"))
)
_IS_SPENT = f"CASE WHEN EXISTS (SELECT 1 FROM {EVENTS} s WHERE s.spend_key = :spend_key) THEN 1 ELSE 0 END"
_ASKED = f"CASE WHEN EXISTS (SELECT 1 FROM {REQUESTS} r WHERE r.identity = :identity) THEN 1 ELSE 0 END"

_FACTS = (
    # (in the row of facts, in a row of an event), integers first: the two kinds of row share their columns' types.
    ("{clock}", "e.at"),
    ("c.version", "e.version"),
    ("r.generation", "e.seq"),
    (_OVERTAKEN, "e.epoch"),
    (_IS_SPENT, "-1"),
    ("c.tenant", "e.type"),
    ("c.body", "e.tenant"),
    ("r.id", "e.body"),
    ("r.tenant", "e.request_id"),
    ("r.identity", "e.spend_key"),
    ("r.envelope", "e.chain"),
    ("r.arguments", "e.previous"),
    ("r.details", "e.key_id"),
    ("c.tenant_digest", "e.mac"),
    ("w.version", "NULL"),
    (_EVERYWHERE_OVERTAKEN, "NULL"),
    ("w.body", "NULL"),
)
_EVENT = len(EVENT_COLUMNS) + 1
_SPENT = 4
_EVERYWHERE = EVERYWHERE.encode()
_CONTROLS = (
    f"LEFT JOIN {CONTROL} c ON c.tenant_digest = :tenant_digest "
    f"LEFT JOIN {CONTROL} w ON w.tenant_digest = {{everywhere_digest}}"
)


def load(words: Words, *, by: str) -> str:
    """Return `Store.load` as one statement: a row of facts, and a row per event of the request.

    One statement sees one moment. Its two kinds of row share columns, so that a request is not repeated per event.

    Args:
        by: ``"id"``, ``"identity"`` or ``""`` (no request is asked for).
    """
    latest = (
        f"SELECT g.id FROM {REQUESTS} g WHERE g.identity = :identity AND g.generation = "
        f"(SELECT MAX(m.generation) FROM {REQUESTS} m WHERE m.identity = :identity)"
    )
    which = {"id": "r.id = :id AND r.tenant = :tenant", "identity": f"r.id = ({latest})", "": "1 = 0"}[by]
    facts = words.constants(", ".join(fact for fact, _ in _FACTS) + f" FROM (SELECT 1 AS one) d {_CONTROLS}")
    statement = f"SELECT {facts} LEFT JOIN {REQUESTS} r ON {which}"
    if by:
        events = ", ".join(event for _, event in _FACTS)
        request = {"id": ":id", "identity": f"({latest})"}[by]
        statement += f" UNION ALL SELECT {events} FROM {EVENTS} e WHERE e.request_id = {request}"
    return statement


def load_new(words: Words) -> str:
    """Return `Store.load_new` as one statement: one row, whose first column says whether a request exists."""
    return words.constants(
        f"SELECT {_ASKED}, {{clock}}, {_OVERTAKEN}, {_IS_SPENT}, c.version, c.tenant, c.body, "
        f"w.version, {_EVERYWHERE_OVERTAKEN}, w.body FROM (SELECT 1 AS one) d {_CONTROLS}"
    )


def loaded_new(rows: Sequence[Sequence[Any]]) -> Loaded | None:
    """Return what `load_new` found: None for a call that has a request."""
    asked, now, overtaken, spent, version, tenant, body, everywhere, everywhere_overtaken, everywhere_body = rows[0]
    if asked:
        return None
    return Loaded(
        number(now), _control(version, tenant, body), bool(overtaken),
        _control(everywhere, _EVERYWHERE, everywhere_body), bool(everywhere_overtaken), None, (), bool(spent),
    )


def load_parameters(
    tenant: str, request_id: str | None, identity: bytes | None, spend_key: bytes | None
) -> dict[str, Any]:
    """Return the parameters of `load`."""
    digest, control_record = _tenant_keys(tenant)
    parameters: dict[str, Any] = {"tenant_digest": digest, "control_record": control_record, "spend_key": spend_key}
    if request_id is not None:
        parameters["id"] = pack(request_id)
        parameters["tenant"] = pack(tenant)
    elif identity is not None:
        parameters["identity"] = identity
    return parameters


@functools.lru_cache(maxsize=1024)
def _tenant_keys(tenant: str) -> tuple[bytes, bytes]:
    """Return where a tenant's control row is, and the id of that row's record."""
    digest = hashlib.sha256(pack(tenant))
    return digest.digest(), (CONTROL_PREFIX + digest.hexdigest()).encode()


def loaded(rows: Sequence[Sequence[Any]]) -> Loaded:
    """Return what `load` found. The database may give its rows in any order."""
    facts: Sequence[Any] = ()
    events: list[EventRow] = []
    for row in rows:
        if row[_SPENT] == -1:
            at, version, seq, epoch, _, kind, tenant, body, request_id, spend_key, chain, previous, key_id, mac = (
                row[:_EVENT]
            )
            events.append(event_row(
                (kind, tenant, at, body, request_id, version, spend_key, chain, seq, previous, epoch, key_id, mac)
            ))
        else:
            facts = row
    now, version, generation, overtaken, spent, tenant, body, *request = facts
    id_, owner, identity, envelope, arguments, details, _, everywhere, everywhere_overtaken, everywhere_body = request
    if len(events) > 1:
        events.sort(key=_version)
    return Loaded(
        number(now), _control(version, tenant, body), bool(overtaken),
        _control(everywhere, _EVERYWHERE, everywhere_body), bool(everywhere_overtaken),
        None if id_ is None else request_row((id_, owner, identity, generation, envelope, arguments, details)),
        # Events of a request that is not the tenant's are none of the caller's business.
        () if id_ is None else tuple(events),
        bool(spent),
    )


@functools.lru_cache(maxsize=128, typed=True)  # as read for every call; typed: for a forger, 1 and 1.0 are two values
def _control(version: Any, tenant: Any, body: Any) -> ControlRow | None:
    return None if version is None else ControlRow(text(tenant), number(version), raw(body))


def _version(event: EventRow) -> int:
    return -1 if event.version is None else event.version
