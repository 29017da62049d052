"""A stage on which our loop plays a scenario that the reference loop was recorded with.

Each step is compared field by field, as it stands in the recording: a field that nothing here knows fails the test.
Where ours does something else, the scenario says so with `Play.instead` or `Play.passes`, and the table in
`test_reference.py` says why.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from difflib import unified_diff
from pprint import pformat
from types import TracebackType
from typing import Any, Self

import pytest

from hitl_guard.agent import Agent, AgentStream, Tool
from hitl_guard.errors import HitlGuardError
from hitl_guard.store.sql import SQLStore
from hitl_guard.testing import ScriptedModel

from .recorded import CODES, OURS, Words, event_of, find, listed, outcome, recording, told_to, ui_part
from .stage import BOB, Event, Stage, read

Note = Callable[[Any, Any], Any]
Script = Callable[["Play"], Awaitable[None]]

SCRIPTS: dict[str, Script] = {}
"""Scenario → how it is played."""


def plays(*names: str) -> Callable[[Script], Script]:
    """Register how scenarios are played."""
    def register(script: Script) -> Script:
        assert not SCRIPTS.keys() & {*names}
        SCRIPTS.update(dict.fromkeys(names, script))
        return script

    return register


class Play:
    """One scenario: its recording, and our loop on a stage of its own. A context manager.

    Attributes:
        top: The agent that is asked. ran: ``(tool, input)`` of every start of a tool. log: What tools and hooks noted.
        run_id: The run that was read last. pending: The pauses that were told and are not over, by tool-call id.
        where: Names the conversation. differs: Whether something was other than recorded.
    """

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.scenario = recording()["scenarios"][name]
        self.words = Words()
        self.ran: list[tuple[str, Any]] = []
        self.log: list[Any] = []
        self.run_id = ""
        self.pending: dict[str, dict[str, Any]] = {}
        self.where: dict[str, Any] = {}
        self.differs = False
        self.top: Agent
        self.stage: Stage
        self._steps = deque(self.scenario["steps"])
        self._changed: dict[str, Any] = {}
        self._url = url
        self._stores: list[SQLStore] = []
        self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for store in self._stores:
            store.close()

    # -- setting the scene ---------------------------------------------------------------------------------------

    def restart(self, **options: Any) -> None:
        """Go on as another process would: with another store object, guard and agent; nothing is kept in memory."""
        if self._stores:
            options["keyring"] = self.stage.world.keyring
        store = SQLStore(self._url)
        store.setup()
        self._stores.append(store)
        self.stage = Stage(store, **options)

    def at(self, step: int) -> dict[str, Any]:
        """Return a recorded step."""
        found: dict[str, Any] = self.scenario["steps"][step]
        return found

    @property
    def next(self) -> dict[str, Any]:
        """The step that is compared next."""
        step: dict[str, Any] = self._steps[0]
        return step

    def turns(self, *steps: int, inside: str | None = None) -> list[dict[str, Any]]:
        """Return what the model was recorded saying in some steps, or in all.

        Args:
            inside: Tool-call id of a delegation, for the sub-agent's model.
        """
        turns: list[dict[str, Any]] = []
        for number in steps or range(len(self.scenario["steps"])):
            told = self.at(number).get("events", self.at(number).get("ok"))
            for outer in told if isinstance(told, list) else ():
                event = outer if inside is None else _inside(outer, inside)
                if event["type"] == "step-start":
                    turns.append({"content": "", "tool_calls": []})
                elif event["type"] == "text-delta":
                    turns[-1]["content"] += event["payload"]["text"]
                elif event["type"] == "tool-call":
                    turns[-1]["tool_calls"].append(_chat_call(event["payload"]))
        return turns

    def tool(self, name: str, result: Any = None, **options: Any) -> Tool:
        """Return a tool that says ``{"ok": True}``, unless another result is given."""
        async def execute(given: Any) -> Any:
            self.ran.append((name, given))
            return {"ok": True} if result is None else result

        return Tool(name, execute=execute, **options)

    def asking(
        self, name: str, payload: Callable[[Any], Any], result: Callable[[Any, Any], Any], *, note: Note | None = None,
        enough: Callable[[Any], bool] = lambda data: data is not None,
    ) -> Tool:
        """Return a tool that suspends itself with ``payload(input)`` until it gets enough for ``result(input, data)``.

        Its resume schema is the recorded one.

        Args:
            note: ``(input, context)`` → what goes into the log; the input, answer and payload when omitted.
        """
        async def execute(given: Any, context: Any) -> Any:
            self.log.append((note or _noted)(given, context))
            if enough(context.resume_data):
                return result(given, context.resume_data)
            returned = await context.suspend(payload(given))
            if note is None:
                self.log.append({"afterSuspendReturned": "undefined" if returned is None else returned})
            return None

        return Tool(name, execute=execute, resume_schema=json.loads(find(self.scenario, "resumeSchema")))

    def agent(self, *turns: Any, tools: Any = (), **options: Any) -> Agent:
        """Return the agent that is asked; its model says what was recorded, unless turns are given."""
        recorded = (find(self.scenario, "payload") or {}).get("id", "a")
        self.top = self.stage.agent(*(turns or self.turns()), tools=tools, **{"id": recorded, **options})
        return self.top

    def inner(self, name: str, *turns: Any, recorded_as: str | None = None, **options: Any) -> Agent:
        """Return a sub-agent."""
        if recorded_as is not None:
            self.words.names[recorded_as] = name
        return self.stage.agent(*turns, id=name, **options)

    @property
    def model(self) -> ScriptedModel:
        """The model of the agent that is asked."""
        assert isinstance(self.top.model, ScriptedModel)
        return self.top.model

    # -- playing -------------------------------------------------------------------------------------------------

    def instead(self, **changed: Any) -> None:
        """Say, in recorded words, what ours does in the next step where that is something else."""
        for name, value in changed.items():
            assert self.next[name] != value, f"{self.name}: {name} is no other than recorded"
        self._changed = changed
        self.differs = True

    def adds(self, **found: Any) -> None:
        """Say, in recorded words, what comes of one step more that ours needs."""
        self._steps.appendleft({"action": "one more", **found})
        self.differs = True

    def passes(self) -> dict[str, Any]:
        """Take a step that ours does not have, or in another form; the scenario looks at it by itself."""
        self.differs = True
        step: dict[str, Any] = self._steps.popleft()
        return step

    def stream(self, prompt: str = "go", **options: Any) -> AgentStream:
        """Return the stream of a new run for the user of every scenario."""
        return self.top.stream(prompt, user="ana", **self.where, **options)

    async def starts(self, prompt: str = "go", **options: Any) -> AgentStream:
        """Start a run; nothing in it resumes anything."""
        return await self.reads(self.stream(prompt, **options), clears=[])

    async def begins(self, prompt: str = "go", **options: Any) -> None:
        """Start a run whose beginning was not recorded."""
        stream = self.stream(prompt, **options)
        self._note(stream, await read(stream))

    async def approves(self, call_id: str | None = None, **options: Any) -> AgentStream:
        """Approve a call, or the most recent one."""
        stream = self.top.approve_tool_call(self.run_id, call_id, **{"approver": BOB, **options})
        return await self.reads(stream, clears=self._meant(call_id))

    async def declines(self, call_id: str | None = None, **options: Any) -> AgentStream:
        """Decline a call, or the most recent one."""
        stream = self.top.decline_tool_call(self.run_id, call_id, **{"approver": BOB, **options})
        return await self.reads(stream, clears=self._meant(call_id))

    async def resumes(self, data: Any, call_id: str | None = None, **options: Any) -> AgentStream:
        """Hand in an answer to a call, or to the most recent one."""
        stream = self.top.resume_stream(data, self.run_id, call_id, user="ana", **options)
        return await self.reads(stream, clears=self._meant(call_id))

    def _meant(self, call_id: str | None) -> list[str]:
        return [call_id or list(self.pending)[-1]]

    async def reads(
        self, stream: AgentStream, *, clears: list[str], key: Callable[[Event], str] | None = None, **found: Any
    ) -> AgentStream:
        """Read a stream to its end and compare it with the next step.

        Args:
            clears: Tool-call ids of the pauses that it must say are over, before anything else.
            key: Compare the events of each key by themselves.
        """
        waits = (await self.listing())["runs"][0]["toolCalls"][0] if "pending" in self.next else None
        same = self.run_id == stream.run_id
        events = self._note(stream, self.resumed(await read(stream), clears))
        told = [event_of(event) for event in events]
        if key is not None:
            self.instead(events=sorted(self.next["events"], key=key))
            told.sort(key=key)
        await self.shows(
            end=outcome(stream), events=told, ok=told, pending=waits, runId=stream.run_id, sameRunId=same,
            types=[event["type"] for event in events], uiParts=lambda _: [ui_part(event) for event in events], **found,
        )
        return stream

    def _note(self, stream: AgentStream, events: list[Event]) -> list[Event]:
        self.run_id = stream.run_id
        for event in events:
            if event["type"] in ("tool-call-approval", "tool-call-suspended"):
                self.pending[event["payload"]["toolCallId"]] = event["payload"]
        return events

    def resumed(self, events: list[Event], clears: list[str]) -> list[Event]:
        """Return the events after those of pauses that are over, which must say what was asked there."""
        recorded = recording()["upstream_only"]["chunk"]
        first, others = events[: len(clears)], events[len(clears) :]
        assert [(one["type"], one["payload"]["toolCallId"]) for one in first] == [
            (recorded["type"], call_id) for call_id in clears
        ]
        for one in first:
            payload, asked = one["payload"], self.pending.pop(one["payload"]["toolCallId"])
            kind = recorded["kind"]["suspendPayload" not in asked]
            only = set() if kind == "suspension" else {"suspendPayload"}
            assert payload == {name: asked[name] for name in payload if name != "kind"} | {"kind": kind}
            assert payload.keys() - OURS == {key.split(" ")[0] for key in recorded["payloadKeys"]} - only
        assert recorded["type"] not in [one["type"] for one in others]
        return others

    async def generates(self, result: Awaitable[Any]) -> Any:
        """Await a whole result and compare it with the next step."""
        ours = await result
        same, self.run_id = self.run_id == ours.run_id, ours.run_id
        names = {re.sub("_(.)", lambda found: found[1].upper(), field.name) for field in fields(ours)}
        await self.shows(
            outputKeys=lambda wanted: wanted if names - {"clientCalls", "pauses", "status"} <= {*wanted} else names,
            finishReason=ours.finish_reason, resumeSchema=ours.resume_schema, runId=ours.run_id, runIdSame=same,
            steps=ours.steps, suspendPayload=ours.suspend_payload, text=ours.text,
            toolCalls=[event_of(event) for event in ours.tool_calls],
            toolResults=[event_of(event) for event in ours.tool_results],
        )
        return ours

    async def refuses(self, attempt: Awaitable[Any]) -> None:
        """Demand the error of the next step."""
        with pytest.raises(HitlGuardError) as caught:
            await attempt
        threw = self.next["threw"]
        assert (caught.value.code, caught.value.detail) == CODES[threw["id"]]
        await self.shows(threw=threw)

    async def shows(self, **found: Any) -> None:
        """Compare the next step, field by field, with what was found and with the state of the stage."""
        step, changed, self._changed = self._steps.popleft(), self._changed, {}
        state = await self._state() | found
        for field, recorded in (step | changed).items():
            if field == "action":
                continue
            assert field in state, f"{self.name}: {step['action']}: nobody knows what '{field}' is"
            wanted = self.words.plain(recorded)
            ours = self.words.of(wanted, state[field](wanted) if callable(state[field]) else state[field])
            assert ours == wanted, "\n".join([f"{self.name}: {step['action']}: {field}", *_difference(wanted, ours)])

    def ends(self) -> None:
        """Demand that the whole scenario was played, and that tools ran as recorded."""
        assert not self._steps
        if "executions" in self.scenario:
            assert self.scenario["executions"] == [{"tool": name, **given} for name, given in self.ran]

    # -- the state of the stage ----------------------------------------------------------------------------------

    async def listing(self, agent: Agent | None = None, **where: Any) -> dict[str, Any]:
        """Return an agent's list of suspended runs; that of the agent which is asked when omitted."""
        return listed(await (agent or self.top).list_suspended_runs(user="ana", **where))

    async def _state(self) -> dict[str, Any]:
        stored = self.top.snapshots.load("default", self.run_id) is not None
        prompt = self.model.calls[-1] if self.model.calls else []
        roles = [message["role"] for message in prompt]
        return {
            "all": await self.listing(), "executeLog": self.log, "executed": self._executed, "hookLog": self.log,
            "list": await self.listing(**self.where), "log": self.log, "modelCalls": len(self.model.calls),
            "otherThread": await self.listing(thread_id="another"), "promptRoles": roles, "userMessagesSeen": roles,
        } | dict.fromkeys(
            ("prompt", "promptToolMessages", "toolMessages", "toolMessagesSeenByModel", "topToolMessages"),
            lambda wanted: told_to(prompt, wanted),
        ) | dict.fromkeys(
            ("rows", "rowsAfter", "snapshots", "snapshotsAfter"),
            lambda wanted: wanted if bool(wanted) == stored else stored,
        )

    def _executed(self, wanted: Any) -> Any:
        """Return the inputs that tools ran with; by tool where the recording has them under a name's last part."""
        if not isinstance(wanted, dict):
            return [given for _, given in self.ran]
        return {
            label: [given for name, given in self.ran if name.lower().endswith(label.lower())] for label in wanted
        }


def _difference(wanted: Any, ours: Any) -> Iterator[str]:
    recorded, found = (pformat(one, width=100).split("\n") for one in (wanted, ours))
    return unified_diff(recorded, found, "recorded", "ours", lineterm="")


def _noted(given: Any, context: Any) -> dict[str, Any]:
    if context.resume_data is None:
        return {"input": given}
    return {"input": given, "resumeData": context.resume_data, "suspendPayload": context.suspend_payload}


def _inside(event: Event, delegation: str) -> Event:
    wrapped = event["type"] == "tool-output" and event["payload"]["toolCallId"] == delegation
    found: Event = event["payload"]["output"] if wrapped else {"type": "none"}
    return found


def _chat_call(payload: dict[str, Any]) -> dict[str, Any]:
    function = {"arguments": json.dumps(payload["args"]), "name": payload["toolName"]}
    return {"function": function, "id": payload["toolCallId"], "type": "function"}
