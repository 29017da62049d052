"""Auto-resume: a user's next message may answer a tool that suspended itself and opted in with ``auto_resume=True``.

This is the one place where data that a model wrote is used as an answer, so it is narrow: the run is the same agent's,
user's, conversation's and resource's; the pause is a suspension, never an approval; the tool's resume schema has no
field ``approved``; and the answer must fit that schema. Without a fitting answer the message starts an ordinary run.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from .. import canonical
from ..errors import AgentError, CanonicalizationError
from ..lifecycle.threads import offload
from . import runs, sessions
from .events import Events
from .sessions import Answer
from .shapes import copied
from .state import Owner
from .tools import Tool
from .turns import Turn, deltas

if TYPE_CHECKING:
    from .agent import Agent
    from .stream import AgentStream

RESUME_TOOL = "resume_suspended_tool"
"""The tool by which the model hands over what it found in the message."""


async def resumed(agent: Agent, owner: Owner, messages: list[dict[str, Any]], stream: AgentStream) -> Events:
    """Resume the suspended run that a user's message answers; yield nothing where it answers none."""
    answer = await _answer_of(agent, owner, messages)
    if answer is None:
        return
    new, begun = stream.run_id, False
    stream.run_id = answer[0]
    try:
        async with aclosing(sessions.answered(agent, *answer, stream)) as play:
            async for one in play:
                begun = True
                yield one
    except AgentError:
        if begun:
            raise
        # Others were faster: it is a message like any other.
        stream.run_id, stream.text, stream.tool_calls = new, "", []


async def _answer_of(agent: Agent, owner: Owner, messages: list[dict[str, Any]]) -> tuple[str, Answer] | None:
    """Return the suspended run that a user's message answers, and the answer; None where it answers none.

    The model is asked once, and only if a suspension is there that it may answer.
    """
    if owner.thread_id is None or not messages or messages[-1]["role"] != "user":
        return None
    found = await offload(lambda: _open(agent, owner))
    if found is None:
        return None
    run_id, pause_id, question, tool = found
    data = await _derived(agent, tool, question, messages[-1])
    if data is None:
        return None
    return run_id, Answer(
        pause_id, owner.tenant, user=owner.user.id, data=(data,), said=tuple(messages),
    )


def _open(agent: Agent, owner: Owner) -> tuple[str, str, Any, Tool] | None:
    """Return the newest suspension of the conversation that a message may answer. Blocks."""
    page = runs.listed(
        agent, user=owner.user.id, tenant=owner.tenant, thread_id=owner.thread_id, resource_id=owner.resource_id,
        from_date=None, to_date=None, per_page=None, page=None,
    )
    for run in page.runs:
        try:
            found = sessions.loaded(agent, run.run_id, owner.tenant, owner.user.id)
        except AgentError:
            continue  # it has just ended
        for way in reversed(found.snapshot.waiting()):
            call = way[-1][1]
            tool = sessions.tool_of(agent, way)
            if call.suspension is not None and tool is not None and tool.auto_resume:
                return run.run_id, call.suspension["id"], call.suspension["payload"], tool
    return None


async def _derived(agent: Agent, tool: Tool, question: Any, message: dict[str, Any]) -> Any:
    """Ask the model what the message answers; None where it answers nothing, or nothing that fits."""
    schema = json.loads(tool.resume_schema_json or "{}")
    told = {
        "description": "Hand over the answer that the user's message gives to the waiting question.",
        "name": RESUME_TOOL,
        "parameters": {"properties": {"resumeData": schema}, "required": ["resumeData"], "type": "object"},
    }
    asked = (
        "A tool waits for an answer to its question, which follows as data. If the user's last message answers it, "
        f"call {RESUME_TOOL} with what that message says and nothing else. If not, call nothing."
    )
    # The question is the tool's: data that a person is asked about, not an instruction to the model.
    shown = {"content": json.dumps({"question": question, "tool": tool.name}), "role": "user"}
    turn = None
    async with aclosing(deltas(
        agent.model, [{"content": asked, "role": "system"}, shown, copied(message)],
        [{"function": told, "type": "function"}], copied(agent.settings),
    )) as parts:
        async for part in parts:
            turn = part if isinstance(part, Turn) else turn
    calls = [] if turn is None else [call for call in turn.calls if call.name == RESUME_TOOL]
    if len(calls) != 1:
        return None
    try:
        given = canonical.parse(calls[0].arguments)
        data = given.get("resumeData") if isinstance(given, dict) else None
        return None if _consents(data) else tool.checked_resume(data)[0]
    except CanonicalizationError:
        return None


def _consents(data: Any) -> bool:
    """Whether data have a field ``approved``, which a schema that is open for more would let through."""
    if isinstance(data, dict):
        return "approved" in data or any(_consents(item) for item in data.values())
    return isinstance(data, list) and any(_consents(item) for item in data)
