"""The classifier policy: names but no values, a threshold, and a person wherever the answer is none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hitl_guard.agent.classifier import classifier_policy
from hitl_guard.errors import ConfigurationError
from hitl_guard.lifecycle.threads import resolve
from hitl_guard.policy.code import CallInfo, CodePolicy
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.core import PolicyInput, Status

CALL = PolicyInput(
    tool="refund", arguments={"order": "s3cret", "amount": 82}, user="ana", tenant="t", run_id="r", call_id="c",
    agent=None,
)


def answering(answer: Any) -> Any:
    async def classify(_: dict[str, Any]) -> Any:
        return answer

    return classify


async def test_m26_the_classifier_is_told_argument_names_and_no_values() -> None:
    asked: list[Any] = []

    async def classify(question: dict[str, Any]) -> float:
        asked.append(question)
        return 0.1

    await classifier_policy(classify)(CallInfo.of(CALL))

    assert asked == [{"tool_name": "refund", "argument_names": ["amount", "order"]}]


@pytest.mark.parametrize(
    ("answer", "asks"),
    [(0, False), (0.0, False), (0.69, False), (0.7, True), (1, True), ({"probability": 0.2}, False),
     ({"probability": 0.7, "why": "money"}, True)],
    ids=repr,
)
async def test_m26_from_the_threshold_on_a_person_is_asked(answer: Any, asks: bool) -> None:
    assert await classifier_policy(answering(answer))(CallInfo.of(CALL)) is asks


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"probability": None}, "0.1", {"probability": "0.1"}, False, {"probability": False}, float("nan"), -0.1,
     1.1, float("inf"), [0.1], {"Probability": 0.1}],
    ids=repr,
)
async def test_m26_an_answer_without_probability_asks_a_person(answer: Any) -> None:
    assert await classifier_policy(answering(answer), threshold=1)(CallInfo.of(CALL)) is True


async def test_a_sync_classifier_keeps_no_loop_waiting() -> None:
    threads: list[int] = []

    def classify(_: dict[str, Any]) -> float:
        threads.append(threading.get_ident())
        return 0.1

    assert await classifier_policy(classify)(CallInfo.of(CALL)) is False
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("threshold", [0, -1, 1.01, float("nan"), "0.7", None, True], ids=repr)
def test_a_threshold_that_means_nothing_is_refused(threshold: Any) -> None:
    with pytest.raises(ConfigurationError, match="threshold"):
        classifier_policy(answering(0), threshold=threshold)


@pytest.mark.parametrize(
    ("classify", "options"),
    [(0.7, {}), (answering(0), {"name": "risk"}), (answering(0), {"version": "1"}),
     (answering(0), {"name": "a b", "version": "1"})],
    ids=["no-function", "name", "version", "bad-name"],
)
def test_a_policy_that_cannot_be_declared_is_refused(classify: Any, options: Any) -> None:
    with pytest.raises(ConfigurationError):
        classifier_policy(classify, **options)


def test_a_declared_classifier_enters_the_policy_version() -> None:
    policies = [classifier_policy(answering(0), name="risk", version=version) for version in ("1", "2")]

    assert all(isinstance(policy, CodePolicy) for policy in policies)
    assert len({Policy(require_approval=policy).version for policy in policies}) == 2


@pytest.mark.parametrize(
    ("classify", "status", "errors"),
    [(answering(0.1), Status.NOT_APPLICABLE, 0), (answering(0.9), Status.USER_APPROVAL, 0),
     (lambda _: 0.9, Status.USER_APPROVAL, 0), (lambda _: 1 / 0, Status.USER_APPROVAL, 1)],
    ids=["low", "high", "sync", "raising"],
)
def test_m26_as_a_policy_it_asks_or_leaves_alone_and_a_failure_asks(classify: Any, status: Status, errors: int) -> None:
    policy = Policy(require_approval=classifier_policy(classify))

    verdict = policy.evaluate(CALL, tool_policy=None, resolve=resolve)

    assert (verdict.status, len(verdict.errors)) == (status, errors)
