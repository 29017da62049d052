"""AsyncGuard: the same methods, awaited; and what a cancelled task leaves behind."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hitl_guard import ApprovalRequired, AsyncGuard, Guard, NoEffect, Permit, Policy, clock
from hitl_guard.errors import (
    ApprovalDeniedError,
    AuditUnavailableError,
    ConfigurationError,
    ExpiredError,
    StoreUnavailableError,
)
from hitl_guard.keyring import KEYS_VARIABLE
from hitl_guard.lifecycle import running, threads
from hitl_guard.lifecycle.running import current_permit
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.policy.core import Status
from tests.databases import Database
from tests.support import ARGUMENTS, BOB, OPERATOR, POLICY, World, document

LIMIT_S = 120
"""How long a test waits for another thread before it fails: a guard against hanging, not a measure of speed."""

USER: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


class Gate:
    """A place in one thread at which another one lets it wait."""

    def __init__(self) -> None:
        self._entered, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self._entered.set()
        assert self._open.wait(LIMIT_S)

    async def entered(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, LIMIT_S)

    def open(self) -> None:
        self._open.set()


class Held:
    """A store one of whose methods waits at a gate, before or after the real thing, at its ``turn``-th call."""

    def __init__(self, store: Any, method: str, gate: Gate, *, after: bool = False, turn: int = 1) -> None:
        self._store, self._method, self._gate, self._after, self._left = store, method, gate, after, turn

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name != self._method:
            return real

        def held(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                self._gate.wait()
            result = real(*args, **options)
            if self._left == 0 and self._after:
                self._gate.wait()
            return result

        return held


def asynchronous(world: World) -> AsyncGuard:
    return AsyncGuard(guard=world.guard)


async def ends_cancelled(task: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), LIMIT_S)
    assert task.cancelled()


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """A pool of one thread, so that a test can keep all others queued."""
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(threads, "_POOL", pool)
        monkeypatch.setattr(threads, "_TOOLS", pool)
        yield pool


# -- the same methods -------------------------------------------------------------------------------------------------


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(public(Guard)))
def test_every_public_method_is_there_and_takes_the_same(name: str) -> None:
    ours, theirs = public(AsyncGuard)[name], public(Guard)[name]

    if not callable(theirs):
        assert isinstance(ours, property)
        return
    taken = dict(inspect.signature(ours).parameters)
    given = dict(inspect.signature(theirs).parameters)
    forwarded = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    for parameter in given.values():
        if parameter.name in taken:
            mine = taken[parameter.name]
            assert (mine.kind, mine.default) == (parameter.kind, parameter.default)
        else:
            assert forwarded
            assert name == "tool"
            assert parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
    assert {name for name, mine in taken.items() if mine.kind is not mine.VAR_KEYWORD} <= set(given)


def test_the_asynchronous_guard_has_nothing_of_its_own() -> None:
    assert set(public(AsyncGuard)) == set(public(Guard))


async def test_the_whole_path_is_the_same_awaited(make_world: Callable[..., World]) -> None:
    world = make_world()
    guard, call = asynchronous(world), world.call()

    verdict = await guard.evaluate(call)
    request = await guard.request(call)
    page = await guard.pending(run_id="run-1")
    decision = await guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)
    permit = await guard.authorize(call, token=request.token)
    await guard.settle(permit, "in_doubt", "no idea")
    resolved = await guard.resolve(request.id, "succeeded", by=OPERATOR, reason="looked")

    assert (verdict.status, decision.state, resolved) == (Status.USER_APPROVAL, "approved", "succeeded")
    assert [listed.id for listed in page] == [request.id]
    assert permit.arguments == ARGUMENTS
    assert (await guard.get(request.id)).state == "succeeded"
    assert guard.policy_version == world.guard.policy_version


async def test_withdrawing_pausing_and_sweeping_are_the_same_awaited(world: World) -> None:
    guard = asynchronous(world)
    request = await guard.request(world.call())
    await guard.revoke(request.id, by=OPERATOR)
    assert (await guard.get(request.id)).state == "revoked"

    await guard.pause(by=OPERATOR, tool="refund")
    with world.refused("paused", "tool"):
        await guard.request(world.call())
    await guard.resume(by=OPERATOR, tool="refund")
    await guard.activate_policy("0" * 64, by=OPERATOR)
    with world.refused("policy-changed", "node"):
        await guard.authorize(world.call())
    await guard.activate_policy(None, by=OPERATOR)

    assert await guard.sweep() == 0
    assert (await guard.request(world.call())).state == "pending"


async def test_closing_releases_the_stores_connections(world: World) -> None:
    closed: list[str] = []

    class Closing:
        """A store that tells when it is closed."""

        def close(self) -> None:
            closed.append("closed")

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

    store: Any = Closing()
    await asynchronous(world.another(store=store)).close()

    assert closed == ["closed"]


def test_it_is_made_of_a_guard_or_of_a_guards_arguments(
    world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, make_database: Callable[..., Database]
) -> None:
    made = AsyncGuard(policy=world.policy, keyring=world.keyring, store=world.store)
    (tmp_path / "policy.yaml").write_text(POLICY)
    environ = {
        "HITL_GUARD_POLICY": str(tmp_path / "policy.yaml"), KEYS_VARIABLE: world.keyring.dump().reveal().decode(),
        "HITL_GUARD_STORE": make_database("sqlite").url,
    }
    read = AsyncGuard.from_env(environ, settings=Settings(operator_role="chief"))
    read.guard._desk.store.close()

    assert made.policy_version == read.policy_version == world.guard.policy_version
    assert read.settings.operator_role == "chief"
    with pytest.raises(ConfigurationError, match="not both"):
        AsyncGuard(guard=world.guard, policy="denied")
    with pytest.raises(ConfigurationError):
        AsyncGuard(policy="denied", keyring=world.keyring, store=None)


# -- running ----------------------------------------------------------------------------------------------------------


def sync_tool(world: World) -> Callable[..., Any]:
    return world.tool


def async_tool(world: World) -> Callable[..., Any]:
    async def tool(**arguments: Any) -> str:
        await asyncio.sleep(0)
        return world.tool(**arguments)

    return tool


def tool_behind_a_lambda(world: World) -> Callable[..., Any]:
    return lambda **arguments: async_tool(world)(**arguments)


def callable_object(world: World) -> Callable[..., Any]:
    class Tool:
        async def __call__(self, **arguments: Any) -> str:
            return world.tool(**arguments)

    return Tool()


TOOLS = pytest.mark.parametrize("make", [sync_tool, async_tool, tool_behind_a_lambda, callable_object])


@TOOLS
async def test_a_tool_of_any_kind_runs_once_with_its_permit(world: World, make: Callable[[World], Any]) -> None:
    guard = asynchronous(world)
    call, request = world.grant()

    assert await guard.run(call, make(world), request_id=request.id) == "done"

    assert world.effects == [ARGUMENTS]
    assert world.state(request) == "succeeded"
    assert current_permit() is None
    with world.refused("consumed", "succeeded"):
        await guard.run(call, make(world))


@TOOLS
@pytest.mark.parametrize(
    ("error", "effect", "state"),
    [
        (ValueError("boom"), None, "in_doubt"), (NoEffect("nothing"), None, "failed"),
        (ValueError("boom"), "none", "failed"),
    ],
    ids=["opaque", "no effect", "harmless"],
)
async def test_what_a_tool_raises_reaches_the_caller_and_the_record(
    world: World, make: Callable[[World], Any], error: Exception, effect: str | None, state: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(**arguments: Any) -> str:
        raise error

    call, request = world.grant()
    tool = make(world)
    monkeypatch.setattr(world, "tool", broken)

    with pytest.raises(type(error)) as caught:
        await asynchronous(world).run(call, broken if make is sync_tool else tool, effect=effect)

    assert caught.value is error
    assert world.state(request) == state


async def test_a_tool_that_raises_what_no_future_can_carry_ends_all_the_same(world: World) -> None:
    def exhausted(**arguments: Any) -> Any:
        return next(iter(()))

    call, request = world.grant()

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(asynchronous(world).run(call, exhausted), LIMIT_S)
    assert world.state(request) == "in_doubt"


async def test_a_wrongly_given_tool_is_refused_before_anything_is_spent(world: World) -> None:
    call, request = world.grant()

    for options in ({"effect": "magic"}, {"wait": -1}):
        with pytest.raises(ConfigurationError):
            await asynchronous(world).run(call, world.tool, **options)
    assert world.state(request) == "approved"


async def test_a_result_is_not_lost_when_its_receipt_cannot_be_written(world: World) -> None:
    call, request = world.grant()

    def resolved_meanwhile(**arguments: Any) -> str:
        world.guard.resolve(request.id, "failed", by=OPERATOR, reason="hangs", force=True)
        return "result"

    with pytest.raises(AuditUnavailableError) as caught:
        await asynchronous(world).run(call, resolved_meanwhile)
    assert (caught.value.detail, caught.value.result) == ("late", "result")


async def test_a_decorated_asynchronous_function_is_guarded(world: World) -> None:
    guard = asynchronous(world)

    @guard.tool
    async def refund(order: str) -> str:
        return world.tool(order=order)

    @guard.tool(pause="result", name="transfer")
    async def transfer(order: str) -> Any:
        return world.tool(order=order)

    with guard.context(user="ana", run_id="run-1"):
        with pytest.raises(ApprovalRequired) as pause:
            await refund("A-1")
        pending = await transfer("A-1")
        world.approve(pause.value.request)
        result = await refund("A-1")

    assert (result, pending["status"]) == ("done", "approval-pending")


async def test_a_wrapped_dispatcher_and_a_sealed_function_are_the_same(world: World) -> None:
    guard = asynchronous(world)

    async def look_up(order: str) -> str:
        return world.tool(order=order)

    sealed = guard.sealed(look_up)

    async def execute(name: str, args: Any, context: Any) -> Any:
        return await sealed(**args)

    wrapped = guard.wrap(execute)

    assert await wrapped("look_up", {"order": "A-1"}, {"user": "ana", "run_id": "r", "call_id": "c"}) == "done"
    with world.refused("args-mismatch", "unguarded"):
        await sealed("A-1")
    assert guard.coverage([sealed]).guarded == ("look_up",)


# -- cancelled --------------------------------------------------------------------------------------------------------


async def test_a_task_cancelled_before_its_turn_spends_nothing(world: World, one_thread: ThreadPoolExecutor) -> None:
    call, request = world.grant()
    gate = Gate()
    one_thread.submit(gate.wait)

    task = asyncio.create_task(asynchronous(world).run(call, world.tool))
    await gate.entered()
    await asyncio.sleep(0)
    task.cancel()
    await ends_cancelled(task)
    gate.open()

    one_thread.submit(lambda: None).result(LIMIT_S)
    assert (world.state(request), world.effects) == ("approved", [])


@pytest.mark.parametrize(
    ("method", "after"), [("load", False), ("load", True), ("write", False), ("write", True)],
    ids=["before reading", "after reading", "before the claim", "after the claim"],
)
@pytest.mark.parametrize("make", [sync_tool, async_tool])
async def test_a_task_cancelled_while_it_claims_never_starts_the_tool_and_the_outcome_is_known(
    world: World, method: str, after: bool, make: Callable[[World], Any]
) -> None:
    call, request = world.grant()
    gate = Gate()
    store: Any = Held(world.store, method, gate, after=after)
    node = world.another(store=store)

    task = asyncio.create_task(asynchronous(node).run(call, make(world)))
    await gate.entered()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    gate.open()
    await ends_cancelled(task)

    assert (world.state(request), world.effects) == ("failed", [])
    assert [body["detail"] for body in world.audited("call:failed")] == ["cancelled"]
    with world.refused("consumed", "failed"):
        world.run(call)


@pytest.mark.parametrize("steps", range(6))
async def test_a_task_cancelled_while_it_is_told_of_its_permit_does_not_start_the_tool_any_more(
    world: World, one_thread: ThreadPoolExecutor, steps: int
) -> None:
    async def tool(**arguments: Any) -> None:
        world.tool(**arguments)
        await asyncio.Event().wait()

    call, request = world.grant()
    gate = Gate()
    store: Any = Held(world.store, "write", gate, after=True)
    task = asyncio.create_task(asynchronous(world.another(store=store)).run(call, tool))
    await gate.entered()

    # The loop stands still until the worker has ended, then goes on by so many steps: the permit is on its way.
    gate.open()
    one_thread.submit(lambda: None).result(LIMIT_S)
    for _ in range(steps):
        await asyncio.sleep(0)
    started = len(world.effects)
    task.cancel()
    await ends_cancelled(task)

    assert (world.state(request), len(world.effects)) == ("in_doubt" if started else "failed", started)


async def test_a_cancelled_request_for_an_approval_is_made_or_not_and_that_is_all(world: World) -> None:
    gate = Gate()
    store: Any = Held(world.store, "write", gate)
    node = world.another(store=store)

    task = asyncio.create_task(asynchronous(node).request(world.call()))
    await gate.entered()
    task.cancel()
    gate.open()
    await ends_cancelled(task)

    assert len(world.guard.pending()) == 1


async def test_a_grant_whose_cancellation_cannot_be_recorded_reads_as_running(world: World) -> None:
    call, request = world.grant()
    gate = Gate()

    class Gone(Held):
        def __getattr__(self, name: str) -> Any:
            if name == "write" and self._left <= 0:
                raise StoreUnavailableError("The database does not answer.")
            return super().__getattr__(name)

    store: Any = Gone(world.store, "write", gate, after=True)
    node = world.another(store=store)
    task = asyncio.create_task(asynchronous(node).authorize(call))
    await gate.entered()
    task.cancel()
    gate.open()
    await ends_cancelled(task)

    assert (world.state(request), world.effects) == ("executing", [])
    with world.refused("consumed", "executing"):
        world.run(call)


async def test_a_synchronous_tool_that_is_queued_does_not_start_after_the_cancellation(
    world: World, one_thread: ThreadPoolExecutor
) -> None:
    call, request = world.grant()
    permit = world.guard.authorize(call)
    gate = Gate()
    one_thread.submit(gate.wait)

    task = asyncio.create_task(
        running.run_async(permit, lambda permit: world.tool(**permit.arguments), "opaque", world.guard.settle)
    )
    await gate.entered()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    gate.open()
    await ends_cancelled(task)

    assert (world.state(request), world.effects) == ("failed", [])


@pytest.mark.parametrize("ending", ["result", "error", "no effect"])
async def test_a_synchronous_tool_that_runs_is_recorded_as_it_ends_whoever_was_cancelled(
    world: World, ending: str
) -> None:
    call, request = world.grant()
    gate = Gate()

    def tool(**arguments: Any) -> str:
        gate.wait()
        if ending != "result":
            raise NoEffect("nothing") if ending == "no effect" else ValueError("boom")
        return world.tool(**arguments)

    task = asyncio.create_task(asynchronous(world).run(call, tool))
    await gate.entered()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    gate.open()
    await ends_cancelled(task)

    assert world.state(request) == {"result": "succeeded", "error": "in_doubt", "no effect": "failed"}[ending]
    assert len(world.effects) == (ending == "result")


async def test_what_a_cancelled_tool_left_to_await_is_let_go_and_in_doubt(world: World) -> None:
    call, request = world.grant()
    gate = Gate()
    made: list[Any] = []

    async def work() -> None:
        world.tool()

    def tool(**arguments: Any) -> Awaitable[None]:
        gate.wait()
        made.append(work())
        return made[0]  # type: ignore[no-any-return]

    task = asyncio.create_task(asynchronous(world).run(call, tool))
    await gate.entered()
    task.cancel()
    gate.open()
    await ends_cancelled(task)

    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED
    assert (world.state(request), world.effects) == ("in_doubt", [])


@pytest.mark.parametrize(("effect", "state"), [("opaque", "in_doubt"), ("idempotent", "failed")])
@pytest.mark.parametrize("hidden", [False, True], ids=["async", "sync that returns a coroutine"])
async def test_an_asynchronous_tool_that_is_cancelled_is_recorded_as_its_effect_says(
    world: World, effect: str, state: str, hidden: bool
) -> None:
    call, request = world.grant()
    started = asyncio.Event()

    async def tool(**arguments: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(
        asynchronous(world).run(call, (lambda **arguments: tool()) if hidden else tool, effect=effect)
    )
    await started.wait()
    task.cancel()
    await ends_cancelled(task)

    assert world.state(request) == state


@pytest.mark.parametrize("make", [sync_tool, async_tool])
async def test_a_task_cancelled_while_its_receipt_is_written_has_a_receipt(
    world: World, make: Callable[[World], Any]
) -> None:
    call, request = world.grant()
    gate = Gate()
    store: Any = Held(world.store, "write", gate, turn=2)
    node = world.another(store=store)

    task = asyncio.create_task(asynchronous(node).run(call, make(world)))
    await gate.entered()
    task.cancel()
    gate.open()
    await ends_cancelled(task)

    assert (world.state(request), len(world.effects)) == ("succeeded", 1)


async def test_a_receipt_that_is_queued_is_written_all_the_same(world: World, one_thread: ThreadPoolExecutor) -> None:
    call, request = world.grant()
    permit = world.guard.authorize(call)
    gate, started, done = Gate(), asyncio.Event(), asyncio.Event()

    async def tool(_: Any) -> str:
        started.set()
        await done.wait()
        return "done"

    task = asyncio.create_task(running.run_async(permit, tool, "opaque", world.guard.settle))
    await started.wait()
    one_thread.submit(gate.wait)
    await gate.entered()
    done.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    gate.open()
    await ends_cancelled(task)

    assert world.state(request) == "succeeded"


async def test_a_settlement_is_written_though_its_task_is_cancelled(
    world: World, one_thread: ThreadPoolExecutor
) -> None:
    call, request = world.grant()
    permit = world.guard.authorize(call)
    gate = Gate()
    one_thread.submit(gate.wait)

    task = asyncio.create_task(asynchronous(world).settle(permit, "succeeded"))
    await gate.entered()
    await asyncio.sleep(0)
    task.cancel()
    gate.open()
    await ends_cancelled(task)

    assert world.state(request) == "succeeded"


async def test_a_time_limit_of_the_host_is_a_cancellation(world: World) -> None:
    call, request = world.grant()
    started = asyncio.Event()

    async def tool(**arguments: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(asynchronous(world).run(call, tool, effect="none"))
    await started.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 0)

    assert world.state(request) == "failed"


def test_a_tool_whose_loop_is_gone_is_in_doubt(world: World) -> None:
    class Step:
        def __await__(self) -> Any:
            yield

    async def tool(_: Any) -> None:
        await Step()

    call, request = world.grant()
    coroutine = running.run_async(world.guard.authorize(call), tool, "opaque", world.guard.settle)
    coroutine.send(None)
    coroutine.close()

    assert world.state(request) == "in_doubt"


# -- wait -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once whether a person has decided."""
    monkeypatch.setattr("hitl_guard.permits.POLL_MS", 0)


