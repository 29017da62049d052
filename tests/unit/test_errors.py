"""Errors: their codes, their way through a pickle, and that no error, guard, signer or permit shows a key."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import pickle  # noqa: TID251  errors travel between processes by it
import re
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import pytest

from hitl_guard import errors
from hitl_guard.aio import AsyncGuard
from hitl_guard.errors import (
    ApprovalRequired,
    AuditUnavailableError,
    ConfigurationError,
    HitlGuardError,
    NoEffect,
)
from hitl_guard.keyring import Key, Keyring
from hitl_guard.models import Permit
from hitl_guard.signing import Examiner
from tests.support import BOB, World

from .rings import secret, text

CLASSES = sorted(
    (kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HitlGuardError)),
    key=lambda kind: kind.__name__,
)
CODES = {
    "AgentError": "run-not-found",
    "ApprovalDeniedError": "denied", "ApprovalRequired": "approval-required", "ArgsMismatchError": "args-mismatch",
    "AuditUnavailableError": "audit-unavailable", "CanonicalizationError": "unsupported-value",
    "ConfigurationError": "config-error", "ConsumedError": "consumed", "DecisionError": "invalid-approval",
    "ExpiredError": "expired", "HitlGuardError": "error", "InDoubtError": "in-doubt",
    "InvalidApprovalError": "invalid-approval", "InvalidSignatureError": "invalid-signature",
    "KeyInactiveError": "key-inactive", "KeyRevokedError": "key-revoked", "KeyUnavailableError": "key-unavailable",
    "KeyUnknownError": "key-unknown", "LimitError": "limit-exceeded", "NotAuthorisedError": "not-authorised",
    "NotYetValidError": "not-yet-valid", "PausedError": "paused", "PolicyChangedError": "policy-changed",
    "PolicyDeniedError": "policy-denied", "RefusedError": "refused", "RevokedError": "revoked",
    "ScopeMismatchError": "scope-mismatch", "StoreRolledBackError": "store-rolled-back",
    "StoreUnavailableError": "store-unavailable", "SupersededError": "superseded", "ToolChangedError": "tool-changed",
    "UnavailableError": "store-unavailable",
}


def made(kind: type[HitlGuardError], **attributes: Any) -> HitlGuardError:
    """Return an error of this class with everything in it that it can have."""
    if kind is ApprovalRequired:
        return ApprovalRequired("request-1", "request-2", messages=({"role": "tool", "content": "x"},))
    return kind("Do this.", code="a-code", detail="a-detail", **attributes)


# -- the tree --------------------------------------------------------------------------------------------------------


def test_every_class_has_its_published_code() -> None:
    assert {kind.__name__: kind.default_code for kind in CLASSES} == CODES


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_code_and_detail_are_slugs(kind: type[HitlGuardError]) -> None:
    error = ApprovalRequired("r") if kind is ApprovalRequired else kind("Do this.")

    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", error.code)
    assert (error.code, error.detail) == (kind.default_code, None)
    assert str(error).endswith(".")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_explains_itself(kind: type[HitlGuardError]) -> None:
    assert kind.__doc__


def test_what_a_caller_tells_apart_is_never_one_class() -> None:
    refused = errors.RefusedError
    assert not issubclass(errors.UnavailableError, refused)
    assert not issubclass(errors.ApprovalRequired, refused)
    assert not issubclass(errors.DecisionError, refused)
    assert not issubclass(errors.CanonicalizationError, refused)
    assert not issubclass(errors.InvalidSignatureError, errors.InvalidApprovalError)
    assert not issubclass(NoEffect, HitlGuardError)


def test_a_pause_without_a_request_cannot_be_made() -> None:
    with pytest.raises(ConfigurationError):
        ApprovalRequired()


def test_a_pause_holds_the_first_request_and_all() -> None:
    pause = ApprovalRequired("a", "b")

    assert (pause.request, pause.requests, pause.messages) == ("a", ("a", "b"), ())


# -- pickles and copies ----------------------------------------------------------------------------------------------


def pickled(protocol: int, error: Any) -> Any:
    return pickle.loads(pickle.dumps(error, protocol))  # noqa: S301


COPIES: dict[str, Callable[[Any], Any]] = {
    **{f"pickle {protocol}": partial(pickled, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("through", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_survives_a_pickle_and_a_copy(kind: type[HitlGuardError], through: Callable[[Any], Any]) -> None:
    error = made(kind, key_id="k1", result={"a": [1]}, reason="because", response=0, decided_by="bob")
    error.add_note("a note")

    again = through(error)

    assert type(again) is kind
    assert again is not error
    assert (str(again), again.args, again.__dict__) == (str(error), error.args, error.__dict__)


def test_a_real_pause_survives_a_pickle_with_its_request(world: World) -> None:
    request = world.ask(world.call())
    with pytest.raises(ApprovalRequired) as caught:
        world.guard.authorize(world.call(call_id="call-1"))

    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301

    assert (again.request, again.requests, again.code) == (request, (request,), "approval-required")
    assert again.request.arguments == request.arguments


def test_a_result_that_a_pickle_cannot_hold_is_still_there_in_the_process() -> None:
    result = object()

    assert AuditUnavailableError("The tool ran.", result=result).result is result


# -- no key shows ----------------------------------------------------------------------------------------------------

NEEDLES = [
    form for raw in (secret(1), secret(2))
    for form in (text(raw), text(raw)[:24], raw.hex(), repr(raw)[2:-1], repr(raw)[2:20], repr(list(raw))[1:-1])
]


def shows_nothing(shown: str) -> bool:
    return not any(needle in shown for needle in NEEDLES)


def tracebacks(error: BaseException) -> Iterator[str]:
    """Yield all that a printer of tracebacks with locals can show: every frame of ours, causes included."""
    yield "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    pending, seen = [error], set()
    while pending:
        one = pending.pop()
        seen.add(id(one))
        yield f"{one!r} {one} {one.__dict__}"
        pending += [cause for cause in (one.__cause__, one.__context__) if cause is not None and id(cause) not in seen]
        step: TracebackType | None = one.__traceback__
        while step is not None:
            yield from (f"{name}={value!r}" for name, value in step.tb_frame.f_locals.items() if name != "NEEDLES")
            step = step.tb_next


@pytest.fixture
def known(world: World) -> World:
    """A guard whose keys the test knows."""
    now = world.store.now()
    ring = Keyring([
        Key("k1", secret(1), activates_at=now - 9_000_000), Key("k2", secret(2), activates_at=now - 8_000_000),
    ])
    return world.another(keyring=ring)


def holders(world: World) -> dict[str, Any]:
    call, request = world.grant()
    pending = world.guard.request(world.call())
    desk = world.guard._desk
    return {
        "guard": world.guard, "async guard": AsyncGuard(guard=world.guard), "desk": desk, "signer": desk.signer,
        "examiner": Examiner(world.keyring), "sealer": desk.sealer, "key ring": world.keyring, "call": call,
        "request": request, "pending": pending, "decision": request.votes[0], "page": world.guard.pending(),
        "permit": world.guard.authorize(call), "store": world.store,
        "record": desk.read("default", request_id=request.id),
    }


def test_nothing_that_has_to_do_with_a_guard_shows_a_key(known: World) -> None:
    for name, holder in holders(known).items():
        shown = f"{holder!r} {holder} {holder:}"
        if hasattr(holder, "__dict__"):
            shown += repr(vars(holder))
        assert shows_nothing(shown), name


def test_what_holds_a_key_or_proves_something_here_cannot_leave_the_process(known: World) -> None:
    found = holders(known)

    for name in ("guard", "async guard", "desk", "signer", "examiner", "sealer", "key ring", "permit"):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            begun = io.BytesIO()
            # The store's connections refuse as well, in their own way; either comes before any key.
            with pytest.raises((TypeError, AttributeError)):
                pickle.Pickler(begun, protocol).dump(found[name])
            assert not any(raw in begun.getvalue() for raw in (secret(1), secret(2)))
        with pytest.raises((TypeError, AttributeError)):
            copy.deepcopy(found[name])


@pytest.mark.parametrize("through", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("name", ["permit", "key ring"])
def test_a_permit_and_a_key_ring_are_never_copied(known: World, name: str, through: Callable[[Any], Any]) -> None:
    holder = holders(known)[name]

    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        through(holder)


def test_what_may_leave_the_process_takes_no_key_with_it(known: World) -> None:
    for name, holder in holders(known).items():
        if name in ("call", "request", "pending", "decision"):
            assert shows_nothing(repr(pickle.dumps(holder)) + pickle.dumps(holder, 0).decode("latin-1")), name
            assert not any(raw in pickle.dumps(holder) for raw in (secret(1), secret(2)))


def test_a_permit_shows_tool_and_request_only(known: World) -> None:
    call, request = known.grant(known.call(arguments={"password": "hunter2"}))

    permit = known.guard.authorize(call)

    assert repr(permit) == f"<Permit tool='refund' request_id={request.id!r}>"
    assert isinstance(permit, Permit)


@pytest.mark.parametrize("holder", ["call", "request", "pending"])
def test_the_arguments_do_not_show_in_a_representation(known: World, holder: str) -> None:
    call = known.call(arguments={"password": "hunter2"}, context={"token": "hunter2"})
    pending = known.guard.request(call)

    shown = {"call": call, "request": pending, "pending": known.guard.pending()}[holder]

    assert "hunter2" not in f"{shown!r} {shown}"
    assert pending.token not in f"{shown!r} {shown}"


def refused_path(world: World, name: str) -> object:
    """Fail in one of the ways that have a key at hand."""
    guard, desk = world.guard, world.guard._desk
    call, request = world.grant()
    later = Keyring([world.keyring.keys[0], world.keyring.keys[1].changed(state="compromised")])
    payload, _, mac = request.token.partition(".")
    other = world.another(keyring=later)
    paths: dict[str, Callable[[], object]] = {
        "forged MAC": lambda: guard.authorize(call, token=f"{payload}.{'A' * 43}"),
        "short MAC": lambda: guard.authorize(call, token=f"{payload}.{mac[:22]}"),
        "no token": lambda: guard.authorize(call, token="garbage"),
        "other arguments": lambda: guard.authorize(world.call(call_id=call.call_id, arguments={"a": 1})),
        "no canonical form": lambda: guard.authorize(world.call(arguments={"a": object()})),
        "no scope": lambda: guard.authorize(world.call(user="")),
        "self-approval": lambda: guard.decide(request.id, approver=BOB, approve=1, fingerprint=""),  # type: ignore[arg-type]
        "unknown purpose": lambda: desk.signer.sign("nothing", "t", {}, now=world.store.now()),
        "nothing to sign with": lambda: desk.signer.sign("request", "t", {}, now=0),
        "too much to sign": lambda: desk.signer.sign("request", "t", {"a": "x" * 300_000}, now=world.store.now()),
        "other purpose": lambda: desk.signer.open(
            request.token, expected_purpose="event", expected_type="hitl-request", now=world.store.now()
        ),
        "revoked key": lambda: other.guard.authorize(call, request_id=request.id),
        "weak keys": lambda: Key("k3", secret(1)[:31], activates_at=1),
    }
    return paths[name]()


PATHS = [
    "forged MAC", "short MAC", "no token", "other arguments", "no canonical form", "no scope", "self-approval",
    "unknown purpose", "nothing to sign with", "too much to sign", "other purpose", "revoked key", "weak keys",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_error_path_shows_a_key_in_its_traceback_or_in_a_log(
    known: World, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    with pytest.raises(HitlGuardError) as caught:
        refused_path(known, path)
    logging.getLogger("host").exception("it failed", exc_info=caught.value)

    shown = [*tracebacks(caught.value), caplog.text]
    assert [line[:200] for line in shown if not shows_nothing(line)] == []


def test_a_failed_comparison_does_not_leave_the_right_mac_in_a_frame(known: World) -> None:
    call, request = known.grant()
    payload, _, mac = request.token.partition(".")
    raw = known.guard._desk.signer.mac(known.keyring.keys[1], "request", b"")

    with pytest.raises(HitlGuardError) as caught:
        known.guard.authorize(call, token=f"{payload}.{'A' * 43}")

    names = []
    step = caught.value.__traceback__
    while step is not None:
        if "hitl_guard/signing" in step.tb_frame.f_code.co_filename:
            values = step.tb_frame.f_locals
            names += [name for name, value in values.items() if isinstance(value, bytes) and value not in (
                b"A" * 43, bytes(32), payload.encode(), f"{payload}.{'A' * 43}".encode()
            ) and len(value) == len(raw)]
            assert mac not in repr(values)
        step = step.tb_next
    assert names == []
