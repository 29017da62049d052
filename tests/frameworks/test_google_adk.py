"""Google ADK's real package, by the contract and by what only it has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("google.adk")

from google.adk.agents import LiveRequestQueue, LlmAgent
from google.adk.apps import App
from google.adk.code_executors import UnsafeLocalCodeExecutor
from google.adk.models import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, google_search
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.workflow import START, Workflow
from google.genai import types
from pydantic import BaseModel

from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.guard import Guard
from hitl_guard.integrations.google_adk import ApprovalPlugin
from hitl_guard.keyring import Keyring
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.documents import PolicyDocument
from tests.frameworks.bench import ONE, Bench
from tests.frameworks.contract import Contract
from tests.frameworks.rig_google_adk import CONFIRM, GoogleADK, Scripted
from tests.frameworks.told import POLICY as ALL

FACTS = {"user": "ana", "run_id": "conversation"}


class TestGoogleADK(Contract):
    rig = GoogleADK()


class Chat:
    """One agent, its runner, and one session."""

    def __init__(self, bench: Bench, *tools: Any, calls: Any = ONE, plugin: Any = None, **options: Any) -> None:
        listed = [*tools] or [FunctionTool(bench.sealed["delete_record"])]
        agent = LlmAgent(name="worker", model=Scripted(model="s", script=calls), tools=listed, **options)
        self.plugin = plugin or ApprovalPlugin(bench.guard, scope=lambda context: FACTS)
        self.runner = InMemoryRunner(app=App(name="chat", root_agent=agent, plugins=[self.plugin]))
        self.events: list[Any] = []

    async def say(self, *parts: types.Part) -> str:
        """Say something, and return all that was said since."""
        service, found = self.runner.session_service, {"app_name": "chat", "user_id": "ana", "session_id": "one"}
        if await service.get_session(**found) is None:
            await service.create_session(**found)
        message = types.Content(role="user", parts=[*parts] or [types.Part(text="go")])
        self.events = [
            event async for event in self.runner.run_async(user_id="ana", session_id="one", new_message=message)
        ]
        return str([event.model_dump(mode="json", exclude_none=True) for event in self.events])

    def yes(self) -> list[types.Part]:
        """Return ADK's own yes to everything that it asked for last."""
        return [
            types.Part(function_response=types.FunctionResponse(id=call.id, name=CONFIRM, response={"confirmed": True}))
            for event in self.events for call in event.get_function_calls() if call.name == CONFIRM
        ]


