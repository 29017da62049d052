"""Google ADK: the rows of its SQLite sessions are the state, ``{"confirmed": true}`` its own yes."""

from __future__ import annotations

import base64
import functools
import json
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool
from google.genai import types

from hitl_guard.integrations.google_adk import ApprovalPlugin
from tests.frameworks.bench import Setup, Turn
from tests.frameworks.rig import Outcome, Rig

CONFIRM = "adk_request_confirmation"


class Scripted(BaseLlm):
    """Asks for the turn of its script that comes after those in the history, and then answers with text."""

    script: list[Any]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        ids = {
            part.function_call.id for content in llm_request.contents for part in content.parts or []
            if part.function_call
        }
        turn: Turn = next((turn for turn in self.script if not {one[0] for one in turn} & ids), [])
        parts = [
            types.Part(function_call=types.FunctionCall(id=call_id, name=tool, args=dict(arguments)))
            for call_id, tool, arguments in turn
        ]
        yield LlmResponse(content=types.Content(role="model", parts=parts or [types.Part(text="done")]))


def mutated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let something that stands further inside than the guard make 99 of every number."""
    @functools.wraps(function)
    async def late(**arguments: Any) -> Any:
        return await function(**(arguments | {"record": 99}))

    return late


class GoogleADK(Rig):
    """Google ADK."""

    name = "google-adk"
    package = "google-adk"

    def _runner(self, setup: Setup, path: str) -> tuple[Runner, ApprovalPlugin]:
        # The session knows user and run; the bench's scope must be able to fail all the same.
        def scope(context: Any) -> dict[str, Any]:
            return setup.facts()

        plugin = ApprovalPlugin(setup.bench.guard, scope=scope, pause=setup.pause)
        functions = dict(setup.bench.sealed)
        if setup.late:
            functions["delete_record"] = mutated(functions["delete_record"])
        tools: list[Any] = [FunctionTool(function) for function in functions.values()]
        agent = LlmAgent(name="worker", model=Scripted(model="scripted", script=setup.script), tools=tools)
        if setup.inner:
            script = [[("d1", "transfer_to_agent", {"agent_name": "worker"})]]
            agent = LlmAgent(name="boss", model=Scripted(model="scripted", script=script), sub_agents=[agent])
        app = App(name="bench", root_agent=agent, plugins=[plugin] if setup.guarded else [])
        return Runner(app=app, session_service=SqliteSessionService(path)), plugin

    async def run(self, setup: Setup, state: str | None = None) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sessions.db"
            if state is not None:
                path.write_bytes(base64.b64decode(state))
            runner, _ = self._runner(setup, str(path))
            service = runner.session_service
            found = {"app_name": "bench", "user_id": "ana", "session_id": "conversation"}
            message = types.Content(role="user", parts=[types.Part(text="go")])
            if state is None:
                await service.create_session(**found)
            else:
                message = await _yes(service, found)
            options: dict[str, Any] = {}
            if setup.stream:
                options["run_config"] = RunConfig(streaming_mode=StreamingMode.SSE)
            events = []
            async with runner:
                async for event in runner.run_async(
                    user_id="ana", session_id="conversation", new_message=message, **options
                ):
                    events.append(event)
            paused = any(call.name == CONFIRM for event in events for call in event.get_function_calls())
            session = await service.get_session(**found)
            told = json.dumps([event.model_dump(mode="json", exclude_none=True) for event in session.events])
            return Outcome(state=base64.b64encode(path.read_bytes()).decode() if paused else None, told=told)

    def tampered(self, state: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sessions.db"
            path.write_bytes(base64.b64decode(state))
            with sqlite3.connect(path) as database:
                changed = database.execute(
                    "UPDATE events SET event_data = replace(replace(event_data, '\"record\": 42', '\"record\": 99'),"
                    " '\"record\":42', '\"record\":99') WHERE event_data LIKE '%42%'"
                ).rowcount
            database.close()
            assert changed > 0
            return base64.b64encode(path.read_bytes()).decode()

    async def selftest(self, setup: Setup) -> None:
        with tempfile.TemporaryDirectory() as folder:
            runner, plugin = self._runner(setup, str(Path(folder) / "sessions.db"))
            await plugin.selftest(runner)


async def _yes(service: Any, found: dict[str, str]) -> types.Content:
    session = await service.get_session(**found)
    asked = [call for event in session.events for call in event.get_function_calls() if call.name == CONFIRM]
    answered = {answer.id for event in session.events for answer in event.get_function_responses()}
    parts = [
        types.Part(function_response=types.FunctionResponse(id=call.id, name=CONFIRM, response={"confirmed": True}))
        for call in asked if call.id not in answered
    ]
    return types.Content(role="user", parts=parts)
