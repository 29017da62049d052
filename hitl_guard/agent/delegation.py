"""A call that is a sub-agent's whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lifecycle.threads import offload
from ..models import Permit
from ..store.base import DropThread, Step
from . import events, gate
from .attempt import ModelFailed, error_text
from .drive import Landed
from .events import Events
from .history import History
from .state import Call, Outcome

if TYPE_CHECKING:
    from .work import Node

MAX_DEPTH = 16
"""How deep sub-agents may call sub-agents."""


async def delegate(node: Node, call: Call, permit: Permit) -> None:
    """Begin a sub-agent's run. The delegation itself has done its work when that begins."""
    sub = node.agent.sub_agent(call.name)
    if sub is None or len(node.path()) >= MAX_DEPTH:
        message = f"Sub-agents cannot call each other more than {MAX_DEPTH} deep."
        await node.end(call, gate.failed("AgentDepthError", message), permit)
        return
    run = sub.new_run(node.drive.owner.tenant, inside=node.run.id)
    child = type(node)(node.drive, sub, run, History(), parent=node)
    child.history.add({"content": permit.arguments["prompt"], "role": "user"})

    def begin(twin: Call) -> None:
        twin.child = child.run

    landed = Landed(stored=False, ours=True)
    if node.stored or permit.request_id is not None:
        child.run.lease = node.drive.lease(await offload(node.drive.desk.store.now))
        kept = child.flush if node.stored else list
        landed = await offload(
            lambda: node.drive.settled(node, call, permit, "succeeded", "delegated", begin, also=kept), must_end=True
        )
    node.drive.land(node, call, begin, landed)
    if call.child is child.run:
        node.children[id(call)] = child
        if node.stored:
            child.committed()


async def inside(node: Node, call: Call, child: Node) -> Events:
    """Go on with a sub-agent's run; its events show inside ours."""
    if not child.finished and child.run.step == 0 and child.mine:
        yield events.inside(node.run, call, events.started(child.run))
    try:
        async with events.closing(child.loop()) as inner:
            async for one in inner:
                yield events.inside(node.run, call, one)
    except ModelFailed as failed:  # its supervisor is told, and goes on
        await _child_ended(node, call, child, gate.failed(type(failed.error).__name__, error_text(failed.error)))
        return
    if child.finished:
        yield events.inside(node.run, call, child.final())
        around = [run.agent for run, _ in child.path()]
        value = {
            "subAgentResourceId": "-".join([node.drive.owner.resource_id, *around[1:], child.agent.id]),
            "subAgentThreadId": child.run.id, "subAgentToolResults": child.history.results(), "text": child.text,
        }
        outcome = Outcome("result", value, child.text)
        if call.asked:
            outcome.approval = gate.approval(call, approved=True)
        await _child_ended(node, call, child, outcome)


async def _child_ended(node: Node, call: Call, child: Node, outcome: Outcome) -> None:
    def apply(twin: Call) -> None:
        twin.outcome, twin.child = outcome, None

    def forgotten() -> list[Step]:
        return [DropThread(bytes.fromhex(child.run.thread))]

    landed = Landed(stored=False, ours=True)
    if node.stored:
        landed = await offload(
            lambda: node.drive.settled(node, call, None, "", None, apply, also=forgotten), must_end=True
        )
    node.drive.land(node, call, apply, landed)
