"""What the adapters of LangChain and LangGraph share: a call's way through the guard, their pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langchain_core.tools import Tool as SimpleTool
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt.tool_node import (
    ToolCallRequest,
    ToolInvocationError,
    _get_all_injected_args,  # which parameters come from the state is told nowhere else
)
from langgraph.types import Command, interrupt
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from ..aio import AsyncGuard
from ..errors import ApprovalRequired, CanonicalizationError, ConfigurationError, NoEffect, RefusedError
from ..guard import Guard
from ..models import ApprovalRequest, Permit, ToolCall, ToolDefinition
from ..policy.core import Status
from ..toolcalls import edit_notice
from .bridge import Bridge, Facts, InnerCallError, Refusal, earlier_of, occurrence_of, request_facts

Scope = Callable[[ToolCallRequest], Facts]
Handler = Callable[[ToolCallRequest], Any]
AsyncHandler = Callable[[ToolCallRequest], Awaitable[Any]]

_TEXT = {"type": "object", "properties": {"__arg1": {"type": "string"}}, "required": ["__arg1"]}
"""What LangChain tells models of a tool that takes one text and has no schema."""


class Gate:
    """The way of one tool call through the guard, from the innermost place that the framework has around a tool.

    Args:
        trusted_state: Fields of the graph's state that tools may get as parameters (``InjectedState("field")``) in
            calls that need a person, although nobody is shown them.

    Raises:
        ConfigurationError: one of these is none.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Scope | None, pause: str, effects: Mapping[str, str] | None,
        trusted_state: Iterable[str], messages_key: str = "messages",
    ) -> None:
        self.bridge = Bridge(guard, scope=scope, pause=pause, effects=effects)
        self._trusted = names_of("trusted_state", trusted_state)
        self._messages_key = messages_key

    def run(self, request: ToolCallRequest, handler: Handler, waits: Callable[[ApprovalRequest], Any]) -> Any:
        """Run a call's tool by ``handler`` if it may; ``waits`` says what becomes of a call that waits.

        Raises:
            ToolInvocationError: the arguments do not fit the tool; nobody was asked.
            UnavailableError, ConfigurationError: as `Bridge.run_sync`.
        """
        kept: list[Any] = []

        def start(permit: Permit) -> Any:
            return self._kept(request, kept, permit, handler(self._granted(request, permit)))

        with self._answered(request, kept, waits):
            self.bridge.run_sync(self._call(request), start)
        return kept[0]

    async def arun(
        self, request: ToolCallRequest, handler: AsyncHandler, waits: Callable[[ApprovalRequest], Any]
    ) -> Any:
        """Do the same in a task."""
        kept: list[Any] = []

        async def start(permit: Permit) -> Any:
            return self._kept(request, kept, permit, await handler(self._granted(request, permit)))

        with self._answered(request, kept, waits):
            await self.bridge.run(self._call(request), start)
        return kept[0]

    @contextmanager
    def _answered(
        self, request: ToolCallRequest, kept: list[Any], waits: Callable[[ApprovalRequest], Any]
    ) -> Iterator[None]:
        """Put the framework's result in ``kept``: the tool's, or what the model is told instead."""
        try:
            yield
        except ApprovalRequired as pause:
            if self.bridge.pause == "native":
                waits(pause.request)
            kept.append(self._told(request, pause))
        except Refusal as refusal:
            kept.append(self._told(request, refusal))
        except ToolException:
            if not kept:  # the tool's own; ours only says that what is kept is an error
                raise
        except InnerCallError as inner:
            raise inner.error from inner.error.__cause__

    def asked(self, request: ToolCallRequest) -> ApprovalRequest | bool:
        """Return what a call waits for, its request made where there is none; else whether an approval counts at all.
        """
        if request.tool is None:
            return False
        try:
            call = self._call(request)
            if self.bridge.guard.evaluate(call).status is not Status.USER_APPROVAL:
                return False
            asked = self.bridge.guard.request(call)
        except ToolInvocationError:
            return False  # the model is told why when the call is to run
        except Refusal:
            return True
        return asked if asked.state == "pending" else True

    def _call(self, request: ToolCallRequest) -> ToolCall:
        asked, tool, runtime = request.tool_call, request.tool, request.runtime
        if tool is None or tool.name != asked["name"]:  # the framework runs the tool, whatever the call is named
            raise ConfigurationError("A middleware changed the tool or the call's name, and not both: change both.")
        if any(one.name == tool.name and one is not tool for one in getattr(runtime, "tools", ())):
            raise ConfigurationError(f"A middleware put another tool in the place of '{tool.name}': rename it.")
        thread = runtime.config.get("configurable", {}).get("thread_id")
        person = getattr(getattr(runtime, "server_info", None), "user", None)
        messages = history(request.state, self._messages_key)
        turns = [message.tool_calls for message in messages if isinstance(message, AIMessage)]
        held = [turn for turn in turns if any(call["id"] == asked["id"] for call in turn)]
        call = self.bridge.call(
            tool.name, _arguments(tool, asked), framework=request, call_id=asked["id"],
            occurrence=occurrence_of(([call["id"] or "" for call in turn] for turn in turns), asked["id"] or ""),
            run_id=None if thread is None else str(thread), user=None if person is None else person.identity,
            definition=_definition(tool),
            turn=earlier_of(((call["id"] or "", call["name"], call["args"]) for call in held[-1]), asked["id"])
            if held else None,
        )
        if self._hidden(tool) and self.bridge.guard.evaluate(call).status is Status.USER_APPROVAL:
            self._refuse_hidden(tool)
        return call

    def _hidden(self, tool: BaseTool) -> list[str]:
        """Return the fields of the state that a tool gets as parameters: arguments that nobody is shown."""
        fields = _get_all_injected_args(tool).state.values()
        return sorted({field for field in fields if field is not None} - self._trusted)

    def _refuse_hidden(self, tool: BaseTool) -> NoReturn:
        raise _HiddenError(
            f"The tool '{tool.name}' takes parameters from the graph's state, which nobody approves: "
            f"{', '.join(self._hidden(tool))}. Let the model say them, or name them in 'trusted_state'."
        )

    def _granted(self, request: ToolCallRequest, permit: Permit) -> ToolCallRequest:
        """Return the request with the signed arguments. No earlier yes may answer a pause of the tool's own."""
        if permit.request_id is not None:
            if request.tool is not None and self._hidden(request.tool) and not self._by_policy(permit):
                self._refuse_hidden(request.tool)  # the policy was another one a moment ago, or the host asked
            if self.bridge.pause == "native":
                use_up()
        return request.override(tool_call={**request.tool_call, "args": permit.arguments})

    def _by_policy(self, permit: Permit) -> bool:
        """Return whether the policy approved a call by itself, so that nobody was shown anything."""
        request = self.bridge.guard.get(permit.request_id or "", tenant=permit.scope.tenant)
        return {vote.automatic for vote in request.votes} == {True}

    def _kept(self, request: ToolCallRequest, kept: list[Any], permit: Permit, result: Any) -> Any:
        """Keep a tool's result, and raise where it is an error: the framework has caught what the tool raised."""
        kept.append(_noticed(result, edit_notice(permit)) if permit.edited else result)
        ends = list(_ends(result))
        # A tool may hand on the history of a sub-agent: errors of other calls in it are not the tool's own.
        own = [status for call_id, status in ends if call_id == request.tool_call["id"]]
        if "error" in (own or [status for _, status in ends]):
            raise ToolException("The tool ended in an error.")
        return result

    def _told(
        self, request: ToolCallRequest, error: ApprovalRequired | RefusedError | CanonicalizationError
    ) -> ToolMessage:
        answered = getattr(error, "response", None) is not None  # a person answered in the tool's place
        return ToolMessage(
            self.bridge.told(error), name=request.tool_call["name"], tool_call_id=request.tool_call["id"] or "",
            status="success" if answered else "error",
        )


