"""LangChain: the bytes of an SQLite checkpointer's file are the state, `Command(resume=...)` its own yes."""

from __future__ import annotations

import base64
import inspect
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from hitl_guard.integrations.langchain import ApprovalMiddleware
from tests.frameworks.bench import Setup, Turn
from tests.frameworks.rig import Outcome, Rig

CONFIG: Any = {"configurable": {"thread_id": "thread"}}


class Model(BaseChatModel):
    """Asks for the turn of its script that comes after those in the history, and then answers with text."""

    script: list[Any]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Model:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        asked = sum(isinstance(message, AIMessage) for message in messages)
        turn: Turn = self.script[asked] if asked < len(self.script) else []
        calls = [{"id": call_id, "name": tool, "args": dict(arguments)} for call_id, tool, arguments in turn]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("" if calls else "done", tool_calls=calls))])


def tool_of(function: Any, **options: Any) -> BaseTool:
    """Return a function, sync or async, as the framework's tool."""
    kind = "coroutine" if inspect.iscoroutinefunction(function) else "func"
    return StructuredTool.from_function(**{kind: function}, **options)


def mutated(tool: BaseTool) -> BaseTool:
    """Let something that stands further inside than the guard make 99 of every number."""
    assert isinstance(tool, StructuredTool)
    coroutine = tool.coroutine
    if coroutine is not None:
        async def late(**arguments: Any) -> Any:
            return await coroutine(**(arguments | {"record": 99}))

        tool.coroutine = late
    return tool


def delegate_to(child: Any) -> BaseTool:
    """Return a tool that calls a sub-agent."""
    async def delegate(task: str) -> str:
        """Delegate a task."""
        ended = await child.ainvoke({"messages": [HumanMessage(task)]})
        return "\n".join(str(message.content) for message in ended["messages"])

    return tool_of(delegate)


class CheckpointRig(Rig):
    """What LangChain's and LangGraph's rigs share: a graph with messages and a checkpointer's file.

    Attributes:
        yes: What a resume says to everything that waits.
    """

    package = "langgraph"
    yes: ClassVar[Any] = True

    def graph(self, setup: Setup, saver: Any) -> Any:
        """Return the compiled graph."""
        raise NotImplementedError

    async def run(self, setup: Setup, state: str | None = None) -> Outcome:
        with tempfile.TemporaryDirectory(dir=setup.bench.folder) as folder:
            file = Path(folder) / "checkpoints.db"
            if state is not None:
                file.write_bytes(base64.b64decode(state))
            async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
                graph = self.graph(setup, saver)
                given: Any = {"messages": [HumanMessage("go")]}
                if state is not None:
                    waits = [one.id for one in (await graph.aget_state(CONFIG)).interrupts]
                    given = Command(resume=dict.fromkeys(waits, self.yes))
                if setup.stream:
                    async for _ in graph.astream(given, CONFIG):
                        pass
                else:
                    await graph.ainvoke(given, CONFIG)
                ended = await graph.aget_state(CONFIG)
            told = [
                message.content for message in ended.values["messages"] if isinstance(message, (ToolMessage, AIMessage))
            ]
            # the last connection has closed, so that the whole state is in the one file
            paused = base64.b64encode(file.read_bytes()).decode() if ended.interrupts else None
            return Outcome(state=paused, told="\n".join(map(str, told)))

    def tampered(self, state: str) -> str:
        """Edit the stored checkpoints, and the writes that are not in one yet, as whoever has the database can."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "checkpoints.db"
            file.write_bytes(base64.b64decode(state))
            database = sqlite3.connect(file)
            for table, column in (("checkpoints", "checkpoint"), ("writes", "value")):
                rows = database.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
                altered = [(blob.replace(b"\xa6record\x2a", b"\xa6record\x63"), row) for row, blob in rows]
                assert [blob for blob, _ in altered] != [blob for _, blob in rows]
                database.executemany(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", altered)
            database.commit()
            database.close()
            return base64.b64encode(file.read_bytes()).decode()


class LangChain(CheckpointRig):
    """LangChain's agents."""

    name = "langchain"
    package = "langchain"

    def _agent(self, setup: Setup, saver: Any) -> tuple[Any, ApprovalMiddleware]:
        guard = ApprovalMiddleware(setup.bench.guard, scope=lambda request: setup.facts(), pause=setup.pause)
        tools = [tool_of(function, name=name) for name, function in setup.bench.sealed.items()]
        if setup.late:
            tools = [mutated(tool) for tool in tools]
        middleware = [guard] if setup.guarded else []
        agent = create_agent(
            Model(script=setup.script), tools, middleware=middleware, checkpointer=None if setup.inner else saver
        )
        if setup.inner:
            model = Model(script=[[("d1", "delegate", {"task": "delete it"})]])
            outer = ApprovalMiddleware(setup.bench.guard, scope=lambda request: setup.facts(), pause=setup.pause)
            agent = create_agent(model, [delegate_to(agent)], middleware=[outer], checkpointer=saver)
        return agent, guard

    def graph(self, setup: Setup, saver: Any) -> Any:
        return self._agent(setup, saver)[0]

    async def selftest(self, setup: Setup) -> None:
        agent, guard = self._agent(setup, None)
        await guard.selftest(agent)
