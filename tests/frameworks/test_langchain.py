"""LangChain's real package, by the contract and by what only it has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("langchain")
pytest.importorskip("langgraph.checkpoint.sqlite")

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ToolRetryMiddleware,
    wrap_tool_call,
)
from langchain.agents.middleware.types import AgentState
from langchain.tools import InjectedState, InjectedToolCallId, ToolRuntime
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import ServerInfo
from langgraph.types import Command, interrupt
from pydantic import BaseModel, Field, SecretStr

from hitl_guard.errors import ConfigurationError, NoEffect, StoreUnavailableError
from hitl_guard.integrations.langchain import ApprovalMiddleware
from tests.frameworks.bench import BOB, MIXED, ONE, Bench, Setup, Turn
from tests.frameworks.contract import Contract
from tests.frameworks.rig_langchain import CONFIG, LangChain, Model, tool_of

GO: Any = {"messages": [HumanMessage("go")]}


class TestLangChain(Contract):
    rig = LangChain()


def agent_of(
    bench: Bench, *tools: Any, calls: list[Turn] = ONE, outer: Any = (), saver: Any = None, inner: Any = (),
    agent: dict[str, Any] | None = None, **options: Any,
) -> Any:
    """Return an agent with these tools and other middleware around ours."""
    guard = ApprovalMiddleware(bench.guard, **({"scope": lambda request: {"user": "ana"}} | options))
    listed = [tool if isinstance(tool, StructuredTool) else tool_of(tool) for tool in tools]
    return create_agent(
        Model(script=calls), listed, middleware=[*outer, guard, *inner], checkpointer=saver or InMemorySaver(),
        **(agent or {}),
    )


async def resumed(agent: Any, config: Any = CONFIG, yes: Any = True) -> Any:
    waits = [one.id for one in (await agent.aget_state(config)).interrupts]
    return await agent.ainvoke(Command(resume=dict.fromkeys(waits, yes)), config)


def results(ended: Any) -> list[ToolMessage]:
    return [message for message in ended["messages"] if isinstance(message, ToolMessage)]


def told(ended: Any) -> str:
    return "\n".join(str(message.content) for message in results(ended))


# -- what the framework itself does not notice ---------------------------------------------------------------------


async def test_the_framework_alone_runs_an_altered_checkpoint(bench: Bench) -> None:
    """Else the contract's row about it would prove nothing."""
    async def delete_record(record: int) -> str:
        """Delete a record."""
        bench.note(f"delete {record}")
        return "ran"

    class Native(LangChain):
        yes = {"decisions": [{"type": "approve"}]}  # noqa: RUF012  declared in the rig

        def graph(self, setup: Setup, saver: Any) -> Any:
            asks = HumanInTheLoopMiddleware(interrupt_on={"delete_record": True})
            model = Model(script=setup.script)
            return create_agent(model, [tool_of(delete_record)], middleware=[asks], checkpointer=saver)

    rig = Native()
    state = (await rig.run(Setup(bench=bench))).state
    assert state is not None

    await rig.run(Setup(bench=bench), rig.tampered(state))

    assert bench.ran == ["delete 99"]


async def test_the_guard_refuses_what_the_framework_does_not_notice(bench: Bench) -> None:
    rig = LangChain()
    state = (await rig.run(Setup(bench=bench))).state
    assert state is not None
    bench.approve(bench.only())

    outcome = await rig.run(Setup(bench=bench), rig.tampered(state))

    assert (bench.ran, bench.refusals()) == ([], [("args-mismatch", None)])
    assert "args-mismatch" in outcome.told


