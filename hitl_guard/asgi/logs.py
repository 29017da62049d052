"""What went wrong behind an answer that does not say so, for the host's own log (``hitl_guard.asgi``).

The kind of an error and where it was raised are logged, never its message: a model's or a tool's own error may hold
keys or arguments.
"""

from __future__ import annotations

import logging
import traceback

from ..render import escape

LOGGER = logging.getLogger("hitl_guard.asgi")

FRAMES = 12
"""Lines of code that are named at most, the innermost ones."""


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
    LOGGER.error("%s%s: %s.%s at %s", what, where, name.__module__, name.__qualname__, place or "no place")
