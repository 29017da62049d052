"""The events of a network of agents: the same run, told as what its routing agent and its primitives do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .events import Event, Events
from .stream import AgentStream

if TYPE_CHECKING:
    from .agent import Agent


def translated(stream: AgentStream, agent: Agent) -> AgentStream:
    """Return a stream of the same run with a network's event types."""
    async def source(outer: AgentStream) -> Events:
        teller = _Teller(agent, stream)
        try:
            async for event in stream:
                outer.take_over(stream)
                yield teller.tell(event)
        finally:
            await stream.aclose()
            outer.take_over(stream)

    stream.unread()
    return AgentStream(stream.run_id, source)


class _Teller:
    """Translates one stream's events, one after the other."""

    def __init__(self, agent: Agent, stream: AgentStream) -> None:
        self._agent = agent
        self._stream = stream
        self._iteration = 0
        self._last: tuple[str, str] = ("none", "")

    def tell(self, event: Event) -> Event:
        """Return the event of a network for one event of a run."""
        kind, payload = event["type"], event["payload"]
        name, run_id = payload.get("toolName", ""), self._stream.run_id
        delegated = self._agent.sub_agent(name) is not None or "innerToolCallId" in payload
        primitive = "agent" if delegated else "tool"
        if kind == "step-start":
            self._iteration = payload["request"]["step"]
            return self._event(
                "routing-agent-start", agentId=self._agent.id, inputData={"iteration": self._iteration},
                networkId=self._agent.id, runId=run_id,
            )
        about = {"iteration": self._iteration, "primitiveId": name, "primitiveType": primitive}
        if kind in ("text-start", "text-delta", "text-end"):
            return self._event(f"routing-agent-{kind}", **payload)
        if kind == "tool-call":
            return self._event(f"{primitive}-execution-start", **payload, **about, runId=run_id)
        if kind in ("tool-call-approval", "tool-call-suspended"):
            kind = kind.replace("tool-call", f"{primitive}-execution")
            return self._event(kind, **payload, runId=run_id, selectionReason=payload.get("reason"))
        if kind in ("tool-result", "tool-error", "tool-output-denied"):
            self._last = primitive, name
            ended = {"isComplete": False, "result": _result(kind, payload), "task": payload["args"].get("prompt")}
            return self._event(f"{primitive}-execution-end", **(payload | about | ended))
        return self._finished(payload) if kind == "finish" else event | {"from": "NETWORK"}

    def _event(self, kind: str, /, **payload: Any) -> Event:
        return {"type": kind, "run_id": self._stream.run_id, "from": "NETWORK", "payload": payload}

    def _finished(self, payload: dict[str, Any]) -> Event:
        return self._event(
            "network-execution-event-finish", completionReason=payload["stepResult"]["reason"], isComplete=True,
            iteration=self._iteration, primitiveId=self._last[1], primitiveType=self._last[0],
            result=payload["output"]["text"], usage=payload["output"]["usage"], **payload,
        )


def _result(kind: str, payload: dict[str, Any]) -> Any:
    """Return what a primitive came to: its result, a decline's text, or an error's."""
    if kind == "tool-result":
        return payload["result"]
    return payload["approval"]["reason"] if kind == "tool-output-denied" else payload["error"]["message"]
