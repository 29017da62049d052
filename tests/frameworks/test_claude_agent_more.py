"""What else could run a tool of the Claude Agent SDK's program, or change it after its approval."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk import (
    AgentDefinition,
    ClaudeAgentOptions,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    create_sdk_mcp_server,
)

from hitl_guard.errors import ConfigurationError
from hitl_guard.guard import Guard
from hitl_guard.integrations.claude_agent import BARE, Approvals
from hitl_guard.models import ToolCall
from tests.frameworks.bench import Bench
from tests.frameworks.rig_claude_agent import tool_of
from tests.frameworks.test_claude_agent import FACTS, approve, chat, guard, options_of

__all__ = ["guard"]  # a fixture

SHELL = {"command": "touch note.txt", "description": "make a note"}


def work_of(bench: Bench) -> Path:
    work = bench.folder / "work"
    work.mkdir(exist_ok=True)
    return work


def protected(bench: Bench) -> dict[str, Any]:
    """Return the arguments of a Write for which the program asks its own permission, whatever a hook says."""
    (work_of(bench) / ".git").mkdir(exist_ok=True)
    return {"file_path": str(work_of(bench) / ".git" / "config"), "content": "good"}


@pytest.mark.parametrize("given", [
    {"extra_args": {"bare": None}},
    {"extra_args": {"bare=true": None}},
    {"extra_args": {"debug": "--bare"}},
    {"extra_args": {"allow-dangerously-skip-permissions": None}},
    {"extra_args": {"permission-mode": "bypassPermissions"}},
    {"extra_args": {"debug": "--permission-mode=bypassPermissions"}},
    {"env": {BARE: "1"}},
    {"agents": {"worker": AgentDefinition(description="d", prompt="p", permissionMode="bypassPermissions")}},
], ids=lambda given: next(iter(given)))
def test_what_switches_hooks_or_permissions_off_is_refused_also_with_trusted_hooks(bench: Bench, given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"bypassed|off"):
        Approvals(bench.guard).options(ClaudeAgentOptions(**({"setting_sources": []} | given)), trust_hooks=True)


async def test_a_variable_of_the_servers_does_not_switch_the_hooks_off(
    bench: Bench, guard: Guard, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(BARE, "1")
    approvals = Approvals(guard, scope=lambda call: FACTS)

    told = await chat(options_of(bench, approvals), [("t1", "Bash", SHELL)])

    assert "approval-pending" in told
    assert not (work_of(bench) / "note.txt").exists()


@pytest.mark.parametrize("in_place", [False, True])
async def test_a_permission_callback_changes_no_approved_call(bench: Bench, guard: Guard, in_place: bool) -> None:
    asked: list[str] = []

    async def ask(tool: str, given: dict[str, Any], context: Any) -> PermissionResultAllow:
        asked.append(tool)
        other = {**given, "file_path": str(work_of(bench) / "other.txt")}
        if in_place:
            given.update(other)
            return PermissionResultAllow()
        return PermissionResultAllow(updated_input=other)

    approvals = Approvals(guard, scope=lambda call: FACTS)
    options = options_of(bench, approvals, can_use_tool=ask, allowed_tools=[])
    write = protected(bench)
    await chat(options, [("t1", "Write", write)])
    request = approve(guard)

    told = await chat(options, [("t2", "Write", write)])

    assert (asked, "changed after it was approved" in told) == (["Write"], True)
    assert [path for path in work_of(bench).rglob("*") if path.is_file()] == []
    assert guard.get(request.id).state == "failed"


@pytest.mark.parametrize("yes", [True, False])
async def test_a_permission_callback_may_say_yes_or_no(bench: Bench, guard: Guard, yes: bool) -> None:
    async def ask(tool: str, given: dict[str, Any], context: Any) -> Any:
        return PermissionResultAllow() if yes else PermissionResultDeny(message="not today")

    approvals = Approvals(guard, scope=lambda call: FACTS)
    options = options_of(bench, approvals, can_use_tool=ask, allowed_tools=[])
    write = protected(bench)
    await chat(options, [("t1", "Write", write)])
    request = approve(guard)

    await chat(options, [("t2", "Write", write)])

    assert (work_of(bench) / ".git" / "config").exists() is yes
    assert guard.get(request.id).state == ("succeeded" if yes else "failed")


async def test_an_error_of_another_server_is_none_of_a_success(bench: Bench, guard: Guard) -> None:
    def send(to: str) -> str:
        raise OSError("no such host")

    def options(approvals: Approvals) -> ClaudeAgentOptions:
        post: Any = create_sdk_mcp_server("post", tools=[tool_of("send", send, {"to": str})])
        return options_of(bench, approvals, mcp_servers={"post": post})

    approvals = Approvals(guard, scope=lambda call: FACTS)
    await chat(options(approvals), [("t1", "mcp__post__send", {"to": "eve"})])
    request = approve(guard)

    await chat(options(approvals), [("t2", "mcp__post__send", {"to": "eve"})])

    assert guard.get(request.id).state == "in_doubt"


async def test_of_a_command_in_the_background_nobody_knows_how_it_ends(bench: Bench, guard: Guard) -> None:
    approvals = Approvals(guard, scope=lambda call: FACTS)
    command = SHELL | {"run_in_background": True}
    await chat(options_of(bench, approvals), [("t1", "Bash", command)])
    request = approve(guard)

    await chat(options_of(bench, approvals), [("t2", "Bash", command)])

    assert guard.get(request.id).state == "in_doubt"


@pytest.mark.parametrize("inner", ["drop_database", "delete_record"])
async def test_a_call_that_the_guard_stops_inside_a_tool_is_that_tools_failure(bench: Bench, inner: str) -> None:
    def delete_record(record: int) -> str:
        bench.note("started")
        bench.guard.authorize(ToolCall(inner, {"record": 1}, run_id="r", call_id="inner", user="ana"))
        return "never"

    approvals = Approvals(bench.guard, scope=lambda call: FACTS)
    server: Any = approvals.server("shop", [tool_of("delete_record", delete_record, {"record": int})])
    call = ("mcp__shop__delete_record", {"record": 42})
    await chat(options_of(bench, approvals, mcp_servers={"shop": server}), [("t1", *call)])
    request = bench.only()
    bench.approve(request)

    told = await chat(options_of(bench, approvals, mcp_servers={"shop": server}), [("t2", *call)])

    assert (bench.ran, bench.state(request)) == (["started"], "in_doubt")
    assert "approval-pending" not in told


async def _other(*_: Any) -> dict[str, Any]:
    return {}


async def test_options_that_were_changed_later_fail_the_self_test(bench: Bench) -> None:
    approvals = Approvals(bench.guard, scope=lambda call: FACTS)
    options = approvals.options(ClaudeAgentOptions(setting_sources=[]))
    await approvals.selftest(options)
    assert options.hooks is not None
    later = {"PreToolUse": [*options.hooks["PreToolUse"], HookMatcher(hooks=[_other])]}
    changes: list[dict[str, Any]] = [
        {"permission_mode": "bypassPermissions"}, {"hooks": {**options.hooks, **later}}, {"setting_sources": None},
        {"extra_args": {"bare": None}}, {"env": {BARE: "1"}},
    ]

    for change in changes:
        with pytest.raises(ConfigurationError):
            await approvals.selftest(replace(options, **change))
