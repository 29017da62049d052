"""The grammar of a policy file, as pydantic models: which keys there are and what each may hold.

Types are strict, unknown keys are refused, and a key that would have no effect is refused too.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from ..models import Requirement

DEFAULT_RULE: Final = "default"
"""Stands in `Verdict.rules` where no rule matched; no rule can have this id."""

_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST = 365 * _UNITS["d"]
_ASKING = ("approvers", "quorum", "self_approval", "channels", "evidence", "edit", "risk", "decide_within",
           "execute_within", "recheck_approvers")

Text = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"^[^\p{Cc}--\t\n]*$")
]
Slug = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Tool = Annotated[str, StringConstraints(pattern=r"^(?:[^*\s\p{Cc}]{1,256}\*?|\*)$")]
Approver = Annotated[
    str, StringConstraints(pattern=r"^(?:user:[^\s\p{Cc}]{1,256}|[A-Za-z0-9][A-Za-z0-9._@/-]{0,127})$")
]
Channel = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]


class RuleFile(BaseModel):
    """One rule. Keys from ``approvers`` on say who decides and how, so they belong to ``require_approval`` only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Slug
    tools: Annotated[list[Tool], Field(min_length=1, max_length=500)]
    when: str | None = None
    effect: Literal["allow", "deny", "require_approval"]
    reason: Text | None = None
    approvers: Annotated[list[Approver], Field(min_length=1, max_length=50)] | None = None
    quorum: Annotated[int, Field(ge=1, le=20)] = 1
    self_approval: bool = False
    channels: Annotated[list[Channel], Field(min_length=1, max_length=20)] | None = None
    evidence: str = "hmac"
    edit: bool = False
    risk: Literal["low", "medium", "high", "critical"] | None = None
    decide_within: str | None = None
    execute_within: str | None = None
    recheck_approvers: bool = False

    @field_validator("id")
    @classmethod
    def _not_reserved(cls, value: str) -> str:
        if value == DEFAULT_RULE:
            raise ValueError("this id stands for the document's default; choose another one.")
        return value

    @field_validator("tools", "approvers", "channels")
    @classmethod
    def _distinct(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError("an entry stands here twice; remove one.")
        return value

    @field_validator("evidence")
    @classmethod
    def _supported(cls, value: str) -> str:
        if value == "ed25519":
            raise ValueError("'ed25519' evidence is not supported by this version; use 'passkey' or 'hmac'.")
        if value not in ("hmac", "passkey"):
            raise ValueError("this kind of evidence is unknown; use 'passkey' or 'hmac'.")
        return value

    @field_validator("decide_within", "execute_within")
    @classmethod
    def _duration(cls, value: str | None) -> str | None:
        if value is not None:
            milliseconds(value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> RuleFile:
        empty = sorted(name for name in self.model_fields_set if getattr(self, name) is None)
        if empty:
            raise ValueError(f"'{empty[0]}' has no value; give it one or remove the key.")
        if self.effect != "require_approval":
            useless = [name for name in _ASKING if name in self.model_fields_set]
            if useless:
                raise ValueError(f"'{useless[0]}' has no meaning in a rule that asks nobody; remove it.")
        if self.effect == "allow" and any(tool.endswith("*") for tool in self.tools):
            raise ValueError("an allow rule names its tools exactly; replace the name that ends with '*'.")
        named = self.approvers is not None and all(name.startswith("user:") for name in self.approvers)
        if named and self.quorum > len(self.approvers or ()):
            raise ValueError("the quorum is larger than the number of named users; lower it or name a role.")
        return self

    def requirement(self) -> Requirement:
        """Return what the rule demands, if it asks for a person."""
        return Requirement(
            approvers=tuple(self.approvers or ()),
            quorum=self.quorum,
            self_approval=self.self_approval,
            channels=tuple(self.channels or ()),
            evidence=self.evidence,
            edit=self.edit,
            risk=self.risk,
            decide_within=None if self.decide_within is None else milliseconds(self.decide_within),
            execute_within=None if self.execute_within is None else milliseconds(self.execute_within),
            recheck_approvers=self.recheck_approvers,
        )


class DocumentFile(BaseModel):
    """One policy file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    version: Annotated[int, Field(ge=1, le=1)]
    name: Slug
    default: Literal["allow", "deny", "require_approval", "not_applicable"]
    rules: Annotated[list[RuleFile], Field(max_length=1_000)] = []


def milliseconds(duration: str) -> int:
    """Return a duration such as ``15m`` or ``24h`` (units s, m, h, d; at most 365d) in milliseconds.

    Raises:
        ValueError: it is written otherwise.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", duration, re.ASCII)
    length = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < length <= _LONGEST:
        raise ValueError("a duration is a whole number with s, m, h or d, such as '15m', and at most 365d.")
    return length


