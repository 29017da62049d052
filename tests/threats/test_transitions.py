"""Two transitions of one request at once: exactly one wins, and the other is told what happened, whatever they are.

Every pair is run three times after both sides have read: the one first, the other first, and both together.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from hitl_guard.lifecycle import settle as settling
from hitl_guard.models import ApprovalRequest, Permit, Principal, ToolCall
from hitl_guard.policy.combined import Policy
from hitl_guard.store.sql import SQLStore
from tests.databases import KINDS, Database
from tests.support import BOB, CAROL, Settings, World, document, ring, until
from tests.threats.gates import LIMIT_S, GatedStore, all_read, at_once, told

RULES = """\
version: 1
name: races
default: not_applicable
rules:
  - {id: one, tools: [mail], effect: require_approval, edit: true}
  - {id: two, tools: [memo], effect: require_approval, edit: true, quorum: 2}
  - {id: many, tools: [edict], effect: require_approval, quorum: 8}
"""
OLGA = Principal("olga", roles=("operator",))
OTTO = Principal("otto", roles=("operator",))


class Arena:
    """One database and three nodes on it: home prepares, left and right race. Each has connections of its own."""

    def __init__(self, url: str) -> None:
        self.stores = {name: SQLStore(url) for name in ("home", "left", "right")}
        self.keyring = ring()
        self.policy, self.later = Policy.of(document(RULES)), Policy.of(document(RULES + "# a later version\n"))
        self.home = World(self.stores["home"], policy=self.policy, keyring=self.keyring)
        self.numbers = itertools.count()

    def node(
        self, name: str, passed: Callable[[], object] | None = None, *, policy: Policy | None = None,
        settings: Settings | None = None, **gate: Any,
    ) -> World:
        """Return a guard on one node's connections; with ``passed`` it stops there after its first reading."""
        world = World(self.stores[name], policy=policy or self.policy, keyring=self.keyring, settings=settings)
        if passed is not None:  # only now, since a guard that starts reads as well
            gated: Any = GatedStore(world.store, passed, **gate)
            world.guard._desk.store = gated
        return world

    def scene(self, tool: str, **settings: Any) -> Scene:
        """Return a new pending request; ``settings`` are the windows of the node that asks and claims."""
        number = next(self.numbers)
        call = ToolCall(tool, {"text": "hello"}, user="ana", run_id=f"run-{number}", call_id=f"call-{number}")
        owner = self.node("home", settings=Settings(**settings))
        return Scene(self, owner, call, owner.guard.request(call))


@dataclass
class Scene:
    """One request, and what its two rivals need.

    Attributes:
        behind: What a rival's clock said when it read; it was suspended since. None: as it is.
        permit: Of a call that was claimed.
    """

    arena: Arena
    owner: World
    call: ToolCall
    request: ApprovalRequest
    behind: int | None = None
    permit: Permit | None = None

    def overdue(self, moment: int | None) -> None:
        """Wait until a window is over, so that whoever is to race against its end has read before it."""
        assert moment is not None
        until(self.arena.stores["home"], moment)
        self.behind = moment - 1

    def events(self) -> list[str]:
        loaded = self.arena.stores["home"].load(self.request.tenant, request_id=self.request.id)
        return [event.type.partition(":")[2] for event in loaded.events]


@dataclass(frozen=True)
class Kind:
    """One kind of transition.

    Attributes:
        steps: The events that it adds to the request.
        act: What a node does.
        reads: The store's method with which it reads before it writes.
        later: Whether its node has the later version of the policy.
    """

    steps: list[str]
    act: Callable[[World, Scene, Principal], object]
    reads: str = "load"
    later: bool = False


def vote(node: World, scene: Scene, by: Principal) -> object:
    return node.approve(scene.request, by=by)


def deny(node: World, scene: Scene, by: Principal) -> object:
    return node.deny(scene.request, by=by)


def edit(node: World, scene: Scene, by: Principal) -> object:
    return node.approve(scene.request, by=by, arguments={"text": f"hello from {by.id}"})


def revoke(node: World, scene: Scene, by: Principal) -> None:
    node.guard.revoke(scene.request.id, by=by)


def sweep(node: World, _scene: Scene, _by: Principal) -> object:
    return node.guard.sweep()


def supersede(node: World, scene: Scene, _by: Principal) -> object:
    """Another version of the policy is in force on this node: what is open under the old one must be asked again."""
    return node.guard.authorize(scene.call)


def claim(node: World, scene: Scene, _by: Principal) -> object:
    return node.guard.authorize(scene.call, request_id=scene.request.id)


