"""Fakes for users' own tests: real behaviour, nothing kept."""

from __future__ import annotations

import gc
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from hitl_guard import ApprovalRequired, Guard, Principal, ToolCall
from hitl_guard import testing as ours
from hitl_guard.testing import UnsafeKeyring, UnsafeMemoryStore


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, under a name that no URL takes as it is."""
    home = tmp_path / "a b?c#d%41"
    home.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(home))
    return home


def guard_on(store: UnsafeMemoryStore) -> Guard:
    return Guard(policy="user-approval", keyring=UnsafeKeyring(), store=store)


def test_a_users_test_walks_the_whole_path(folder: Path) -> None:
    ran: list[Any] = []
    with UnsafeMemoryStore() as store:
        guard = guard_on(store)
        call = ToolCall("refund", {"order": "A-17"}, user="ana", run_id="run", call_id="call")
        with pytest.raises(ApprovalRequired) as pause:
            guard.run(call, ran.append)
        request = pause.value.request
        guard.decide(request.id, approver=Principal("bob"), approve=True, fingerprint=request.fingerprint)
        guard.run(call, lambda order: ran.append(order))

    assert ran == ["A-17"]


def test_the_file_is_private_and_gone_after_close(folder: Path) -> None:
    store = UnsafeMemoryStore()
    (made,) = folder.iterdir()

    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert (made / "approvals.db").is_file()
    store.close()
    assert list(folder.iterdir()) == []
    store.close()


def test_the_file_is_gone_when_nobody_closed_the_store(folder: Path) -> None:
    store = UnsafeMemoryStore()
    assert len(list(folder.iterdir())) == 1

    del store
    gc.collect()

    assert list(folder.iterdir()) == []


def test_a_block_that_fails_leaves_nothing(folder: Path) -> None:
    with pytest.raises(ValueError, match="boom"), UnsafeMemoryStore():
        raise ValueError("boom")

    assert list(folder.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_delete_its_parents_file(folder: Path) -> None:
    store = UnsafeMemoryStore()
    child = os.fork()
    if child == 0:
        try:
            store.close()
        finally:
            os._exit(0)

    os.waitpid(child, 0)
    assert store.now() > 0
    assert len(list(folder.iterdir())) == 1
    store.close()


def test_two_stores_know_nothing_of_each_other(folder: Path) -> None:
    with UnsafeMemoryStore() as one, UnsafeMemoryStore() as other:
        guards = [guard_on(one), guard_on(other)]
        guards[0].request(ToolCall("refund", {}, user="ana", run_id="run", call_id="call"))

        assert [len(guard.pending()) for guard in guards] == [1, 0]


def test_a_key_ring_is_new_each_time_and_can_be_of_another_epoch() -> None:
    rings = [UnsafeKeyring(), UnsafeKeyring(epoch=7)]

    assert [ring.epoch for ring in rings] == [1, 7]
    assert len({key.id for ring in rings for key in ring.keys}) == 2


def test_every_name_says_that_it_is_unsafe(folder: Path) -> None:
    assert ours.__all__
    assert [name for name in ours.__all__ if not name.startswith("Unsafe")] == []
    with UnsafeMemoryStore() as store:
        assert repr(store) == "<UnsafeMemoryStore>"


def test_nothing_of_ours_uses_the_fakes() -> None:
    modules = [path for path in Path(ours.__file__).parent.rglob("*.py") if path.name != "testing.py"]

    assert modules
    assert [path.name for path in modules if re.search(r"(from|import) .*\btesting\b", path.read_text("utf-8"))] == []
