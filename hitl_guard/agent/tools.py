"""The tools of the built-in agent loop: what the model is told, what the approver is asked, what runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypedDict, Unpack, overload

from .. import canonical
from ..errors import CanonicalizationError, ConfigurationError
from ..lifecycle.running import is_async
from ..lifecycle.toolspec import check_effect, spec_of
from ..models import ToolDefinition, check_text
from ..policy.code import ToolPolicy
from . import functions
from .functions import Function
from .shapes import Schema, Shape, copied, is_model_instance, plain

APPROVAL_RESUME_SCHEMA = json.dumps({
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "approved": {
            "type": "boolean",
            "description": "Controls if the tool call is approved or not, should be true when approved and false when "
                           "declined",
        },
        "reason": {
            "description": "Optional explanation for the decision, surfaced to the model when the tool call is "
                           "declined",
            "type": "string",
        },
    },
    "required": ["approved"],
    "additionalProperties": False,
}, separators=(",", ":"))
"""JSON Schema of the answer to an approval, as text for clients."""


class _Noted:
    """What `ToolContext.suspend` returns: a tool may await it, or leave it."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


@dataclass(slots=True, kw_only=True)
class ToolContext:
    """What a running tool is told about its call, and how it suspends.

    Attributes:
        request_context: The host's own data for this run.
        resume_data: What a suspended call was resumed with; None in the first run.
        suspend_payload: What the call was suspended with: before, in a resumed run; by this run once it `suspend`-ed.
        idempotency_key: Stable per approval; hand it to a service that honours one. None without an approval.
        suspended: Whether this run has called `suspend`.
    """

    tool_call_id: str
    run_id: str
    user: str
    agent_id: str | None = None
    tenant: str = "default"
    request_context: dict[str, Any] = field(default_factory=dict, repr=False)
    resume_data: Any = field(default=None, repr=False)
    suspend_payload: Any = field(default=None, repr=False)
    idempotency_key: str | None = None
    suspended: bool = False

    def suspend(self, payload: Any = None) -> _Noted:
        """Note that the call waits for an answer; ``payload`` is what the person is asked.

        Nothing is raised and nothing stops: return right after it. Called twice, the last payload counts. In an async
        tool it may be awaited. On resume the tool runs again from the top, with `resume_data`.
        """
        self.suspend_payload = payload
        self.suspended = True
        return _Noted()


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """One tool of an agent. The loop asks the guard before it runs.

    Each schema is a pydantic model class, a JSON Schema (a mapping), or None.

    Args:
        name: What the model calls it by; compared exactly.
        input_schema: Of the arguments. ``execute`` gets an instance of the model, or the plain dict.
        output_schema: Of the result; a pydantic model also drops what is not a field of it.
        suspend_schema: Of the payload that the tool may suspend with.
        resume_schema: Of the answer to a suspension.
        require_approval: True asks a person for every call; a function ``(arguments, info: CallInfo) -> bool``, sync
            or async, decides for each (see `hitl_guard.policy.code.ToolPolicy`).
        effect: What the tool promises about its effect (`hitl_guard.models.EFFECTS`).
        execute: Sync or async function ``(input)`` or ``(input, context: ToolContext)``. None: a client-side tool,
            which this process never runs.
        auto_resume: Whether the next user message may answer a suspension of this tool. Never for an approval.

    Raises:
        ConfigurationError: a setting cannot be used.
    """

    name: str
    _: KW_ONLY
    description: str = field(default="", repr=False)
    input_schema: Schema = field(default=None, repr=False)
    output_schema: Schema = field(default=None, repr=False)
    suspend_schema: Schema = field(default=None, repr=False)
    resume_schema: Schema = field(default=None, repr=False)
    require_approval: bool | Function | None = field(default=None, repr=False)
    effect: str = "opaque"
    execute: Function | None = field(default=None, repr=False)
    auto_resume: bool = False
    definition: ToolDefinition = field(init=False, repr=False)
    policy: ToolPolicy = field(init=False, repr=False)
    _input: Shape | None = field(init=False, repr=False)
    _output: Shape | None = field(init=False, repr=False)
    _suspend: Shape | None = field(init=False, repr=False)
    _resume: Shape | None = field(init=False, repr=False)
    _takes_context: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not isinstance(self.description, str):
            raise ConfigurationError(f"The description of the tool '{self.name}' must be a string.")
        check_effect(self.effect)
        of = f"schema of the tool '{self.name}'"
        given = Shape.of(self.input_schema, f"input {of}", "validation")
        resume = Shape.of(self.resume_schema, f"resume {of}", "validation")
        _check_auto_resume(self.name, self.auto_resume, resume)
        self._set("definition", ToolDefinition(self.name, self.description, None if given is None else given.schema))
        self._set("policy", ToolPolicy(require_approval=self.require_approval))
        self._set("_input", given)
        self._set("_output", Shape.of(self.output_schema, f"output {of}", "serialization"))
        self._set("_suspend", Shape.of(self.suspend_schema, f"suspend {of}", "serialization"))
        self._set("_resume", resume)
        self._set("_takes_context", self.execute is not None and functions.takes_context(self.name, self.execute))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_client(self) -> bool:
        """Whether the client runs this tool, never this process."""
        return self.execute is None

    @property
    def resume_schema_json(self) -> str | None:
        """The resume schema as JSON text, or None."""
        return None if self._resume is None else self._resume.text()

    def chat(self) -> dict[str, Any]:
        """Return what the model is told, in the OpenAI chat format; a fresh object each time."""
        schema = {"type": "object", "properties": {}} if self._input is None else copied(self._input.schema)
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def checked_input(self, args: dict[str, Any]) -> Any:
        """Return what ``execute`` gets: an instance of the pydantic input model, or the plain dict itself.

        The guard has compared the arguments with the JSON Schema; here the model's own validators run.

        Raises:
            CanonicalizationError: detail ``schema``: the model refuses them.
        """
        if self._input is None or self._input.model is None:
            return args
        refusal = CanonicalizationError(f"The arguments do not fit the tool '{self.name}'.", detail="schema")
        return self._input.read(args, refusal)

    def checked_output(self, value: Any) -> Any:
        """Return a result as fresh plain JSON data; what has no JSON form becomes its text.

        Raises:
            CanonicalizationError: detail ``output-schema``: the result does not fit. The tool has run all the same.
        """
        return self._sent(self._output, value, "result", "output")

    def checked_suspend(self, payload: Any) -> Any:
        """Return a suspension's payload as fresh plain JSON data.

        Raises:
            CanonicalizationError: detail ``suspend-schema``: the payload does not fit.
        """
        return self._sent(self._suspend, payload, "suspension", "suspend")

    def _sent(self, shape: Shape | None, value: Any, what: str, which: str) -> Any:
        if shape is None:
            return plain(value)
        text = f"The {what} of the tool '{self.name}' does not fit its {which} schema."
        return shape.sent(value, CanonicalizationError(text, detail=f"{which}-schema"))

    def checked_resume(self, data: Any) -> tuple[Any, Any]:
        """Return an answer to a suspension twice: as plain JSON data, and as the tool gets it.

        ``False``, ``0`` and ``""`` are answers; None is none, whatever the schema says.

        Raises:
            CanonicalizationError: detail ``resume-schema``: it is no answer, no plain JSON data, or does not fit.
        """
        text = f"The answer does not fit the resume schema of the tool '{self.name}'."
        refusal = CanonicalizationError(text, detail="resume-schema")
        if is_model_instance(data):
            data = plain(data)
        if data is None or not _is_plain(data):
            raise refusal
        if self._resume is None:
            return copied(data), copied(data)
        self._resume.demand(data, refusal)
        return copied(data), self._resume.read(data, refusal)

    async def start(self, given: Any, context: ToolContext, late: Callable[[Any], None] | None = None) -> Any:
        """Run the tool: await an async one, run a sync one in a worker thread.

        Args:
            given: What `checked_input` returned.
            late: Gets what a sync one returns after this task was cancelled.

        Raises:
            ConfigurationError: it is a client-side tool.
        """
        if self.execute is None:
            raise ConfigurationError(f"The tool '{self.name}' has no 'execute': only a client can run it.")
        return await functions.start(self.execute, (given, context) if self._takes_context else (given,), late)


