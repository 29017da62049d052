"""A policy that asks a classifier how risky a call is, and a person above a threshold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigurationError
from ..policy.code import CallInfo, CodePolicy, code_policy
from . import functions


def classifier_policy(
    classify: Callable[[dict[str, Any]], Any], *, threshold: float = 0.7, name: str | None = None,
    version: str | None = None,
) -> Callable[[CallInfo], Any] | CodePolicy:
    """Return a policy function for ``require_tool_approval``: True where a classifier says that the call is risky.

    The classifier is asked with ``{"tool_name": …, "argument_names": […]}``. It never sees a value: these may be
    secrets, and it may be somebody else's service.

    Args:
        classify: Sync or async function of the question. It answers with a probability from 0 to 1, or with a mapping
            that has one as ``probability``; any other answer counts as 1. If it raises, a person is asked, too.
        threshold: From which probability on a person is asked, above 0 and at most 1. Choose it by what may go wrong.
        name, version: Both, to make approvals depend on this classifier (see `hitl_guard.policy.code.code_policy`):
            change the version with the classifier or the threshold.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    if not callable(classify):
        raise ConfigurationError("A classifier must be a function of the question.")
    if type(threshold) not in (int, float) or not 0 < threshold <= 1:
        raise ConfigurationError("A classifier's threshold is a number above 0 and at most 1.")
    if (name is None) != (version is None):
        raise ConfigurationError("Give a classifier policy both a name and a version, or neither.")

    async def policy(info: CallInfo) -> bool:
        question = {"tool_name": info.tool_name, "argument_names": sorted(info.args)}
        # A sync classifier runs in a thread: it may wait for the network.
        return _probability(await functions.start(classify, (question,))) >= threshold

    return policy if name is None or version is None else code_policy(policy, name=name, version=version)


def _probability(answer: Any) -> float:
    """Return the probability in an answer; 1 when it has none that can be believed."""
    found = answer.get("probability") if isinstance(answer, Mapping) else answer
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return 1.0
    return float(found) if 0 <= found <= 1 else 1.0
