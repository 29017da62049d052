"""Strands Agents: a session's files are the state, ``interruptResponse`` its own yes."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.models import Model
from strands.session.file_session_manager import FileSessionManager

from hitl_guard.integrations.strands import ApprovalPlugin
from tests.frameworks.bench import Setup, Turn
from tests.frameworks.rig import Outcome, Rig


class Scripted(Model):
    """Asks for the turn of its script that comes after those in the history, and then answers with text."""

    def __init__(self, script: list[Turn]) -> None:
        self.script = script

    def update_config(self, **model_config: Any) -> None:
        """Take nothing."""

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        asked = sum(message["role"] == "assistant" for message in messages)
        calls = self.script[asked] if asked < len(self.script) else []
        yield {"messageStart": {"role": "assistant"}}
        for call_id, name, arguments in calls:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": call_id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        if not calls:
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}


def mutated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let something that stands further inside than the guard make 99 of every number."""
    @functools.wraps(function)
    async def late(**arguments: Any) -> Any:
        return await function(**(arguments | {"record": 99}))

    return late


def packed(folder: Path) -> str:
    """Return a session's files as one text."""
    return json.dumps({
        str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()
    })


def unpacked(state: str | None, folder: Path) -> None:
    """Write a session's files, and nothing else, into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in (json.loads(state) if state else {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Strands(Rig):
    """Strands Agents."""

    name = "strands-agents"
    package = "strands-agents"

    def _agent(self, setup: Setup, folder: Path | None) -> tuple[Agent, ApprovalPlugin]:
        plugin = ApprovalPlugin(setup.bench.guard, scope=lambda ctx: setup.facts(), pause=setup.pause)
        functions = dict(setup.bench.sealed)
        if setup.late:
            functions["delete_record"] = mutated(functions["delete_record"])
        tools = [tool(name=name, description=f"{name}.")(function) for name, function in functions.items()]
        sessions = None if folder is None else FileSessionManager(session_id="conversation", storage_dir=str(folder))
        plugins = [plugin] if setup.guarded else []
        if not setup.inner:
            made = Agent(
                model=Scripted(setup.script), tools=[*tools], plugins=plugins, session_manager=sessions,
                callback_handler=None,
            )
            return made, plugin
        child = Agent(
            name="worker", model=Scripted(setup.script), tools=[*tools], plugins=plugins, callback_handler=None
        )
        outer = Agent(
            model=Scripted([[("d1", "worker", {"input": "delete it"})]]), tools=[child.as_tool()],
            plugins=[ApprovalPlugin(setup.bench.guard, scope=lambda ctx: setup.facts(), pause=setup.pause)],
            session_manager=sessions, callback_handler=None,
        )
        return outer, plugin

    async def run(self, setup: Setup, state: str | None = None) -> Outcome:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "sessions"
            unpacked(state, folder)
            agent, _ = self._agent(setup, folder)
            given: Any = "go"
            if state is not None:
                given = [
                    {"interruptResponse": {"interruptId": one, "response": True}}
                    for one in agent._interrupt_state.interrupts
                ]
            if setup.stream:
                async for event in agent.stream_async(given):
                    result = event.get("result")
            else:
                result = await agent.invoke_async(given)
            told = json.dumps([message["content"] for message in agent.messages])
            return Outcome(state=packed(folder) if result.stop_reason == "interrupt" else None, told=told)

    async def selftest(self, setup: Setup) -> None:
        agent, plugin = self._agent(setup, None)
        await plugin.selftest(agent)
