"""Runs the README's examples for frameworks: up to the pause, then on, after a person has decided.

An example is the first ```` ```py ```` block under its heading, in at most fifteen lines of code. It finds ``guard``,
``model`` (a scripted one) and a function ``delete_order`` that is not sealed yet, and may await at its top level.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hitl_guard.guard import Guard
from hitl_guard.keyring import Keyring
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.documents import PolicyDocument
from tests.frameworks.bench import BOB, Bench, Turn

README = Path(__file__).resolve().parents[2] / "README.md"
DECIDES = "# a person decides"
MOST_LINES = 15
ORDER: list[Turn] = [[("c1", "delete_order", {"order": "A-17"})]]
POLICY = """\
version: 1
name: shop
default: require_approval
rules:
  - id: deletes
    tools: [delete_order]
    effect: require_approval
"""


CHAPTER = "In a framework you already run"


def headings() -> list[str]:
    """Return the sections of the README's chapter on frameworks."""
    chapter = README.read_text("utf-8").partition(f"\n## {CHAPTER}\n")[2].partition("\n## ")[0]
    return re.findall(r"^### (.+)$", chapter, re.MULTILINE)


def parts_of(heading: str) -> tuple[str, str]:
    """Return what stands before and after a person's decision in the example of a section."""
    _, found, rest = README.read_text("utf-8").partition(f"\n### {heading}\n")
    assert found, f"README.md has no section '{heading}'"
    section = re.split(r"^#{2,3} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    (code,) = re.findall(r"^```py\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= MOST_LINES
    before, decides, after = code.partition(DECIDES)
    assert decides, f"the example of '{heading}' does not say where a person decides"
    return before, "#" + after


async def holds(heading: str, bench: Bench, between: Callable[[], None] = lambda: None, **names: Any) -> None:
    """Run a section's example: the call waits, and runs once after a person's yes.

    Args:
        between: Called once the person has decided.
    """
    policy = Policy.of(PolicyDocument.from_source(POLICY.encode(), "shop.yaml"))
    guard = Guard(policy=policy, keyring=Keyring.from_file(bench.folder / "keys.json"), store=bench.store)

    def delete_order(order: str) -> str:
        """Delete an order."""
        bench.note(f"delete {order}")
        return f"deleted {order}"

    space = {"__name__": "example", "guard": guard, "delete_order": delete_order, **names}
    before, after = parts_of(heading)
    await _run(before, space)
    assert bench.ran == []
    (request,) = guard.pending().requests
    assert (request.tool, request.arguments, request.user) == ("delete_order", {"order": "A-17"}, "ana")
    guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)
    between()
    await _run(after, space)
    assert (bench.ran, guard.get(request.id).state) == (["delete A-17"], "succeeded")


async def _run(code: str, space: dict[str, Any]) -> None:
    compiled = compile(code, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ended = eval(compiled, space)  # noqa: S307  our own README
    if inspect.isawaitable(ended):
        await ended
