"""The control row: what it stops, how it is read, and that no change of it lets more through than was meant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.errors import (
    HitlGuardError,
    InvalidSignatureError,
    LimitError,
    PausedError,
    PolicyChangedError,
    StoreRolledBackError,
)
from hitl_guard.keyring import Keyring
from hitl_guard.lifecycle.control import (
    Control,
    Mute,
    at,
    muted,
    paused,
    resumed,
    steps_to_replace,
    unmuted,
    verify,
    with_policy,
)
from hitl_guard.rows import ControlRow, control_record
from hitl_guard.signing import Signer
from hitl_guard.store.base import Append, SetControl

from .rings import NOW, key

EMPTY = Control("acme")


def signer(epoch: int = 1) -> Signer:
    return Signer(Keyring([key(1)], epoch))


def row_of(control: Control, by: Signer | None = None) -> ControlRow:
    """Return the row that puts ``control`` in the place of the version before it."""
    old = replace(control, version=control.version - 1)
    step, _ = steps_to_replace(old, control, by="olga", reason=None, signer=by or signer(), now=NOW)
    assert isinstance(step, SetControl)
    return step.row


def read(row: ControlRow | None, **changes: Any) -> Control:
    options: dict[str, Any] = {"tenant": "acme", "overtaken": False, "signer": signer(), "now": NOW} | changes
    return verify(row, **options)


def told(control: Control, tool: str = "refund", agent: str | None = None, policy_version: str = "p") -> str | None:
    try:
        control.check(tool=tool, agent=agent, policy_version=policy_version)
    except HitlGuardError as error:
        return error.detail
    return None


# -- what it stops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pauses", "tool", "agent", "detail"),
    [
        ((), "refund", "bot", None),
        ((("all", ""),), "refund", None, "all"),
        ((("tool", "refund"),), "refund", "bot", "tool"),
        ((("tool", "refund"),), "Refund", "bot", None),
        ((("tool", "refund"),), "wire", None, None),
        ((("agent", "bot"),), "refund", "bot", "agent"),
        ((("agent", "bot"),), "refund", None, None),
        ((("agent", "bot"),), "bot", "other", None),
        ((("tool", "wire"), ("agent", "bot"), ("tool", "refund")), "refund", "other", "tool"),
    ],
)
def test_a_pause_stops_exactly_what_it_names(pauses: Any, tool: str, agent: str | None, detail: str | None) -> None:
    assert told(replace(EMPTY, pauses=frozenset(pauses)), tool, agent) == detail


def test_a_restored_row_stops_everything() -> None:
    control = replace(EMPTY, restored=True)

    with pytest.raises(PausedError) as caught:
        control.check(tool="x", agent=None, policy_version="p")

    assert (caught.value.code, caught.value.detail) == ("paused", "restored")
    assert "control resume" in str(caught.value)


def test_a_demanded_policy_version_stops_nodes_with_another_one() -> None:
    control = replace(EMPTY, policy="p2")

    control.check(tool="x", agent=None, policy_version="p2")
    with pytest.raises(PolicyChangedError) as caught:
        control.check(tool="x", agent=None, policy_version="p1")

    assert (caught.value.code, caught.value.detail) == ("policy-changed", "node")


# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_tenant_without_a_row_and_without_events_starts_with_nothing_paused() -> None:
    assert read(None) == EMPTY


@pytest.mark.parametrize("row", [None, row_of(replace(EMPTY, version=1))], ids=["no row", "an old row"])
def test_a_row_that_later_events_have_overtaken_is_refused(row: ControlRow | None) -> None:
    with pytest.raises(StoreRolledBackError) as caught:
        read(row, overtaken=True)

    assert (caught.value.code, caught.value.detail) == ("store-rolled-back", "control")


PAUSES = st.frozensets(
    st.just(("all", "")) | st.tuples(st.sampled_from(["tool", "agent"]), st.text(min_size=1, max_size=5))
)
CONTROLS = st.builds(
    Control, st.just("acme"), st.integers(1, 2**53 - 1), PAUSES, st.none() | st.text(min_size=1, max_size=5)
)


@given(CONTROLS)
def test_a_row_is_read_as_it_was_written(control: Control) -> None:
    assert read(row_of(control)) == control


def test_a_row_of_an_earlier_epoch_reads_as_restored_and_keeps_its_pauses() -> None:
    row = row_of(Control("acme", 1, frozenset({("tool", "x")})), signer(1))

    found = read(row, signer=signer(2))

    assert (found.restored, found.pauses) == (True, frozenset({("tool", "x")}))


@pytest.mark.parametrize(
    ("changes", "tenant"),
    [({"version": 2}, "acme"), ({"version": 0}, "acme"), ({}, "other"), ({"tenant": "x"}, "other")],
)
def test_a_row_of_another_tenant_or_version_is_refused(changes: dict[str, Any], tenant: str) -> None:
    row = replace(row_of(replace(EMPTY, version=1)), **changes)

    with pytest.raises(InvalidSignatureError) as caught:
        read(row, tenant=tenant)

    assert caught.value.detail == "mismatch"


# -- changing --------------------------------------------------------------------------------------------------------


def test_a_change_is_a_new_row_and_an_event_that_holds_it() -> None:
    old = Control("acme", 4, frozenset({("tool", "b")}))

    first, second = steps_to_replace(
        old, paused("tool", "a")(old), by="olga", reason="fire", signer=signer(), now=NOW
    )

    assert isinstance(first, SetControl)
    assert isinstance(second, Append)
    assert (first.row.tenant, first.row.version) == ("acme", 5)
    assert read(first.row).pauses == {("tool", "a"), ("tool", "b")}
    draft = second.draft
    assert (draft.type, draft.tenant, draft.request_id, draft.version) == (
        "control:changed", "acme", control_record("acme"), 5
    )
    assert b'"by":"olga"' in draft.body
    assert first.row.body in draft.body


CHANGES = st.one_of(
    st.builds(paused, st.just("all"), st.just("")), st.builds(paused, st.sampled_from(["tool", "agent"]), st.text()),
    st.builds(resumed, st.sampled_from(["tool", "agent"]), st.text()), st.builds(with_policy, st.none() | st.text()),
)


@given(CONTROLS, st.lists(CHANGES, max_size=5), st.text(max_size=5), st.none() | st.text(max_size=5))
def test_after_a_restore_nothing_but_resuming_everything_lets_a_call_through(
    control: Control, changes: list[Any], tool: str, agent: str | None
) -> None:
    now = replace(control, restored=True)

    for change in changes:
        # What is written is of the new epoch, so it reads as not restored.
        now = replace(change(now), restored=False)

    assert told(now, tool, agent) == ("all" if changes else "restored")
    assert ("all", "") not in resumed("all", "")(now).pauses


@given(CONTROLS)
def test_resuming_everything_leaves_single_pauses(control: Control) -> None:
    for restored in (False, True):
        after = resumed("all", "")(replace(control, restored=restored))
        assert after.pauses == control.pauses - {("all", "")}


@given(CONTROLS, st.text(max_size=3))
def test_a_pause_taken_back_leaves_the_others(control: Control, name: str) -> None:
    assert resumed("tool", name)(paused("tool", name)(control)).pauses == control.pauses - {("tool", name)}


def test_a_demanded_policy_version_is_set_and_lifted() -> None:
    control = replace(EMPTY, pauses=frozenset({("tool", "x")}))

    assert with_policy("p")(control) == replace(control, policy="p")
    assert with_policy(None)(with_policy("p")(control)) == control


# -- mutes ------------------------------------------------------------------------------------------------------------

MUTE = Mute("ana", "refund", "bob", "r" * 22, NOW + 10)


def test_x16_a_row_with_mutes_reads_back_as_it_was_signed() -> None:
    other = Mute("zoe", "wire", "bob", "s" * 22, NOW + 20)
    control = replace(EMPTY, version=3, mutes=(other, MUTE), policy="p")

    assert read(row_of(control)) == replace(control, mutes=(MUTE, other))


def test_x16_a_row_without_mutes_has_the_fields_that_it_always_had() -> None:
    bare, with_one = row_of(replace(EMPTY, version=1)), row_of(replace(EMPTY, version=1, mutes=(MUTE,)))
    over = row_of(replace(EMPTY, version=1, mutes=(replace(MUTE, until=NOW),)))

    fields: list[set[str]] = [
        set(signer().open(row.body, expected_purpose="control", expected_type="hitl-control", now=NOW))
        for row in (bare, with_one, over)
    ]

    assert fields[1] - fields[0] == {"mutes"}
    assert fields[0] == fields[2]


def test_x16_an_empty_list_of_mutes_is_no_second_spelling_of_none() -> None:
    fields: dict[str, Any] = {"mutes": [], "pauses": [], "policy": None, "tenant": "acme", "version": 1}
    row = ControlRow("acme", 1, signer().sign("control", "hitl-control", fields, now=NOW))

    with pytest.raises(InvalidSignatureError):
        read(row)


def test_x16_mutes_of_a_restored_row_stay_and_every_change_keeps_the_standstill() -> None:
    restored = read(row_of(replace(EMPTY, version=1, mutes=(MUTE,))), signer=signer(2))

    assert (restored.restored, restored.mutes) == (True, (MUTE,))
    for change in (muted(replace(MUTE, by="eve"), now=NOW), unmuted("ana", "refund", None)):
        assert ("all", "") in change(restored).pauses


def test_x16_mutes_are_added_replaced_and_lifted_one_by_one() -> None:
    control = EMPTY
    for mute in (MUTE, replace(MUTE, by="eve"), replace(MUTE, tool="wire"), replace(MUTE, user="zoe")):
        control = muted(mute, now=NOW)(control)
    later = muted(replace(MUTE, until=NOW + 99), now=NOW)(control)

    assert len(control.mutes) == len(later.mutes) == 4
    assert {mute.until for mute in later.mutes} == {NOW + 10, NOW + 99}
    assert len(unmuted("ana", "refund", None)(control).mutes) == 2
    assert len(unmuted("ana", "refund", "eve")(control).mutes) == 3
    assert unmuted("bob", "refund", None)(control).mutes == control.mutes
    assert at(control, NOW + 10).mutes == ()


def test_x16_mutes_that_are_over_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitl_guard.lifecycle.control.MAX_MUTES", 1)
    control = replace(EMPTY, mutes=(MUTE,))

    with pytest.raises(LimitError) as caught:
        muted(replace(MUTE, by="eve"), now=NOW)(control)

    assert caught.value.detail == "mutes"
    assert len(muted(replace(MUTE, by="eve"), now=NOW + 10)(control).mutes) == 1
    assert muted(replace(MUTE, until=NOW + 11), now=NOW)(control).mutes == (replace(MUTE, until=NOW + 11),)
