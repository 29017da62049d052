"""Which desks somebody does not sit at: what a list need not look at.

A desk is the exact set of entries that rules name as approvers; requests are listed under its digest. Which entries a
digest stands for follows from the digest alone, whoever names them: they are learnt once, from verified requests, and
kept in the process. To be nowhere known only costs work: what is at an unknown desk is looked at.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from ..guard import Guard
from ..lifecycle import floods
from ..lifecycle.listing import Damaged, read
from ..models import ApprovalRequest
from .identity import Viewer
from .visibility import sits_at

MOST = 500
"""Desks of one tenant that are kept; the first learnt are forgotten first."""

TENANTS = 1_000
"""Tenants whose desks are kept; the one that was asked about longest ago is forgotten first."""

SAMPLES = 100
"""Desks that are learnt for one page."""


class Desks:
    """The desks that a process knows, by tenant. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, OrderedDict[bytes, frozenset[str]]] = OrderedDict()

    def foreign(self, guard: Guard, viewer: Viewer) -> tuple[bytes, ...]:
        """Return the digests of desks that a viewer does not sit at, in one query. Blocks.

        A viewer who voted and may no longer decide finds such a request by its address, and in no list.
        """
        desk, tenant = guard._desk, viewer.tenant
        for row in desk.store.desk_samples(tenant, known=list(self._of(tenant)), limit=SAMPLES):
            one = read(desk, row, (), viewer.now)
            if not isinstance(one, Damaged) and one.tenant == tenant:
                self.learn(one)
        return tuple(digest for digest, entries in self._of(tenant).items() if not sits_at(entries, viewer))

    def learn(self, request: ApprovalRequest) -> None:
        """Keep the desk of a verified request."""
        entries = floods.desk_entries(request.requirements)
        digest = floods.desk_digest(request.tenant, request.requirements)
        with self._lock:
            desks = self._known.setdefault(request.tenant, OrderedDict())
            desks[digest] = entries
            if len(desks) > MOST:
                desks.popitem(last=False)
            self._known.move_to_end(request.tenant)
            if len(self._known) > TENANTS:
                self._known.popitem(last=False)

    def _of(self, tenant: str) -> dict[bytes, frozenset[str]]:
        with self._lock:
            return dict(self._known.get(tenant, ()))


KNOWN = Desks()
"""Those of this process, whatever its guards."""