@pytest.mark.usefixtures("quick")
async def test_tasks_that_wait_for_people_keep_no_thread_waiting(world: World, one_thread: ThreadPoolExecutor) -> None:
    guard = asynchronous(world)
    calls = [world.call() for _ in range(5)]

    tasks = [asyncio.create_task(guard.run(call, world.tool, wait=LIMIT_S)) for call in calls]
    while len(page := await guard.pending()) < len(calls):
        await asyncio.sleep(0)
    for request in page:
        await guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)

    assert await asyncio.gather(*tasks) == ["done"] * len(calls)


@pytest.mark.usefixtures("quick")
async def test_a_waiting_task_that_is_cancelled_spends_nothing_that_is_approved_later(world: World) -> None:
    guard = asynchronous(world)
    call = world.call()
    task = asyncio.create_task(guard.run(call, world.tool, wait=LIMIT_S))
    while not (page := await guard.pending()):
        await asyncio.sleep(0)
    task.cancel()
    await ends_cancelled(task)

    world.approve(page[0])

    assert (world.state(page[0]), world.effects) == ("approved", [])


async def test_a_task_that_waited_long_enough_learns_that_it_still_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(range(0, 10_000, 400))
    monkeypatch.setattr("hitl_guard.permits.POLL_MS", 0)
    monkeypatch.setattr("hitl_guard.permits.clock.monotonic_ms", lambda: next(moments))

    with pytest.raises(ApprovalRequired) as pause:
        await asynchronous(world).run(world.call(), world.tool, wait=1)
    assert world.state(pause.value.request) == "pending"
    assert next(moments) == 1600


