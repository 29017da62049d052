"""Requests that this process verified before: the same bytes under the same keys are not verified twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from .. import audit
from ..rows import EventRow, RequestRow
from ..signing import Signer
from . import record as records
from .record import Record

MOST = 1_000
"""Requests that are kept; the ones that were verified longest ago go first."""

LARGEST = 32_768
"""Bytes of the largest request that is kept, its events included."""


class Verified:
    """Verifies requests, and knows the ones whose every byte it verified already. Safe to share between threads.

    Whether bytes are what was signed does not change as time goes on, only with the key ring: a key that was active
    once stays a key that verifies until the ring is loaded anew. What does change with time is the state as it reads.
    """

    def __init__(self, signer: Signer, sealer: audit.Sealer) -> None:
        self._signer = signer
        self._sealer = sealer
        self._known: OrderedDict[str, tuple[int, int, Record]] = OrderedDict()
        self._lock = Lock()

    def __call__(self, row: RequestRow, events: Sequence[EventRow], now: int) -> Record:
        """Return the record of a request with its events; raises as `record.verify`.

        Args:
            now: The database's clock, epoch milliseconds.
        """
        generation = self._signer.keyring.generation  # raises where the key file cannot be used
        known = self._known.get(row.id)
        # The entry's own generation: another thread may have met newer keys since this one asked for them.
        if known is not None and known[0] == generation and known[1] <= now:
            record = known[2]
            if record.row == row and record.events == tuple(events):
                return record.at(now)
        record = records.verify(row, events, signer=self._signer, sealer=self._sealer, now=now)
        self._keep(record, generation, now)
        return record

    def _keep(self, record: Record, generation: int, now: int) -> None:
        row = record.row
        size = len(row.envelope) + len(row.arguments) + len(row.details) + sum(len(one.body) for one in record.events)
        with self._lock:
            self._known.pop(row.id, None)
            if size <= LARGEST:
                self._known[row.id] = generation, now, record
            if len(self._known) > MOST:
                self._known.popitem(last=False)
