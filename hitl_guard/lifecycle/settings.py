"""Windows and limits of a guard."""

from __future__ import annotations

from dataclasses import dataclass

from .. import canonical
from ..errors import ConfigurationError
from ..models import check_text

MAX_WINDOW = 10 * 365 * 86_400_000
"""The longest window, ten years in milliseconds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Windows and limits of a guard. Windows are in milliseconds; a policy rule may set other ones for its calls.

    Attributes:
        decide_within: How long people may take to decide.
        execute_within: How long an approval counts after the decision that completed it.
        run_within: How long a claimed call may run before it reads as in doubt.
        skew: How far in the future a request may have been issued, by the database's clock.
        operator_role: The role that may pause, resume and resolve.
        big_integers: Whether arguments may hold integers beyond 2^53 - 1 (kept exactly).
        limits: Sizes of one call's arguments.

    Raises:
        ConfigurationError: a window is no number of milliseconds from 1 to ten years, or another setting is unusable.
    """

    decide_within: int = 86_400_000
    execute_within: int = 900_000
    run_within: int = 900_000
    skew: int = 60_000
    operator_role: str = "operator"
    big_integers: bool = True
    limits: canonical.Limits = canonical.DEFAULT_LIMITS

    def __post_init__(self) -> None:
        for name, least in (("decide_within", 1), ("execute_within", 1), ("run_within", 1), ("skew", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MAX_WINDOW:
                raise ConfigurationError(f"'{name}' is a number of milliseconds from {least} to {MAX_WINDOW}.")
        check_text("operator_role", self.operator_role)
        if type(self.big_integers) is not bool or not isinstance(self.limits, canonical.Limits):
            raise ConfigurationError("'big_integers' is True or False, 'limits' a canonical.Limits.")
