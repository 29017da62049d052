"""What the tests of threats share: a guard whose database somebody else can write to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hitl_guard.store.sql import SQLStore
from tests.databases import Database
from tests.support import World
from tests.threats.attacker import Attacker


@pytest.fixture
def attacked(make_database: Callable[..., Database], open_store: Callable[..., SQLStore]) -> tuple[World, Attacker]:
    """A guard on SQLite, and an attacker on its database."""
    database = make_database("sqlite")
    return World(open_store(database)), Attacker(database)