@pytest.mark.usefixtures("quick")
async def test_a_guarded_asynchronous_function_can_wait(world: World) -> None:
    guard = asynchronous(world)

    async def order(name: str) -> str:
        return world.tool(name=name)

    refund = guard.tool(order, name="refund", wait=LIMIT_S)
    with guard.context(user="ana", run_id="run-1"):
        task = asyncio.create_task(refund("A-1"))
    while not (page := await guard.pending()):
        await asyncio.sleep(0)
    world.deny(page[0], reason="No.")

    with pytest.raises(ApprovalDeniedError) as caught:
        await task
    assert caught.value.reason == "No."


# -- policies and context ---------------------------------------------------------------------------------------------


def asking(world: World, policy: Callable[..., Awaitable[str]]) -> World:
    return world.another(policy=Policy(tool_approval=policy, timeout_s=LIMIT_S))


async def test_an_asynchronous_policy_runs_on_the_callers_loop(world: World) -> None:
    loops: list[Any] = []

    async def policy(info: Any) -> str:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return "user-approval"

    node = asking(world, policy)
    with pytest.raises(ApprovalRequired):
        await asynchronous(node).authorize(world.call())

    assert loops == [asyncio.get_running_loop()]


async def test_a_guard_that_blocks_the_loop_gives_an_asynchronous_policy_a_loop_of_its_own(world: World) -> None:
    loops: list[Any] = []

    async def policy(info: Any) -> str:
        loops.append(asyncio.get_running_loop())
        return USER.get()

    USER.set("denied")
    verdict = asking(world, policy).guard.evaluate(world.call())

    assert verdict.status is Status.DENIED
    assert loops[0] is not asyncio.get_running_loop()


