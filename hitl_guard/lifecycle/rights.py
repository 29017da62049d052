"""Who may decide, and when the votes are enough."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..envelope import PASSKEY, Vote
from ..errors import NotAuthorisedError, UnavailableError
from ..models import Principal, Requirement, check_text
from ..render.characters import is_hidden
from .assertions import verify
from .settings import Settings


class Directory(Protocol):
    """Answers what a principal may do *now*. Needed where a rule says ``recheck_approvers``."""

    def roles_of(self, tenant: str, principal_id: str) -> Sequence[str] | None:
        """Return the person's roles, or None when the person is unknown or disabled."""


@dataclass(frozen=True, slots=True)
class Parties:
    """Who stands behind a call, as folded names: the requester's side, and the agent's own."""

    requester: frozenset[str]
    agent: frozenset[str]

    def joined(self, others: Parties) -> Parties:
        """Return everybody who stands behind a call that two sides made."""
        return Parties(self.requester | others.requester, self.agent | others.agent)


def folded(names: Iterable[str]) -> frozenset[str]:
    """Return names as they are compared for self-approval.

    Compatibility caseless (Unicode D146), without outer space and without what nobody sees (`characters.is_hidden`).
    """
    return frozenset(map(_folded, names))


@functools.lru_cache(maxsize=4096)
def _folded(name: str) -> str:
    return _caseless(_visible(name)).strip()


def _caseless(name: str) -> str:
    # Folding undoes what normalising did (and the reverse) for some Greek letters; hence twice, as Unicode says.
    once = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", name).casefold())
    return unicodedata.normalize("NFKC", once.casefold())


def _visible(text: str) -> str:
    # What normalising makes a plain space of stays: it stands between two words.
    return "".join(one for one in text if not is_hidden(one) or unicodedata.normalize("NFKC", one) == " ")


def parties(user: str | Principal, agent: str | Principal | None) -> Parties:
    """Return who asked: the user with every alias and the agent's owner on one side, the agent on the other."""
    requester = list(user.every_name() if isinstance(user, Principal) else (user,))
    own: tuple[str, ...] = ()
    if isinstance(agent, Principal):
        own = (agent.id, *agent.aliases, *agent.unverified_aliases)
        requester += [] if agent.owner is None else [agent.owner]
    elif agent is not None:
        own = (agent,)
    return Parties(folded(requester), folded(own))


def objection(need: Requirement, who: Parties, vote: Vote) -> str | None:
    """Return why this vote does not count for this requirement (a detail slug), or None when it counts."""
    names = frozenset(vote.names)
    if vote.automatic:
        return "automatic"
    if vote.kind != "human":
        return "kind"
    if names & who.agent or (names & who.requester and not need.self_approval):
        return "self-approval"
    # A role that is named like a user's entry stands for nobody.
    roles = {role for role in vote.roles if not role.startswith("user:")}
    if need.approvers and not {f"user:{vote.approver}", *roles} & set(need.approvers):
        return "role"
    if need.channels and vote.channel not in need.channels:
        return "channel"
    return "evidence" if _lacks_evidence(need, vote) else None


def _lacks_evidence(need: Requirement, vote: Vote) -> bool:
    """Whether a vote would count if it were proven. A kind of evidence that is unknown here proves nothing.

    A plain denial needs none: it hands nothing on and can only stop the call, which must be possible at once.
    """
    if need.evidence == "hmac":
        return False
    plain_denial = not vote.approve and vote.response is None
    return need.evidence != PASSKEY or not (plain_denial or vote.evidence is not None)


def entitled(needs: Sequence[Requirement], who: Parties, vote: Vote) -> None:
    """Raise `NotAuthorisedError` unless the vote counts for a requirement and breaks no rule on self-approval."""
    slugs = [objection(need, who, vote) for need in needs]
    if "self-approval" in slugs:
        raise NotAuthorisedError("Nobody may decide their own request; ask another person.", detail="self-approval")
    if "evidence" in slugs:
        # Also where it would count for another requirement: nobody can vote a second time, with the passkey.
        raise NotAuthorisedError("This decision needs your passkey: decide on the approval page.", detail="evidence")
    if all(slugs):
        slug = next((item for item in slugs if item), "role")
        raise NotAuthorisedError("You may not decide this request; ask somebody whom the rule names.", detail=slug)


def check_standing(needs: Sequence[Requirement], who: Parties, by: Principal, *, channel: str | None = None) -> None:
    """Raise `NotAuthorisedError` unless the rules let a principal decide, whatever the request's state is.

    Args:
        channel: Whether it may from there too; None: from wherever the rules allow.
    """
    # A plain denial: the least that anybody does who may decide. It needs no passkey, an approval may.
    vote = Vote(
        tenant=by.tenant, request_id="", fingerprint="", policy_version="", approver=by.id, kind=by.kind,
        names=tuple(sorted(folded(by.every_name()))), roles=by.roles, channel=channel or "", credential=None,
        approve=False, automatic=False, reason=None, response=None, nonce="",
    )
    entitled(needs if channel is not None else [_anywhere(need) for need in needs], who, vote)


@functools.lru_cache(maxsize=1024)
def _anywhere(need: Requirement) -> Requirement:
    return replace(need, channels=())


