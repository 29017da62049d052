"""Google ADK's real package, by the contract and by what only it has."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.adk")

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.integrations.google_adk import ApprovalPlugin
from tests.frameworks.bench import ONE, Bench
from tests.frameworks.contract import Contract
from tests.frameworks.rig_google_adk import CONFIRM, GoogleADK, Scripted

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
    plugin = ApprovalPlugin(bench.guard, scope=lambda context: FACTS, pause="retry")
    assert "done" in await Chat(bench, AgentTool(child), calls=calls, plugin=plugin).say()
    assert bench.ran == []
    bench.approve(bench.only())

    await Chat(bench, AgentTool(child), calls=calls, plugin=plugin).say()

    assert bench.ran == ["delete 42"]


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