async def test_a_state_that_the_app_updates_runs_nothing_else_than_what_was_approved(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"])
    await agent.ainvoke(GO, CONFIG)
    bench.approve(bench.only())
    message = (await agent.aget_state(CONFIG)).values["messages"][-1]
    altered = message.model_copy(update={"tool_calls": [{**message.tool_calls[0], "args": {"record": 99}}]})

    await agent.aupdate_state(CONFIG, {"messages": [altered]}, as_node="model")
    ended = await agent.ainvoke(None, CONFIG)

    assert bench.ran == []
    assert "args-mismatch" in told(ended)


async def test_going_back_in_time_runs_nothing_twice(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"])
    await agent.ainvoke(GO, CONFIG)
    before = (await agent.aget_state(CONFIG)).config
    bench.approve(bench.only())
    await resumed(agent)

    again = await agent.ainvoke(None, before)

    assert bench.ran == ["delete 42"]
    assert "consumed" in told(again)


# -- pause and answer ----------------------------------------------------------------------------------------------


async def test_the_pause_tells_where_to_decide(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"])

    paused = await agent.ainvoke(GO, CONFIG)

    ((facts,),) = [one.value["hitl_guard"] for one in paused["__interrupt__"]]
    assert (facts["request_id"], facts["tenant"]) == (bench.only().id, "default")


async def test_a_call_that_still_waits_pauses_again_however_often_it_is_resumed(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"])
    await agent.ainvoke(GO, CONFIG)

    for _ in range(3):
        assert "__interrupt__" in await resumed(agent)
    bench.approve(bench.only())
    await resumed(agent)

    assert bench.ran == ["delete 42"]


async def test_calls_beside_one_that_waits_run_once_and_answers_may_come_one_by_one(bench: Bench) -> None:
    agent = agent_of(bench, *bench.sealed.values(), calls=MIXED)
    await agent.ainvoke(GO, CONFIG)
    first, second = bench.waiting()
    assert bench.ran == ["look attic"]

    bench.approve(first)
    assert "__interrupt__" in await resumed(agent)
    bench.approve(second)
    await resumed(agent)

    assert sorted(bench.ran) == ["delete 42", "delete 7", "look attic"]


async def test_our_yes_does_not_answer_a_pause_of_the_tools_own(bench: Bench) -> None:
    async def delete_record(record: int) -> str:
        """Delete a record."""
        bench.note(f"answered {interrupt('really?')}")
        return "ran"

    agent = agent_of(bench, delete_record)
    await agent.ainvoke(GO, CONFIG)
    request = bench.only()
    await resumed(agent)
    bench.approve(request)

    paused = await agent.ainvoke(Command(resume=True), CONFIG)

    assert (bench.ran, paused["__interrupt__"][0].value) == ([], "really?")
    assert bench.state(request) == "in_doubt"
    assert "Refused" in told(await resumed(agent))
    assert bench.ran == []


async def test_a_free_tool_may_pause_by_itself(bench: Bench) -> None:
    async def look(place: str) -> str:
        """Look somewhere."""
        bench.note(f"answered {interrupt('where?')}")
        return "seen"

    agent = agent_of(bench, look, calls=[[("c1", "look", {"place": "attic"})]])
    await agent.ainvoke(GO, CONFIG)

    await resumed(agent, yes="there")

    assert bench.ran == ["answered there"]


async def test_two_resumes_at_once_run_the_call_once(bench: Bench) -> None:
    barrier = asyncio.Barrier(2)

    class Together(AgentMiddleware):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            await barrier.wait()
            return await handler(request)

    # The same thread in two stores: two workers that know nothing of each other.
    agents = [agent_of(bench, bench.sealed["delete_record"], outer=[Together()]) for _ in range(2)]
    await asyncio.gather(*(agent.ainvoke(GO, CONFIG) for agent in agents))
    bench.approve(bench.only())

    ended = await asyncio.gather(*(resumed(agent) for agent in agents))

    assert bench.ran == ["delete 42"]
    assert sum("deleted 42" in told(one) for one in ended) == 1


async def test_a_synchronous_run_pauses_and_goes_on(bench: Bench, tmp_path: Path) -> None:
    def delete_record(record: int) -> str:
        """Delete a record."""
        bench.note(f"delete {record}")
        return f"deleted {record}"

    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        agent = agent_of(bench, bench.guard.sealed(delete_record), saver=saver)
        agent.invoke(GO, CONFIG)
        agent.invoke(Command(resume=True), CONFIG)
        assert bench.ran == []
        bench.approve(bench.only(), arguments={"record": 43})
        ended = agent.invoke(Command(resume=True), CONFIG)

    assert bench.ran == ["delete 43"]
    assert "deleted 43" in told(ended)
    assert "A person changed this call" in told(ended)


# -- where the guard stands ----------------------------------------------------------------------------------------


class Sync(AgentMiddleware):
    """Changes what comes further in, in synchronous runs only."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(self.change(request))


class Changing(Sync):
    """Does so in both."""

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(self.change(request))


def renumbered(request: Any) -> Any:
    return request.override(tool_call={**request.tool_call, "args": {"record": 99}})


async def test_a_middleware_further_inside_is_refused_at_the_start_and_at_each_call(bench: Bench) -> None:
    guard = ApprovalMiddleware(bench.guard, scope=lambda request: {"user": "ana"})
    tools = [tool_of(function) for function in bench.tools.values()]
    middleware = [guard, Changing(renumbered)]
    agent = create_agent(Model(script=ONE), tools, middleware=middleware, checkpointer=InMemorySaver())

    with pytest.raises(ConfigurationError, match="last in the list"):
        await guard.selftest(agent)
    with pytest.raises(ConfigurationError, match="last in the list"):
        await agent.ainvoke(GO, CONFIG)
    with pytest.raises(ConfigurationError, match="last in the list"):
        agent.invoke(GO, {"configurable": {"thread_id": "other"}})

    assert (bench.ran, bench.waiting()) == ([], [])


async def test_middleware_that_wraps_no_tools_may_come_after(bench: Bench) -> None:
    class Counting(AgentMiddleware):
        def before_model(self, state: Any, runtime: Any) -> None:
            return None

    agent = agent_of(bench, bench.sealed["delete_record"], inner=[Counting()])

    assert "__interrupt__" in await agent.ainvoke(GO, CONFIG)


async def test_what_a_middleware_further_out_makes_of_a_call_is_what_is_asked_for(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"], outer=[Changing(renumbered)])

    await agent.ainvoke(GO, CONFIG)

    assert bench.only().arguments == {"record": 99}


async def test_a_middleware_that_swaps_the_tool_behind_a_calls_name_runs_nothing(bench: Bench) -> None:
    async def delete_record(record: int = 42, place: str = "") -> str:
        """Delete a record."""
        bench.note("deleted")
        return "deleted"

    swap = Changing(lambda request: request.override(tool=tool_of(delete_record)))
    agent = agent_of(bench, bench.tools["look"], outer=[swap], calls=[[("c1", "look", {"place": "attic"})]])

    with pytest.raises(ConfigurationError, match="change both"):
        await agent.ainvoke(GO, CONFIG)

    assert (bench.ran, bench.waiting()) == ([], [])


async def test_a_middleware_that_tries_again_runs_nothing_again(bench: Bench) -> None:
    async def delete_record(record: int) -> str:
        """Delete a record."""
        bench.note(f"delete {record}")
        raise RuntimeError("gone")

    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)
    agent = agent_of(bench, delete_record, outer=[retry])
    await agent.ainvoke(GO, CONFIG)
    request = bench.only()
    bench.approve(request)

    await resumed(agent)

    assert (bench.ran, bench.state(request)) == (["delete 42"], "in_doubt")


async def test_a_callback_that_changes_nested_arguments_is_refused_by_the_seal(bench: Bench) -> None:
    async def delete_record(records: list[int]) -> str:
        """Delete records."""
        bench.note(f"delete {records}")
        return "deleted"

    class Late(BaseCallbackHandler):
        run_inline = True
        raise_error = True
        seen = 0

        def on_tool_start(self, serialized: Any, input_str: str, *, inputs: Any, **_: Any) -> None:
            self.seen += 1
            inputs["records"].append(99)

    delete_record.__annotations__ = {"records": list[int], "return": str}
    agent = agent_of(
        bench, bench.guard.sealed(delete_record), calls=[[("c1", "delete_record", {"records": [42]})]]
    )
    late = Late()
    await agent.ainvoke(GO, CONFIG)
    bench.approve(bench.only())

    ended = await resumed(agent, {**CONFIG, "callbacks": [late]})

    assert (late.seen, bench.ran) == (1, [])
    assert ("args-mismatch", "sealed") in bench.refusals()
    assert "args-mismatch" in told(ended)


# -- arguments -----------------------------------------------------------------------------------------------------


class Item(BaseModel):
    number: int
    price: int = Field(default=5, exclude=True)


class Record(BaseModel):
    number: int
    due: date


@dataclass
class Person:
    user: str


RAN: list[str] = []


async def delete_record_with_all(
    record: Record, runtime: ToolRuntime[Person, Any], state: Annotated[dict[str, Any], InjectedState],
    own: Annotated[str, InjectedToolCallId],
) -> str:
    """Delete a record."""
    number = len(state["messages"])
    RAN.append(f"{record.number} {record.due.year} {own} {number} {runtime.tool_call_id} {runtime.context.user}")
    return "ran"


async def test_a_sealed_tool_gets_what_the_framework_fills_in_and_models_made_of_the_signed_arguments(
    bench: Bench,
) -> None:
    RAN.clear()
    forged = {"own": "forged", "state": {"messages": []}}
    given = {"record": {"number": "42", "due": "2024-05-06", "colour": "red"}, **forged}
    tool = tool_of(bench.guard.sealed(delete_record_with_all, name="delete_record"), name="delete_record")
    agent = agent_of(
        bench, tool, calls=[[("c1", "delete_record", given)]], agent={"context_schema": Person},
        scope=lambda request: {"user": request.runtime.context.user},
    )
    assert tool.tool_call_schema.model_json_schema()["properties"].keys() == {"record"}
    await agent.ainvoke(GO, CONFIG, context=Person("ana"))
    request = bench.only()
    assert (request.arguments, request.user) == ({"record": {"due": "2024-05-06", "number": 42}}, "ana")
    bench.approve(request, arguments={"record": {"due": "2025-05-06", "number": 43}})

    await agent.ainvoke(Command(resume=True), CONFIG, context=Person("ana"))

    assert RAN == ["43 2025 c1 2 c1 ana"]


async def test_a_tool_gets_the_runs_configuration(bench: Bench) -> None:
    async def delete_record(record: int, config: RunnableConfig) -> str:
        """Delete a record."""
        bench.note(f"{record} in {config['configurable']['thread_id']}")
        return "ran"

    delete_record.__annotations__ = {"record": int, "config": RunnableConfig, "return": str}
    agent = agent_of(bench, bench.guard.sealed(delete_record, injected=["config"]))
    await agent.ainvoke(GO, CONFIG)
    bench.approve(bench.only())

    await resumed(agent)

    assert bench.ran == ["42 in thread"]


@pytest.mark.parametrize(
    ("hint", "value"), [(SecretStr, "abc"), (list[Item], [{"number": 1, "price": 9}])], ids=["secret", "hidden"]
)
async def test_an_approver_sees_what_a_model_would_hide(bench: Bench, hint: Any, value: Any) -> None:
    async def delete_record(record: Any) -> str:
        """Delete a record."""
        return "ran"

    delete_record.__annotations__ = {"record": hint, "return": str}
    agent = agent_of(bench, delete_record, calls=[[("c1", "delete_record", {"record": value})]])

    await agent.ainvoke(GO, CONFIG)

    assert bench.only().arguments == {"record": value}


@pytest.mark.parametrize("arguments", [{"record": "many"}, {}], ids=["type", "missing"])
async def test_arguments_that_do_not_fit_are_told_to_the_model_and_asked_of_nobody(
    bench: Bench, arguments: Any
) -> None:
    # The framework's middleware sees no error, as without the guard: it would try the same again.
    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)
    agent = agent_of(bench, bench.sealed["delete_record"], outer=[retry], calls=[[("c1", "delete_record", arguments)]])

    ended = await agent.ainvoke(GO, CONFIG)

    assert (bench.ran, bench.waiting()) == ([], [])
    assert told(ended).startswith("Error invoking tool 'delete_record'")
    assert results(ended)[0].status == "error"


async def test_a_tool_that_is_none_is_told_to_the_model_and_asked_of_nobody(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["look"])

    ended = await agent.ainvoke(GO, CONFIG)

    assert (bench.ran, bench.waiting()) == ([], [])
    assert "delete_record is not a valid tool" in told(ended)


async def test_a_tool_with_a_plain_json_schema_is_asked_for_and_edits_must_fit_it(bench: Bench) -> None:
    async def delete_record(**arguments: Any) -> str:
        bench.note(f"delete {arguments}")
        return "deleted"

    schema = {"type": "object", "properties": {"record": {"type": "integer"}}, "required": ["record"]}
    tool = StructuredTool(
        name="delete_record", description="Deletes.", args_schema=schema, coroutine=delete_record, func=None
    )
    agent = agent_of(bench, tool)
    await agent.ainvoke(GO, CONFIG)
    dossier = bench.only()
    with pytest.raises(Exception, match="schema"):
        bench.approve(dossier, arguments={"record": "many"})
    bench.approve(dossier, arguments={"record": 43})

    await resumed(agent)

    assert bench.ran == ["delete {'record': 43}"]


async def test_a_tool_whose_description_changed_is_asked_for_again(bench: Bench) -> None:
    saver = InMemorySaver()
    tools = [tool_of(bench.sealed["delete_record"], description=text) for text in ("Deletes it.", "Only looks.")]
    await agent_of(bench, tools[0], saver=saver).ainvoke(GO, CONFIG)
    first = bench.only()
    bench.approve(first)

    await resumed(agent_of(bench, tools[1], saver=saver))

    assert (bench.ran, len(bench.waiting())) == ([], 1)
    assert bench.only().id != first.id


async def test_a_repeated_call_id_is_asked_for_again(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"], calls=[ONE[0], ONE[0]])
    await agent.ainvoke(GO, CONFIG)
    first = bench.only()
    bench.approve(first)

    again = await resumed(agent)

    assert ("__interrupt__" in again, bench.ran) == (True, ["delete 42"])
    assert (bench.only().call_id, bench.only().occurrence) == (first.call_id, 1)
    bench.approve(bench.only())
    await resumed(agent)
    assert bench.ran == ["delete 42", "delete 42"]


# -- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edited", [False, True], ids=["as asked", "edited"])
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("text", "text"), (None, "null"), ({"a": 1}, '{"a": 1}'), ([1, 2], "[1, 2]"),
        ([{"type": "text", "text": "block"}], "block"),
        (ToolMessage("own", tool_call_id="c1"), "own"),
        (Command(update={"messages": [ToolMessage("command", tool_call_id="c1")]}), "command"),
        ([Command(update={"messages": [ToolMessage("listed", tool_call_id="c1")]})], "listed"),
    ],
    ids=["text", "none", "mapping", "list", "blocks", "message", "command", "commands"],
)
async def test_a_result_of_any_kind_reaches_the_model_with_the_notice_if_there_is_one(
    bench: Bench, result: Any, expected: str, edited: bool
) -> None:
    async def delete_record(record: int) -> Any:
        """Delete a record."""
        bench.note(f"delete {record}")
        return result

    agent = agent_of(bench, delete_record)
    await agent.ainvoke(GO, CONFIG)
    request = bench.only()
    bench.approve(request, **({"arguments": {"record": 43}} if edited else {}))

    ended = await resumed(agent)

    assert bench.ran == ["delete 43" if edited else "delete 42"]
    assert bench.state(request) == ("superseded" if edited else "succeeded")
    assert len(results(ended)) == 1
    assert expected in told(ended)
    assert ("A person changed this call" in told(ended)) is edited


@pytest.mark.parametrize(
    ("error", "state"), [(RuntimeError, "in_doubt"), (ToolException, "in_doubt"), (NoEffect, "failed")],
)
async def test_a_tool_that_raises_after_its_claim_is_in_doubt_and_its_error_ends_the_run(
    bench: Bench, error: type[Exception], state: str
) -> None:
    async def delete_record(record: int) -> str:
        """Delete a record."""
        raise error("gone")

    agent = agent_of(bench, delete_record)
    await agent.ainvoke(GO, CONFIG)
    request = bench.only()
    bench.approve(request)

    with pytest.raises(error, match="gone"):
        await resumed(agent)

    assert bench.state(request) == state


async def test_an_error_that_the_tool_tells_the_model_is_in_doubt(bench: Bench) -> None:
    async def delete_record(record: int) -> str:
        """Delete a record."""
        raise ToolException("half of it is gone")

    agent = agent_of(bench, tool_of(delete_record, handle_tool_error=True))
    await agent.ainvoke(GO, CONFIG)
    request = bench.only()
    bench.approve(request)

    ended = await resumed(agent)

    assert (told(ended), bench.state(request)) == ("half of it is gone", "in_doubt")


async def test_a_tool_that_promises_to_change_nothing_has_failed(bench: Bench) -> None:
    async def delete_record(record: int) -> str:
        """Delete a record."""
        raise ToolException("gone")

    agent = agent_of(bench, tool_of(delete_record, handle_tool_error=True), effects={"delete_record": "none"})
    await agent.ainvoke(GO, CONFIG)
    request = bench.only()
    bench.approve(request)

    await resumed(agent)

    assert bench.state(request) == "failed"


async def test_a_refusal_is_an_error_result_and_a_persons_answer_is_not(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"], calls=[
        [("c1", "delete_record", {"record": 1}), ("c2", "delete_record", {"record": 2})],
    ])
    await agent.ainvoke(GO, CONFIG)
    first, second = sorted(bench.waiting(), key=lambda request: str(request.call_id))
    bench.deny(first, "Not this one.")
    bench.guard.decide(
        second.id, approver=BOB, approve=False, fingerprint=second.fingerprint, respond="by hand",
    )

    ended = await resumed(agent)

    assert [(one.content, one.status) for one in results(ended)] == [("Not this one.", "error"), ("by hand", "success")]


# -- for whom ------------------------------------------------------------------------------------------------------


async def test_a_tool_that_the_policy_denies_never_asks(bench: Bench) -> None:
    def drop_database() -> str:
        """Drop it."""
        bench.note("dropped")
        return "dropped"

    ended = await agent_of(bench, drop_database, calls=[[("c1", "drop_database", {})]]).ainvoke(GO, CONFIG)

    assert (bench.ran, bench.waiting(), told(ended)) == ([], [], "Never.")


async def test_an_agent_that_nobody_named_runs_nothing(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"], scope=None)
    with pytest.raises(ConfigurationError, match="user"):
        await agent.ainvoke(GO, CONFIG)
    with bench.guard.context(user="ana", run_id="r"):
        await agent.ainvoke(GO, {"configurable": {"thread_id": "other"}})

    assert (bench.ran, bench.only().user, bench.only().run_id) == ([], "ana", "r")


async def test_the_thread_is_the_run_and_a_servers_user_the_user(bench: Bench) -> None:
    class User:
        identity = "eve"

    class Server(AgentMiddleware):
        """Does what a LangGraph server does, for the calls that come by."""

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            info = ServerInfo(assistant_id="a", graph_id="g", user=User())
            return await handler(replace(request, runtime=replace(request.runtime, server_info=info)))

    agent = agent_of(bench, bench.sealed["delete_record"], scope=None, outer=[Server()])

    await agent.ainvoke(GO, CONFIG)

    assert (bench.only().user, bench.only().run_id) == ("eve", "thread")


async def test_another_thread_gets_nothing_of_an_approval(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"])
    await agent.ainvoke(GO, CONFIG)
    bench.approve(bench.only())

    await agent.ainvoke(GO, {"configurable": {"thread_id": "other"}})

    assert (bench.ran, bench.only().run_id) == ([], "other")


async def test_a_store_that_is_down_ends_the_run(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"])
    await agent.ainvoke(GO, CONFIG)
    bench.approve(bench.only())
    bench.fail()

    with pytest.raises(StoreUnavailableError):
        await resumed(agent)

    assert bench.ran == []


# -- the self-test -------------------------------------------------------------------------------------------------


async def test_the_self_test_runs_behind_the_agents_own_middleware_in_both_ways(bench: Bench) -> None:
    seen: list[str] = []

    class Own(AgentState):
        colour: str

    class Watching(AgentMiddleware):
        state_schema = Own

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            seen.append("sync")
            return handler(request)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            seen.append("async")
            return await handler(request)

    guard = ApprovalMiddleware(bench.guard)
    agent = create_agent(Model(script=[]), [], middleware=[Watching(), guard])

    await guard.selftest(agent)

    assert (seen, bench.waiting()) == (["async", "sync"], [])


async def test_the_self_test_takes_an_agent_whose_middleware_knows_one_way_only(bench: Bench) -> None:
    guard = ApprovalMiddleware(bench.guard)

    await guard.selftest(create_agent(Model(script=[]), [], middleware=[Sync(lambda request: request), guard]))


async def test_the_self_test_finds_a_middleware_that_answers_in_the_guards_place(bench: Bench) -> None:
    @wrap_tool_call
    def answering(request: Any, handler: Any) -> ToolMessage:
        return ToolMessage("fine", tool_call_id=request.tool_call["id"])

    guard = ApprovalMiddleware(bench.guard)
    agent = create_agent(Model(script=[]), [], middleware=[answering, guard])

    with pytest.raises(ConfigurationError, match="not stopped by this guard"):
        await guard.selftest(agent)


async def test_the_self_test_finds_an_unguarded_agent_in_a_graph(bench: Bench) -> None:
    guard = ApprovalMiddleware(bench.guard)
    guarded = create_agent(Model(script=[]), [tool_of(bench.tools["look"])], middleware=[guard])
    bare = create_agent(Model(script=[]), [tool_of(bench.tools["look"])])
    graph = StateGraph(MessagesState).add_node("one", guarded).add_node("two", bare)
    graph.add_edge(START, "one").add_edge("one", "two")

    await guard.selftest(guarded)
    with pytest.raises(ConfigurationError, match="not stopped by this guard"):
        await guard.selftest(graph.compile())


async def test_the_self_test_finds_another_guard(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Bench(tmp_path / "other")
    agent = create_agent(Model(script=[]), [], middleware=[ApprovalMiddleware(other.guard)])

    with pytest.raises(ConfigurationError, match="another guard"):
        await ApprovalMiddleware(bench.guard).selftest(agent)
    other.close()


async def test_the_self_test_of_a_graph_without_tools_fails(bench: Bench) -> None:
    graph = StateGraph(MessagesState).add_node("one", lambda state: state).add_edge(START, "one").compile()

    with pytest.raises(ConfigurationError, match="no tool node"):
        await ApprovalMiddleware(bench.guard).selftest(graph)
