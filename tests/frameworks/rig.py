"""What the contract needs of a framework: a run that can pause, its stored state, and a resume with fresh objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tests.frameworks.bench import Setup


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run, or its resumption, came back.

    Attributes:
        state: The paused run as an app stores it, as text; None where it ended.
        told: Every result of a tool that the model was given, and its last answer, one after the other.
    """

    state: str | None
    told: str


class Rig(ABC):
    """One framework's real package with a scripted model. Nothing is kept between two calls of `run`.

    Attributes:
        name: As the README's table has it. package: The distribution whose version the table tells.
        absent: Row → why this framework has no such thing.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    absent: ClassVar[dict[str, str]] = {}

    @abstractmethod
    async def run(self, setup: Setup, state: str | None = None) -> Outcome:
        """Start a run; with ``state`` resume that one, saying yes to every waiting call in the framework's own way."""

    @abstractmethod
    async def selftest(self, setup: Setup) -> None:
        """Run the adapter's self-test; with ``setup.guarded`` false, of an agent without the adapter's hook."""

    def tampered(self, state: str) -> str:
        """Return the state with 42 made 99 wherever it stands, so that the framework itself does not notice."""
        assert "42" in state
        return state.replace("42", "99")
