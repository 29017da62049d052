"""Public names of a package that resolve when they are used first (PEP 562): importing it imports no framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def names_of(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package's ``__init__``.

    Args:
        package: Its ``__name__``.
        homes: Module of the package → the public names that it has. A module may be public itself, too.
    """
    def getattr_(name: str) -> Any:
        for home, names in homes.items():
            if name == home and name in sys.modules[package].__all__:
                return import_module(f".{home}", package)
            if name in names:
                value = getattr(import_module(f".{home}", package), name)
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def dir_() -> list[str]:
        module = sys.modules[package]
        return sorted({*vars(module), *module.__all__})

    return getattr_, dir_