def test_an_asynchronous_policy_is_asked_without_any_loop(world: World) -> None:
    async def policy(info: Any) -> str:
        return "denied"

    with asking(world, policy).refused("policy-denied"):
        asking(world, policy).run(world.call())


@pytest.mark.parametrize("error", [ValueError("boom"), asyncio.CancelledError(), TimeoutError()], ids=repr)
async def test_an_asynchronous_policy_that_fails_asks_a_person(world: World, error: BaseException) -> None:
    async def policy(info: Any) -> str:
        raise error

    node = asking(world, policy)
    verdicts = [await asynchronous(node).evaluate(world.call()), node.guard.evaluate(world.call())]

    for verdict in verdicts:
        assert (verdict.status, len(verdict.errors)) == (Status.USER_APPROVAL, 1)


async def test_an_asynchronous_policy_that_hangs_asks_a_person(world: World) -> None:
    async def policy(info: Any) -> str:
        await asyncio.Event().wait()
        return "approved"

    node = world.another(policy=Policy(tool_approval=policy, timeout_s=0.001))

    assert (await asynchronous(node).evaluate(world.call())).status is Status.USER_APPROVAL


async def test_parallel_calls_keep_their_context_apart(world: World) -> None:
    seen: dict[str, set[str]] = {}

    async def policy(info: Any) -> str:
        await asyncio.sleep(0)
        seen.setdefault(info.user, set()).add(USER.get())
        return "not-applicable"

    guard = asynchronous(asking(world, policy))

    @guard.tool(name="sync")
    def sync(name: str) -> tuple[str, str]:
        permit = current_permit()
        assert permit is not None
        return USER.get(), permit.scope.user

    @guard.tool(name="asynchronous")
    async def in_loop(name: str) -> tuple[str, str]:
        await asyncio.sleep(0)
        permit = current_permit()
        assert permit is not None
        return USER.get(), permit.scope.user

    async def one(name: str) -> None:
        USER.set(name)
        with guard.context(user=name, run_id=f"run-{name}"):
            await asyncio.sleep(0)
            plain = AsyncGuard.run(guard, world.call("sync", {"name": name}, user=name), sync)
            assert await plain == (name, name)
            assert await in_loop(name) == (name, name)

    await asyncio.gather(*(one(f"user-{number}") for number in range(12)))

    assert seen == {f"user-{number}": {f"user-{number}"} for number in range(12)}
    assert USER.get() == "nobody"


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


