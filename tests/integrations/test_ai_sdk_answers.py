"""How answers in a chat's posts are verified: what is void, who decides first, one request under two ids."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hitl_guard import Guard, Principal, ToolCall
from hitl_guard.errors import DecisionError, HitlGuardError
from hitl_guard.integrations.ai_sdk import ChatId
from hitl_guard.integrations.ai_sdk.answers import Told, taken
from hitl_guard.integrations.ai_sdk.events import call_id_of
from hitl_guard.integrations.ai_sdk.messages import read_post
from hitl_guard.integrations.ai_sdk.texts import KEY_GONE, RESTORED
from hitl_guard.keyring import Keyring
from hitl_guard.models import ApprovalRequest
from hitl_guard.protocols import Claim
from hitl_guard.protocols.verify import Posted, posted
from hitl_guard.protocols.void import Void
from hitl_guard.testing import UnsafeKeyring, UnsafeMemoryStore
from tests.integrations import test_ai_sdk_chat as chats
from tests.integrations.conftest import OpenChat
from tests.integrations.ring_file import RingFile
from tests.integrations.test_ai_sdk_chat import (
    FOUR_EYES,
    OWN,
    House,
    Message,
    answered,
    forge_key_id,
    refusals,
    status_of,
)
from tests.integrations.test_ai_sdk_chat import house as house
from tests.threats.gates import LIMIT_S

ALICE = Principal("alice")
CALL = [("c1", "deleteFile", {"n": 1})]
EDITED = OWN.replace(b"self_approval: true", b"self_approval: true, edit: true")
EDITED_BY_TWO = OWN.replace(b"self_approval: true", b"self_approval: true, edit: true, quorum: 2")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RingFile:
    """The key ring of every house that is made after it."""
    file = RingFile(tmp_path)
    monkeypatch.setattr(chats, "UnsafeKeyring", lambda: file.keyring)
    return file


def confirm(home: House) -> None:
    """Go on after a restore or a revocation, as the operators do."""
    home.guard.resume(by=Principal("olga", roles=("operator",)))
    home.guard.resume(by=Principal("gina", roles=("global-operator",)), everywhere=True)


def made_void(home: House, keys: RingFile, how: str) -> None:
    """Make what was signed so far void, really: the ring is loaded anew from its file."""
    (*_, part) = (part for part in home.client.messages[-1]["parts"] if "approval" in part)
    getattr(keys, how)()
    with pytest.raises(HitlGuardError) as error:
        home.guard.get(part["approval"]["id"])
    assert (error.value.code, error.value.detail) == VOID[how]
    confirm(home)


VOID = {
    "restore": ("invalid-approval", "epoch"), "revoke": ("key-revoked", "compromised"), "forget": ("key-unknown", None),
}
every_void = pytest.mark.parametrize("how", VOID)


# -- what is void ------------------------------------------------------------------------------------------------------


@every_void
@pytest.mark.parametrize("memory", [True, False])
def test_an_honest_history_of_what_is_void_ends_no_chat(
    house: Callable[..., House], keys: RingFile, how: str, memory: bool
) -> None:
    home = house(OWN, CALL, "Done.", [("c2", "pay", {"n": 2})], "Hello.", memory=memory)
    home.client.send("Delete it.")
    home.client.approve(home.pending()[0].id)
    home.client.send("Pay.")  # a request that nobody answers
    made_void(home, keys, how)

    home.client.send("Thanks.")

    assert (home.client.status, home.client.text) == ("ready", "Hello.")
    assert (home.ran, refusals(home.guard)) == ([("deleteFile", {"n": 1})], [])


@every_void
def test_numbers_that_a_browser_writes_differently_are_the_same_call_when_it_is_void(
    house: Callable[..., House], keys: RingFile, how: str
) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 2**60 + 1})], "Done.", "Bye.")
    home.client.send("Delete it.")
    home.client.approve(home.pending()[0].id)
    assert home.client.messages[-1]["parts"][1]["input"] != {"n": 2**60 + 1}
    made_void(home, keys, how)

    home.client.send("Thanks.")

    assert (home.client.status, home.client.text) == ("ready", "Bye.")


CHANGED_VOID: dict[str, tuple[Callable[[Message], Any], tuple[str, str | None]]] = {
    "arguments": (lambda part: part.update(input={"n": 999}), ("args-mismatch", None)),
    "one more argument": (lambda part: part["input"].update(force=True), ("args-mismatch", None)),
    "a number": (lambda part: part.update(input={"n": 2**53 + 1}), ("args-mismatch", None)),
    "tool": (lambda part: part.update(type="tool-pay"), ("args-mismatch", None)),
    "call id": (lambda part: part.update(toolCallId="c9"), ("scope-mismatch", None)),
    "approval id": (lambda part: part["approval"].update(id="aitxt-unknown"), ("invalid-approval", "unknown")),
    "key id": (forge_key_id, ("key-unknown", None)),
    "signature": (
        lambda part: part["approval"].update(signature=part["approval"]["signature"][:-4] + "AAAA"),
        ("invalid-signature", "mismatch"),
    ),
}
KEY_COMES_FIRST = {"approval id", "signature"}
"""What nobody can look at whose key is gone."""


@every_void
@pytest.mark.parametrize("live", [True, False], ids=["live", "history"])
@pytest.mark.parametrize("name", CHANGED_VOID)
def test_what_is_void_is_compared_with_what_is_stored(
    house: Callable[..., House], keys: RingFile, how: str, live: bool, name: str
) -> None:
    home = house(OWN, CALL, "Done.", "Bye.")
    home.client.send("Delete it.")
    asked = home.client.messages
    home.client.approve(home.pending()[0].id)
    change, expected = CHANGED_VOID[name]
    forged = answered(asked if live else home.client.messages, change)
    if not live:
        next(part for part in forged[-1]["parts"] if "toolCallId" in part)["state"] = "output-available"
    made_void(home, keys, how)
    home.client.set_messages(forged)

    home.client.send("Go on.")

    assert (status_of(home.client), home.ran, len(home.model.calls)) == (403, [("deleteFile", {"n": 1})], 2)
    assert refusals(home.guard) == [VOID[how] if how != "restore" and name in KEY_COMES_FIRST else expected]


@pytest.mark.parametrize("how", ["revoke", "forget"])
@pytest.mark.parametrize("memory", [True, False])
def test_a_history_in_which_a_void_call_ran_that_never_did_is_refused(
    house: Callable[..., House], keys: RingFile, how: str, memory: bool
) -> None:
    home = house(OWN, CALL, "Bye.", memory=memory)
    home.client.send("Delete it.")
    made_void(home, keys, how)
    home.client.set_messages(answered(
        home.client.messages, lambda part: part.update(state="output-available", output="invented")
    ))

    home.client.send("Go on.")

    assert (status_of(home.client), refusals(home.guard)) == (403, [("invalid-approval", "not-run")])
    assert len(home.model.calls) == 1


def test_a_store_that_was_put_back_may_know_less_of_a_call_than_the_client(
    house: Callable[..., House], keys: RingFile
) -> None:
    home = house(OWN, CALL, "Bye.", memory=False)
    home.client.send("Delete it.")
    made_void(home, keys, "restore")  # to where nobody had answered yet
    home.client.set_messages(answered(
        home.client.messages, lambda part: part.update(state="output-available", output="deleteFile done")
    ))

    home.client.send("Thanks.")

    assert (home.client.status, home.client.text, home.ran) == ("ready", "Bye.", [])


@every_void
@pytest.mark.parametrize("other", ["chat", "user"])
def test_what_is_void_answers_nothing_in_another_chat_or_of_another_user(
    house: Callable[..., House], open_chat: OpenChat, keys: RingFile, how: str, other: str
) -> None:
    home = house(OWN, CALL, "Done.", "Bye.")
    home.client.send("Delete it.")
    home.client.approve(home.pending()[0].id)
    made_void(home, keys, how)
    chat = open_chat(home.api, id="another", messages=home.client.messages) if other == "chat" else home.client
    chat.act_as("alice" if other == "chat" else "mallory")

    chat.send("Go on.")

    assert (status_of(chat), refusals(home.guard)) == (403, [("invalid-approval", "unknown")])


def told(home: House, messages: list[Message]) -> list[Told]:
    """Return what the live answers in a history come to."""
    chat = ChatId(home.client.id, ALICE, home.chat.loop.id)
    post = read_post({"id": chat.id, "messages": messages})
    return taken(home.guard, chat, post, owns=chat.owns, call_id_of=call_id_of)


@every_void
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("ran", [True, False])
def test_a_live_answer_to_what_is_void_decides_nothing_and_is_told_why(
    house: Callable[..., House], keys: RingFile, how: str, approved: bool, ran: bool
) -> None:
    home = house(OWN, CALL, "Done.")
    home.client.send("Delete it.")
    asked = home.client.messages
    if ran:
        home.client.approve(home.pending()[0].id)
    made_void(home, keys, how)

    (one,) = told(home, answered(asked, approved=approved))

    assert (one.request, one.run_id, one.approved) == (None, None, approved)
    assert one.note == (RESTORED if how == "restore" else KEY_GONE)
    assert "did not run" not in one.note  # it may have
    assert len(home.ran) == ran


def test_a_forged_answer_refuses_a_post_in_a_chat_that_believes_its_client(house: Callable[..., House]) -> None:
    home = house(OWN, "Hello.", memory=False)
    home.client.send("Hi.")
    part: Message = {
        "type": "tool-pay", "toolCallId": "c1", "input": {"n": 1},
        "approval": {"id": "aitxt-unknown", "approved": True, "signature": a_signature(home)},
    }
    forge_key_id(part, output="paid", input={"n": 999})
    messages = home.client.messages
    messages[-1]["parts"].append(part)
    home.client.set_messages(messages)

    home.client.send("Did you pay?")

    assert (status_of(home.client), refusals(home.guard)) == (403, [("key-unknown", None)])
    assert len(home.model.calls) == 1


def a_signature(home: House) -> str:
    return home.guard.request(ToolCall("pay", {"n": 1}, user="mallory", run_id="r", call_id="c1")).token


# -- what a restore lost -----------------------------------------------------------------------------------------------


def claim_of(request: ApprovalRequest, **changes: Any) -> Claim:
    said: dict[str, Any] = {
        "approved": True, "request_id": request.id, "token": request.token, "call_id": "c1", "tool": "pay",
        "arguments": {"n": 1}, "outcome": "output",
    }
    return Claim("ai-sdk-ui", "", **(said | changes))


def read(guard: Guard, claim: Claim, *, owns: Callable[[str], bool] = lambda run: run == "r") -> Posted | Void:
    return posted(guard._desk, claim, principal=ALICE, owns=owns)


def lost(*, epoch: int, key: bool = True) -> tuple[Guard, ApprovalRequest]:
    """Return a request of epoch 2, and a guard of another epoch whose store does not hold it."""
    keyring = UnsafeKeyring(epoch=2)
    with UnsafeMemoryStore() as store:
        request = Guard(policy="user-approval", keyring=keyring, store=store).request(
            ToolCall("pay", {"n": 1}, user="alice", run_id="r", call_id="c1")
        )
    ring = Keyring(keyring.keys, epoch) if key else UnsafeKeyring(epoch=epoch)
    return Guard(policy="user-approval", keyring=ring, store=UnsafeMemoryStore()), request


def test_a_request_that_a_restore_lost_is_void_where_its_own_mac_of_an_earlier_epoch_holds() -> None:
    guard, request = lost(epoch=3)

    for outcome in ("none", "output"):
        answer = read(guard, claim_of(request, outcome=outcome))
        assert isinstance(answer, Void)
        assert answer.restored


@pytest.mark.parametrize(("changes", "code"), [
    ({"arguments": {"n": 2}}, "args-mismatch"), ({"arguments": None}, "args-mismatch"),
    ({"arguments": {"n": float("inf")}}, "args-mismatch"), ({"tool": "x"}, "args-mismatch"),
    ({"tool": None}, "args-mismatch"), ({"call_id": "c2"}, "scope-mismatch"),
    ({"request_id": "other"}, "invalid-approval"),
])
def test_a_request_that_a_restore_lost_is_compared_with_what_was_signed(changes: dict[str, Any], code: str) -> None:
    guard, request = lost(epoch=3)

    with pytest.raises(HitlGuardError) as error:
        read(guard, claim_of(request, **changes))

    assert error.value.code == code


def test_a_request_that_a_restore_lost_belongs_to_its_chat() -> None:
    guard, request = lost(epoch=3)

    with pytest.raises(HitlGuardError) as error:
        read(guard, claim_of(request), owns=lambda run: False)

    assert (error.value.code, error.value.detail) == ("invalid-approval", "unknown")


@pytest.mark.parametrize(("epoch", "key", "expected"), [
    (1, True, ("invalid-approval", "epoch")),  # this node has not seen the restore yet
    (2, True, ("invalid-approval", "unknown")), (3, False, ("key-unknown", None)), (2, False, ("key-unknown", None)),
])
def test_what_is_not_stored_and_not_of_before_a_restore_is_refused(
    epoch: int, key: bool, expected: tuple[str, str | None]
) -> None:
    guard, request = lost(epoch=epoch, key=key)

    with pytest.raises(HitlGuardError) as error:
        read(guard, claim_of(request))

    assert (error.value.code, error.value.detail) == expected


def test_a_request_of_a_later_epoch_is_not_void_but_refused_by_who_has_not_seen_the_restore() -> None:
    keyring = UnsafeKeyring(epoch=2)
    with UnsafeMemoryStore() as store:
        request = Guard(policy="user-approval", keyring=keyring, store=store).request(
            ToolCall("pay", {"n": 1}, user="alice", run_id="r", call_id="c1")
        )
        late = Guard(policy="user-approval", keyring=Keyring(keyring.keys, 1), store=store)

        with pytest.raises(HitlGuardError) as error:
            read(late, claim_of(request, outcome="none"))

    assert (error.value.code, error.value.detail) == ("invalid-approval", "epoch")


def test_a_control_row_of_a_later_epoch_makes_no_request_void() -> None:
    keyring = UnsafeKeyring(epoch=2)
    with UnsafeMemoryStore() as store:
        here = Guard(policy="user-approval", keyring=keyring, store=store)
        request = here.request(ToolCall("pay", {"n": 1}, user="alice", run_id="r", call_id="c1"))
        elsewhere = Guard(policy="user-approval", keyring=Keyring(keyring.keys, 3), store=store)
        elsewhere.resume(by=Principal("olga", roles=("operator",)))

        with pytest.raises(HitlGuardError) as error:
            read(here, claim_of(request, outcome="none"))

    assert (error.value.code, error.value.detail) == ("invalid-approval", "epoch")


# -- who decides first -------------------------------------------------------------------------------------------------


class Rivals:
    """Holds everyone's first decision until all have read the request, then lets them decide in the order given."""

    def __init__(self, home: House, monkeypatch: pytest.MonkeyPatch, *order: str) -> None:
        self._decide, self._order = home.guard.decide, order
        self._read = threading.Barrier(len(order))
        self._done = {name: threading.Event() for name in order}
        monkeypatch.setattr(home.guard, "decide", self)

    def __call__(self, request_id: str, *, approver: Principal, **options: Any) -> Any:
        done = self._done[approver.id]
        if done.is_set():
            return self._decide(request_id, approver=approver, **options)
        self._read.wait(LIMIT_S)
        for name in self._order[: self._order.index(approver.id)]:
            assert self._done[name].wait(LIMIT_S)
        try:
            return self._decide(request_id, approver=approver, **options)
        finally:
            done.set()


