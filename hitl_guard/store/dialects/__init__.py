"""One module per kind of database. A module is imported when a URL asks for it, so that no driver is needed unasked."""

from __future__ import annotations

import importlib

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ...errors import ConfigurationError
from .base import Dialect

_KINDS = {
    "sqlite": ("sqlite", "SQLite", "", ("sqlite", "sqlite+pysqlite")),
    "postgresql": ("postgresql", "PostgreSQL", "postgres", ("postgresql", "postgres", "postgresql+psycopg")),
    "mariadb": ("mariadb", "MariaDB", "mariadb", ("mariadb", "mysql", "mariadb+pymysql", "mysql+pymysql")),
}


def dialect_for(url: str | URL, *, timeout_ms: int) -> Dialect:
    """Return the dialect that a database URL names, without connecting.

    Raises:
        ConfigurationError: the URL is malformed or names an unknown database, or its driver is not installed. The
            message never repeats the URL, which may hold a password.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        raise ConfigurationError(
            "The database URL cannot be read. Write sqlite:///file, postgresql://… or mariadb://…", detail="url"
        ) from None
    for module, class_, extra, names in _KINDS.values():
        if parsed.drivername in names:
            try:
                found = importlib.import_module(f".{module}", __name__)
            except ModuleNotFoundError as error:
                raise ConfigurationError(
                    f"The driver for {module} is missing. Install hitl-guard[{extra}].", detail="driver"
                ) from error
            kind: type[Dialect] = getattr(found, class_)
            return kind(parsed, timeout_ms=timeout_ms)
    raise ConfigurationError(
        "The database URL names an unsupported database or driver. Use sqlite, postgresql or mariadb.", detail="url"
    )
