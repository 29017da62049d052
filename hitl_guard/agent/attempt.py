"""One start of one tool: under a permit, between the hooks, with its end on record."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .. import canonical
from ..lifecycle import running
from ..lifecycle.desk import new_id
from ..models import Permit
from . import gate
from .hooks import after, before
from .shapes import well_formed
from .state import Call, Outcome
from .tools import Tool, ToolContext

if TYPE_CHECKING:
    from .work import Node


async def run_tool(node: Node, call: Call, tool: Tool, permit: Permit) -> None:
    """Run a permitted tool, and record how it ended."""
    if tool.is_client:
        if node.parent is None:
            await node.end(call, Outcome("client", None), permit, "succeeded")
        else:
            message = "A sub-agent cannot use a tool that only a client can run; the tool must suspend instead."
            await node.end(call, gate.failed("ClientToolError", message), permit)
        return
    attempt = Attempt(node, call, tool, permit)
    try:
        if permit.request_id is None and not node.stored:
            await running.run_free(permit, attempt.start)
            attempt.apply(call)
        else:
            await running.run_async(permit, attempt.start, tool.effect, attempt.settle)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        if error is not attempt.error:
            raise  # the guard's own: the tool did not start, or nobody can record what it did
        if call.outcome is None:
            attempt.apply(call)


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
        self.begun = False
        self.skipped = False
        self.value: Any = None
        self.error: Exception | None = None

    async def start(self, permit: Permit) -> Any:
        """Run the tool with the signed arguments, between the hooks."""
        try:
            args = permit.arguments
            skip = await before(self.node, self.tool.name, args, self.context)
            if skip is not None:
                self.skipped, self.value = True, self.tool.checked_output(skip[0])
                return self.value
            given = self.tool.checked_input(args)
            self.begun = True
            value = await self.tool.start(given, self.context)
            if self.context.suspended:
                self.value = self.tool.checked_suspend(self.context.suspend_payload)
            else:
                self.value = self.tool.checked_output(value)
                await after(self.node, self.tool.name, args, self.value, self.context)
        except Exception as error:
            self.error = error
            raise
        return self.value

    def settle(self, permit: Permit, outcome: str, detail: str | None) -> None:
        """Record how it ended (a `running.Settle`)."""
        if outcome == "succeeded" and self.skipped:
            outcome, detail = "failed", "hook"
        elif outcome == "succeeded" and self.context.suspended:
            outcome = "suspended"
        elif outcome != "succeeded" and self.error is None:
            self.error = RuntimeError("The call was stopped; nobody knows how far it came.")
        if outcome == "in_doubt" and not self.begun:
            outcome = "failed"  # a hook stopped it before the tool began
        self.node.drive.settled(self.node, self.call, permit, outcome, detail, self.apply)

    def apply(self, call: Call) -> None:
        """Write into a call how it ended, or that it suspended itself."""
        if self.error is not None:
            call.outcome = gate.failed(type(self.error).__name__, error_text(self.error))
        elif self.context.suspended and not self.skipped:
            call.suspension = {"id": self.suspension_id, "payload": self.value, "taken": None}
            call.claim_id = self.permit.claim_id
            call.request_id = self.permit.request_id
        else:
            call.outcome = gate.succeeded(call, self.value, self.permit)


def error_text(error: BaseException) -> str:
    """Return what an exception says, short and well-formed."""
    try:
        return well_formed(str(error))[:4096] or type(error).__name__
    except Exception:  # noqa: BLE001  an exception that cannot be shown
        return type(error).__name__
