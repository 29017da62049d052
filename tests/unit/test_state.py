"""The state machine of one request: the table is the protocol."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.audit import EVENT_TYPES, REQUEST_EVENTS
from hitl_guard.errors import StoreRolledBackError
from hitl_guard.lifecycle.state import STATES, TRANSITIONS, at, fold

TERMINAL = {"denied", "expired", "revoked", "superseded", "succeeded", "failed", "abandoned"}
SPENT = {"executing", "suspended", "in_doubt", "succeeded", "failed", "abandoned"}
STARTS = ("grant:claimed", "grant:resumed")

DESIGNED = {
    "pending": {"pending", "approved", "denied", "expired", "revoked", "superseded"},
    "approved": {"executing", "expired", "revoked", "superseded"},
    "executing": {"succeeded", "failed", "in_doubt", "suspended"},
    "suspended": {"executing", "revoked"},
    "in_doubt": {"succeeded", "failed", "abandoned"},
}


def test_the_table_has_exactly_the_transitions_of_the_design() -> None:
    reached: dict[str, set[str]] = {}
    for (state, _), following in TRANSITIONS.items():
        reached.setdefault(state, set()).add(following)

    assert reached == DESIGNED


def test_the_published_table_is_this_one_and_names_every_event() -> None:
    page = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text("utf-8")
    section = page.partition("**Event types.**")[2].partition("**Identity")[0]
    published = {
        (state, kind): named or kind.partition(":")[2]
        for state, cell in re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
        for kind, named in re.findall(r"`(\w+:\w+)`(?: \(`(\w+)`\))?", cell)
    }

    assert published == TRANSITIONS
    assert set(re.findall(r"`(\w+:\w+)`", section)) == EVENT_TYPES


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
    following = {(state, after) for (state, _), after in TRANSITIONS.items() if state in SPENT}

    assert {after for _, after in following} <= SPENT | {"revoked"}
    assert [state for state, after in following if after == "revoked"] == ["suspended"]


def test_a_call_runs_only_after_its_grant_was_claimed_or_after_its_tool_suspended_itself() -> None:
    assert {pair for pair, following in TRANSITIONS.items() if following == "executing"} == {
        ("approved", "grant:claimed"), ("suspended", "grant:resumed")
    }
    assert {pair for pair, following in TRANSITIONS.items() if following == "suspended"} == {
        ("executing", "call:suspended")
    }


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([], "pending"),
        (["request:voted", "request:voted", "request:approved"], "approved"),
        (["request:approved", "grant:claimed", "call:in_doubt", "call:abandoned"], "abandoned"),
        (["request:approved", "request:revoked"], "revoked"),
        (["request:approved", "grant:claimed", "call:suspended"], "suspended"),
        (["request:approved", "grant:claimed", "call:suspended", "request:revoked"], "revoked"),
        (["request:approved", "grant:claimed", *["call:suspended", "grant:resumed"] * 3], "executing"),
        (["request:approved", "grant:claimed", "call:suspended", "grant:resumed", "call:succeeded"], "succeeded"),
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
        ["request:approved", "grant:resumed"], ["request:approved", "grant:claimed", "grant:resumed"],
        ["request:approved", "call:suspended"], ["request:approved", "grant:claimed", "request:revoked"],
        ["request:approved", "grant:claimed", "call:suspended", "grant:claimed"],
        ["request:approved", "grant:claimed", "call:suspended", "grant:resumed", "grant:resumed"],
        ["request:approved", "grant:claimed", "call:suspended", "call:succeeded"],
        ["request:approved", "grant:claimed", "call:suspended", "call:in_doubt"],
        ["request:approved", "grant:claimed", "call:in_doubt", "grant:resumed"],
        ["request:approved", "grant:claimed", "call:succeeded", "grant:resumed"],
    ],
    ids=str,
)
def test_events_that_are_no_path_of_the_table_mean_that_some_are_missing(kinds: list[str]) -> None:
    with pytest.raises(StoreRolledBackError) as caught:
        fold(kinds)

    assert caught.value.detail == "transition"


@st.composite
def walks(draw: st.DrawFn) -> list[str]:
    """Draw events that follow one another in the table, and perhaps one more that may not."""
    kinds: list[str] = []
    for _ in range(draw(st.integers(0, 12))):
        legal = sorted(kind for state, kind in TRANSITIONS if state == fold(kinds))
        if not legal:
            break
        kinds.append(draw(st.sampled_from(legal)))
    return [*kinds, *draw(st.lists(st.sampled_from(sorted(REQUEST_EVENTS)), max_size=1))]


@given(st.one_of(st.lists(st.sampled_from(sorted(REQUEST_EVENTS)), max_size=6), walks()))
def test_no_order_of_events_claims_twice_or_starts_again_what_did_not_suspend_itself(kinds: list[str]) -> None:
    try:
        state = fold(kinds)
    except StoreRolledBackError:
        return

    claims, suspensions = kinds.count("grant:claimed"), kinds.count("call:suspended")
    assert claims == (state in SPENT or (state == "revoked" and suspensions > 0))
    assert suspensions - kinds.count("grant:resumed") == (
        state == "suspended" or (state == "revoked" and suspensions > 0)
    )
    # Between two starts the tool always said that it stopped.
    told = [kind for kind in kinds if kind in (*STARTS, "call:suspended")]
    assert [kind in STARTS for kind in told] == [place % 2 == 0 for place in range(len(told))]


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


@pytest.mark.parametrize(("state", "now"), list(product(sorted(TERMINAL | {"in_doubt", "suspended"}), [0, 10**15])))
def test_time_changes_nothing_about_what_has_ended_or_waits_for_its_tools_answer(state: str, now: int) -> None:
    assert at(state, now=now, decide_by=100, execute_by=200, run_by=300) == state
