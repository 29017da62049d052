"""One start of one tool: under a permit, between the hooks, with its end on record."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .. import canonical
from ..lifecycle import running
from ..lifecycle.desk import new_id
from ..models import Permit
from ..toolcalls import as_text
from . import gate
from .drive import Landed
from .hooks import after, before
from .shapes import well_formed
from .state import Call, Outcome
from .tools import Tool, ToolContext

if TYPE_CHECKING:
    from .work import Node


class ModelFailed(Exception):  # noqa: N818  a signal inside this package
    """The model failed: the run ends. ``error``: what it raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def cancelled() -> bool:
    """Whether this task was cancelled from outside; a `CancelledError` may also be a tool's or a model's own."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def run_tool(node: Node, call: Call, tool: Tool, permit: Permit) -> None:
    """Run a permitted tool, and record how it ended."""
    if tool.is_client:
        await _hand_over(node, call, permit)
        return
    attempt = Attempt(node, call, tool, permit)
    try:
        if permit.request_id is None and not node.stored:
            await running.run_free(permit, attempt.start)
        else:
            await running.run_async(permit, attempt.start, tool.effect, attempt.settle)
    except Exception as error:
        if error is not attempt.error:
            raise  # the guard's own: the tool did not start, or nobody can record what it did
    node.drive.land(node, call, attempt.apply, attempt.landed)


async def _hand_over(node: Node, call: Call, permit: Permit) -> None:
    """Leave a call to the client, with the arguments that were approved; a sub-agent has no client."""
    if node.parent is None:
        edited = permit.arguments if permit.edited else None
        await node.end(call, Outcome("client", None, args=edited), permit, "succeeded")
        return
    message = "A sub-agent cannot use a tool that only a client can run; the tool must suspend instead."
    await node.end(call, gate.failed("ClientToolError", message), permit)


class Attempt:
    """One start of one tool."""

    def __init__(self, node: Node, call: Call, tool: Tool, permit: Permit) -> None:
        self.node, self.call, self.tool, self.permit = node, call, tool, permit
        suspension = call.suspension
        answer = None if suspension is None else node.drive.answers.pop(suspension["id"])
        owner = node.drive.owner
        self.context = ToolContext(
            tool_call_id=call.id, run_id=node.run.id, user=owner.user.id, agent_id=node.agent.id, tenant=owner.tenant,
            request_context=canonical.decode(canonical.canonicalize(owner.context or {})),
            resume_data=None if answer is None else answer[1],
            suspend_payload=None if suspension is None else suspension["payload"],
            idempotency_key=permit.idempotency_key,
        )
        self.suspension_id = new_id()
        self.begun = self.returned = False
        self.skipped = False
        self.value: Any = None
        self.error: Exception | None = None
        self.hook_error: Exception | None = None
        self.in_doubt = False
        self.landed = Landed(stored=False, ours=True)

    async def start(self, permit: Permit) -> Any:
        """Run the tool with the signed arguments, between the hooks."""
        try:
            return await self._start(permit.arguments)
        except asyncio.CancelledError as error:
            if cancelled():
                raise
            self.error = RuntimeError("The tool cancelled itself.")
            raise self.error from error
        except Exception as error:
            self.error = error
            raise

    async def _start(self, args: dict[str, Any]) -> Any:
        skip = await before(self.node, self.tool.name, args, self.context)
        if skip is not None:
            self.skipped, self.value = True, self.tool.checked_output(skip[0])
            return self.value
        given = self.tool.checked_input(args)
        self.begun = True
        self._came(await self.tool.start(given, self.context, self._came))
        if not self.context.suspended:
            try:
                await after(self.node, self.tool.name, args, self.value, self.context)
            except Exception as error:  # noqa: BLE001  the tool has done its work: that stands, and so does its result
                self.hook_error = error
        return self.value

    def _came(self, value: Any) -> None:
        """Take what the tool returned, also where its task was cancelled while it ran in its thread."""
        running.check_result(value)
        if self.context.suspended:
            self.value = self.tool.checked_suspend(self.context.suspend_payload)
        else:
            self.value = bounded(self.tool.checked_output(value))
        self.returned = True

    def settle(self, permit: Permit, outcome: str, detail: str | None) -> None:
        """Record how it ended (a `running.Settle`)."""
        if outcome != "succeeded" and self.returned:
            outcome, detail = "succeeded", None  # the task was cancelled, but the tool had come to its end
        if outcome == "succeeded" and self.skipped:
            outcome, detail = "failed", "hook"
        elif outcome == "succeeded" and self.context.suspended:
            outcome = "suspended"
        elif outcome != "succeeded" and self.error is None:
            self.error = RuntimeError("The call was stopped; nobody knows how far it came.")
        if outcome == "in_doubt" and not self.begun:
            outcome = "failed"  # a hook stopped it before the tool began
        self.in_doubt = outcome == "in_doubt"
        drive = self.node.drive
        if outcome == "suspended" and not self.node.stored:
            drive.suspended += [permit] if permit.request_id is not None else []  # recorded with the snapshot
            return
        self.landed = drive.settled(self.node, self.call, permit, outcome, detail, self.apply)

    def apply(self, call: Call) -> None:
        """Write into a call how it ended, or that it suspended itself."""
        if self.error is not None:
            call.outcome = gate.failed(type(self.error).__name__, error_text(self.error), in_doubt=self.in_doubt)
        elif self.context.suspended and not self.skipped:
            call.suspension = {"id": self.suspension_id, "payload": self.value, "taken": None}
            call.claim_id = self.permit.claim_id
            call.request_id = self.permit.request_id
        else:
            call.outcome = gate.succeeded(call, self.value, self.permit)
            if self.hook_error is not None:
                call.outcome.hook = {
                    "message": error_text(self.hook_error), "name": type(self.hook_error).__name__,
                }


MAX_RESULT = 1_000_000
"""The longest text of a result that is kept, in characters: a snapshot must stay small enough to be written."""


def bounded(value: Any) -> Any:
    """Return a result, or the beginning of its text with a notice where it is too large to keep."""
    text = as_text(value)
    if len(text) <= MAX_RESULT:
        return value
    return f"{text[:MAX_RESULT]}\n(The result was cut: it has {len(text)} characters.)"


def error_text(error: BaseException) -> str:
    """Return what an exception says, short and well-formed."""
    try:
        return well_formed(str(error))[:4096] or type(error).__name__
    except Exception:  # noqa: BLE001  an exception that cannot be shown
        return type(error).__name__
