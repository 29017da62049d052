"""`hitl-guard serve`: what it refuses to start without, and the demo from the login link to the refund."""

from __future__ import annotations

import functools
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from hitl_guard.agent import Agent
from hitl_guard.aio import AsyncGuard
from hitl_guard.cli import main, serve_demo
from hitl_guard.cli.serve_demo import ANA, BOB, Demo
from hitl_guard.guard import Guard
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.lifecycle.threads import offload
from hitl_guard.models import Principal
from hitl_guard.store.sql import SQLStore
from hitl_guard.testing import ScriptedModel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    keys, database = tmp_path / "keys.json", tmp_path / "approvals.db"
    runner = CliRunner()
    assert runner.invoke(main, ["keys", "generate", "--out", str(keys)]).exit_code == 0
    assert runner.invoke(main, ["db", "upgrade", "--store", f"sqlite:///{database}"]).exit_code == 0
    return {
        "HITL_GUARD_KEYS_FILE": str(keys), "HITL_GUARD_POLICY": "user-approval",
        "HITL_GUARD_STORE": f"sqlite:///{database}",
    }


def made() -> Guard:
    """A host's own guard."""
    return Guard.from_env()


def agents() -> list[Agent]:
    """A host's agents, with a guard of their own."""
    return [Agent("shop", model=ScriptedModel("Hello."), guard=made())]


def broken() -> None:
    raise ZeroDivisionError("the key is k-123")


async def later() -> Guard:
    return made()


@functools.cache
def with_settings() -> AsyncGuard:
    """A host's own guard, in which operators have another role."""
    store = SQLStore(os.environ["HITL_GUARD_STORE"])
    return AsyncGuard(policy="user-approval", store=store, settings=Settings(operator_role="chief"))


def its_agents() -> tuple[Agent, ...]:
    return (Agent("shop", model=ScriptedModel("Hello."), guard=with_settings().guard),)


def by_bearer(request: Any) -> Principal | None:
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Principal(name, roles=("chief",)) if name else None


FETCH = {"sec-fetch-site": "same-origin"}
AUTHENTICATED = ("--authenticate", "hitl_guard.asgi:request_user")

