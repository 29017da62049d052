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
from hitl_guard.agent.turns import Proposed, Turn, deltas
from hitl_guard.errors import ConfigurationError
from hitl_guard.testing import ScriptedModel, UnsafeKeyring, UnsafeMemoryStore


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


def test_every_name_says_that_it_is_unsafe_but_the_model_which_keeps_nothing_safe_anywhere(folder: Path) -> None:
    assert ours.__all__
    assert [name for name in ours.__all__ if not name.startswith("Unsafe")] == ["ScriptedModel"]
    with UnsafeMemoryStore() as store:
        assert repr(store) == "<UnsafeMemoryStore>"


MESSAGE = {"content": "Look.", "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": "{}"}}, {"id": "b"}]}


async def said(model: ScriptedModel, messages: Any = ()) -> tuple[list[str], Turn]:
    *texts, turn = [piece async for piece in deltas(model, list(messages), [], {})]
    assert isinstance(turn, Turn)
    return [str(text) for text in texts], turn


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    ("turn", "come_to"),
    [
        ("Hello there.", Turn("Hello there.", (), "stop", {})),
        ("", Turn("", (), "stop", {})),
        ([("a", "refund", {"order": "A-17"}), ("a", "refund", "{not json")],
         Turn("", (Proposed("a", "refund", '{"order": "A-17"}'), Proposed("a", "refund", "{not json")), "tool_calls",
              {})),
        ([], Turn("", (), "tool_calls", {})),
        (MESSAGE, Turn("Look.", (Proposed("a", "x", "{}"), Proposed("b", "", "{}")), None, {})),
        ({"content": "a", "tool_calls": None, "usage": {"n": 1}}, Turn("a", (), None, {"n": 1})),
        (lambda messages: f"{len(messages)} messages", Turn("2 messages", (), "stop", {})),
        (lambda _: [(None, "ping", {})], Turn("", (Proposed("call_0", "ping", "{}"),), "tool_calls", {})),
    ],
    ids=["text", "empty", "calls", "no-calls", "mapping", "usage", "function", "function-calls"],
)
async def test_a_scripted_model_says_what_it_was_told_to(turn: Any, come_to: Turn, split: bool) -> None:
    texts, said_turn = await said(ScriptedModel(turn, split=split), [{"role": "user"}, {"role": "user"}])

    assert said_turn == come_to
    assert "".join(texts) == come_to.text


async def test_a_split_turn_comes_in_small_deltas() -> None:
    stream = await ScriptedModel([("a", "refund", {"order": "A-17"})], split=True)([], [], {})

    pieces = [delta async for delta in stream]

    assert pieces[1]["tool_calls"][0] == {"id": "a", "type": "function", "index": 0, "function": {"name": "refund"}}
    assert len(pieces) > 5
    assert (await said(ScriptedModel("Hello there.", split=True)))[0] == ["Hello", " ther", "e."]


async def test_a_scripted_model_keeps_copies_of_what_it_was_asked() -> None:
    model = ScriptedModel("one", lambda messages: messages.clear() or "two")
    messages, tools, settings = [{"content": "hi"}], [{"type": "function"}], {"seed": 1}

    await model(messages, tools, settings)
    await model(messages, tools, settings)
    messages[0]["content"] = "changed"

    assert (model.calls, model.tools, model.settings) == ([[{"content": "hi"}]] * 2, [tools] * 2, [settings] * 2)


@pytest.mark.parametrize("turn", [LookupError("down"), lambda _: LookupError("down")], ids=["error", "function"])
async def test_a_scripted_error_is_raised_and_the_script_goes_on(turn: Any) -> None:
    model = ScriptedModel(turn, "again")

    with pytest.raises(LookupError, match="down"):
        await said(model)

    assert (await said(model))[0] == ["again"]


async def test_a_script_that_has_run_out_says_which_call_had_no_turn() -> None:
    model = ScriptedModel("one")
    await said(model)

    with pytest.raises(ConfigurationError, match="Call 2 of the scripted model has no turn"):
        await said(model)


@pytest.mark.parametrize("turn", [None, 5, ["text"], [("a", "b")]], ids=repr)
async def test_a_scripted_turn_that_means_nothing_is_refused(turn: Any) -> None:
    with pytest.raises(ConfigurationError, match="A scripted turn is"):
        ScriptedModel(turn)
    with pytest.raises(ConfigurationError, match="A scripted turn is"):
        await said(ScriptedModel(lambda _: turn))


def test_nothing_of_ours_uses_the_fakes() -> None:
    modules = [path for path in Path(ours.__file__).parent.rglob("*.py") if path.name != "testing.py"]

    assert modules
    fakes = re.compile(r"from \.+testing\b|from (hitl_guard|\.+) import .*\btesting\b|hitl_guard\.testing\b")
    assert fakes.search("from ..testing import ScriptedModel")
    assert fakes.search("from hitl_guard import testing")
    assert [path.name for path in modules if fakes.search(path.read_text("utf-8"))] == []
