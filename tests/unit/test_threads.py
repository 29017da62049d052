"""How one synchronous order of checks serves asynchronous callers."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hitl_guard.lifecycle import threads
from hitl_guard.lifecycle.threads import offload, resolve

LIMIT_S = 120

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="")


async def where() -> tuple[Any, int, str]:
    """Return the loop, the thread and the context that this runs in."""
    await asyncio.sleep(0)
    return asyncio.get_running_loop(), threading.get_ident(), NAME.get()


async def forever() -> None:
    await asyncio.Event().wait()


# -- resolve ----------------------------------------------------------------------------------------------------------


def test_without_a_loop_an_awaitable_gets_one() -> None:
    _, thread, _ = resolve(where(), 60)

    assert thread == threading.get_ident()


async def test_in_a_worker_an_awaitable_runs_on_the_callers_loop_with_the_callers_context() -> None:
    NAME.set("caller")

    loop, thread, name = await offload(lambda: resolve(where(), 60))

    assert (loop, thread, name) == (asyncio.get_running_loop(), threading.get_ident(), "caller")


async def test_in_a_thread_whose_loop_is_busy_an_awaitable_gets_a_loop_in_another_thread() -> None:
    NAME.set("caller")

    loop, thread, name = resolve(where(), 60)

    assert loop is not asyncio.get_running_loop()
    assert (thread != threading.get_ident(), name) == (True, "caller")


async def test_a_busy_loop_is_not_waited_for_by_a_worker_that_it_runs_itself() -> None:
    """What a worker hands to the loop runs in the worker's context; asked there, the loop must not wait for itself."""
    async def asks_again() -> Any:
        return resolve(where(), 60)

    loop, _, _ = await offload(lambda: resolve(asks_again(), 60))

    assert loop is not asyncio.get_running_loop()


async def test_a_busy_loop_does_not_need_a_free_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(threads, "_POOL", pool)
        release = threading.Event()
        pool.submit(release.wait, LIMIT_S)

        assert resolve(where(), 60)[1] != threading.get_ident()
        release.set()


RESOLVERS: dict[str, Callable[[Callable[[], Awaitable[Any]]], Any]] = {
    "no loop": lambda make: resolve(make(), 0.001),
    "a worker": lambda make: asyncio.run(offload(lambda: resolve(make(), 0.001))),
    "a busy loop": lambda make: asyncio.run(_in_loop(make)),
}


async def _in_loop(make: Callable[[], Awaitable[Any]]) -> Any:
    return resolve(make(), 0.001)


@pytest.mark.parametrize("how", RESOLVERS)
def test_an_awaitable_that_takes_too_long_is_given_up(how: str) -> None:
    with pytest.raises(TimeoutError):
        RESOLVERS[how](forever)


@pytest.mark.parametrize("how", RESOLVERS)
@pytest.mark.parametrize("error", [ValueError("boom"), KeyError("x")], ids=repr)
def test_what_an_awaitable_raises_is_raised(how: str, error: Exception) -> None:
    async def failing() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        RESOLVERS[how](failing)
    assert caught.value is error


@pytest.mark.parametrize("how", RESOLVERS)
def test_an_awaitable_that_cancels_itself_is_an_ordinary_error(how: str) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled"):
        RESOLVERS[how](cancelled)


# -- offload ----------------------------------------------------------------------------------------------------------


async def test_a_call_runs_in_another_thread_with_the_callers_context() -> None:
    NAME.set("caller")

    thread, name = await offload(lambda: (threading.get_ident(), NAME.get()))

    assert (thread != threading.get_ident(), name) == (True, "caller")


async def test_what_a_call_sets_in_its_context_stays_there() -> None:
    NAME.set("caller")

    await offload(lambda: NAME.set("worker"))

    assert NAME.get() == "caller"


@pytest.mark.parametrize(
    "error", [ValueError("boom"), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()], ids=repr
)
async def test_what_a_call_raises_is_raised(error: BaseException) -> None:
    def failing() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await offload(failing)
    assert caught.value is error


async def test_an_exception_that_ends_iterations_arrives_as_well() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(offload(lambda: next(iter(()))), LIMIT_S)


class Waiting:
    """A call that waits until it is let go, then returns or raises."""

    def __init__(self, outcome: Any = "result") -> None:
        self.outcome, self.started, self.release = outcome, threading.Event(), threading.Event()

    def __call__(self) -> Any:
        self.started.set()
        assert self.release.wait(LIMIT_S)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


async def cancelled_midway(call: Waiting, *, times: int, **options: Any) -> None:
    task = asyncio.create_task(offload(call, **options))
    assert await asyncio.to_thread(call.started.wait, LIMIT_S)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    call.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("times", [1, 3])
async def test_a_call_that_has_begun_is_waited_for_and_undone_before_the_cancellation_goes_on(times: int) -> None:
    undone: list[Any] = []

    await cancelled_midway(Waiting("result"), times=times, undo=undone.append)

    assert undone == ["result"]


async def test_a_call_that_failed_has_nothing_to_undo() -> None:
    undone: list[Any] = []

    await cancelled_midway(Waiting(ValueError("boom")), times=1, undo=undone.append)

    assert undone == []


async def test_an_undoing_that_fails_does_not_hide_the_cancellation() -> None:
    def broken(_: Any) -> None:
        raise ValueError("boom")

    await cancelled_midway(Waiting(), times=1, undo=broken)


async def test_a_call_without_an_undoing_is_waited_for_all_the_same() -> None:
    call = Waiting()

    await cancelled_midway(call, times=1)

    assert call.release.is_set()


@pytest.mark.parametrize("must_end", [False, True])
async def test_a_call_that_is_queued_is_dropped_unless_it_must_end(
    monkeypatch: pytest.MonkeyPatch, must_end: bool
) -> None:
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(threads, "_POOL", pool)
        first, ran = Waiting(), list[int]()
        pool.submit(first)
        task = asyncio.create_task(offload(lambda: ran.append(1), must_end=must_end))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        first.release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert ran == [1] * must_end


async def test_a_tool_has_threads_of_its_own() -> None:
    def where_am_i() -> str:
        return threading.current_thread().name

    names = [await offload(where_am_i), await offload(where_am_i, tool=True)]

    assert [name.rsplit("_", 1)[0] for name in names] == ["hitl-guard-checks", "hitl-guard-tools"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    asyncio.run(offload(lambda: None))
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            ended = asyncio.run(asyncio.wait_for(offload(lambda: 0), LIMIT_S))
        finally:
            os._exit(ended)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