REFUSED: dict[str, tuple[str | None, tuple[str, ...], str]] = {
    "no authenticator": (None, (), "--authenticate"),
    "an authenticator that is not there": (None, ("--authenticate", "hitl_guard.asgi:nobody"), "cannot be loaded"),
    "no store": ("HITL_GUARD_STORE", AUTHENTICATED, "--store"),
    "no keys": ("HITL_GUARD_KEYS_FILE", AUTHENTICATED, "HITL_GUARD_KEYS"),
    "no policy": ("HITL_GUARD_POLICY", AUTHENTICATED, "--policy"),
    "every address without TLS": (None, (*AUTHENTICATED, "--host", "::"), "--tls-certificate"),
    "another host's name without TLS": (None, (*AUTHENTICATED, "--host", "approvals.example"), "--tls-certificate"),
    "a proxy without the origin": (None, (*AUTHENTICATED, "--proxy", "10.0.0.0/8"), "--origin"),
    "half of TLS": (None, (*AUTHENTICATED, "--tls-key", __file__), "together"),
    "a guard that is not there": (None, (*AUTHENTICATED, "--guard", "no_such_module:guard"), "--guard no_such_module"),
    "a guard that is none": (None, (*AUTHENTICATED, "--guard", "builtins:dict"), "no Guard"),
    "an asynchronous function": (None, (*AUTHENTICATED, "--guard", "tests.cli.test_serve:later"), "asynchronous"),
    "a guard that cannot be made": (None, (*AUTHENTICATED, "--guard", "tests.cli.test_serve:broken"), "ZeroDivision"),
    "a host's guard without keys": (
        "HITL_GUARD_KEYS_FILE", (*AUTHENTICATED, "--guard", "tests.cli.test_serve:made"), "HITL_GUARD_KEYS"),
    "a host's guard without a store": (
        "HITL_GUARD_STORE", (*AUTHENTICATED, "--guard", "tests.cli.test_serve:made"), "HITL_GUARD_STORE"),
    "a host's guard and no authenticator": (None, ("--guard", "tests.cli.test_serve:made"), "--authenticate"),
    "a host's guard and another store": (
        None, (*AUTHENTICATED, "--guard", "tests.cli.test_serve:made", "--store", "sqlite:///x.db"), "leave --store"),
    "agents without their guard": (None, (*AUTHENTICATED, "--agents", "tests.cli.test_serve:agents"), "--guard too"),
    "agents that are none": (
        None, (*AUTHENTICATED, "--guard", "tests.cli.test_serve:made", "--agents", "builtins:dict"), "no list"),
    "agents of another guard": (
        None, (*AUTHENTICATED, "--guard", "tests.cli.test_serve:made", "--agents", "tests.cli.test_serve:agents"),
        "the inbox's own guard"),
    "the demo with another guard": (None, ("--demo", "--guard", "tests.cli.test_serve:made"), "of its own"),
    "the demo for everybody": (None, ("--demo", "--host", "::", "--proxy", "10.0.0.0/8", "--origin", "https://a.b"),
                               "this machine only"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_x10_the_server_does_not_start_without(environment: dict[str, str], why: str) -> None:
    missing, options, said = REFUSED[why]
    given = {name: None if name == missing else value for name, value in environment.items()}

    result = CliRunner(env={**given, "HITL_GUARD_KEYS": None}).invoke(main, ["serve", *options])

    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "k-123" not in result.output


@contextmanager
def serving(*options: str, until: str, **environ: str) -> Iterator[tuple[str, str]]:
    """Yield the address of a running server, and what it said up to the line with ``until`` in it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("hitl-guard")), "serve", *options, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if until in line:
                    break
            yield f"http://localhost:{port}", "".join(said)
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def demo() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address of a running demo, and the login link of each person."""
    with serving("--demo", until="quarter of an hour") as (base, said):
        yield base, dict(re.findall(r"^  (\w+) .*\n\s+(http\S+)", said, re.MULTILINE))


def test_x10_the_server_serves_the_hosts_own_guard_and_agents(environment: dict[str, str]) -> None:
    own = f"{__name__}:"
    options = ("--guard", own + "with_settings", "--agents", own + "its_agents", "--authenticate", own + "by_bearer")
    with serving(*options, until="The inbox is on", PYTHONPATH=str(ROOT), **environment) as (base, _), httpx.Client(
        base_url=base, transport=httpx.HTTPTransport(retries=8), headers={"authorization": "Bearer olga"}
    ) as olga:
        assert olga.get("/api/session").json()["operator"] is True
        assert olga.get("/api/runs", params={"agent": "shop", "user": "ana"}).json()["total"] == 0
        assert olga.get("/api/runs", params={"agent": "other"}).status_code == 404
        assert httpx.get(f"{base}/api/session").status_code == 401


async def test_the_demo_tells_of_a_run_that_cannot_go_on_once_and_goes_on_with_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = Demo(tmp_path, "http://localhost:8080")
    runs = [await shown.agent.generate(f"Refund {amount} for order A-17.", user=ANA) for amount in ("1.00", "2.00")]
    for run in runs:
        shown._runs.append({"asked": "it", "run": run.run_id, "state": run.status})
    for request in shown.guard.pending():
        shown.guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)
    real = shown.agent.continue_generate

    async def fails_once(run_id: str, **options: Any) -> Any:
        if run_id == runs[0].run_id:
            raise RuntimeError("the key is k-123")
        return await real(run_id, **options)

    shown.agent.continue_generate = fails_once  # type: ignore[method-assign]
    for waiting in (await shown.agent.list_suspended_runs(user=ANA)).runs:
        await shown._look_after(waiting)

    states = {run["run"]: run["state"] for run in shown._runs}
    assert states[runs[0].run_id] == "failed: RuntimeError"
    assert "refunded 2.00" in states[runs[1].run_id]
    assert list(shown._stuck) == [runs[0].run_id]
    assert len(caplog.records) == 1
    assert "RuntimeError" in caplog.text
    assert "k-123" not in caplog.text
    await offload(shown.guard.close)


async def test_the_demo_keeps_a_bounded_number_of_runs_and_says_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_demo, "KEPT", 2)
    shown = Demo(tmp_path, "http://localhost:8080")
    link = shown.links.link(ANA, "http://localhost:8080")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(shown.app), base_url="http://localhost:8080", headers=FETCH,
        follow_redirects=True,
    ) as ana:
        assert (await ana.post(link)).status_code == 200
        token = re.findall(r'name="csrf_token" value="([^"]+)"', (await ana.get("/demo/")).text)[0]
        form = {"csrf_token": token, "order": "A-17", "amount": "82.00"}
        answers = [await ana.post("/demo/", data=form) for _ in range(3)]
        stranger = await ana.post("/demo/", data=form | {"csrf_token": "x"})

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert "Refused (limit-exceeded)" in answers[-1].text
    assert stranger.status_code == 403
    assert len(shown._runs) == 2
    await offload(shown.guard.close)


def test_x10_the_demo_leads_from_a_login_link_to_one_refund() -> None:
    with demo() as (base, links):
        transport = httpx.HTTPTransport(retries=8)
        with httpx.Client(base_url=base, transport=transport, follow_redirects=True) as ana, httpx.Client(
            base_url=base, follow_redirects=True
        ) as bob:
            logged_in(ana, links["ana"])
            assert bob.get("/api/requests").status_code == 401
            logged_in(bob, links["bob"])
            assert httpx.post(links["bob"], headers=FETCH).status_code == 403

            page = ana.get("/demo/")
            token = re.findall(r'name="csrf_token" value="([^"]+)"', page.text)[0]
            asked = ana.post(
                "/demo/", data={"csrf_token": token, "order": "A-17", "amount": "82.00"}, headers=FETCH
            )
            assert "82.00 for A-17: suspended" in asked.text

            (request,) = bob.get("/api/requests").json()["items"]
            token = re.findall(r'data-token="([^"]+)"', bob.get("/").text)[0]
            answer = {"approve": True, "fingerprint": request["fingerprint"]}
            decided = bob.post(
                f"/api/requests/{request['id']}/decision", json=answer, headers={**FETCH, "x-csrf-token": token}
            )
            assert decided.status_code == 200, decided.text

            paid = wait_for(ana, "<li>82.00 for A-17</li>")
            assert paid.count("<li>82.00 for A-17</li>") == 1


def logged_in(client: httpx.Client, link: str) -> None:
    assert "Log in as" in client.get(link).text
    assert client.get("/api/requests").status_code == 401  # a link that was opened changes nothing
    assert client.post(link).status_code == 403  # another site's form, say
    assert client.post(link, headers=FETCH).status_code == 200


def wait_for(client: httpx.Client, text: str) -> Any:
    for _ in range(2_000):
        found = client.get("/demo/").text
        if text in found:
            return found
    raise AssertionError("the agent did not go on")
