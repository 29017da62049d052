"""The demo of ``hitl-guard serve``: an agent that wants to pay money back, one who asks it to, and two who decide."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from .. import clock
from ..agent import Agent, tool
from ..agent.gate import EXPIRED
from ..agent.runs import SuspendedRun
from ..agent.stream import AgentResult
from ..asgi import create_app
from ..asgi.app import gone, refused
from ..asgi.body import read_body
from ..asgi.headers import SecurityHeaders
from ..asgi.identity import Viewer
from ..asgi.login import LoginLinks
from ..asgi.logs import failed
from ..asgi.service import Inbox
from ..errors import HitlGuardError, PausedError, UnavailableError
from ..guard import Guard
from ..keyring import Keyring
from ..keys import Key
from ..lifecycle.refusals import DEFAULT_DENIAL
from ..lifecycle.settings import Settings
from ..lifecycle.threads import offload
from ..models import Principal
from ..policy.documents import PolicyDocument
from ..render import escape
from ..store import SQLStore
from ._common import say

POLICY = b"""\
version: 1
name: demo
default: deny
rules:
  - id: look-ups
    tools: [look_up_order]
    effect: allow
  - id: refunds
    tools: [refund]
    effect: require_approval
    reason: Money leaves the house.
    approvers: [support-lead]
    edit: true
    risk: medium
  - id: large-refunds
    tools: [refund]
    when: args.amount > 1000.0
    effect: require_approval
    reason: More than 1,000.00 needs two people.
    approvers: [support-lead]
    quorum: 2
    risk: high
"""

ANA = Principal("ana")
BOB = Principal("bob", roles=("support-lead", "operator"))
CLEO = Principal("cleo", roles=("support-lead",))

EVERY_S = 0.5
"""How often the demo looks whether somebody has decided, in seconds."""

PAUSED = "waits: an operator paused it; it goes on when that is resumed"

KEPT = 100
"""How many of the latest runs and refunds the page shows, and how many runs may wait at once."""


class Demo:
    """The whole demo as one app.

    Attributes:
        app: Serve it. inbox: What is mounted at ``/``. ran: What the agent's tools really did, the latest.
    """

    def __init__(self, folder: Path, origin: str) -> None:
        self._origin = origin
        store = SQLStore(f"sqlite:///{folder / 'approvals.db'}")
        store.setup()
        settings = Settings(
            rp_id=urlsplit(origin).hostname, rp_name="hitl_guard demo", rp_origins=(origin,),
            max_open_per_requester=KEPT,
        )
        self.guard = Guard(
            policy=PolicyDocument.from_source(POLICY, "demo.yaml"), store=store, settings=settings,
            keyring=Keyring([Key.generate(clock.epoch_ms() - 60_000)]),
        )
        self.ran: deque[str] = deque(maxlen=KEPT)
        self.agent = Agent("support-bot", model=_model, tools=self._tools(), guard=self.guard)
        self.links = LoginLinks(self.guard, home="/demo/")
        inbox = create_app(self.guard, authenticate=self.links, agents=[self.agent], origins=[origin])
        self.inbox: Inbox = inbox.state.inbox
        self._runs: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._stuck: deque[str] = deque(maxlen=KEPT)
        self.app = Starlette(
            routes=[
                Mount("/login", self.links.app()),
                Mount("/demo", SecurityHeaders(Starlette(routes=[
                    Route("/", self._page, methods=["GET"]), Route("/", self._ask, methods=["POST"]),
                ], exception_handlers={ClientDisconnect: gone, HitlGuardError: refused}))),
                Mount("/", inbox),
            ],
            lifespan=self._watching,
        )

    def introduce(self) -> None:
        """Print the login links."""
        say(f"The demo runs on {self._origin}, with a database that goes when it ends (Ctrl-C).\n")
        for person, does in (
            (ANA, "asks the agent for refunds"), (BOB, "decides, and can pause everything"),
            (CLEO, "decides; refunds over 1,000.00 need both"),
        ):
            say(f"  {person.id:<5} {does}\n        {self.links.link(person, self._origin)}\n")
        say("Each link works once, for a quarter of an hour. Open them in different browsers or private windows.")

    def _tools(self) -> list[Any]:
        @tool(effect="none")
        async def look_up_order(order: str) -> dict[str, Any]:
            """Return what is known of an order."""
            return {"order": order, "paid": "82.00", "state": "arrived broken"}

        @tool
        async def refund(order: str, amount: float) -> str:
            """Pay money back for an order."""
            self.ran.append(f"{amount:.2f} for {order}")
            return f"refunded {amount:.2f} for {order}"

        return [look_up_order, refund]

    # -- the requester's page ------------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        viewer = await self.inbox.viewer(request)
        if viewer is None:
            return RedirectResponse("/", status_code=303)
        return self._shown(request, viewer)

    def _shown(
        self, request: Request, viewer: Viewer, error: str | None = None, *, order: str = "A-17", amount: str = "82.00"
    ) -> Response:
        html = _TEMPLATES.get_template("demo.html").render(
            amount=amount, asks=viewer.principal.id == ANA.id, error=error, order=order,
            ran=[escape(text) for text in self.ran],
            runs=[{name: escape(_line(str(text))) for name, text in run.items()} for run in reversed(self._runs)],
            token=self.inbox.sessions.token(request, viewer), who=escape(viewer.display),
        )
        return HTMLResponse(html, status_code=200 if error is None else 422)

    async def _ask(self, request: Request) -> Response:
        viewer = await self.inbox.viewer(request)
        if viewer is None or viewer.principal.id != ANA.id:
            return RedirectResponse("/", status_code=303)
        given = parse_qs((await read_body(request.receive, limit=10_000)).decode("utf-8", "replace"))
        form = {name: values[0] for name, values in given.items()}
        await self.inbox.sessions.check(request, viewer, form)
        order, amount = form.get("order", ""), form.get("amount", "")
        shown = partial(self._shown, request, viewer, order=order, amount=amount)
        if not re.fullmatch(r"[\w-]{1,20}", order) or not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,2})?", amount):
            return shown("Give an order like A-17 and an amount like 82.00.")
        try:
            result = await self.agent.generate(f"Refund {amount} for order {order}.", user=ANA)
        except HitlGuardError as error:
            return shown(f"The agent was refused: {error}")
        self._runs.append({"asked": f"{amount} for {order}", "run": result.run_id, "state": _state(result)})
        return RedirectResponse("/demo/", status_code=303)

    # -- going on ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _watching(self, _app: Starlette) -> AsyncIterator[None]:
        watcher = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
            await self.inbox.close()
            await offload(self.guard.close)

    async def _watch(self) -> None:
        """Go on with each run once its request was decided, as a server's own worker would."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                found = await self.agent.list_suspended_runs(user=ANA)
            except HitlGuardError as error:
                failed("The demo's runs cannot be read", error)
                continue
            for run in found.runs:
                if run.run_id not in self._stuck:
                    await self._look_after(run)

    async def _look_after(self, run: SuspendedRun) -> None:
        """Go on with a run that was decided. One that cannot go on is told once, and left alone from then on."""
        try:
            if await offload(partial(self._can_go_on, run)):
                await self._go_on(run.run_id)
        except PausedError:
            self._say(run.run_id, PAUSED)
        except UnavailableError as error:
            failed("A run of the demo could not go on yet", error, run=run.run_id)
        except Exception as error:  # noqa: BLE001  the other runs go on; this one's page and the log say what it was
            failed("A run of the demo did not go on", error, run=run.run_id)
            self._stuck.append(run.run_id)
            self._say(run.run_id, f"failed: {type(error).__name__}")

    def _can_go_on(self, run: SuspendedRun) -> bool:
        """Whether somebody has decided about a run. Raises `PausedError` while it must wait all the same."""
        if all(self.guard.get(call.pause_id).state == "pending" for call in run.tool_calls):
            return False
        self.guard.control().check(tool="refund", agent=self.agent.id, policy_version=self.guard.policy_version)
        return True

    async def _go_on(self, run_id: str) -> None:
        result = await self.agent.continue_generate(run_id, user=ANA)
        self._say(run_id, _state(result))

    def _say(self, run_id: str, state: str) -> None:
        for run in self._runs:
            if run["run"] == run_id:
                run["state"] = state


