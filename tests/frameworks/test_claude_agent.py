"""The Claude Agent SDK's real package and program, by the contract and by what only it has."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, HookMatcher, create_sdk_mcp_server
from mcp import Client

from hitl_guard.errors import ConfigurationError
from hitl_guard.guard import Guard
from hitl_guard.integrations.claude_agent import KEPT, Approvals
from hitl_guard.keyring import Keyring
from hitl_guard.models import Principal
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.documents import PolicyDocument
from tests.frameworks.bench import BOB, Bench
from tests.frameworks.contract import Contract
from tests.frameworks.fake_anthropic import Model, serving
from tests.frameworks.rig_claude_agent import ClaudeAgent, environment, tool_of

POLICY = """\
version: 1
name: program
default: not_applicable
rules:
  - id: files
    tools: [Write, Bash]
    effect: require_approval
    edit: true
  - id: mail
    tools: [mcp__post__send]
    effect: require_approval
  - id: never
    tools: [Read]
    effect: deny
    reason: Never.
"""
FACTS = {"user": "ana", "run_id": "conversation"}
OURS = {
    "tool_name": "mcp__shop__look", "tool_input": {"place": "attic"}, "mcp_server": {"name": "shop", "source": "sdk"},
}
"""What the program tells a hook about a call of a server in this process."""


class TestClaudeAgent(Contract):
    rig = ClaudeAgent()


@pytest.fixture
def guard(bench: Bench) -> Guard:
    policy = Policy.of(PolicyDocument.from_source(POLICY.encode(), "program.yaml"))
    return Guard(policy=policy, keyring=Keyring.from_file(bench.folder / "keys.json"), store=bench.store)


async def chat(options: ClaudeAgentOptions, *turns: Any) -> str:
    """Run the program with a scripted model; return the results of tools that the model was given."""
    model = Model(turns)
    with tempfile.TemporaryDirectory() as home, serving(model) as url:
        options.env = {**options.env, **environment(Path(home), url)}
        async with ClaudeSDKClient(options) as client:
            await client.query("go")
            async for _ in client.receive_response():
                pass
    return str(model.told)


def options_of(bench: Bench, approvals: Approvals, **more: Any) -> ClaudeAgentOptions:
    work = bench.folder / "work"
    work.mkdir(exist_ok=True)
    allowed = ["Bash", "Write", "mcp__post", "mcp__shop"]
    given = {"setting_sources": [], "allowed_tools": allowed, "cwd": str(work)} | more
    return approvals.options(ClaudeAgentOptions(**given))


def approve(guard: Guard, **options: Any) -> Any:
    (request,) = guard.pending().requests
    guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint, **options)
    return request


async def test_a_tool_of_the_program_waits_and_runs_once_after_its_approval(bench: Bench, guard: Guard) -> None:
    approvals = Approvals(guard, scope=lambda call: FACTS)
    file = bench.folder / "work" / "note.txt"
    write = {"file_path": str(file), "content": "hello"}
    assert "approval-pending" in await chat(options_of(bench, approvals), [("t1", "Write", write)])
    assert not file.exists()
    request = approve(guard)

    told = await chat(options_of(bench, approvals), [("t2", "Write", write)], [("t3", "Write", write)])

    assert file.read_text() == "hello"
    assert guard.get(request.id).state == "succeeded"
    assert "approval-pending" in told


async def test_a_tool_of_the_program_runs_as_a_person_changed_it(bench: Bench, guard: Guard) -> None:
    approvals = Approvals(guard, scope=lambda call: FACTS)
    file = bench.folder / "work" / "note.txt"
    write = {"file_path": str(file), "content": "hello"}
    await chat(options_of(bench, approvals), [("t1", "Write", write)])
    approve(guard, arguments=write | {"content": "good day"})

    await chat(options_of(bench, approvals), [("t2", "Write", write)])

    assert file.read_text() == "good day"


async def test_a_tool_of_the_program_that_fails_is_in_doubt(bench: Bench, guard: Guard) -> None:
    approvals = Approvals(guard, scope=lambda call: FACTS)
    command = {"command": "exit 3", "description": "fail"}
    await chat(options_of(bench, approvals), [("t1", "Bash", command)])
    request = approve(guard)

    await chat(options_of(bench, approvals), [("t2", "Bash", command)])

    assert guard.get(request.id).state == "in_doubt"


async def test_what_the_policy_never_lets_run_does_not_run(bench: Bench, guard: Guard) -> None:
    secret = bench.folder / "work" / "secret.txt"
    secret.parent.mkdir()
    secret.write_text("the secret")
    approvals = Approvals(guard, scope=lambda call: FACTS)
    options = options_of(bench, approvals, allowed_tools=["Read"])

    told = await chat(options, [("t1", "Read", {"file_path": str(secret)})])

    assert "Never." in told
    assert "the secret" not in told


async def test_a_server_that_is_not_ours_is_known_by_its_whole_name(bench: Bench, guard: Guard) -> None:
    approvals = Approvals(guard, scope=lambda call: FACTS)

    def send(to: str) -> str:
        bench.note(f"sent {to}")
        return "sent"

    def servers() -> dict[str, Any]:
        # The same tool name as in a server of ours: they are two tools.
        other = create_sdk_mcp_server("post", tools=[tool_of("send", send, {"to": str})])
        return {"post": other, "shop": ours}

    ours = approvals.server("shop", [tool_of("send", send, {"to": str})])
    told = await chat(options_of(bench, approvals, mcp_servers=servers()), [("t1", "mcp__post__send", {"to": "eve"})])
    assert (bench.ran, "approval-pending" in told) == ([], True)
    approve(guard)

    await chat(options_of(bench, approvals, mcp_servers=servers()), [("t2", "mcp__post__send", {"to": "eve"})])
    await chat(options_of(bench, approvals, mcp_servers=servers()), [("t3", "mcp__shop__send", {"to": "bob"})])

    assert bench.ran == ["sent eve", "sent bob"]


@pytest.mark.parametrize("own", [True, False])
async def test_a_hook_that_fails_lets_nothing_run(bench: Bench, guard: Guard, own: bool) -> None:
    def look(place: str) -> str:
        bench.note("looked")
        return "seen"

    approvals = Approvals(guard)  # nobody says for whom
    server = approvals.server("shop", [tool_of("look", look, {"place": str})])
    file = bench.folder / "work" / "note.txt"
    call = ("mcp__shop__look", {"place": "attic"}) if own else ("Write", {"file_path": str(file), "content": "x"})

    await chat(options_of(bench, approvals, mcp_servers={"shop": server}), [("t1", *call)])

    assert (bench.ran, file.exists()) == ([], False)


async def test_a_tool_that_fails_is_in_doubt(bench: Bench) -> None:
    def delete_record(record: int) -> str:
        bench.note(f"tried {record}")
        raise OSError("the disk is full")

    approvals = Approvals(bench.guard, scope=lambda call: FACTS)
    server = approvals.server("shop", [tool_of("delete_record", delete_record, {"record": int})])
    call = ("mcp__shop__delete_record", {"record": 42})
    await chat(options_of(bench, approvals, mcp_servers={"shop": server}), [("t1", *call)])
    request = bench.only()
    bench.approve(request)

    told = await chat(options_of(bench, approvals, mcp_servers={"shop": server}), [("t2", *call)])

    assert (bench.ran, bench.state(request)) == (["tried 42"], "in_doubt")
    assert "the disk is full" in told


async def _other(*_: Any) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("given", [
    {"permission_mode": "bypassPermissions"},
    {"extra_args": {"dangerously-skip-permissions": None}},
    {"setting_sources": None},
    {"setting_sources": ["project"]},
    {"settings": "{}"},
    {"plugins": [{"type": "local", "path": "/somewhere"}]},
    {"hooks": {"PreToolUse": [HookMatcher(hooks=[_other])]}},
    {"hooks": {"PermissionRequest": [HookMatcher(hooks=[_other])]}},
    {"permission_prompt_tool_name": "mcp__shop__prompt"},
    {"extra_args": {"plugin-url": "https://somewhere"}},
    {"extra_args": {"debug": "--settings"}},
], ids=lambda given: next(iter(given)))
def test_what_would_let_calls_past_the_guard_is_refused_at_the_start(bench: Bench, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Approvals(bench.guard).options(ClaudeAgentOptions(**({"setting_sources": []} | given)))


def test_other_hooks_stay_where_they_are_trusted(bench: Bench) -> None:
    first = HookMatcher(hooks=[_other])
    hooks: Any = {"PreToolUse": [first], "Stop": [first]}

    made = Approvals(bench.guard).options(ClaudeAgentOptions(hooks=hooks), trust_hooks=True)

    assert made.hooks is not None
    assert (made.hooks["PreToolUse"][0], made.hooks["Stop"]) == (first, [first])
    assert made.hooks["PreToolUse"][-1].on_failure == "block"


async def test_a_mode_that_was_changed_while_the_program_runs_is_noticed(bench: Bench) -> None:
    options = Approvals(bench.guard, scope=lambda call: FACTS).options(ClaudeAgentOptions(setting_sources=[]))
    assert options.hooks is not None
    call: Any = {
        "tool_name": "Bash", "tool_input": {}, "tool_use_id": "t1", "session_id": "s",
        "permission_mode": "bypassPermissions",
    }

    with pytest.raises(ConfigurationError, match="bypassed"):
        await options.hooks["PreToolUse"][0].hooks[0](call, "t1", {"signal": None})


def test_two_servers_of_ours_have_no_tool_in_common(bench: Bench) -> None:
    approvals = Approvals(bench.guard)
    tools = [tool_of("look", bench.tools["look"], {"place": str})]
    approvals.server("one", tools)

    with pytest.raises(ConfigurationError, match="look"):
        approvals.server("two", tools)


async def test_options_without_the_hook_fail_the_self_test(bench: Bench) -> None:
    approvals = Approvals(bench.guard)
    weak = approvals.options(ClaudeAgentOptions(setting_sources=[]))
    assert weak.hooks is not None
    weak.hooks["PreToolUse"][0].on_failure = "continue"

    for options in (ClaudeAgentOptions(), weak):
        with pytest.raises(ConfigurationError, match="canary"):
            await approvals.selftest(options)


async def test_another_program_in_the_place_of_our_server_is_not_ours(bench: Bench) -> None:
    approvals = Approvals(bench.guard, scope=lambda call: FACTS)
    tools = [tool_of("delete_record", bench.tools["delete_record"], {"record": int})]
    servers: Any = {"shop": approvals.server("shop", tools)}
    options = approvals.options(ClaudeAgentOptions(setting_sources=[], mcp_servers=servers))
    assert options.hooks is not None
    hook = options.hooks["PreToolUse"][0].hooks[0]
    bench.guard.pause(by=Principal("olga", roles=("operator",)))
    call: Any = {"tool_name": "mcp__shop__delete_record", "tool_input": {"record": 42}, "tool_use_id": "t1"}

    for server in ({}, {"mcp_server": {"name": "shop", "source": "project"}}):
        answer: Any = await hook(call | server | {"session_id": "s"}, None, {"signal": None})
        assert answer["hookSpecificOutput"]["permissionDecision"] == "deny"


async def test_one_call_id_in_two_sessions_is_refused(bench: Bench) -> None:
    approvals = Approvals(bench.guard, scope=lambda call: FACTS)
    server = approvals.server("shop", [tool_of("look", bench.tools["look"], {"place": str})])
    options = approvals.options(ClaudeAgentOptions(setting_sources=[], mcp_servers={"shop": server}))
    assert options.hooks is not None
    hook = options.hooks["PreToolUse"][0].hooks[0]
    call: Any = OURS | {"tool_use_id": "t1"}

    first = await hook(call | {"session_id": "ana's"}, None, {"signal": None})
    second = await hook(call | {"session_id": "eve's"}, None, {"signal": None})

    assert first == {}
    assert second["hookSpecificOutput"]["permissionDecision"] == "deny"


async def test_a_tool_that_is_called_around_the_program_does_not_run(bench: Bench) -> None:
    approvals = Approvals(bench.guard, scope=lambda call: FACTS)
    server = approvals.server("shop", [tool_of("look", bench.tools["look"], {"place": str})])

    async with Client(server["instance"]) as client:
        answer = await client.call_tool("look", {"place": "attic"})

    assert answer.is_error
    assert bench.ran == []


async def test_calls_that_never_come_are_forgotten(bench: Bench) -> None:
    approvals = Approvals(bench.guard, scope=lambda call: FACTS)
    server = approvals.server("shop", [tool_of("look", bench.tools["look"], {"place": str})])
    options = approvals.options(ClaudeAgentOptions(setting_sources=[], mcp_servers={"shop": server}))
    assert options.hooks is not None
    hook = options.hooks["PreToolUse"][0].hooks[0]

    for number in range(KEPT + 10):
        call: Any = OURS | {"tool_use_id": f"t{number}"}
        await hook(call | {"session_id": "s"}, None, {"signal": None})

    assert len(approvals._announced) == KEPT