async def test_a_callback_of_the_agent_changes_nothing_that_was_approved(bench: Bench) -> None:
    late = False

    def change(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
        if late:
            args["record"] = 99

    chat = Chat(bench, before_tool_callback=change)
    await chat.say()
    bench.approve(bench.only())
    late = True

    told = await chat.say(*chat.yes())

    assert bench.ran == []
    assert "args-mismatch" in told


@pytest.mark.filterwarnings("ignore:The `plugins` argument:DeprecationWarning")  # ADK's own call of its own runner
async def test_an_agent_as_a_tool_is_guarded_too_and_its_calls_are_made_again(bench: Bench) -> None:
    child = LlmAgent(
        name="child", model=Scripted(model="s", script=ONE), tools=[FunctionTool(bench.sealed["delete_record"])]
    )
    calls: Any = [[("d1", "child", {"request": "delete it"})]]
    plugin = ApprovalPlugin(bench.guard, pause="retry")
    assert "done" in await Chat(bench, AgentTool(child), calls=calls, plugin=plugin).say()
    assert (bench.ran, bench.only().run_id, bench.only().agent) == ([], "one", "child")
    bench.approve(bench.only())

    await Chat(bench, AgentTool(child), calls=calls, plugin=plugin).say()

    assert bench.ran == ["delete 42"]


@pytest.mark.filterwarnings("ignore:The `plugins` argument:DeprecationWarning")
async def test_an_agent_as_a_tool_cannot_pause_and_says_what_to_do(bench: Bench) -> None:
    child = LlmAgent(
        name="child", model=Scripted(model="s", script=ONE), tools=[FunctionTool(bench.sealed["delete_record"])]
    )
    chat = Chat(bench, AgentTool(child), calls=[[("d1", "child", {"request": "delete it"})]])

    with pytest.raises(ConfigurationError, match="retry"):
        await chat.say()

    assert bench.ran == []


async def test_an_agent_as_a_tool_that_does_without_the_plugins_is_refused(bench: Bench) -> None:
    child = LlmAgent(
        name="child", model=Scripted(model="s", script=ONE), tools=[FunctionTool(bench.tools["delete_record"])]
    )
    chat = Chat(
        bench, AgentTool(child, include_plugins=False), calls=[[("d1", "child", {"request": "delete it"})]]
    )

    with pytest.raises(Exception, match="include_plugins"):
        await chat.say()

    assert bench.ran == []


async def test_the_run_ends_where_nobody_can_tell(bench: Bench) -> None:
    bench.fail()

    with pytest.raises(StoreUnavailableError):
        await Chat(bench).say()

    assert bench.ran == []


async def test_one_tool_behind_two_guards_is_refused(bench: Bench) -> None:
    tool = FunctionTool(bench.sealed["delete_record"])
    await Chat(bench, tool).say()
    other = Bench(bench.folder)

    with pytest.raises(Exception, match="another guard"):
        await Chat(other, tool).say()
    other.close()

    assert bench.ran == []


async def test_a_tool_that_is_used_again_is_wrapped_once(bench: Bench) -> None:
    tool = FunctionTool(bench.sealed["look"])
    chat = Chat(bench, tool, calls=[[("c1", "look", {"place": "attic"})], [("c2", "look", {"place": "cellar"})]])

    await chat.say()

    assert bench.ran == ["look attic", "look cellar"]


@pytest.mark.parametrize("raises", [True, False])
async def test_a_tool_that_fails_is_in_doubt(bench: Bench, raises: bool) -> None:
    def delete_record(record: int) -> dict[str, str]:
        """Delete a record."""
        bench.note(f"tried {record}")
        if raises:
            raise OSError("the disk is full")
        return {"error": "the disk is full"}

    chat = Chat(bench, FunctionTool(delete_record))
    await chat.say()
    request = bench.only()
    bench.approve(request)

    if raises:
        with pytest.raises(OSError, match="full"):
            await chat.say(*chat.yes())
    else:
        assert "the disk is full" in await chat.say(*chat.yes())

    assert (bench.ran, bench.state(request)) == (["tried 42"], "in_doubt")


async def test_a_tool_whose_description_changed_is_asked_for_anew(bench: Bench) -> None:
    def delete_record(record: int) -> str:
        """Delete a record."""
        bench.note(f"delete {record}")
        return "deleted"

    tool = FunctionTool(delete_record)
    chat = Chat(bench, tool)
    await chat.say()
    first = bench.only()
    bench.approve(first)
    tool.description = "Delete a record, and its copies."

    await chat.say(*chat.yes())

    assert (bench.ran, bench.state(first)) == ([], "superseded")
    assert bench.only().id != first.id


async def test_what_the_policy_never_lets_run_does_not_run(bench: Bench) -> None:
    def drop_database() -> str:
        """Drop it."""
        bench.note("dropped")
        return "dropped"

    told = await Chat(bench, FunctionTool(drop_database), calls=[[("c1", "drop_database", {})]]).say()

    assert (bench.ran, bench.waiting()) == ([], [])
    assert "Never." in told


async def test_who_calls_and_where_is_what_the_session_says(bench: Bench) -> None:
    chat = Chat(bench, plugin=ApprovalPlugin(bench.guard))

    await chat.say()

    request = bench.only()
    assert (request.user, request.run_id, request.agent, request.call_id) == ("ana", "one", "worker", "c1")


async def test_a_runner_without_the_plugin_fails_the_self_test(bench: Bench) -> None:
    agent = LlmAgent(name="worker", model=Scripted(model="s", script=ONE))

    with pytest.raises(ConfigurationError, match="canary"):
        await ApprovalPlugin(bench.guard).selftest(InMemoryRunner(app=App(name="chat", root_agent=agent)))


@pytest.mark.parametrize("uncovered", [(), ("google_search",)])
async def test_what_the_provider_runs_is_refused_unless_it_is_named(bench: Bench, uncovered: tuple[str, ...]) -> None:
    plugin = ApprovalPlugin(bench.guard, uncovered=uncovered)
    chat = Chat(bench, google_search, calls=[], plugin=plugin)
    chat.runner.agent.model.model = "gemini-2.5-flash"

    with contextlib.nullcontext() if uncovered else pytest.raises(Exception, match="guard: google_search"):
        assert "done" in await chat.say()


async def test_code_of_the_model_is_refused(bench: Bench) -> None:
    chat = Chat(bench, calls=[], code_executor=UnsafeLocalCodeExecutor())

    with pytest.raises(Exception, match="guard: code_execution"):
        await chat.say()


def test_uncovered_is_a_list_of_names(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="uncovered"):
        ApprovalPlugin(bench.guard, uncovered="google_search")


async def test_a_copy_of_a_tool_under_another_name_is_guarded_under_that_name(bench: Bench) -> None:
    class Named(BaseToolset):
        async def get_tools(self, readonly_context: Any = None) -> list[Any]:
            return [tool]

    def database() -> str:
        """Do something."""
        bench.note("ran")
        return "ran"

    tool = FunctionTool(database)
    await Chat(bench, tool, calls=[[("c1", "database", {})]]).say()

    told = await Chat(bench, Named(tool_name_prefix="drop"), calls=[[("c2", "drop_database", {})]]).say()

    assert bench.ran == ["ran"]
    assert "Never." in told


async def test_a_tool_that_is_a_node_of_a_workflow_waits_too(bench: Bench) -> None:
    def choose() -> dict[str, int]:
        return {"record": 42}

    flow = Workflow(name="flow", edges=[(START, choose, FunctionTool(bench.sealed["delete_record"]))])
    chat = Chat(bench)
    chat.runner = InMemoryRunner(app=App(name="chat", root_agent=flow, plugins=[chat.plugin]))
    await chat.say()
    assert (bench.ran, bench.only().arguments) == ([], {"record": 42})
    bench.approve(bench.only())

    await chat.say(*[
        types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response={"confirmed": True}))
        for event in chat.events for call in event.get_function_calls()
    ])

    assert bench.ran == ["delete 42"]


