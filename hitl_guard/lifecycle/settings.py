"""Windows and limits of a guard."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .. import canonical
from ..errors import ConfigurationError
from ..models import check_text
from .assertions import belongs

MAX_WINDOW = 10 * 365 * 86_400_000
"""The longest window, ten years in milliseconds."""

MAX_OPEN = 100_000
"""The highest limit of open requests: they are counted, up to the limit, whenever a new one is made."""

_DOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Settings:
    """Windows and limits of a guard. Windows are in milliseconds; a policy rule may set other ones for its calls.

    Attributes:
        decide_within: How long people may take to decide.
        execute_within: How long an approval counts after the decision that completed it.
        run_within: How long a claimed call may run before it reads as in doubt.
        skew: How far in the future a request may have been issued, by the database's clock.
        operator_role: The role that may pause, resume and resolve in its own tenant.
        global_operator_role: The role that may pause and resume in all tenants at once; another one, so that an
            operator of one tenant does not stop the others.
        big_integers: Whether arguments may hold integers beyond 2^53 - 1 (kept exactly).
        limits: Sizes of one call's arguments.
        max_open_per_run, max_open_per_requester, max_open_per_approver: How many requests may wait for people at once:
            of one requester (the user) in one run; of one requester; and for one group of approvers. A group is one
            exact set of entries that rules name: for ``[lead]`` and for ``[lead, user:bob]`` it is counted apart, so
            that a person whom several groups hold may have so many of each.
        rp_id: The domain that approvers' passkeys belong to (WebAuthn's relying party id), or None: no passkeys.
        rp_name: What the browser calls it; the domain when left out.
        rp_origins: Where the approval page is, e.g. ``("https://approvals.example.org",)``: https, that domain or one
            below it; or ``http://localhost`` with a port, for a test.

    Raises:
        ConfigurationError: a window is no number of milliseconds from 1 to ten years, or another setting is unusable.
    """

    decide_within: int = 86_400_000
    execute_within: int = 900_000
    run_within: int = 900_000
    skew: int = 60_000
    operator_role: str = "operator"
    global_operator_role: str = "global-operator"
    big_integers: bool = True
    limits: canonical.Limits = canonical.DEFAULT_LIMITS
    max_open_per_run: int = 100
    max_open_per_requester: int = 1_000
    max_open_per_approver: int = 5_000
    rp_id: str | None = None
    rp_name: str | None = None
    rp_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("decide_within", 1), ("execute_within", 1), ("run_within", 1), ("skew", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MAX_WINDOW:
                raise ConfigurationError(f"'{name}' is a number of milliseconds from {least} to {MAX_WINDOW}.")
        for name in ("max_open_per_run", "max_open_per_requester", "max_open_per_approver"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MAX_OPEN:
                raise ConfigurationError(f"'{name}' is a number from 1 to {MAX_OPEN}.")
        check_text("operator_role", self.operator_role)
        check_text("global_operator_role", self.global_operator_role)
        if type(self.big_integers) is not bool or not isinstance(self.limits, canonical.Limits):
            raise ConfigurationError("'big_integers' is True or False, 'limits' a canonical.Limits.")
        self._check_relying_party()

    @property
    def operator_roles(self) -> frozenset[str]:
        """Every role that makes somebody an operator: of one tenant, or of all."""
        return frozenset({self.operator_role, self.global_operator_role})

    def _check_relying_party(self) -> None:
        if self.rp_id is None:
            if self.rp_origins or self.rp_name is not None:
                raise ConfigurationError("'rp_name' and 'rp_origins' belong to an 'rp_id': give it, or none of them.")
            return
        if type(self.rp_id) is not str or not _DOMAIN.fullmatch(self.rp_id):
            raise ConfigurationError("'rp_id' is a domain in lower case, e.g. 'example.org'.")
        if self.rp_name is not None:
            check_text("rp_name", self.rp_name)
        origins = self.rp_origins
        if not isinstance(origins, (tuple, list)) or not origins:
            raise ConfigurationError(
                "'rp_origins' is a list with at least one origin of the approval page: ['https://approvals.example.org']."
            )
        if not all(belongs(origin, self.rp_id) for origin in origins):
            raise ConfigurationError(
                "An origin in 'rp_origins' is 'https://HOST' or 'https://HOST:PORT' with the host 'rp_id' or one below "
                "it, in lower case and without a path; http is for 'http://localhost:PORT' alone."
            )
        object.__setattr__(self, "rp_origins", tuple(origins))