class _Options(TypedDict, total=False):
    input_schema: Schema
    output_schema: Schema
    suspend_schema: Schema
    resume_schema: Schema
    require_approval: bool | Function | None
    effect: str
    auto_resume: bool


@overload
def tool(
    function: Function, /, *, name: str | None = ..., description: str | None = ..., **options: Unpack[_Options]
) -> Tool: ...


@overload
def tool(
    function: None = None, /, *, name: str | None = ..., description: str | None = ..., **options: Unpack[_Options]
) -> Callable[[Function], Tool]: ...


def tool(
    function: Any = None, /, *, name: str | None = None, description: str | None = None, **options: Unpack[_Options]
) -> Any:
    """Make a `Tool` of a sync or async function with named parameters.

    Name, description and input schema come from the function where they are not given: annotations count as they do in
    a pydantic model, and the function gets what they say. A parameter named ``context`` gets the `ToolContext`; the
    model is not told about it.

    Raises:
        ConfigurationError: the function has no named parameters, or a setting cannot be used (see `Tool`).
    """
    if function is None:
        return lambda decorated: tool(decorated, name=name, description=description, **options)
    if name is not None:
        _check_name(name)
    functions.check_unguarded(function)
    takes_context = "context" in functions.parameters_of(function)
    # The specification leaves this argument out of the schema, as it does with one for the idempotency key.
    spec = spec_of(
        function, name=name, description=description, idempotency_argument="context" if takes_context else None
    )
    if spec.name == "<lambda>":
        raise ConfigurationError("A tool that is a lambda needs a name=.")
    if "input_schema" not in options:
        options["input_schema"] = functions.model_of(function, spec.name, without="context")

    def named(given: Any, context: ToolContext) -> Any:
        return function(**dict(given), context=context) if takes_context else function(**dict(given))

    async def named_async(given: Any, context: ToolContext) -> Any:
        return await named(given, context)

    execute = named_async if is_async(function) else named
    return Tool(spec.name, description=spec.definition.description or "", execute=execute, **options)


def _check_name(name: object) -> None:
    try:
        check_text("name", name)
    except CanonicalizationError as error:
        raise ConfigurationError(f"A tool's name cannot be used: {error}") from error


def _check_auto_resume(name: str, auto_resume: object, resume: Shape | None) -> None:
    """Raise `ConfigurationError` where a model's words could pass for a person's consent."""
    if type(auto_resume) is not bool:
        raise ConfigurationError("'auto_resume' is True or False. Correct the setting.")
    if not auto_resume:
        return
    if resume is None:
        raise ConfigurationError(f"The tool '{name}' needs a 'resume_schema' to be resumed by a message.")
    if resume.mentions("approved"):
        raise ConfigurationError(
            f"The resume schema of the tool '{name}' has 'approved': only a person answers that. Leave out "
            "'auto_resume'."
        )
    if resume.mentions("boolean"):
        raise ConfigurationError(
            f"The resume schema of the tool '{name}' has a boolean: a yes is a person's own. Leave out 'auto_resume'."
        )


def _is_plain(data: Any) -> bool:
    try:
        canonical.canonicalize(data)
    except CanonicalizationError:
        return False
    return True