async def test_the_form_of_an_answer_needs_no_approval(bench: Bench) -> None:
    class Answer(BaseModel):
        text: str

    policy = Policy.of(PolicyDocument.from_source(ALL.encode(), "all.yaml"))
    guard = Guard(policy=policy, keyring=Keyring.from_file(bench.folder / "keys.json"), store=bench.store)
    calls: Any = [[("a1", "set_model_response", {"text": "hello"})]]

    told = await Chat(bench, calls=calls, plugin=ApprovalPlugin(guard), output_schema=Answer).say()

    assert bench.waiting() == []
    assert "hello" in told
    assert "pending" not in told


class Live:
    """A live connection whose model calls one tool, hears of it, and hangs up."""

    def __init__(self, *turns: types.Part) -> None:
        self.turns = turns

    async def receive(self) -> AsyncIterator[LlmResponse]:
        yield LlmResponse(content=types.Content(role="model", parts=[*self.turns]))

    def __getattr__(self, name: str) -> Any:
        async def nothing(*_: Any, **__: Any) -> None:
            return None

        return nothing


@pytest.mark.parametrize("streams", [False, True])
async def test_a_live_session_cannot_pause(bench: Bench, streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stream(record: int) -> AsyncIterator[str]:
        """Delete a record."""
        bench.note("streamed")
        yield "deleted"

    @contextlib.asynccontextmanager
    async def connect(self: Any, request: Any) -> AsyncIterator[Live]:
        name = "stream" if streams else "delete_record"
        call = types.FunctionCall(id="c1", name=name, args={"record": 42})
        yield Live(types.Part(function_call=call))

    monkeypatch.setattr(Scripted, "connect", connect)
    chat = Chat(bench, FunctionTool(stream), FunctionTool(bench.sealed["delete_record"]))
    await chat.runner.session_service.create_session(app_name="chat", user_id="ana", session_id="one")
    queue = LiveRequestQueue()

    async with asyncio.timeout(20):
        with pytest.raises(Exception, match="live session"):
            async for _ in chat.runner.run_live(user_id="ana", session_id="one", live_request_queue=queue):
                pass

    assert bench.ran == []