class _HiddenError(ConfigurationError, NoEffect):
    """A tool takes what nobody was shown. Where its approval is spent already, it is known that it did not run."""


def misfit(request: ToolCallRequest, error: ToolInvocationError) -> ToolMessage:
    """Return what the framework tells the model about arguments that do not fit."""
    call = request.tool_call
    return ToolMessage(error.message, name=call["name"], tool_call_id=call["id"] or "", status="error")


def pause(requests: Sequence[ApprovalRequest]) -> NoReturn:
    """Pause the framework's task. What earlier resumes said is used up, and is no answer."""
    while True:
        interrupt({"hitl_guard": [request_facts(request) for request in requests]})


def use_up() -> None:
    """Use up what earlier resumes said to our pauses: else it would answer the first pause of the tool's own."""
    with suppress(GraphInterrupt):
        pause([])


def history(state: Any, key: str) -> list[Any]:
    """Return the messages of a graph's state, of whatever kind it is."""
    if isinstance(state, list):
        return state
    return list((state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)) or [])


def _arguments(tool: BaseTool, asked: Mapping[str, Any]) -> Any:
    """Return the JSON arguments of which the framework makes the same as of the model's, or those themselves.

    They are without what the tool does not take, or takes from the framework, and in its types: the very thing that
    runs.
    """
    injected = _get_all_injected_args(tool)
    filled = {*injected.all_injected_keys, *injected.state, injected.store, injected.runtime}
    return {name: value for name, value in _fitting(tool, asked["args"]).items() if name not in filled}


