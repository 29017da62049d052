"""The state machine of one request: the table is the protocol."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.audit import REQUEST_EVENTS
from hitl_guard.errors import StoreRolledBackError
from hitl_guard.lifecycle.state import STATES, TRANSITIONS, at, fold

TERMINAL = {"denied", "expired", "revoked", "superseded", "succeeded", "failed", "abandoned"}
SPENT = {"executing", "in_doubt", "succeeded", "failed", "abandoned"}

DESIGNED = {
    "pending": {"pending", "approved", "denied", "expired", "revoked", "superseded"},
    "approved": {"executing", "expired", "revoked", "superseded"},
    "executing": {"succeeded", "failed", "in_doubt"},
    "in_doubt": {"succeeded", "failed", "abandoned"},
}


def test_the_table_has_exactly_the_transitions_of_the_design() -> None:
    reached: dict[str, set[str]] = {}
    for (state, _), following in TRANSITIONS.items():
        reached.setdefault(state, set()).add(following)

    assert reached == DESIGNED


def test_every_request_event_is_in_the_table_and_nothing_else() -> None:
    assert {kind for _, kind in TRANSITIONS} == REQUEST_EVENTS


def test_the_states_are_those_of_the_table() -> None:
    assert TERMINAL | DESIGNED.keys() == STATES


def test_terminal_states_never_leave() -> None:
    assert [pair for pair in TRANSITIONS if pair[0] in TERMINAL] == []


def test_no_state_leads_back_to_approved() -> None:
    assert [pair for pair, following in TRANSITIONS.items() if following == "approved"] == [
        ("pending", "request:approved")
    ]


def test_nothing_that_was_spent_becomes_open_again() -> None:
    assert {following for (state, _), following in TRANSITIONS.items() if state in SPENT} <= SPENT


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([], "pending"),
        (["request:voted", "request:voted", "request:approved"], "approved"),
        (["request:approved", "grant:claimed", "call:in_doubt", "call:abandoned"], "abandoned"),
        (["request:approved", "request:revoked"], "revoked"),
    ],
    ids=str,
)
def test_events_fold_into_the_state_after_them(kinds: list[str], state: str) -> None:
    assert fold(kinds) == state


@pytest.mark.parametrize(
    "kinds",
    [
        ["grant:claimed"], ["request:approved", "request:approved"], ["request:denied", "request:approved"],
        ["request:approved", "grant:claimed", "grant:claimed"], ["request:approved", "call:succeeded"],
        ["request:approved", "grant:claimed", "call:abandoned"], ["call:refused"], ["unknown"], [""],
        ["request:approved", "grant:claimed", "call:succeeded", "call:failed"],
    ],
    ids=str,
)
def test_events_that_are_no_path_of_the_table_mean_that_some_are_missing(kinds: list[str]) -> None:
    with pytest.raises(StoreRolledBackError) as caught:
        fold(kinds)

    assert caught.value.detail == "transition"


@given(st.lists(st.sampled_from(sorted(REQUEST_EVENTS)), max_size=6))
def test_no_order_of_events_claims_twice(kinds: list[str]) -> None:
    try:
        state = fold(kinds)
    except StoreRolledBackError:
        return

    assert kinds.count("grant:claimed") == (state in SPENT)


@pytest.mark.parametrize(
    ("state", "now", "reads_as"),
    [
        ("pending", 99, "pending"), ("pending", 100, "expired"),
        ("approved", 199, "approved"), ("approved", 200, "expired"), ("approved", 100, "approved"),
        ("executing", 299, "executing"), ("executing", 300, "in_doubt"),
    ],
)
def test_an_overdue_state_reads_as_over_at_once(state: str, now: int, reads_as: str) -> None:
    assert at(state, now=now, decide_by=100, execute_by=200, run_by=300) == reads_as


@pytest.mark.parametrize(("state", "reads_as"), [("approved", "expired"), ("executing", "in_doubt")])
def test_a_state_without_its_limit_is_over(state: str, reads_as: str) -> None:
    assert at(state, now=0, decide_by=100, execute_by=None, run_by=None) == reads_as


@pytest.mark.parametrize(("state", "now"), list(product(sorted(TERMINAL | {"in_doubt"}), [0, 10**15])))
def test_time_changes_nothing_about_what_has_ended(state: str, now: int) -> None:
    assert at(state, now=now, decide_by=100, execute_by=200, run_by=300) == state
