"""F4, F7, F8: the store fails at any one of its uses. Nothing runs off the record, and the run can go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.lifecycle import claim
from hitl_guard.lifecycle.desk import new_id
from hitl_guard.lifecycle.ledger import verify
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import Permit
from tests.agent.faults import Failing, code_of, noticed
from tests.agent.processes import one
from tests.agent.scenes import SCENES, approve, check, histories, start, to_the_end
from tests.agent.stage import Stage
from tests.threats.faults import BEFORE, COMMIT_AFTER, WHEN, install

MakeStage = Callable[..., Stage]
READS = ("load", "load_run", "segments", "last_segments", "now")
MODES: dict[str, dict[str, bool]] = {"refused": {}, "reply-lost": {"after": True}, "down": {"stays": True}}


@pytest.fixture
def make_brief(make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Stage]:
    """Make stages on which whatever a failed process holds is overdue at once."""
    monkeypatch.setattr(claim, "_start_by", lambda desk: None)
    return lambda: make_stage(settings=Settings(run_within=1))


async def survived(stage: Stage, scene: str, methods: tuple[str, ...], mode: str) -> int:
    """Let each use of the store fail in turn, in a new run each; return how many uses there were."""
    build, before, act, _ = SCENES[scene]
    known: set[str] = set()
    for at in itertools.count():
        stage.ran.clear()
        agent, run_id = build(stage), f"run-{new_id()}"
        for step in before:
            await step(agent, run_id)
        failing = Failing(stage, *methods, at=at, **MODES[mode])
        code = await code_of(act(agent, run_id))
        failing.mend()
        if len(failing.used) <= at:
            assert code == "ok"
            return at
        assert len(stage.guard.pending()) <= stage.stored()  # what can be decided can go on

        await to_the_end(stage, agent, run_id)

        found = histories(stage)
        check(stage, agent, scene, [types for id_, types in found.items() if id_ not in known])
        known.update(found)
    raise AssertionError("unreachable")


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("mode", ["refused", "reply-lost"])
async def test_f04_whichever_commit_fails_nothing_runs_twice_or_off_the_record_and_the_run_ends(
    make_brief: Callable[[], Stage], mode: str, scene: str
) -> None:
    stage = make_brief()

    commits = await survived(stage, scene, ("write",), mode)

    assert commits >= SCENES[scene][3]
    assert not verify(stage.guard._desk).findings


@pytest.mark.parametrize("scene", SCENES)
async def test_f04_from_whichever_commit_on_the_store_is_down_the_run_goes_on_when_it_is_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, scene: str
) -> None:
    brief = Stage(stage.store, settings=Settings(run_within=1))
    monkeypatch.setattr(claim, "_start_by", lambda desk: None)

    commits = await survived(brief, scene, ("write",), "down")

    assert commits >= SCENES[scene][3]


@pytest.mark.parametrize("scene", SCENES)
async def test_f07_whichever_reading_fails_nothing_runs_twice_or_off_the_record_and_the_run_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, scene: str
) -> None:
    brief = Stage(stage.store, settings=Settings(run_within=1))
    monkeypatch.setattr(claim, "_start_by", lambda desk: None)

    readings = await survived(brief, scene, READS, "refused")

    assert readings >= 3
    assert not verify(brief.guard._desk).findings


async def test_f04_a_check_of_outages_notices_a_tool_that_runs_off_the_record(
    make_brief: Callable[[], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unclaimed(desk: Any, _bound: Any, _reading: Any, record: Any) -> Permit:
        return claim._permit(desk, record, new_id(), record.last)

    monkeypatch.setattr(claim, "claim", unclaimed)

    await noticed(survived(make_brief(), "approve", ("write",), "refused"))


@pytest.mark.parametrize(
    ("when", "stays_down"), [*((when, False) for when in WHEN), (BEFORE, True), (COMMIT_AFTER, True)],
)
@pytest.mark.parametrize("statement", ["ask", "decide", "claim", "settle"])
async def test_f08_a_connection_that_breaks_at_a_commit_leaves_a_run_that_goes_on(
    make_brief: Callable[[], Stage], monkeypatch: pytest.MonkeyPatch, statement: str, when: str, stays_down: bool
) -> None:
    broken = install(monkeypatch)
    stage = make_brief()
    agent = one(stage)
    if statement != "ask":
        await start(agent, "r")
    broken.arm(statement, when, stays_down=stays_down)

    code = await code_of((start if statement == "ask" else approve)(agent, "r"))

    assert broken.happened == 1
    broken.mend()
    assert code in ("ok", "store-unavailable", "audit-unavailable")
    assert len(stage.guard.pending()) <= stage.stored()
    if code == "ok":
        assert len(stage.ran) == (0 if statement == "ask" else 1)
    await to_the_end(stage, agent, "r")
    check(stage, agent, "start" if statement == "ask" else "approve", list(histories(stage).values()))
    assert not verify(stage.guard._desk).findings