def _fitting(tool: BaseTool, given: Any) -> Any:
    schema = tool.tool_call_schema
    if tool.args_schema is None or not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return given
    try:
        made = schema.model_validate(given)
    except ValidationError as error:
        raise ToolInvocationError(tool.name, error, given) from error
    with suppress(ValidationError, PydanticSerializationError):
        written = made.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
        if schema.model_validate(written) == made:
            return written
    return given


def _ends(result: Any) -> Iterator[tuple[Any, Any]]:
    """Yield tool-call id and status of each tool message in a result, those inside commands and of any form too."""
    if isinstance(result, ToolMessage):
        yield result.tool_call_id, result.status
    elif isinstance(result, Command):
        for _, value in result._update_as_tuples():
            yield from _ends(value)
    elif isinstance(result, (list, tuple)):
        for one in result:
            yield from _ends(one)
    elif _is_message(result):
        yield result["tool_call_id"], result.get("status")


def _is_message(result: Any) -> bool:
    """Whether a mapping is what the framework makes a tool message of."""
    return isinstance(result, Mapping) and "tool_call_id" in result and "tool" in (
        result.get("role"), result.get("type")
    )


def names_of(option: str, names: Iterable[str]) -> frozenset[str]:
    """Return an option's names. Raises `ConfigurationError` where they are none."""
    listed = () if isinstance(names, str) else tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise ConfigurationError(f"'{option}' is a list of names.")
    return frozenset(listed)


def _definition(tool: BaseTool) -> ToolDefinition:
    """Return what the model was told about a tool, without what the framework fills in."""
    schema: Any = _TEXT if isinstance(tool, SimpleTool) and tool.args_schema is None else tool.tool_call_schema
    if not isinstance(schema, Mapping):
        schema = schema.model_json_schema() if issubclass(schema, BaseModel) else schema.schema()
    return ToolDefinition(tool.name, tool.description, schema)


def _noticed(result: Any, notice: str) -> Any:
    """Return a tool's result with the notice in its message, wherever that stands."""
    if isinstance(result, ToolMessage):
        content = result.content
        told = notice + content if isinstance(content, str) else [{"type": "text", "text": notice}, *content]
        return result.model_copy(update={"content": told})
    if _is_message(result):
        told = _noticed(ToolMessage(result.get("content") or "", tool_call_id=""), notice)
        return {**result, "content": told.content}
    if isinstance(result, Command):
        if result.update is None or isinstance(result.update, (list, dict)):
            return replace(result, update=_noticed(result.update, notice))
        return replace(result, update=[(key, _noticed(value, notice)) for key, value in result._update_as_tuples()])
    if isinstance(result, list):
        return [_noticed(one, notice) for one in result]
    if isinstance(result, dict):
        return {key: _noticed(one, notice) if isinstance(one, list) else one for key, one in result.items()}
    return result
