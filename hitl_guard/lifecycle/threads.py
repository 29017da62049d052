"""How one synchronous order of checks serves asynchronous callers: worker threads, and never a half-known outcome."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

T = TypeVar("T")


def _checks() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=32, thread_name_prefix="hitl-guard-checks")


def _tools() -> ThreadPoolExecutor:
    # As many as there will be running tools: one that was claimed must not queue behind slow ones, and tools that call
    # the guard must not wait for one another. Threads are made when they are needed.
    return ThreadPoolExecutor(max_workers=4096, thread_name_prefix="hitl-guard-tools")


_POOL = _checks()
_TOOLS = _tools()
_LOOP: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar("hitl_loop", default=None)


def _after_fork() -> None:
    # A forked child has none of its parent's threads.
    global _POOL, _TOOLS
    _POOL, _TOOLS = _checks(), _tools()


os.register_at_fork(after_in_child=_after_fork)


def resolve(awaitable: Awaitable[T], timeout_s: float) -> T:
    """Run an awaitable to its end from synchronous code, for at most ``timeout_s`` seconds.

    Inside `offload` it runs on the caller's event loop; else on a loop of its own.

    Raises:
        TimeoutError: it took longer.
        RuntimeError: it was cancelled, or cancelled itself; code that is not a task cannot be.
    """
    work = _limited(awaitable, timeout_s)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop = _LOOP.get()
        return asyncio.run(work) if loop is None else asyncio.run_coroutine_threadsafe(work, loop).result()
    # This thread's loop is busy with us: the awaitable gets a loop in a thread of its own. Not one of the pool's: they
    # may all be waiting for this thread's loop.
    with ThreadPoolExecutor(1, thread_name_prefix="hitl-guard-own") as own:
        return own.submit(contextvars.copy_context().run, asyncio.run, work).result()


async def _limited(awaitable: Awaitable[T], timeout_s: float) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await awaitable
    except asyncio.CancelledError as error:
        raise RuntimeError("The awaitable was cancelled.") from error


async def offload(
    call: Callable[[], T], *, undo: Callable[[T], Any] | None = None, must_end: bool = False, tool: bool = False
) -> T:
    """Run ``call`` in a worker thread and wait for its end, come what may.

    A cancelled task does not leave the call half-known: one that has not begun is dropped, unless it ``must_end``; one
    that has begun is waited for, and ``undo`` gets its result, before the cancellation goes on. ``tool``: it is a tool
    that runs, for as long as it likes.
    """
    context = contextvars.copy_context()
    context.run(_LOOP.set, asyncio.get_running_loop())
    job = (_TOOLS if tool else _POOL).submit(context.run, _caught, call)
    try:
        value, error = await asyncio.shield(asyncio.wrap_future(job))
    except asyncio.CancelledError:
        if must_end or not job.cancel():
            value, error = await _ended(job)
            if undo is not None and error is None:
                await _ended(_POOL.submit(_caught, partial(undo, value)))
        raise
    if error is not None:
        raise error
    return cast(T, value)


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return what ``call`` returns, or what it raises: not every exception can travel in a future (StopIteration)."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001  it is raised again, in the task
        return None, error


async def _ended(job: Future[tuple[Any, BaseException | None]]) -> tuple[Any, BaseException | None]:
    """Wait until a job has ended, however often this task is cancelled."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    job.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
    while not ended.is_set():
        try:
            await ended.wait()
        except asyncio.CancelledError:
            continue
    return job.result()
