"""How long does a policy document of 50 CEL rules take for one call?

The floor is the bare engine: the same 50 expressions on one activation, with none of our checks. The second row
compares with the time that the design promises, 150 µs.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from cel_expr_python import cel  # type: ignore[import-untyped]  # the library ships no py.typed

from hitl_guard import Policy
from hitl_guard.policy.core import PolicyInput
from hitl_guard.policy.documents import PolicyDocument

from ._harness import Row

RULES = 50
PROMISED_S = 150e-6
CONDITIONS = [f"args.amount > {100 + number} && args.currency == 'EUR'" for number in range(RULES)]
CALL = PolicyInput(
    tool="refund",
    arguments={
        "amount": 60, "currency": "EUR", "order": "A-100", "note": "hello world",
        "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
    },
    user="ana", tenant="default", run_id="run-1", call_id="call-1", agent="bot",
)


def rows() -> list[Row]:
    """Measure, and return one row against the bare engine and one against the promise."""
    policy = Policy(_document())
    bare = _bare()
    ours, floor = _interleaved(lambda: policy.evaluate(CALL), bare)
    return [
        Row(name="evaluate 50 CEL rules vs the bare engine", ours=ours, floor=floor, ratio=ours / floor, hold=1.5,
            ok=ours / floor <= 1.5),
        Row(name="evaluate 50 CEL rules vs 150 µs", ours=ours, floor=PROMISED_S, ratio=ours / PROMISED_S, hold=2.0,
            ok=ours / PROMISED_S <= 2.0),
    ]


def _document() -> PolicyDocument:
    rules = "".join(
        f"  - id: rule-{number}\n    tools: [refund]\n    when: {condition}\n    effect: require_approval\n"
        for number, condition in enumerate(CONDITIONS)
    )
    return PolicyDocument.from_source(f"version: 1\nname: bench\ndefault: deny\nrules:\n{rules}".encode(), "bench.yaml")


def _bare() -> Callable[[], object]:
    env = cel.NewEnv(variables={"args": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})
    expressions = [env.compile(condition) for condition in CONDITIONS]

    def evaluate() -> object:
        activation = env.Activation({"args": CALL.arguments})
        return [expression.eval(activation).value() for expression in expressions]

    return evaluate


def _interleaved(first: Callable[[], object], second: Callable[[], object], *, rounds: int = 41) -> tuple[float, float]:
    """Return the median seconds of each, measured in turns so that a busy machine slows both."""
    taken: dict[Callable[[], object], list[float]] = {first: [], second: []}
    for _ in range(rounds):
        for function, times in taken.items():
            begin = perf_counter()
            for _ in range(20):
                function()
            times.append((perf_counter() - begin) / 20)
    return median(taken[first]), median(taken[second])