def settle(outcome: str, node: World, scene: Scene, _by: Principal) -> None:
    assert scene.permit is not None
    node.guard.settle(scene.permit, outcome)


def suspend(node: World, scene: Scene, _by: Principal) -> None:
    """The tool stops by its own word, to be started again with an answer."""
    assert scene.permit is not None
    settling.settle(node.guard._desk, scene.permit, "suspended", None)


def start_again(node: World, scene: Scene, _by: Principal) -> object:
    assert scene.permit is not None
    return node.guard._permit(scene.call, request_id=scene.request.id, resumes=scene.permit.claim_id)


def resolve(outcome: str, node: World, scene: Scene, by: Principal) -> object:
    operator = OLGA if by is BOB else OTTO
    return node.guard.resolve(scene.request.id, outcome, by=operator, reason="looked", force=True)


KINDS_OF = {
    "approve": Kind(["approved"], vote),
    "vote": Kind(["voted"], vote),
    "deny": Kind(["denied"], deny),
    "edit": Kind(["superseded"], edit),
    "revoke": Kind(["revoked"], revoke),
    "expire": Kind(["expired"], sweep, reads="open_requests"),
    "supersede": Kind(["superseded"], supersede, later=True),
    "claim": Kind(["claimed"], claim),
    "succeed": Kind(["succeeded"], partial(settle, "succeeded"), reads="now"),
    "fail": Kind(["failed"], partial(settle, "failed"), reads="now"),
    "doubt": Kind(["in_doubt"], partial(settle, "in_doubt"), reads="now"),
    "suspend": Kind(["suspended"], suspend, reads="now"),
    "start again": Kind(["resumed"], start_again),
    "overdue": Kind(["in_doubt"], sweep, reads="open_requests"),
    "call it done": Kind(["in_doubt", "succeeded"], partial(resolve, "succeeded")),
    "call it undone": Kind(["in_doubt", "failed"], partial(resolve, "failed")),
    "give it up": Kind(["in_doubt", "abandoned"], partial(resolve, "abandoned")),
}

ENDED = {"approve": "already-decided", "deny": "already-decided", "edit": "superseded", "revoke": "revoked",
         "expire": "expired", "supersede": "superseded"}
RESOLUTIONS = ("call it done", "call it undone", "give it up")

# loser → winner → what the loser is told, where that is an error; else the loser judges anew and has its way as well.
PENDING: dict[str, dict[str, str]] = {
    "approve": ENDED,
    "deny": ENDED,
    "edit": ENDED,
    "revoke": {name: code for name, code in ENDED.items() if name != "approve"},
    "expire": {},
    "supersede": {"deny": "denied"},
}
VOTED: dict[str, dict[str, str]] = {
    "vote": {name: code for name, code in ENDED.items() if name != "approve"},
    **{name: told_ for name, told_ in PENDING.items() if name != "approve"},
}
APPROVED: dict[str, dict[str, str]] = {
    "claim": {"claim": "consumed", "revoke": "revoked", "expire": "expired", "supersede": "superseded"},
    "revoke": {"claim": "already-decided", "revoke": "revoked", "expire": "expired", "supersede": "superseded"},
    "expire": {},
    "supersede": {"claim": "consumed"},
}
OUTCOMES = ("succeed", "fail", "doubt", "suspend")
SETTLED = dict.fromkeys((*OUTCOMES, "overdue", *RESOLUTIONS), "consumed")
EXECUTING: dict[str, dict[str, str]] = {
    **dict.fromkeys(OUTCOMES, SETTLED),
    **dict.fromkeys(RESOLUTIONS, dict.fromkeys(("succeed", "fail", "suspend", *RESOLUTIONS), "invalid-approval")),
    "overdue": {},
}
SUSPENDED: dict[str, dict[str, str]] = {
    "start again": {"start again": "consumed", "revoke": "revoked"},
    "revoke": {"start again": "already-decided", "revoke": "revoked"},
}
IN_DOUBT: dict[str, dict[str, str]] = dict.fromkeys(RESOLUTIONS, dict.fromkeys(RESOLUTIONS, "invalid-approval"))

# What was decided or claimed before a window's end, by a node that has been suspended since, comes too late.
TOO_LATE = {"approve", "vote", "deny", "edit", "claim"}

