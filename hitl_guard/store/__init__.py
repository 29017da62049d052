"""Where requests and events live: the Store contract (`base`) and its implementation over SQL (`sql`).

`SQLStore` is resolved at its first use: importing the contract loads no database library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sql import SQLStore

__all__ = ["SQLStore"]


def __getattr__(name: str) -> Any:
    if name != "SQLStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .sql import SQLStore

    return SQLStore
