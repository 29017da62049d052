"""What the API takes: one strict model for each body. An unknown name or a value of another type is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .. import canonical
from ..errors import CanonicalizationError, DecisionError
from ..lifecycle.floods import MAX_MUTE
from ..lifecycle.settings import MAX_WINDOW
from ..models import MAX_REASON

BodyT = TypeVar("BodyT", bound="Body")

LIMITS = canonical.Limits(max_bytes=4_194_304, max_nodes=100_000)
"""How large a body may be: a megabyte of arguments, each byte of them written as an escape, and what surrounds it."""

def _whole(value: object) -> object:
    """Return 1 for 1.0: in JSON these are one number."""
    return int(value) if type(value) is float and value.is_integer() else value


Reason = Annotated[str, Field(min_length=1, max_length=MAX_REASON, description="Goes into the audit log.")]
Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="The one that was shown.")]
Milliseconds = Annotated[int, Field(ge=1, le=MAX_WINDOW, description="Milliseconds."), BeforeValidator(_whole)]
MuteMilliseconds = Annotated[int, Field(ge=1, le=MAX_MUTE, description="Milliseconds."), BeforeValidator(_whole)]
Word = Annotated[str, Field(min_length=1, max_length=512)]
Ticket = Annotated[str, Field(min_length=1, max_length=262_144, description="As the challenge gave it.")]


class Body(BaseModel):
    """The base of all bodies."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Evidence(Body):
    """A passkey's answer to a challenge."""

    ticket: Ticket
    response: dict[str, Any] = Field(description="What `credential.toJSON()` gave.")


_SIDES: dict[str, Any] = {"anyOf": [
    {"properties": {"approve": {"const": True}, "mute": {"type": "null"}, "respond": {"type": "null"}}},
    {"properties": {"approve": {"const": False}, "arguments": {"type": "null"}}},
]}
TARGETS: dict[str, dict[str, Any]] = {
    "agent": {"type": "string"}, "everything": {"const": True}, "tool": {"type": "string"},
}
"""What may be paused, exactly one of them (`operators.Operators.pause` sees to that) → its schema."""


class _Terms(Body):
    """What a person decides."""

    model_config = ConfigDict(json_schema_extra=_SIDES)

    approve: bool
    fingerprint: Fingerprint
    reason: Reason | None = Field(None, description="With a denial it goes to the model.")
    arguments: dict[str, Any] | None = Field(None, description="Approve these instead, where the rule lets one edit.")
    respond: Any = Field(None, description="With a denial: a value for the model in place of the tool's result.")
    execute_within: Milliseconds | None = Field(None, description="Shorten the window to run, in milliseconds.")
    mute: MuteMilliseconds | None = Field(
        None, description="With a denial: refuse this tool for this requester unasked, for so many milliseconds."
    )


class DecisionBody(_Terms):
    """One decision on one request."""

    evidence: Evidence | None = Field(None, description="A passkey's answer, where a rule demands one.")


class ChallengeBody(_Terms):
    """A decision that is to be signed with a passkey: exactly what will be decided."""


class RevealBody(Body):
    """Which secret argument is to be shown."""

    pointer: Annotated[str, Field(max_length=4096, pattern="^(/[^/]*)*$")] = Field(description="Its JSON pointer.")


class RevokeBody(Body):
    """Why a request is withdrawn."""

    reason: Reason | None = None


class ResolveBody(Body):
    """What really happened to a call in doubt."""

    outcome: Literal["succeeded", "failed", "abandoned"]
    reason: Reason
    force: bool = Field(False, description="Also while its worker may still live.")


class ResumeBody(Body):
    """How a run goes on: with an answer to what a tool asked, or (without one) with what was decided elsewhere."""

    agent: Word | None = Field(None, description="Whose run it is; needed where there are several agents.")
    user: Word | None = Field(None, description="Whose run it is; one's own when omitted.")
    tool_call_id: Word | None = Field(None, description="Which call is answered; the most recent when omitted.")
    resume_data: Any = Field(None, description="The answer; absent: none is given.")


class PauseBody(Body):
    """What is paused or resumed: exactly one of a tool, an agent, or everything. Leaving all out means nothing."""

    model_config = ConfigDict(json_schema_extra={
        "oneOf": [{"required": [name], "properties": {name: schema}} for name, schema in TARGETS.items()]
    })

    tool: Word | None = None
    agent: Word | None = None
    everything: bool = Field(False, description="Not one tool or agent, but all of them.")
    everywhere: bool = Field(False, description="In all tenants; for operators of all tenants.")
    reason: Reason | None = None

    def target(self) -> dict[str, Any]:
        """Return what is meant, as the arguments of `service.Inbox.pause`."""
        return {
            "agent": self.agent, "everything": self.everything, "everywhere": self.everywhere, "tool": self.tool,
        }


class UnmuteBody(Body):
    """Which mute is taken away."""

    user: Word
    tool: Word
    reason: Reason | None = None


class PasskeyBody(Body):
    """A new passkey."""

    ticket: Ticket
    response: dict[str, Any] = Field(description="What `credential.toJSON()` gave.")
    name: Annotated[str, Field(min_length=1, max_length=100)]
    confirm: dict[str, Any] | None = Field(None, description="The answer of a passkey that is there already.")


class EmptyBody(Body):
    """Nothing: an empty object."""


def read(model: type[BodyT], raw: bytes) -> BodyT:
    """Return a body.

    Raises:
        CanonicalizationError: ``too-large``. DecisionError: ``invalid-approval``, detail ``malformed``: it is no strict
            JSON, or not what the model says.
    """
    try:
        data = canonical.parse(raw, limits=LIMITS)
    except CanonicalizationError as error:
        if error.code == "too-large":
            raise
        raise _malformed(str(error)) from None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # The values stay out of it: they may be secret.
        wrong = {".".join(map(str, one["loc"])) or "the body": one["msg"] for one in error.errors(include_input=False)}
        raise _malformed("; ".join(f"{place}: {message}" for place, message in list(wrong.items())[:3])) from None


def _malformed(message: str) -> DecisionError:
    return DecisionError(f"The body was not accepted: {message}", detail="malformed")
