"""Creating and changing the schema with Alembic. Imported only by `SQLStore.setup`."""

from __future__ import annotations

import pathlib

import sqlalchemy.exc
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, text

from ...errors import ConfigurationError
from .. import schema
from ..dialects.base import Dialect, translated


def upgrade(dialect: Dialect) -> None:
    """Bring the schema to this version, under the database's own lock.

    Raises:
        ConfigurationError: the schema is newer than this version.
        StoreUnavailableError: the database cannot be reached or refuses.
    """
    engine = dialect.migrator()
    try:
        with engine.connect() as connection, dialect.migrating(connection):
            found = _versions(connection)
            if found != [schema.REVISIONS[-1]]:
                if found:
                    _demand_known(found)
                _run(connection)
    except sqlalchemy.exc.DBAPIError as error:
        raise translated(dialect, error.orig if isinstance(error.orig, Exception) else error) from error
    finally:
        engine.dispose()


def _versions(connection: Connection) -> list[str]:
    if not inspect(connection).has_table(schema.VERSION_TABLE):
        return []
    return list(connection.scalars(text(f"SELECT version_num FROM {schema.VERSION_TABLE}")))


def _demand_known(found: list[str]) -> None:
    try:
        schema.demand(found)
    except ConfigurationError as error:
        if error.detail != "schema-older":
            raise


def _run(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(pathlib.Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
