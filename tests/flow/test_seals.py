"""Sealed functions inside frameworks: arguments that were made of the signed ones, and those that nobody signs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr, TypeAdapter, field_serializer

from hitl_guard.errors import ArgsMismatchError, ConfigurationError
from tests.support import World


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Item(BaseModel):
    sku: str
    count: int = 1
    price: int = Field(default=5, exclude=True)


class Rounded(BaseModel):
    amount: int

    @field_serializer("amount")
    def _shown(self, amount: int) -> int:
        return amount // 100 * 100


@dataclass
class Place:
    row: int


class RunContext:
    """Stands where a framework's own type does."""


RunContext.__module__ = "pydantic_ai.tools"


def made(hint: Any, signed: Any) -> Any:
    """Return what a framework makes of JSON data by an annotation."""
    return TypeAdapter(hint).validate_python(signed)


def run(world: World, function: Callable[..., Any], signed: Any, given: Callable[[], Any]) -> Any:
    """Approve a call with the signed value, and start the sealed function with another, as a framework would."""
    sealed = world.guard.sealed(function, name="refund")
    call, _ = world.grant(world.call(arguments={"value": signed}))
    return world.guard.run(call, lambda value: sealed(value=given()))


def taking(world: World, hint: Any) -> Callable[..., Any]:
    def refund(value: Any) -> str:
        return world.tool(value=value)

    refund.__annotations__ = {"value": hint}
    return refund


COERCED: list[tuple[Any, Any, Any]] = [
    (date, "2030-01-02", "2030-01-03"),
    (Size, "small", "large"),
    (Item, {"sku": "a", "count": 2}, {"sku": "a", "count": 3}),
    (list[Item], [{"sku": "a"}], [{"sku": "b"}]),
    (dict[str, Item], {"k": {"sku": "a"}}, {"k": {"sku": "b"}}),
    (int, "42", "99"),
    (Decimal, "1.10", "1.20"),
    (Annotated[int, Field(ge=0)], "7", "8"),
    (Place | None, {"row": 1}, {"row": 2}),
    (SecretStr, "abc", "abd"),
    (Rounded, {"amount": 110}, {"amount": 120}),
    (Item, {"sku": "a", "price": 1}, {"sku": "a", "price": 2}),
]


@pytest.mark.parametrize(("hint", "signed", "other"), COERCED, ids=lambda value: str(value)[:40])
def test_a_seal_opens_for_what_the_framework_made_of_the_signed_arguments_and_for_nothing_else(
    world: World, hint: Any, signed: Any, other: Any
) -> None:
    assert run(world, taking(world, hint), signed, lambda: made(hint, signed)) == "done"
    assert world.effects == [{"value": made(hint, signed)}]

    with world.refused("args-mismatch", "sealed"):
        run(world, taking(world, hint), signed, lambda: made(hint, other))


@pytest.mark.parametrize(("hint", "signed", "given"), [
    (int, 42, "42"), (str, "1", 1), (bool, True, 1), (Any, {"row": 1}, Place(1)),
    (Place, {"row": 1}, {"row": 1, "x": 2}), (date, "2030-01-02", "2030-01-03"), (int, "x", 42), (Any, 1, object()),
    (set[int], [1], {1, 2}),
], ids=["text", "number", "boolean", "object", "mapping", "date", "unfit", "opaque", "set"])
def test_a_seal_stays_shut_for_what_reads_alike_but_is_something_else(
    world: World, hint: Any, signed: Any, given: Any
) -> None:
    with world.refused("args-mismatch", "sealed"):
        run(world, taking(world, hint), signed, lambda: given)


def test_a_function_of_one_model_may_be_a_tool_of_its_members(world: World) -> None:
    def refund(item: Item) -> str:
        return world.tool(item=item)

    sealed = world.guard.sealed(refund)
    call, _ = world.grant(world.call(arguments={"sku": "a", "count": 2}))
    assert world.guard.run(call, lambda **members: sealed(item=Item(**members))) == "done"

    again, _ = world.grant(world.call(arguments={"sku": "a", "count": 2}))
    with world.refused("args-mismatch", "sealed"):
        world.guard.run(again, lambda **members: sealed(item=Item(sku="b", count=2)))


def test_parameters_that_a_framework_fills_in_are_not_compared(world: World) -> None:
    def refund(ctx: RunContext, value: int, clock: Any = None) -> str:
        return world.tool(value=value)

    sealed = world.guard.sealed(refund, injected=["clock"])
    call, _ = world.grant(world.call(arguments={"value": 1}))

    assert world.guard.run(call, lambda value: sealed(RunContext(), value=value, clock=object())) == "done"

    again, _ = world.grant(world.call(arguments={"value": 1}))
    with world.refused("args-mismatch", "sealed"):
        world.guard.run(again, lambda value: sealed(RunContext(), value=2))


def test_a_signed_argument_never_fills_a_parameter_of_the_framework(world: World) -> None:
    def refund(value: int, clock: Any = None) -> str:
        return world.tool(value=value)

    sealed = world.guard.sealed(refund, injected=["clock"])
    call, _ = world.grant(world.call(arguments={"value": 1, "clock": 2}))

    with world.refused("args-mismatch", "sealed"):
        world.guard.run(call, lambda value, clock: sealed(value=value, clock=clock))


def test_a_parameter_that_nobody_named_as_injected_is_refused_with_what_to_do(world: World) -> None:
    def refund(value: int, clock: Any = None) -> str:
        return world.tool(value=value)

    sealed = world.guard.sealed(refund)
    call, _ = world.grant(world.call(arguments={"value": 1}))

    with pytest.raises(ArgsMismatchError, match="injected"):
        world.guard.run(call, lambda value: sealed(value=value, clock=object()))


@pytest.mark.parametrize("injected", ["value", ["other"]], ids=str)
def test_only_parameters_of_the_function_can_be_injected(world: World, injected: Any) -> None:
    with pytest.raises(ConfigurationError, match="injected"):
        world.guard.sealed(taking(world, int), injected=injected)


def test_a_default_that_was_not_signed_is_the_functions_own(world: World) -> None:
    def refund(value: int, day: date = date(2030, 1, 2)) -> str:
        return world.tool(value=value, day=day)

    sealed = world.guard.sealed(refund)
    call, _ = world.grant(world.call(arguments={"value": 1}))
    assert world.guard.run(call, lambda value: sealed(value=value)) == "done"

    again, _ = world.grant(world.call(arguments={"value": 1}))
    with world.refused("args-mismatch", "sealed"):
        world.guard.run(again, lambda value: sealed(value=value, day=date(2031, 1, 2)))


def test_annotations_that_cannot_be_read_leave_the_plain_comparison(world: World) -> None:
    def refund(value: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
        return world.tool(value=value)

    assert run(world, refund, 1, lambda: 1) == "done"
    with world.refused("args-mismatch", "sealed"):
        run(world, refund, "1", lambda: 1)