def rivals(
    home: House, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...], *, alice: bool = False, **bobs: Any
) -> Future[None]:
    """Have alice answer in the chat while bob decides in the inbox; return what bob was told."""
    request = home.pending()[0]
    Rivals(home, monkeypatch, *order)
    with ThreadPoolExecutor(1) as threads:
        bob = threads.submit(lambda: home.decide(request, **bobs))
        home.client.respond(request.id, alice)
    return bob


BOB_FIRST = ("bob", "alice")
ALICE_FIRST = ("alice", "bob")


@pytest.mark.parametrize("policy", [OWN, FOUR_EYES], ids=["may decide", "may not decide"])
def test_a_no_that_comes_after_a_yes_which_it_had_not_read_withdraws_it(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch, policy: bytes
) -> None:
    home = house(policy, CALL, "Then not.")
    home.client.send("Delete it.")
    request = home.pending()[0]

    bob = rivals(home, monkeypatch, BOB_FIRST)

    assert (bob.result(), home.ran, home.guard.get(request.id).state) == (None, [], "revoked")
    assert (home.client.status, home.client.tool_part()["state"]) == ("ready", "output-error")


def test_a_yes_that_comes_after_a_no_which_it_had_not_read_is_refused(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = house(OWN, CALL, "Then not.")
    home.client.send("Delete it.")
    request = home.pending()[0]

    bob = rivals(home, monkeypatch, ALICE_FIRST)

    with pytest.raises(DecisionError) as error:
        bob.result()
    assert (error.value.code, home.ran, home.guard.get(request.id).state) == ("already-decided", [], "denied")
    assert home.client.tool_part()["state"] == "output-denied"


def test_a_no_that_comes_after_an_edit_which_it_had_not_read_withdraws_what_was_edited(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = house(EDITED, CALL, "Then not.")
    home.client.send("Delete it.")
    request = home.pending()[0]

    rivals(home, monkeypatch, BOB_FIRST, arguments={"n": 7}).result()

    assert (home.ran, home.guard.get(request.id).state) == ([], "superseded")
    ended = home.guard.ended(tenant="default").requests
    assert {one.arguments["n"]: one.state for one in ended} == {1: "superseded", 7: "revoked"}


def test_a_yes_that_comes_after_an_edit_which_it_had_not_read_decides_nothing_and_is_shown_the_edit(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = house(EDITED_BY_TWO, CALL, "Done.")
    home.client.send("Delete it.")

    rivals(home, monkeypatch, BOB_FIRST, alice=True, arguments={"n": 7}).result()

    part = home.client.tool_part()
    assert (part["state"], part["input"], home.ran) == ("approval-requested", {"n": 7}, [])
    (edited,) = home.pending()
    assert [vote.approver for vote in edited.votes] == ["bob"]
    home.client.approve(edited.id)
    assert home.ran == [("deleteFile", {"n": 7})]


def test_two_who_say_no_at_once_are_one_no(house: Callable[..., House], monkeypatch: pytest.MonkeyPatch) -> None:
    home = house(OWN, CALL, "Then not.")
    home.client.send("Delete it.")
    request = home.pending()[0]

    rivals(home, monkeypatch, BOB_FIRST, approve=False).result()

    assert (home.ran, home.guard.get(request.id).state) == ([], "denied")
    assert (home.client.status, home.client.tool_part()["state"]) == ("ready", "output-denied")


def test_a_no_takes_the_own_yes_back_while_others_must_decide_too(house: Callable[..., House]) -> None:
    home = house(EDITED_BY_TWO, CALL, "Then not.")
    home.client.send("Delete it.")
    request = home.pending()[0]
    home.client.approve(request.id)

    home.client.deny(request.id)

    assert (home.guard.get(request.id).state, home.client.tool_part()["state"]) == ("revoked", "output-error")
    with pytest.raises(DecisionError):
        home.decide(request)
    assert home.ran == []


# -- one request under two ids -----------------------------------------------------------------------------------------


def edited_under_two_ids(house: Callable[..., House]) -> tuple[House, Message, Message]:
    """Return the part that a client had of a request, and the one that it has since an edit; alice must decide."""
    home = house(EDITED_BY_TWO, CALL, "Done.")
    home.client.send("Delete it.")
    request, before = home.pending()[0], home.client.tool_part()
    home.decide(request, arguments={"n": 7})
    home.client.approve(request.id)
    after = home.client.tool_part()
    assert (before["approval"]["id"] == request.id, after["approval"]["id"] == home.pending()[0].id) == (True, True)
    return home, before, after


def post_both(home: House, *parts: tuple[Message, bool]) -> None:
    """Post answers to several parts as the last message's, in this order."""
    messages = home.client.messages
    messages[-1]["parts"] = [
        {**part, "state": "approval-responded", "approval": part["approval"] | {"approved": approved}}
        for part, approved in parts
    ]
    home.client.set_messages(messages)
    home.client.proceed()


@pytest.mark.parametrize("old_first", [True, False])
@pytest.mark.parametrize("old_says", [True, False])
def test_yes_and_no_to_one_request_under_two_ids_are_refused_together(
    house: Callable[..., House], old_first: bool, old_says: bool
) -> None:
    home, old, new = edited_under_two_ids(house)
    both = [(old, old_says), (new, not old_says)]

    post_both(home, *(both if old_first else both[::-1]))

    assert (status_of(home.client), home.ran) == (400, [])
    assert refusals(home.guard)[-1] == ("invalid-approval", "repeated")
    (request,) = home.pending()
    assert [vote.approver for vote in request.votes] == ["bob"]


@pytest.mark.parametrize("old_first", [True, False])
def test_one_answer_to_one_request_under_two_ids_counts_once(house: Callable[..., House], old_first: bool) -> None:
    home, old, new = edited_under_two_ids(house)
    both = [(old, True), (new, True)]

    post_both(home, *(both if old_first else both[::-1]))

    assert (home.client.status, home.ran) == ("ready", [("deleteFile", {"n": 7})])


def test_each_answer_is_told_as_it_is_after_the_ones_before_it(house: Callable[..., House]) -> None:
    home, old, new = edited_under_two_ids(house)
    messages = home.client.messages
    messages[-1]["parts"] = [
        {**part, "state": "approval-responded", "approval": part["approval"] | {"approved": True}}
        for part in (old, new)
    ]

    states = [one.request and one.request.state for one in told(home, messages)]

    assert states == ["approved", "approved"]


# -- a refusal after a decision ----------------------------------------------------------------------------------------


def test_a_key_that_is_revoked_while_a_decision_is_made_refuses_the_post_and_is_audited(
    house: Callable[..., House], keys: RingFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = house(OWN, CALL, "Done.")
    home.client.send("Delete it.")
    request, decide = home.pending()[0], home.guard.decide

    def decided(*args: Any, **options: Any) -> Any:
        decision = decide(*args, **options)
        keys.revoke()
        return decision

    monkeypatch.setattr(home.guard, "decide", decided)
    home.client.approve(request.id)

    assert (status_of(home.client), home.ran) == (403, [])
    assert refusals(home.guard, "code", "detail", "request", "tool") == [
        ("key-revoked", "compromised", request.id, "deleteFile")
    ]


def test_a_request_that_becomes_void_while_it_is_decided_is_told_so(
    house: Callable[..., House], keys: RingFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = house(OWN, CALL, "Done.")
    home.client.send("Delete it.")
    decide = home.guard.decide

    def decided(*args: Any, **options: Any) -> Any:
        keys.revoke()
        return decide(*args, **options)

    monkeypatch.setattr(home.guard, "decide", decided)

    (one,) = told(home, answered(home.client.messages))

    assert (one.request, one.note, home.ran) == (None, KEY_GONE, [])