async def test_a_tool_may_use_the_guard_again_while_it_runs(world: World) -> None:
    guard = asynchronous(world)

    async def outer(**arguments: Any) -> Any:
        async with nothing():
            inner = await guard.run(world.call("look_up", {}), world.tool)
        permit = current_permit()
        return inner, None if permit is None else permit.tool

    def outer_sync(**arguments: Any) -> Any:
        return world.guard.run(world.call("look_up", {}), world.tool), getattr(current_permit(), "tool", None)

    assert await guard.run(world.call("ping"), outer) == ("done", "ping")
    assert await guard.run(world.call("ping"), outer_sync) == ("done", "ping")


async def test_a_policy_document_is_read_the_same_by_both(world: World) -> None:
    node = world.another(policy=document(POLICY))

    assert await asynchronous(node).evaluate(world.call()) == node.guard.evaluate(world.call())


async def test_slow_tools_keep_no_check_waiting(world: World) -> None:
    guard, gate = asynchronous(world), threading.Event()
    calls = [world.call("lookup") for _ in range(40)]
    slow = [asyncio.create_task(guard.run(call, lambda **_: gate.wait(LIMIT_S))) for call in calls]
    await asyncio.sleep(0)

    verdict = await asyncio.wait_for(guard.evaluate(world.call()), LIMIT_S)

    gate.set()
    await asyncio.gather(*slow)
    assert verdict.status == "user-approval"


