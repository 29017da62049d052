"""What each kind of step does within a transaction."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..rows import EventRow, Seal
from . import hot, schema, values
from .anchors import Chain
from .base import AddRequest, Append, DropCredential, PutCredential, SetControl, Step, Unlist, Written
from .credentials import CredentialSteps
from .dialects.base import Dialect, Look
from .runs import RunSteps

_PLACE = "listed_until = :listed_until AND request_id = :request_id"
_LISTED = f"SELECT request_id FROM {hot.OPEN} WHERE {_PLACE}"
_TAKE_OFF = f"UPDATE {hot.OPEN} SET listed_until = {schema.ENDED_UNSEEN} - :at WHERE {_PLACE}"


class Steps:
    """Executes steps on one kind of database; the caller begins and commits."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        words, statement = dialect.words, dialect.statement
        self._appends: dict[tuple[hot.Shape, bool], str] = {}
        self._unlist = statement(hot.UNLIST)
        self._request = statement(hot.add_request(words))
        self._open = statement(hot.ADD_OPEN)
        self._open_answering = statement(f"{hot.ADD_OPEN} RETURNING {dialect.answer}")
        self._whole_request = statement(hot.add_whole_request(words, dialect.answer))
        self._first_control = statement(hot.insert_control(words))
        self._next_control = statement(hot.UPDATE_CONTROL)
        self._runs = RunSteps(dialect)
        self._credentials = CredentialSteps(dialect)
        self._mac, self._envelope, self._control_body = map(statement, (hot.LAST, hot.ENVELOPE, hot.CONTROL_BODY))
        self._take_off, self._listed = statement(_TAKE_OFF), statement(_LISTED)

    def run(self, raw: Any, chain: Chain, steps: Sequence[Step], seal: Seal, limit: int | None) -> Written | None:
        """Execute the steps in order. None as soon as one finds its demand unmet, or when it is ``limit`` or later."""
        if any(type(step) is SetControl for step in steps):
            self._dialect.exclude_claims(raw)
        rows: list[EventRow] = []
        now: int | None = None
        mark = b""
        for step in steps:
            if isinstance(step, Append):
                row = seal(step.draft, chain.link())
                chain = chain.after(row)
                done, now = self._append(raw, _following(step, rows), row)
                rows.append(row)
            elif isinstance(step, AddRequest):
                done, now = self._add(raw, step)
            elif isinstance(step, SetControl):
                done, now = self._set(raw, step), None
            elif isinstance(step, Unlist):
                done, now = self._dialect.change(raw, self._take_off, _place(step) | {"at": step.at}) == 1, None
            elif isinstance(step, (PutCredential, DropCredential)):
                done, now = self._credentials.run(raw, step), None
            else:
                mark = mark or secrets.token_bytes(16)
                done, now = self._runs.run(raw, step, mark), None
            if not done:
                return None
        if now is None:
            now = self._dialect.clock(raw)
        return None if limit is not None and now >= limit else Written(now, tuple(rows), mark)

    def whole(self, chain: Chain, step: Step, seal: Seal) -> tuple[str, dict[str, Any], tuple[EventRow, ...]] | None:
        """Return ``(statement, parameters, events)`` that do ``step`` at once, or None if one statement cannot.

        The statement answers with the clock, or with no row if a demand was not met.
        """
        if isinstance(step, Append):
            row = seal(step.draft, chain.link())
            return self._append_text(step, row.seq, step.unlist), hot.append_parameters(step, row), (row,)
        if isinstance(step, AddRequest):
            return self._whole_request, hot.request_parameters(step), ()
        return None

    def evidence(self, written: Written, steps: Sequence[Step]) -> list[Look]:
        """Return what is found, all of it, only if ``written`` was committed.

        One trace tells of the whole transaction; one that nobody replaces later (an event, a request) is preferred.
        """
        if written.events:
            row = written.events[-1]
            return [(self._mac, {"chain": row.chain.encode(), "seq": row.seq}, row.mac)]
        for step in reversed(steps):
            if isinstance(step, AddRequest):
                return [(self._envelope, {"id": values.pack(step.row.id)}, step.row.envelope)]
            if isinstance(step, SetControl):
                tenant = values.tenant_digest(step.row.tenant)
                return [(self._control_body, {"tenant_digest": tenant}, step.row.body)]
            if isinstance(step, Unlist):
                return [(self._listed, _place(step), None)]
        return self._runs.evidence(steps, written.mark)

    def _append(self, raw: Any, step: Append, row: EventRow) -> tuple[bool, int | None]:
        """Insert one event; say whether it was, and the clock after the insert's waits where the insert tells it."""
        if step.unlist:
            # Before the insert, so that the insert's clock is read after this wait too.
            self._dialect.change(raw, self._unlist, {"request_id": values.pack(row.request_id or ""), "at": row.at})
        text, parameters = self._append_text(step, row.seq, False), hot.append_parameters(step, row)
        if self._dialect.returning:
            answer = self._dialect.run(raw, text, parameters)
            return (True, int(answer[0][0])) if answer else (False, None)
        return self._dialect.change(raw, text, parameters) == 1, None

    def _append_text(self, step: Append, seq: int, unlist: bool) -> str:
        key = hot.shape_of(step, seq=seq), unlist
        text = self._appends.get(key)
        if text is None:
            text = self._dialect.statement(self._dialect.appending(hot.append(self._dialect.words, key[0]), *key))
            self._appends[key] = text
        return text

    def _add(self, raw: Any, step: AddRequest) -> tuple[bool, int | None]:
        parameters = hot.request_parameters(step)
        if self._dialect.change(raw, self._request, parameters) != 1:
            return False, None
        if self._dialect.returning:
            return True, int(self._dialect.run(raw, self._open_answering, parameters)[0][0])
        return self._dialect.change(raw, self._open, parameters) == 1, None

    def _set(self, raw: Any, step: SetControl) -> bool:
        row = step.row
        parameters = {
            "tenant_digest": values.tenant_digest(row.tenant), "tenant": values.pack(row.tenant),
            "version": row.version, "body": row.body, "replaced": row.version - 1,
        }
        text = self._first_control if row.version == 1 else self._next_control
        return self._dialect.change(raw, text, parameters) == 1


def _place(step: Unlist) -> dict[str, Any]:
    return {"listed_until": step.listed_until, "request_id": values.pack(step.request_id)}


def _following(step: Append, rows: Sequence[EventRow]) -> Append:
    """Return ``step`` with the MAC of the event before it, where an earlier step of this transaction wrote that."""
    if step.previous_mac is None and step.draft.request_id is not None:
        for row in reversed(rows):
            if row.request_id == step.draft.request_id and row.version == (step.draft.version or 0) - 1:
                return replace(step, previous_mac=row.mac)
    return step