# What a loser that judges anew adds to the request, where that is not what it would have added alone.
ANEW = {
    ("vote", "vote"): ["approved"],
    **{(loser, winner): [] for loser in ("expire",) for winner in (*ENDED, "vote", "claim")},
    **{("supersede", winner): [] for winner in ("edit", "revoke", "expire", "supersede")},
    **{("overdue", winner): [] for winner in SETTLED},
    **{(loser, winner): KINDS_OF[loser].steps[1:] for loser in RESOLUTIONS for winner in ("doubt", "overdue")},
}

STATES = {
    "pending": PENDING, "voted": VOTED, "approved": APPROVED, "executing": EXECUTING, "suspended": SUSPENDED,
    "in_doubt": IN_DOUBT,
}
PAIRS = [
    (state, left, right)
    for state, table in STATES.items()
    for left, right in itertools.combinations_with_replacement(table, 2)
    if state != "voted" or "vote" in (left, right)
]


@pytest.fixture(scope="module", params=KINDS)
def arena(request: pytest.FixtureRequest, _maker: Any) -> Iterator[Arena]:
    """One database of each kind for all pairs; each pair has a request of its own."""
    place = Arena(_maker.make(request.param).url)
    yield place
    for store in place.stores.values():
        store.close()


def prepared(arena: Arena, state: str, kinds: tuple[str, str]) -> Scene:
    """Return a request in ``state``, overdue already where one of the rivals says that it is."""
    late = {"expire", "overdue"} & set(kinds)
    if state in ("pending", "voted"):
        scene = arena.scene("memo" if state == "voted" else "mail", **({"decide_within": 1} if late else {}))
        if late:
            scene.overdue(scene.request.decide_by)
        return scene
    scene = arena.scene("mail", run_within=1)
    window = {"execute_within": 1} if state == "approved" and late else {}
    arena.home.approve(scene.request, by=Principal("dora"), **window)
    scene.request = arena.home.guard.get(scene.request.id)
    if window:
        scene.overdue(scene.request.execute_by)
    if state in ("executing", "suspended", "in_doubt"):
        scene.permit = scene.owner.guard.authorize(scene.call)
        until(arena.stores["home"], arena.stores["home"].now() + 2)
        if state != "executing":
            settling.settle(scene.owner.guard._desk, scene.permit, state, None)
    return scene


def raced(arena: Arena, scene: Scene, kinds: tuple[str, str], first: int | None) -> list[str]:
    """Let both sides read, then write: ``first`` before the other, or at once. Return what each was told."""
    read, done = all_read(2), threading.Event()

    def rival(side: int) -> Callable[[], str]:
        kind = KINDS_OF[kinds[side]]

        def passed() -> None:
            read()
            if first is not None and side != first:
                assert done.wait(LIMIT_S)

        behind = None if kinds[side] == "expire" else scene.behind
        node = arena.node(
            ("left", "right")[side], passed, policy=arena.later if kind.later else None, after=kind.reads, now=behind
        )

        def act() -> str:
            try:
                return told(lambda: kind.act(node, scene, (BOB, CAROL)[side]))
            finally:
                if side == first:
                    done.set()

        return act

    return at_once([rival(0), rival(1)])


