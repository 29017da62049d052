"""The README's example for each framework does what it says, with the real package and a scripted model."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.bench import Bench
from tests.frameworks.told import ORDER, headings, holds

CLAUDE = "Claude Agent SDK"
CASES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Pydantic AI": ("pydantic_ai", lambda rig: rig._model(ORDER)),
    "LangChain": ("langchain", lambda rig: rig.Model(script=ORDER)),
    "LangGraph": ("langchain", lambda rig: rig.Model(script=ORDER)),
    "OpenAI Agents SDK": ("openai_agents", lambda rig: rig.model_of(ORDER)),
    "MCP servers": ("mcp", lambda rig: None),
    "FastMCP": ("fastmcp", lambda rig: None),
    "Microsoft Agent Framework": ("agent_framework", lambda rig: rig.Scripted(script=ORDER)),
    CLAUDE: ("claude_agent", lambda rig: None),
    "Strands Agents": ("strands", lambda rig: rig.Scripted(ORDER)),
    "Google ADK": ("google_adk", lambda rig: rig.Scripted(model="scripted", script=ORDER)),
}
"""Heading → the rig with a scripted model, and how that is made."""

PACKAGES = {"openai_agents": "agents", "google_adk": "google.adk"}


@pytest.mark.parametrize("heading", [heading for heading in CASES if heading != CLAUDE])
async def test_the_readmes_example_waits_and_then_runs_once(
    heading: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.folder)
    rig, model = CASES[heading]
    pytest.importorskip(PACKAGES.get(rig, rig))

    await holds(heading, bench, model=model(import_module(f"tests.frameworks.rig_{rig}")))


async def test_the_readmes_example_of_the_claude_agent_sdk_waits_and_then_runs_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("claude_agent_sdk")
    fake = import_module("tests.frameworks.fake_anthropic")
    rig = import_module("tests.frameworks.rig_claude_agent")
    model = fake.Model([[("t1", "mcp__shop__delete_order", {"order": "A-17"})]])

    def goes_on() -> None:
        model.repeats = rig.PENDING

    with fake.serving(model) as url:
        for name, value in rig.environment(tmp_path, url).items():
            monkeypatch.setenv(name, value)
        await holds(CLAUDE, bench, goes_on, model="claude-none")


def test_every_framework_that_the_readme_tells_of_has_its_example_run() -> None:
    assert headings() == list(CASES)