async def test_a_call_that_was_claimed_too_long_ago_starts_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asynchronously(permit: Permit) -> None:
        world.tool(**permit.arguments)

    def at_once(permit: Permit) -> None:
        world.tool(**permit.arguments)

    for start in (asynchronously, at_once):
        call, request = world.grant()
        permit = await asynchronous(world).authorize(call)
        assert permit.start_by is not None
        monkeypatch.setattr(clock, "monotonic_ms", lambda late=permit.start_by: late)

        with pytest.raises(ExpiredError) as caught:
            await running.run_async(permit, start, "opaque", world.guard.settle)

        assert (caught.value.detail, world.state(request), world.effects) == ("run-by", "failed", [])
        monkeypatch.undo()


async def test_tools_that_call_the_guard_do_not_wait_for_one_another(world: World) -> None:
    guard = asynchronous(world)
    loop = asyncio.get_running_loop()
    together = threading.Barrier(40)

    def outer(**_: Any) -> Any:
        together.wait(LIMIT_S)  # all 40 run at once, and each needs another thread now
        return asyncio.run_coroutine_threadsafe(guard.run(world.call("inner"), lambda **_: "in"), loop).result(LIMIT_S)

    done = await asyncio.gather(*(guard.run(world.call("outer"), outer) for _ in range(40)))

    assert done == ["in"] * 40
