"""`Agent`: a small loop that works with any model, and asks the guard before each call of a tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any

import orjson

from .. import canonical
from ..aio import AsyncGuard
from ..errors import ConfigurationError
from ..guard import Guard
from ..lifecycle.control import CANARY_TOOL
from ..lifecycle.desk import MAX_ID, new_id
from ..lifecycle.threads import offload
from ..models import Principal, check_optional, check_text
from ..policy.code import CodePolicy, check_require_approval
from ..selfcheck import GuardedLoop, canary_context, withdraw
from ..store.base import Store
from . import auto, events, history, sessions
from .drive import Drive
from .gate import RequireApproval
from .hooks import Hooks
from .leases import taken
from .memory import Memory
from .resuming import Resuming
from .shapes import well_formed
from .snapshots import Found, Snapshots, private_key, thread_key
from .state import Options, Owner, Run
from .stream import AgentResult, AgentStream
from .sync import SyncAgent
from .tools import Tool
from .tools import tool as as_tool
from .turns import Model
from .work import Node

_WARM = 10_000
"""How many suspended runs a process remembers function policies and hooks of."""

SUB = "sub."
"""What the id of an inner run has after the prefix that its group of runs has in common."""

_PROMPT = {
    "additionalProperties": False, "properties": {"prompt": {"type": "string"}}, "required": ["prompt"],
    "type": "object",
}


class Agent(Resuming, GuardedLoop):
    """An agent: a model, tools and sub-agents, and the guard that every call of them goes through.

    Args:
        id: Names the agent in approvals and in the store; it must stay the same.
        model: Any async callable ``(messages, tools, settings)`` (see `hitl_guard.agent.turns`).
        tools: `Tool` objects, or plain functions with named parameters.
        agents: Sub-agents; the model sees each as a tool ``agent-<id>`` with a ``prompt``. They use the same guard.
        guard: A `Guard` or `AsyncGuard`; from the environment when omitted.
        store: Where suspended runs and conversations live: the guard's own store, since a run and its requests are
            written together. Another one is refused.
        memory: True, or a `Memory`: conversations (``thread_id``) are kept and continued.
        instructions: The system message.
        description: What a supervisor's model is told about this agent.
        owner: The person the agent belongs to; he cannot approve its calls.
        require_tool_approval: True, or a function ``(info: CallInfo) -> bool``, for every call of this agent.
        hooks: Functions around each run of a tool (`Hooks`).
        settings: Handed to the model. They are stored with a run that waits: no place for secrets.
        max_steps: The most calls of the model in one run.
        policies: Declared function policies (`hitl_guard.code_policy`) that requests use: with them a run that is
            resumed here goes on under its own.
        auto_resume_suspended_tools: Whether a user's next message may answer a suspension (see `auto`).

    Raises:
        ConfigurationError: a setting cannot be used.
    """

    def __init__(
        self, id: str, *, model: Model, tools: Iterable[Any] = (), agents: Iterable[Agent] = (),
        guard: Guard | AsyncGuard | None = None, store: Store | None = None, memory: bool | Memory = False,
        instructions: str | None = None, description: str = "", owner: str | None = None,
        require_tool_approval: RequireApproval = False, hooks: Hooks | None = None,
        settings: Mapping[str, Any] | None = None, max_steps: int = 50, auto_resume_suspended_tools: bool = False,
        policies: Iterable[CodePolicy] = (),
    ) -> None:
        self.id = check_text("id", id)
        self.guard = guard.guard if isinstance(guard, AsyncGuard) else Guard.from_env() if guard is None else guard
        _check(callable(model), "'model' must be an async callable (messages, tools, settings).")
        _check(isinstance(self.guard, Guard), "'guard' must be a Guard or an AsyncGuard.")
        _check(
            store in (None, self.guard._desk.store),
            "A run and its requests are stored together: leave 'store' out, or give the guard's own.",
        )
        _check(isinstance(memory, (bool, Memory)), "'memory' is True, False or a Memory.")
        _check(hooks is None or isinstance(hooks, Hooks), "'hooks' must be Hooks, or left out.")
        _check(type(max_steps) is int and max_steps > 0, "'max_steps' must be a positive integer.")
        _check(type(auto_resume_suspended_tools) is bool, "'auto_resume_suspended_tools' is True or False.")
        _check(instructions is None or _is_text(instructions), "'instructions' must be a text, or left out.")
        _check(_is_text(description), "'description' must be a text.")
        check_optional("owner", owner)
        check_require_approval(require_tool_approval, parameters=1)
        self.model = model
        self._policies: dict[str, CodePolicy] = {}
        for policy in _all_of("policies", policies):
            _check(isinstance(policy, CodePolicy), "'policies' are made with hitl_guard.code_policy().")
            self._policies[f"{policy.name}@{policy.version}"] = policy
        self.memory = (Memory() if memory else None) if isinstance(memory, bool) else memory
        self.description = description
        self.owner = owner
        self.require = _demand(require_tool_approval)
        self.hooks = hooks or Hooks()
        self.settings = _mapping("settings", settings)
        self.max_steps = max_steps
        self.auto_resume = auto_resume_suspended_tools
        self.snapshots = Snapshots(self.guard._desk)
        self._instructions = [] if instructions is None else [{"content": instructions, "role": "system"}]
        self._sub_agents: dict[str, Agent] = {}
        for sub in _all_of("agents", agents):
            _check(isinstance(sub, Agent), "'agents' are Agent objects.")
            _check(f"agent-{sub.id}" not in self._sub_agents, f"Two sub-agents are named '{sub.id}'.")
            self._sub_agents[f"agent-{sub.id}"] = sub
        self.tools = [one if isinstance(one, Tool) else as_tool(one) for one in _all_of("tools", tools)]
        self._tools = self._named()
        self.guard._desk.know(self._tools)
        self._warm: dict[str, tuple[RequireApproval, Hooks | None]] = {}

    def _named(self) -> dict[str, Tool]:
        delegations = [
            Tool(name, description=sub.description or f"Delegate a task to the agent '{sub.id}'.", effect="none",
                 input_schema=_PROMPT)
            for name, sub in self._sub_agents.items()
        ]
        named: dict[str, Tool] = {}
        for one in [*self.tools, *delegations]:
            _check(one.name not in named, f"Two tools are named '{one.name}'.")
            named[one.name] = one
        for sub in self._sub_agents.values():
            _check(sub.guard is self.guard, f"The sub-agent '{sub.id}' has another guard: give it this one's.")
        return named

    def __repr__(self) -> str:
        return f"<Agent {self.id!r} tools={list(self._tools)}>"

    @cached_property
    def sync(self) -> SyncAgent:
        """The same agent for synchronous code."""
        return SyncAgent(self)

    # -- starting ------------------------------------------------------------------------------------------------

    def stream(
        self, messages: str | Sequence[Mapping[str, Any]], *, user: str | Principal, tenant: str = "default",
        run_id: str | None = None, thread_id: str | None = None, resource_id: str | None = None,
        request_context: Mapping[str, Any] | None = None, require_tool_approval: RequireApproval = False,
        hooks: Hooks | None = None, max_steps: int | None = None, settings: Mapping[str, Any] | None = None,
        auto_resume_suspended_tools: bool | None = None,
    ) -> AgentStream:
        """Start a run; return its events. Nothing happens before they are read.

        Args:
            messages: A text of the user, or chat messages.
            user: Who the agent works for, as your login says. He owns the run and cannot approve its calls.
            tenant: The user's tenant.
            run_id: A new, unique id of at most 64 characters; made when omitted.
            thread_id: The conversation to continue (needs ``memory``).
            resource_id: Whose conversation it is, as your login says: whoever names it reads it and adds to it. The
                user's id when omitted.
            request_context: JSON data for policies, hooks and tools; kept with a run that waits.
            require_tool_approval: True, or a function, for every call of this request, sub-agents' too. A function
                cannot be stored: in another process every later call needs approval, unless it is declared with
                `hitl_guard.code_policy` and the agent there has the same one in ``policies``.
            hooks: In place of the agent's own, for this request.
            max_steps: In place of the agent's own.
            settings: Added to the agent's own.
            auto_resume_suspended_tools: In place of the agent's own; never for a request with gates of its own.
        """
        person = user if isinstance(user, Principal) else Principal(user, tenant=tenant)
        _check(person.tenant == tenant, "User and run are of different tenants: give 'tenant' the user's.")
        _check(hooks is None or isinstance(hooks, Hooks), "'hooks' must be Hooks, or left out.")
        _check(max_steps is None or (type(max_steps) is int and max_steps > 0), "'max_steps' is a positive integer.")
        _check(
            auto_resume_suspended_tools is None or type(auto_resume_suspended_tools) is bool,
            "'auto_resume_suspended_tools' is True or False.",
        )
        _check(thread_id is None or self.memory is not None, "A thread needs an agent with memory=True.")
        check_optional("thread_id", thread_id)
        check_optional("resource_id", resource_id)
        check_require_approval(require_tool_approval, parameters=1)
        context = None if request_context is None else canonical.decode(
            self.guard._desk.canonical_value(_mapping("request_context", request_context))
        )
        owner = Owner(tenant, person, thread_id, person.id if resource_id is None else resource_id, context)
        demand = _demand(require_tool_approval)
        options = Options(
            _storable(demand), _is_lost(demand), hooks is not None, self.max_steps if max_steps is None else max_steps,
            canonical.decode(self.guard._desk.canonical_value(self.settings | _mapping("settings", settings))),
        )
        new = new_id() if run_id is None else check_text("run_id", run_id)
        _check(len(new) <= MAX_ID, f"A run id has at most {MAX_ID} characters.")
        given = history.given(messages)
        resumes = self.auto_resume if auto_resume_suspended_tools is None else auto_resume_suspended_tools

        async def source(stream: AgentStream) -> events.Events:
            if resumes and demand is False and hooks is None:  # a request with gates of its own is a run of its own
                begun = False
                async with aclosing(auto.resumed(self, owner, given, stream)) as resumed:
                    async for one in resumed:
                        begun = True
                        yield one
                if begun:
                    return
            if run_id is not None and await offload(lambda: self.snapshots.load(tenant, run_id)) is not None:
                raise taken()
            drive = await offload(lambda: self._new_drive(new, owner, options, demand, hooks))
            drive.root.history.add(*given)
            yield events.started(drive.root.run)
            async with aclosing(self._remembered(drive, stream)) as play:
                async for one in play:
                    yield one

        return AgentStream(new, source)

    async def generate(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> AgentResult:
        """Do the same as `stream`, and return what the run came to at its end or first pause."""
        return await self.stream(messages, **options)

    # -- proving that it gates -----------------------------------------------------------------------------------

    def covered_tools(self) -> list[str]:
        """Return the names of the tools that only run through the guard: every one, sub-agents' included."""
        inner = [name for sub in self._sub_agents.values() for name in sub.covered_tools()]
        return [*dict.fromkeys([*self._tools, *inner])]

    def canary(self, guard: Any) -> None:
        """Run the canary call through this loop (see `hitl_guard.Guard.selftest`)."""
        _check(guard is self.guard, "This agent has another guard.")
        ran: list[Any] = []
        turns: list[dict[str, Any]] = [{"content": "done"}, {"tool_calls": [
            {"function": {"arguments": "{}", "name": CANARY_TOOL}, "id": "canary", "type": "function"}
        ]}]

        async def model(*_: Any) -> dict[str, Any]:
            return turns.pop()

        probe = type(self)(
            "hitl-guard-selftest", model=model, guard=self.guard, tools=[Tool(CANARY_TOOL, execute=ran.append)]
        )
        who = canary_context()
        paused = probe.sync.generate("canary", user=who["user"], tenant=who["tenant"])
        waits = paused.suspend_payload or {}
        _check(not ran, "The canary call ran without an approval. Do not start.")
        _check("approvalId" in waits, "The canary call was not asked for: this agent's loop is not the guarded one.")
        withdraw(self.guard, waits["approvalId"])
        probe.sync.continue_generate(paused.run_id, user=who["user"], tenant=who["tenant"])
        _check(not ran, "The canary call ran without an approval. Do not start.")

    # -- for the loop --------------------------------------------------------------------------------------------

    def tool(self, name: str) -> Tool | None:
        """Return a tool, or the delegation to a sub-agent, by its exact name."""
        return self._tools.get(name)

    def sub_agent(self, tool_name: str) -> Agent | None:
        """Return the sub-agent behind a delegation."""
        return self._sub_agents.get(tool_name)

    def tool_names(self) -> list[str]:
        """Return the names that the model may call."""
        return list(self._tools)

    @cached_property
    def _chat(self) -> bytes:
        return orjson.dumps([one.chat() for one in self._tools.values()])

    def chat(self) -> list[dict[str, Any]]:
        """Return what the model is told about the tools; a fresh copy each time."""
        told: list[dict[str, Any]] = orjson.loads(self._chat)
        return told

    def instructions(self) -> list[dict[str, Any]]:
        """Return the system message, if there is one."""
        return [dict(one) for one in self._instructions]

    def principal(self, tenant: str, around: Sequence[Agent] = ()) -> Principal:
        """Return the agent as somebody who asks.

        The agents that it works for, and their owners, are its aliases: they may not approve what it asks, and pausing
        one of them stops it too.
        """
        behind = [name for agent in around for name in (agent.id, agent.owner) if name is not None]
        return Principal(self.id, kind="agent", tenant=tenant, owner=self.owner, aliases=tuple(behind))

    def new_run(self, tenant: str, run_id: str | None = None, *, inside: str = "") -> Run:
        """Return a new run with a conversation of its own.

        Args:
            inside: The id of the run around it: up to its last dot, the new id begins with the same, so that who groups
                runs by such a prefix finds the inner ones too; `SUB` follows, which tells them from the outer ones.
        """
        group, fresh = inside[: inside.rfind(".") + 1], new_id()
        group += SUB if group and not group.endswith("." + SUB) else ""
        new = run_id or (group + fresh if len(group) + len(fresh) <= MAX_ID else fresh)
        return Run(new, self.id, new_id(), private_key(tenant, new).hex(), True)

    def _new_drive(
        self, run_id: str, owner: Owner, options: Options, require: RequireApproval, hooks: Hooks | None
    ) -> Drive:
        desk = self.guard._desk
        drive = Drive(
            self.guard, owner, options, require=require, hooks=hooks, created_at=desk.store.now(), saved=False
        )
        run, before = self.new_run(owner.tenant, run_id), history.History()
        if owner.thread_id is not None and self.memory is not None:
            run.thread, run.private = thread_key(owner.tenant, owner.resource_id, owner.thread_id).hex(), False
            before = history.begun(desk.store, run, last_messages=self.memory.last_messages)
        drive.root = Node(drive, self, run, before)
        return drive

    def drive_of(self, found: Found) -> Drive:
        """Return the work on a suspended run as it is stored. Blocks."""
        snapshot = found.snapshot
        require, hooks, lost = self._kept(snapshot.root, snapshot.options)
        drive = Drive(
            self.guard, snapshot.owner, snapshot.options, require=require, hooks=hooks,
            created_at=snapshot.created_at, saved=True,
        )
        drive.lost = lost
        drive.root, drive.said = Node.restored(drive, self, snapshot.root), snapshot.said
        return drive

    def _kept(self, root: Run, options: Options) -> tuple[RequireApproval, Hooks | None, bool]:
        """Return what a request asked for, as far as this process has it, and whether something of it is lost.

        It is remembered by the run's message id, which is random and signed: run ids are the host's.
        """
        if root.message_id in self._warm:
            return *self._warm[root.message_id], False
        if options.hooks:
            return True, None, True
        if isinstance(options.require_approval, str):
            found = self._policies.get(options.require_approval)
            return (True, None, True) if found is None else (found, None, False)
        return options.require_approval, None, options.lost

    def forget(self, root: Run) -> None:
        """Forget what only this process knew of a run that has ended."""
        self._warm.pop(root.message_id, None)

    async def _remembered(self, drive: Drive, stream: AgentStream) -> events.Events:
        """Play a new run, and remember for its resumption here what cannot be stored."""
        lost = callable(drive.require) or drive.hooks is not None
        if lost:
            while len(self._warm) >= _WARM:
                self._warm.pop(next(iter(self._warm)))
            self._warm[drive.root.run.message_id] = drive.require, drive.hooks
        async with aclosing(sessions.played(drive, stream)) as play:
            async for one in play:
                yield one


def _demand(require: RequireApproval | None) -> RequireApproval:
    # Never by its truth: a policy object that is callable may read as empty.
    return False if require is None else require


def _storable(require: RequireApproval) -> bool | str:
    if isinstance(require, CodePolicy):
        return f"{require.name}@{require.version}"
    return True if callable(require) else require


def _all_of(name: str, given: Iterable[Any]) -> list[Any]:
    try:
        return list(given)
    except TypeError as error:
        raise ConfigurationError(f"'{name}' is a list.") from error


def _is_text(value: object) -> bool:
    return isinstance(value, str) and well_formed(value) == value


def _check(fine: bool, message: str) -> None:
    if not fine:
        raise ConfigurationError(message)


def _is_lost(require: RequireApproval) -> bool:
    """Whether a demand cannot be stored: a function without a declared name."""
    return callable(require) and not isinstance(require, CodePolicy)


def _mapping(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of a mapping that a host gave, empty for None."""
    _check(value is None or isinstance(value, Mapping), f"'{name}' must be a mapping, or left out.")
    return dict(value or {})
