"""Thousands of requests, signed one by one as the guard does it, stored in two statements."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import text

from hitl_guard.lifecycle import ask
from hitl_guard.models import ToolCall
from hitl_guard.store import hot
from hitl_guard.store.base import AddRequest
from tests.databases import Database
from tests.support import World


def signed(world: World, calls: Iterable[ToolCall]) -> list[AddRequest]:
    """Return the steps that ask for calls that were never asked for."""
    desk, steps = world.guard._desk, []
    reading = desk.read("default")
    for call in calls:
        bound = desk.bind(call)
        envelope, details = ask.envelope_of(desk, bound, desk.evaluate(bound), reading)
        steps.append(ask.sign(desk, envelope, details, bound, reading))
    return steps


def store(database: Database, steps: Iterable[AddRequest]) -> None:
    """Insert them in one transaction."""
    rows = [hot.request_parameters(step) for step in steps]
    with database.connect() as connection, connection.begin():
        for statement in (hot.add_request(hot.Words("")), hot.ADD_OPEN):
            connection.execute(text(statement), rows)
