"""What an answer does not say, for the host's own log (``hitl_guard.asgi``): what went wrong, and why it was refused.

The kind of an error and where it was raised are logged, never its message: a model's or a tool's own error may hold
keys or arguments. (What is wrong in the set-up is said: those messages are ours.) Of a refusal its code is logged, as
it is in the audit log, beside the route; ids are cut short, since such logs go to more people than the audit log does.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, HitlGuardError
from ..render import escape
from .problems import slug_of

if TYPE_CHECKING:
    from ..models import Principal

LOGGER = logging.getLogger("hitl_guard.asgi")

FRAMES = 12
"""Lines of code that are named at most, the innermost ones."""

SHOWN = 4
"""Characters of an id that are logged at most; never more than half of it."""

_COARSE = frozenset({"damaged", "forbidden"})
"""Classes of problems that stand for several codes, and whose answers do not say which."""


def failed(what: str, error: BaseException, *, run: str | None = None) -> None:
    """Log an error that nobody else is told.

    Args:
        what: What failed, in our own words.
        run: The run that it was in, or None.
    """
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    place = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    name = type(error)
    where = "" if run is None else f" in run {escape(run)}"
    said = f" ({escape(str(error))})" if isinstance(error, ConfigurationError) else ""
    LOGGER.error("%s%s: %s.%s%s at %s", what, where, name.__module__, name.__qualname__, said, place or "no place")


def refused(error: HitlGuardError, where: str, *, who: Principal | None = None, **ids: str | None) -> None:
    """Log the code of a refusal.

    Args:
        where: Method and route, never the address itself.
        who: Whose it was, or None where nobody knows. ids: What else it was about, by its kind.
    """
    code = error.code if error.detail is None else f"{error.code}/{error.detail}"
    named = {"tenant": None, "by": None} if who is None else {"tenant": who.tenant, "by": who.id}
    told = [f"{kind} {_short(text)}" for kind, text in {**named, **ids}.items() if text]
    LOGGER.warning("Refused with %s: %s", escape(code), ", ".join([where, *told]))


def untold(error: BaseException, where: str, *, who: Principal | None = None, **ids: str | None) -> None:
    """Log what the answer to an error does not tell: the code of a refusal (see `refused`) that is shown as a class, or
    hidden behind "not found", and whatever is an error of this side. The other arguments are those of `refused`.
    """
    if slug_of(error) == "internal":
        failed(f"No answer to {where}", error)
    hidden = error if slug_of(error) in _COARSE else error.__cause__
    if isinstance(hidden, HitlGuardError) and slug_of(hidden) in _COARSE:
        refused(hidden, where, who=who, **ids)


def _short(text: str) -> str:
    return escape(text[:min(SHOWN, len(text) // 2)]) + "..."