def may_decide(needs: Sequence[Requirement], who: Parties, by: Principal, *, channel: str | None = None) -> bool:
    """Whether `check_standing` passes."""
    return passes(check_standing, needs, who, by, channel=channel)


def operates(by: Principal, role: str) -> bool:
    """Whether a principal is an operator: one with the operators' role, and no agent."""
    return role in by.roles and by.kind != "agent"


def check_revoker(
    needs: Sequence[Requirement], who: Parties, by: Principal, *, user: str, operator_role: str
) -> None:
    """Raise `NotAuthorisedError` unless a principal may withdraw a request: an operator, the requester, or whoever may
    decide it. Nobody may who does not see it (`may_see`).

    Args:
        user: The requester's id.
    """
    if not operates(by, operator_role) and not _is_requester(user, by):
        check_standing(needs, who, by)


def _is_requester(user: str, by: Principal) -> bool:
    """Whether a principal is the requester, as far as that lets somebody in.

    Exactly: names are folded where they exclude somebody, and never where they let somebody in.
    """
    return user in by.names()


def check_resolver(who: Parties, by: Principal, *, operator_role: str) -> None:
    """Raise `NotAuthorisedError` unless a principal may close a call in doubt: an operator who did not ask for it."""
    if not operates(by, operator_role):
        raise NotAuthorisedError(f"Resolving needs the role '{operator_role}'.", detail="role")
    if folded(by.every_name()) & (who.requester | who.agent):
        raise NotAuthorisedError("The requester cannot resolve the own call.", detail="self-approval")


def passes(check: Callable[..., None], *given: Any, **named: Any) -> bool:
    """Whether one of the checks here raises nothing."""
    try:
        check(*given, **named)
    except NotAuthorisedError:
        return False
    return True


def may_see(
    needs: Sequence[Requirement], who: Parties, by: Principal, *, user: str, voters: Iterable[str], operator: bool
) -> bool:
    """Whether a principal of the request's tenant sees it: an operator, the requester, who voted, who may decide.

    Args:
        user: The requester's id. voters: The ids of the people who decided. operator: Whether ``by`` is one.
    """
    return operator or _is_requester(user, by) or by.id in set(voters) or may_decide(needs, who, by)


def met(needs: Sequence[Requirement], who: Parties, votes: Sequence[Vote]) -> bool:
    """Whether every requirement has its quorum of distinct people. No requirement at all is not met."""
    return bool(needs) and all(_people(need, who, votes) >= need.quorum for need in needs)


def _people(need: Requirement, who: Parties, votes: Sequence[Vote]) -> int:
    counted: list[frozenset[str]] = []
    for vote in votes:
        names = frozenset(vote.names)
        if vote.approve and objection(need, who, vote) is None and not any(names & other for other in counted):
            counted.append(names)
    return len(counted)


def approvals(needs: Sequence[Requirement], who: Parties, votes: Sequence[Vote]) -> tuple[int, ...]:
    """Return for each requirement how many people's approvals count for it so far."""
    return tuple(_people(need, who, votes) for need in needs)


def missing(needs: Sequence[Requirement], given: Sequence[int]) -> tuple[int, ...]:
    """Return for each requirement how many more people must approve, after these `approvals`."""
    return tuple(max(0, need.quorum - count) for need, count in zip(needs, given, strict=True))


def check_decisions(
    needs: Sequence[Requirement], who: Parties, votes: Sequence[Vote], *, directory: Directory | None,
    settings: Settings,
) -> None:
    """Check the votes of a grant once more, at the claim. (The policy's own approvals are claimed as they are made.)

    Where evidence is demanded, it is verified again from what is stored: that a row verified is not enough.

    Raises:
        NotAuthorisedError: ``detail`` quorum; evidence when a passkey's is missing or does not verify; or role when an
            approver lost the right since.
        UnavailableError: the directory failed to answer.
        ConfigurationError: passkeys cannot be verified here.
    """
    if any(need.evidence != "hmac" for need in needs):
        for vote in votes:
            if vote.evidence is not None:
                verify(vote, expected_rp=settings.rp_id or "", expected_origins=settings.rp_origins)
        if not met(needs, who, votes) and met([replace(need, evidence="hmac") for need in needs], who, votes):
            raise NotAuthorisedError("A recorded decision was not proven with a passkey; ask again.", detail="evidence")
    if not met(needs, who, votes):
        raise NotAuthorisedError("The recorded decisions are not enough; ask again.", detail="quorum")
    again = any(need.recheck_approvers for need in needs)
    if again and not met(needs, who, [_as_of_now(vote, directory) for vote in votes]):
        raise NotAuthorisedError("An approver has lost the right to approve this; ask again.", detail="role")


def _as_of_now(vote: Vote, directory: Directory | None) -> Vote:
    try:
        found = None if directory is None else directory.roles_of(vote.tenant, vote.approver)
        roles = None if found is None else tuple(check_text("role", role) for role in found)
    except Exception as error:
        raise UnavailableError("The directory did not answer; try again.", detail="directory") from error
    if roles is None:
        raise NotAuthorisedError("An approver is disabled or unknown by now; ask again.", detail="role")
    return replace(vote, roles=roles)