def outcome(state: str, winner: str, loser: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return what winner and loser are told, and the events that are added then."""
    def steps(kind: str) -> list[str]:
        return KINDS_OF[kind].steps[-1:] if state == "in_doubt" else KINDS_OF[kind].steps

    def had_its_way(kind: str) -> str:
        return "asked" if kind == "supersede" else "ok"

    code, events = STATES[state][loser].get(winner), steps(winner)
    if code is None:
        events = [*events, *ANEW.get((loser, winner), steps(loser))]
    return sorted([(winner, had_its_way(winner)), (loser, code or had_its_way(loser))]), events


def possible(kinds: tuple[str, str], first: int | None) -> list[tuple[str, str]]:
    """Return each ``(winner, loser)`` that there may be."""
    if "expire" in kinds and TOO_LATE & set(kinds):
        return [("expire", kinds[1 - kinds.index("expire")])]
    return [kinds, kinds[::-1]] if first is None else [(kinds[first], kinds[1 - first])]


@pytest.mark.parametrize(("state", "left", "right"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_of_two_simultaneous_transitions_one_wins_and_the_other_is_told(
    arena: Arena, state: str, left: str, right: str
) -> None:
    kinds = (left, right)

    for first in (0, 1, None):
        scene = prepared(arena, state, kinds)
        before = scene.events()

        answers = raced(arena, scene, kinds, first)

        allowed = [outcome(state, *order) for order in possible(kinds, first)]
        assert (sorted(zip(kinds, answers, strict=True)), scene.events()[len(before) :]) in allowed
        assert len(arena.home.guard.pending(run_id=scene.call.run_id, states=("pending", "approved"))) <= 1


@pytest.mark.parametrize("first", ["claim", "pause", None])
def test_of_a_claim_and_a_pause_the_one_that_commits_first_counts(arena: Arena, first: str | None) -> None:
    scene = prepared(arena, "approved", ("claim", "claim"))
    kinds = ("claim", "pause")
    read, done = all_read(2), threading.Event()

    def rival(kind: str) -> str:
        def passed() -> None:
            read()
            if first not in (None, kind):
                assert done.wait(LIMIT_S)

        node = arena.node("left" if kind == "claim" else "right", passed)
        try:
            if kind == "claim":
                return told(lambda: node.run(scene.call, request_id=scene.request.id))
            return told(lambda: node.guard.pause(by=OLGA, tool="mail"))
        finally:
            if kind == first:
                done.set()

    claimed, paused = at_once([partial(rival, kind) for kind in kinds])

    assert paused == "ok"
    assert claimed in {"claim": ["ok"], "pause": ["paused"], None: ["ok", "paused"]}[first]
    assert scene.events() == (["approved", "claimed", "succeeded"] if claimed == "ok" else ["approved"])
    arena.home.guard.resume(by=OLGA, tool="mail")
    again = told(lambda: arena.home.run(scene.call, request_id=scene.request.id))
    assert again == ("consumed" if claimed == "ok" else "ok")


def test_votes_towards_a_quorum_that_collide_are_all_kept(arena: Arena) -> None:
    scene = arena.scene("edict")
    people = [Principal(f"person-{number}") for number in range(8)]
    node = arena.node("left", all_read(len(people)))

    decisions = at_once([partial(node.approve, scene.request, by=person) for person in people])

    assert sorted(decision.state for decision in decisions) == ["approved"] + ["pending"] * 7
    assert scene.events() == ["voted"] * 7 + ["approved"]
    votes = arena.home.guard.get(scene.request.id).votes
    assert sorted(vote.approver for vote in votes) == [person.id for person in people]


def test_one_person_who_votes_in_two_sessions_at_once_counts_once(arena: Arena) -> None:
    scene = arena.scene("memo")
    node = arena.node("left", all_read(2))

    decisions = at_once([partial(node.approve, scene.request, by=BOB)] * 2)

    assert len({decision.nonce for decision in decisions}) == 1
    assert scene.events() == ["voted"]


def test_the_same_call_asked_by_many_at_once_is_one_request(arena: Arena) -> None:
    call = ToolCall("mail", {"text": "hello"}, user="ana", run_id=f"run-{next(arena.numbers)}", call_id="asked-by-many")
    node = arena.node("left", all_read(8))

    requests = at_once([partial(node.guard.request, call)] * 8)

    assert len({request.id for request in requests}) == 1


def test_a_pause_under_load_gets_through_and_nothing_is_claimed_after_it(
    make_world: Callable[..., World], database: Database, open_store: Callable[..., SQLStore]
) -> None:
    """Calls that the policy approves by itself are claimed without end, beside granted ones, until they are paused."""
    world = make_world()
    granted = [world.grant() for _ in range(16)]
    operator = world.another(store=open_store(database))
    running = all_read(5)

    def hammer(number: int) -> list[str]:
        grants = iter(granted[number::4])
        codes = [told(lambda: world.run(world.call("ping", call_id=f"first-{number}")))]
        running()
        while codes.count("paused") < 4:
            free = world.call("ping", call_id=f"{number}-{len(codes)}")
            call, request_id = free, None
            if len(codes) % 2 and (grant := next(grants, None)):
                call, request_id = grant[0], grant[1].id
            codes.append(told(partial(world.run, call, request_id=request_id)))
        return codes

    def pause() -> list[str]:
        running()
        operator.guard.pause(by=OLGA)
        return ["ok"] * len(operator.audited("grant:claimed"))

    hammers: list[Callable[[], list[str]]] = [partial(hammer, number) for number in range(4)]
    *hammered, claimed = at_once([*hammers, pause])

    codes = [code for one in hammered for code in one]
    assert set(codes) == {"ok", "paused"}
    assert codes.count("ok") == len(world.effects) == len(world.audited("grant:claimed")) == len(claimed)
    operator.guard.resume(by=OLGA)
    spent = sum(told(partial(world.run, call, request_id=request.id)) == "consumed" for call, request in granted)
    assert len(world.effects) == codes.count("ok") + len(granted) - spent
