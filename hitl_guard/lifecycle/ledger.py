"""Verifying the whole store: every chain, every request, every control row; each fault is named, none stops it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from .. import audit, signing
from ..envelope import Evidence, Vote
from ..errors import HitlGuardError, InvalidSignatureError, KeyRevokedError, StoreRolledBackError
from ..rows import (
    CONTROL_PREFIX,
    CREDENTIAL_PREFIX,
    ControlRow,
    CredentialRow,
    EventRow,
    RequestRow,
    control_record,
    credential_record,
)
from ..signing import Examiner
from . import control as controls
from .assertions import library, own_origin, unproven
from .assertions import verify as verify_proof
from .credentials import key_of, verify_row
from .desk import Desk

NO_PREVIOUS = bytes(32)
"""What a chain's first event has in place of its predecessor's MAC."""

PAGE = 1000
"""Events of a chain that are read at a time."""

_LOWEST = -(2**63)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: where it is (``chain ID seq``, ``request ID``, ``control TENANT``), its code, and what it means."""

    where: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What `audit verify` saw. No findings: nothing that is stored was edited, moved or removed from the middle.

    ``void``: what keys signed that were revoked since. It is accepted nowhere; nobody can say any more who wrote it.
    What was edited without the key is a finding even so, as long as a compromised key is kept (not destroyed).
    """

    chains: int
    events: int
    requests: int
    findings: tuple[Finding, ...]
    void: tuple[Finding, ...] = ()


def verify(desk: Desk, *, origins: Sequence[str] = ()) -> Report:
    """Verify everything in the store against the keyring, and what passkeys proved against the decisions themselves.

    Args:
        origins: Where the approval page is (or was); a passkey's answer from elsewhere is a finding. Without it, an
            answer must come from the domain that its passkey was registered for, or from below it.

    Raises:
        ConfigurationError: there are decisions with passkeys, and the package ``webauthn`` is missing.

    A tail cut from a chain that nobody anchored since cannot be seen here; SECURITY.md says what can.
    """
    return _Audit(desk, origins).report()


class _Audit:
    """One run over the store, judged at one time."""

    def __init__(self, desk: Desk, origins: Sequence[str]) -> None:
        self._desk = desk
        self._origins = tuple(origins)
        self._proven: list[tuple[Vote, Evidence]] = []
        self._examiner = Desk(desk.store, Examiner(desk.signer.keyring), desk.policy, None, desk.settings)
        self._store = desk.store
        self._now = desk.store.now()

    def report(self) -> Report:
        findings: list[Finding] = []
        heads: list[tuple[str, int, bytes]] = []
        chains = self._store.chains()
        events = 0
        for chain in chains:
            before = events
            for event, found in self._chain(chain):
                events += 1
                findings += found
                if event.type in ("chain:opened", "chain:anchored") and not found:
                    heads += audit.anchored_heads(event)
            if events == before:
                findings.append(Finding(f"chain {chain}", "unreadable", "Its name is none that a writer gives."))
        findings += self._anchors(heads)
        requests = 0
        for row, request_id, history in self._store.request_histories():
            requests += row is not None
            findings += self._history(row, request_id, history)
        findings += self._controls()
        findings += self._passkeys()
        void = tuple(finding for finding in findings if finding.code == KeyRevokedError.default_code)
        faults = tuple(finding for finding in findings if finding.code != KeyRevokedError.default_code)
        return Report(len(chains), events, requests, faults, void)

    def _fault(self, where: str, check: Callable[[Desk], object]) -> list[Finding]:
        """Return what a check raises, at most one finding. What is void is examined for edits all the same."""
        try:
            check(self._desk)
        except KeyRevokedError as void:
            try:
                check(self._examiner)
            except HitlGuardError as error:
                return [Finding(where, error.code, str(error))]
            return [Finding(where, void.code, str(void))]
        except HitlGuardError as error:
            return [Finding(where, error.code, str(error))]
        return []

    def _chain(self, chain: str) -> Iterator[tuple[EventRow, list[Finding]]]:
        """Yield a chain's events with their faults: the MAC, the number, the link to the event before."""
        number, previous, after = -1, NO_PREVIOUS, _LOWEST
        while page := self._store.chain_events(chain, after=after, limit=PAGE):
            for event in page:
                where = f"chain {chain} {event.seq}"
                found = self._fault(where, partial(self._event, event))
                if event.seq <= number:
                    found.append(Finding(where, "misplaced", "It has a number that no event of a chain has."))
                elif event.seq != number + 1:
                    missing = f"{number + 1} to {event.seq - 1}"
                    found.append(Finding(where, "gap", f"Events are missing before it: {missing}."))
                elif event.previous != previous:
                    found.append(Finding(where, "broken-link", "It does not follow the event before it."))
                if event.seq == 0 and event.type != "chain:opened":
                    found.append(Finding(where, "no-opening", "The chain does not start with its opening event."))
                yield event, found
                if event.seq > number:
                    number, previous = event.seq, event.mac
            if len(page) < PAGE or number == after:
                # A forged number that is none (SQLite stores any type) sorts last and would come again for ever.
                return
            after = number

    def _anchors(self, heads: Sequence[tuple[str, int, bytes]]) -> Iterator[Finding]:
        """Yield the heads that an anchor recorded and that are gone: the chain's tail was cut."""
        for chain, seq, mac in dict.fromkeys(heads):
            there = self._store.chain_events(chain, after=seq - 1, limit=1)
            if not there or there[0].seq != seq or there[0].mac != mac:
                yield Finding(f"chain {chain} {seq}", "cut", "Another chain recorded this event, and it is gone.")

    def _history(self, row: RequestRow | None, request_id: str, history: Sequence[EventRow]) -> list[Finding]:
        where = f"request {request_id}"
        if row is not None:
            return self._fault(where, partial(self._request, row, history))
        if not request_id.startswith((CONTROL_PREFIX, CREDENTIAL_PREFIX)):
            return [Finding(where, "missing", "Its events are there, the request is gone.")]
        if [event.version for event in history] != list(range(1, len(history) + 1)):
            kind, name = ("control", "control row") if request_id.startswith(CONTROL_PREFIX) else ("passkey", "passkey")
            return [Finding(f"{kind} {request_id}", "gap", f"An event of the {name} is missing.")]
        return []

    def _request(self, row: RequestRow, history: Sequence[EventRow], desk: Desk) -> None:
        """Raise unless a request with its events is what was signed; note the decisions that passkeys proved."""
        record = desk.verify(row, history, self._now, any_earlier_epoch=True)
        self._proven += [(vote, vote.evidence) for vote in record.votes if vote.evidence is not None]

    def _passkeys(self) -> Iterator[Finding]:
        """Yield what is wrong with stored passkeys, their events, and what they proved.

        Rows are read before events, which only grow, and once more after them, so that a change in between is no fault.
        """
        rows = self._store.credentials()
        records = self._store.request_histories(after=CREDENTIAL_PREFIX)
        histories = {
            request_id: history
            for _, request_id, history in takewhile(lambda one: one[1].startswith(CREDENTIAL_PREFIX), records)
        }
        for row, _ in rows:
            history = histories.get(credential_record(row.key), ())
            yield from self._fault(f"passkey {credential_record(row.key)}", partial(self._passkey, row, history))
        there = {credential_record(row.key) for row, _ in (*rows, *self._store.credentials())}
        for record, history in histories.items():
            if len(history) == 1 and record not in there:
                yield Finding(f"passkey {record}", "missing", "Its registration is there, the passkey is gone.")
        if self._proven:
            library()
        for vote, evidence in self._proven:
            yield from self._fault(f"request {vote.request_id}", partial(self._proof, vote, evidence, histories))

    def _passkey(self, row: CredentialRow, history: Sequence[EventRow], desk: Desk) -> None:
        """Raise unless a passkey's row is what was signed, and was registered and not removed."""
        credential = verify_row(row, signer=desk.signer, now=self._now, any_earlier_epoch=True)
        if self._registered(history, desk) != (credential.tenant, credential.owner, credential.key, credential.rp):
            raise InvalidSignatureError("A stored passkey is not the one that was registered.", detail="mismatch")
        if len(history) > 1 and self._store.credentials(key=row.key):
            raise StoreRolledBackError("A passkey that was removed is there again.")

    def _proof(
        self, vote: Vote, evidence: Evidence, histories: Mapping[str, Sequence[EventRow]], desk: Desk
    ) -> None:
        """Raise unless a registered passkey of the approver signed exactly this decision."""
        history = histories.get(credential_record(key_of(evidence.credential)), ())
        if self._registered(history, desk) != (vote.tenant, vote.approver, evidence.key, evidence.rp):
            raise unproven("A decision was proven with a passkey that was not registered for its approver.")
        verify_proof(vote, expected_rp=evidence.rp, expected_origins=self._origins or own_origin(evidence))

    def _registered(self, history: Sequence[EventRow], desk: Desk) -> tuple[str, str, bytes, str] | None:
        """Return tenant, owner, public key and domain of a passkey as its first event tells, or None without one."""
        if not history or history[0].type != "credential:registered":
            return None
        self._event(history[0], desk)
        body = json.loads(history[0].body)
        return history[0].tenant, body["owner"], signing.decode(body["key"].encode()) or b"", body["rp"]

    def _controls(self) -> Iterator[Finding]:
        """Yield what is wrong between control rows and their events, in both directions.

        Rows are read before events, which only grow, so that a change in between is no fault.
        """
        rows = self._store.controls()
        histories = {
            request_id: history
            for _, request_id, history in self._store.request_histories(after=CONTROL_PREFIX)
            if request_id.startswith(CONTROL_PREFIX)
        }
        for row in rows:
            history = histories.pop(control_record(row.tenant), ())
            yield from self._fault(f"control {row.tenant!r}", partial(self._control, row, history))
        for history in filter(None, histories.values()):
            tenant = history[-1].tenant
            if self._store.load(tenant).control is None:
                yield Finding(f"control {tenant!r}", "missing", "Its events are there, the control row is gone.")

    def _event(self, event: EventRow, desk: Desk) -> None:
        desk.sealer.verify(event, now=self._now)

    def _control(self, row: ControlRow, history: Sequence[EventRow], desk: Desk) -> None:
        """Raise unless a control row is what was signed, the newest, and what its event recorded."""
        overtaken = self._store.load(row.tenant).control_overtaken
        controls.verify(row, tenant=row.tenant, overtaken=overtaken, signer=desk.signer, now=self._now)
        event = next((event for event in history if event.version == row.version), None)
        if event is not None:
            self._event(event, desk)
        if event is None or json.loads(event.body)["control"].encode() != row.body:
            raise StoreRolledBackError("The control row is not the one that its event recorded.")
