"""What holds in every framework, and what the README's table tells: one test a row."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hitl_guard.errors import ConfigurationError
from tests.frameworks.bench import MIXED, ONE, PAYING, Bench, Setup
from tests.frameworks.rig import Outcome, Rig

ROOT = Path(__file__).resolve().parents[2]


class Contract:
    """Collected in each framework's test module, as ``class TestX(Contract)`` with a ``rig``."""

    rig: ClassVar[Rig]

    @pytest.fixture(autouse=True)
    def _has(self, request: pytest.FixtureRequest) -> None:
        why = self.rig.absent.get(row_of(request.node.name))
        if why is not None:
            pytest.skip(why)

    async def paused(self, setup: Setup) -> str:
        """Run until the framework has paused, and return the state."""
        outcome = await self.rig.run(setup)
        assert outcome.state is not None
        return outcome.state

    async def test_pause_a_gated_call_waits_with_exactly_its_arguments(self, bench: Bench) -> None:
        outcome = await self.rig.run(Setup(bench=bench))

        assert (outcome.state is None, bench.ran) == (False, [])
        request = bench.only()
        assert (request.tool, request.arguments, request.user) == ("delete_record", {"record": 42}, "ana")

    async def test_approve_the_approved_call_runs_once(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench))
        request = bench.only()
        bench.approve(request)

        outcome = await self.rig.run(Setup(bench=bench), state)

        assert (outcome.state, bench.ran, bench.state(request)) == (None, ["delete 42"], "succeeded")
        assert "deleted 42" in outcome.told

    async def test_deny_a_denied_call_does_not_run_and_the_model_hears_why(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench))
        bench.deny(bench.only(), "Not this one.")

        outcome = await self.rig.run(Setup(bench=bench), state)

        assert (outcome.state, bench.ran) == (None, [])
        assert "Not this one." in outcome.told

    async def test_edit_the_call_runs_as_the_person_changed_it_and_the_model_is_told(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench))
        bench.approve(bench.only(), arguments={"record": 43})

        outcome = await self.rig.run(Setup(bench=bench), state)

        assert (outcome.state, bench.ran) == (None, ["delete 43"])
        assert "deleted 43" in outcome.told
        assert "A person changed this call" in outcome.told

    async def test_fresh_process_a_run_goes_on_in_another_process(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench))
        bench.approve(bench.only())

        told = resumed_elsewhere(self.rig, bench, state)

        assert (told["state"], bench.ran) == (None, ["delete 42"])
        assert "deleted 42" in told["told"]

    async def test_99_an_altered_state_runs_nothing_and_burns_nothing(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench))
        request = bench.only()
        bench.approve(request)

        with contextlib.suppress(Exception):  # the framework's own refusal is as good
            await self.rig.run(Setup(bench=bench), self.rig.tampered(state))

        assert (bench.ran, bench.state(request)) == ([], "approved")
        await self.rig.run(Setup(bench=bench), state)
        assert bench.ran == ["delete 42"]

    async def test_replay_a_restored_state_runs_nothing_again(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench))
        bench.approve(bench.only())
        await self.rig.run(Setup(bench=bench), state)

        with contextlib.suppress(Exception):
            await self.rig.run(Setup(bench=bench), state)

        assert bench.ran == ["delete 42"]

    async def test_own_yes_the_frameworks_own_approval_lets_nothing_run(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench))

        with contextlib.suppress(Exception):
            await self.rig.run(Setup(bench=bench), state)

        assert (bench.ran, bench.only().state) == ([], "pending")

    async def test_late_hook_what_changes_arguments_after_the_guard_is_refused_by_the_seal(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench))
        bench.approve(bench.only())

        with contextlib.suppress(Exception):
            await self.rig.run(Setup(bench=bench, late=True), state)

        assert bench.ran == []
        assert ("args-mismatch", "sealed") in bench.refusals()

    async def test_parallel_calls_of_one_turn_get_mixed_answers(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench, script=MIXED))
        for request in bench.waiting():
            if request.arguments == {"record": 42}:
                bench.approve(request)
            else:
                bench.deny(request, "Keep seven.")

        outcome = await self.resumed(Setup(bench=bench, script=MIXED), state)

        assert sorted(bench.ran) == ["delete 42", "look attic"]
        assert all(text in outcome.told for text in ("deleted 42", "Keep seven.", "seen: attic"))

    async def test_turn_small_calls_of_one_turn_do_not_slip_under_a_limit_together(self, bench: Bench) -> None:
        outcome = await self.rig.run(Setup(bench=bench, script=PAYING))

        # Where the framework does not tell what is in a turn, every call of it waits.
        assert len(bench.ran) < len(PAYING[0])
        assert bench.waiting()
        for _ in PAYING[0]:  # some frameworks ask for one call after the other
            for request in bench.waiting():
                bench.approve(request)
            if outcome.state is not None:
                outcome = await self.rig.run(Setup(bench=bench, script=PAYING), outcome.state)
        assert (outcome.state, sorted(bench.ran)) == (None, ["pay 20", "pay 21", "pay 22"])

    async def resumed(self, setup: Setup, state: str) -> Outcome:
        """Resume until nothing waits; some frameworks ask for one call after the other."""
        outcome = await self.rig.run(setup, state)
        assert outcome.state is None
        return outcome

    async def test_sub_agent_a_call_of_a_sub_agent_is_asked_for_and_runs_once(self, bench: Bench) -> None:
        setup = Setup(bench=bench, inner=True)
        first = await self.rig.run(setup)
        assert bench.ran == []
        bench.approve(bench.only())

        again = await self.rig.run(setup, first.state)

        assert (again.state, bench.ran) == (None, ["delete 42"])

    async def test_streaming_a_streamed_run_pauses_and_goes_on(self, bench: Bench) -> None:
        setup = Setup(bench=bench, stream=True)
        state = await self.paused(setup)
        assert bench.ran == []
        bench.approve(bench.only())

        outcome = await self.rig.run(setup, state)

        assert (outcome.state, bench.ran) == (None, ["delete 42"])

    async def test_raising_when_the_hook_raises_nothing_runs(self, bench: Bench) -> None:
        with contextlib.suppress(Exception):
            await self.rig.run(Setup(bench=bench, broken=True))
        assert (bench.ran, bench.waiting()) == ([], [])

        state = await self.paused(Setup(bench=bench))
        bench.approve(bench.only())
        with contextlib.suppress(Exception):
            await self.rig.run(Setup(bench=bench, broken=True), state)
        assert bench.ran == []

    async def test_raising_when_the_store_is_down_nothing_runs_and_nothing_is_lost(self, bench: Bench) -> None:
        state = await self.paused(Setup(bench=bench))
        bench.approve(bench.only())
        broken = Bench(bench.folder)
        broken.fail()

        with contextlib.suppress(Exception):
            await self.rig.run(Setup(bench=broken), state)
        broken.close()

        assert bench.ran == []
        await self.rig.run(Setup(bench=bench), state)
        assert bench.ran == ["delete 42"]

    async def test_retry_the_same_call_again_spends_the_grant_once(self, bench: Bench) -> None:
        setup = Setup(bench=bench, pause="retry")
        first = await self.rig.run(setup)
        assert (first.state, bench.ran) == (None, [])
        assert "approval-pending" in first.told
        bench.approve(bench.only())

        second = await self.rig.run(Setup(bench=bench, pause="retry", script=[[("c2", *ONE[0][0][1:])]]))
        third = await self.rig.run(Setup(bench=bench, pause="retry", script=[[("c3", *ONE[0][0][1:])]]))

        assert bench.ran == ["delete 42"]
        assert "deleted 42" in second.told
        assert "approval-pending" in third.told

    async def test_self_test_a_canary_tells_whether_the_agent_is_guarded(self, bench: Bench) -> None:
        await self.rig.selftest(Setup(bench=bench))
        with pytest.raises(ConfigurationError):
            await self.rig.selftest(Setup(bench=bench, guarded=False))

        assert (bench.ran, bench.waiting()) == ([], [])


def row_of(name: str) -> str:
    """Return the row of the README's table that a test proves."""
    return next((row for row, start in ROWS.items() if name.startswith(f"test_{start}_")), "")


ROWS = {
    "pause": "pause", "approve": "approve", "deny": "deny", "edit": "edit", "fresh process": "fresh_process",
    "42→99": "99", "replay": "replay", "own yes": "own_yes", "late hook": "late_hook", "parallel": "parallel",
    "turn": "turn", "sub-agent": "sub_agent", "streaming": "streaming", "raising": "raising", "retry": "retry",
    "self-test": "self_test",
}
"""Row of the table → how the names of its tests begin."""


def resumed_elsewhere(rig: Rig, bench: Bench, state: str) -> dict[str, Any]:
    """Resume in a new Python process, which shares nothing with this one but the folder."""
    kind = type(rig)
    order = {"rig": f"{kind.__module__}:{kind.__qualname__}", "folder": str(bench.folder), "state": state}
    done = subprocess.run(
        [sys.executable, "-m", "tests.frameworks.fresh"], input=json.dumps(order), cwd=ROOT, text=True,
        capture_output=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
