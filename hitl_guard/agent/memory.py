"""Keeping conversations."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Memory:
    """How an agent keeps conversations: in the guard's store, by thread and resource.

    Attributes:
        last_messages: About how many earlier messages the model gets; None: all of them.

    Raises:
        ConfigurationError: that is no positive integer.
    """

    last_messages: int | None = None

    def __post_init__(self) -> None:
        if self.last_messages is not None and (type(self.last_messages) is not int or self.last_messages < 1):
            raise ConfigurationError("'last_messages' is a positive integer, or None.")