_NOT_RUN = {
    "limit-exceeded": "not asked: too many requests wait", "paused": "not asked: an operator paused it",
    "revoked": "withdrawn",
}


def _state(result: AgentResult) -> str:
    """Return what became of the refund of a run."""
    if result.status == "suspended":
        return "waits for a decision"
    ended = [event for event in result.tool_results if event["payload"]["toolName"] == "refund"]
    if not ended:
        return f"ended without a refund: {result.text or result.status}"
    payload = ended[-1]["payload"]
    if ended[-1]["type"] == "tool-result":
        return str(payload["result"])
    if ended[-1]["type"] == "tool-error":
        code = payload["error"].get("code")
        return _NOT_RUN.get(code, f"not run: {code}")
    reason = payload["approval"]["reason"]
    if reason == EXPIRED:
        return "expired: it was not decided, or did not run, in time"
    # Of a call that was put to nobody there is no request: somebody has muted such calls.
    denied = "denied" if "approvalId" in payload["approval"] else "denied without asking, since somebody muted it"
    return denied if reason == DEFAULT_DENIAL else f"{denied}: {reason}"


def _line(text: str) -> str:
    """Return text as one line."""
    return " ".join(text.split())


async def _model(messages: list[dict[str, Any]], _tools: Any, _settings: Any) -> dict[str, Any]:
    """Say what a model would: look the order up, ask for the refund, then tell how it ended."""
    said = [message for message in messages if message["role"] == "tool"]
    if len(said) >= 2:
        return {"content": f"It ended like this: {said[-1]['content']}"}
    asked = next(message["content"] for message in messages if message["role"] == "user")
    amount, order = re.findall(r"Refund ([0-9.]+) for order ([\w-]+)\.", str(asked))[0]
    name, arguments = ("refund", {"amount": float(amount), "order": order}) if said else (
        "look_up_order", {"order": order}
    )
    function = {"arguments": json.dumps(arguments), "name": name}
    return {"content": None, "tool_calls": [{"function": function, "id": f"call_{len(said)}", "type": "function"}]}


_TEMPLATES = Environment(loader=PackageLoader("hitl_guard.asgi"), autoescape=True, undefined=StrictUndefined)
