"""`hitl-guard serve`: what it refuses to start without, and the demo from the login link to the refund."""

from __future__ import annotations

import errno
import functools
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
from click.testing import CliRunner

from hitl_guard.agent import Agent
from hitl_guard.aio import AsyncGuard
from hitl_guard.cli import main, serve_demo
from hitl_guard.cli.serve import _agents
from hitl_guard.cli.serve_demo import ANA, BOB, PAUSED, Demo
from hitl_guard.guard import Guard
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.lifecycle.threads import offload
from hitl_guard.models import Principal
from hitl_guard.store.sql import SQLStore
from hitl_guard.testing import ScriptedModel
from tests.support import until

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


def one_agent() -> Agent:
    return its_agents()[0]


THE_AGENT: Agent | None = None
"""A host's agent, under a name of its module."""


def by_bearer(request: Any) -> Principal | None:
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Principal(name, roles=("chief",)) if name else None


FETCH = {"sec-fetch-site": "same-origin"}
AUTHENTICATED = ("--authenticate", "hitl_guard.asgi:request_user")

REFUSED: dict[str, tuple[str | None, tuple[str, ...], str]] = {
    "no authenticator": (None, (), "--authenticate"),
    "an authenticator that is not there": (None, ("--authenticate", "hitl_guard.asgi:nobody"), "has no 'nobody'"),
    "half a name": (None, ("--authenticate", "hitl_guard.asgi"), "give MODULE:NAME"),
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


HOST_CODE: dict[str, tuple[str, str]] = {
    "def made():\n    raise ValueError('the key is k-123')\n": ("made", "failed with ValueError in {file}, line 2."),
    "import json\ndef made():\n    json.loads('k-123')\n": ("made", "failed with JSONDecodeError in {file}, line 3."),
    "import os\nname = os.environ['HITL_K123']\n": ("made", "failed with KeyError in {file}, line 2."),
    "import no_such_module_k\n": ("made", "failed with ModuleNotFoundError in {file}, line 1."),
    "x = 1\nk-123 = 2\n": ("made", "failed with SyntaxError in {file}, line 2."),
    "x = 1\n": ("gard", "the module '{module}' has no 'gard'."),
}


@pytest.mark.parametrize("code", HOST_CODE)
def test_what_is_wrong_in_a_hosts_own_module_is_told_by_file_and_line(
    environment: dict[str, str], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies in the current folder, which is looked in without any setting."""
    attribute, said = HOST_CODE[code]
    file = tmp_path / f"host_{abs(hash(code))}.py"
    file.write_text(code)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", os.getcwd())])
    monkeypatch.chdir(tmp_path)

    result = CliRunner(env=environment).invoke(
        main, ["serve", *AUTHENTICATED, "--guard", f"{file.stem}:{attribute}"]
    )

    assert result.exit_code == 1
    assert said.format(file=file, module=file.stem) in result.output
    assert "123" not in result.output.replace(file.name, "").replace(file.stem, "")


def test_one_agent_is_taken_for_a_list_of_it(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.modules[__name__], "THE_AGENT", its_agents()[0])

    assert [agent.id for agent in _agents(f"{__name__}:THE_AGENT")] == ["shop"]
    assert [agent.id for agent in _agents(f"{__name__}:one_agent")] == ["shop"]
    with_settings().guard.close()
    with_settings.cache_clear()


@pytest.mark.parametrize("options", [AUTHENTICATED, ("--demo",)], ids=["inbox", "demo"])
@pytest.mark.parametrize(
    ("number", "said"), [(errno.EADDRINUSE, "is in use"), (errno.EACCES, "is not open to this user")]
)
def test_a_port_that_cannot_be_had_is_told_before_anything_else(
    environment: dict[str, str], options: tuple[str, ...], number: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if number == errno.EACCES:
            def refuse(*_arguments: Any) -> None:
                raise PermissionError(number, "no")

            monkeypatch.setattr(socket.socket, "bind", refuse)

        result = CliRunner(env=environment).invoke(main, ["serve", *options, "--port", str(port)])

    assert result.exit_code == 1
    assert f"Port {port} {said}" in result.output
    assert "--port" in result.output
    assert "is on" not in result.output
    assert "/login/" not in result.output


def test_missing_packages_are_named_together_before_anything_is_said(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "webauthn", None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    results = [CliRunner(env=environment).invoke(main, ["serve", *given]) for given in (("--demo",), AUTHENTICATED)]

    for result in results:
        assert result.exit_code == 1
        assert result.output.startswith("Error: 'hitl-guard serve' needs uvicorn and webauthn: install")


def test_x10_live_streams_end_with_the_server_and_without_a_traceback(
    environment: dict[str, str], tmp_path: Path
) -> None:
    own = f"{__name__}:"
    options = ("--guard", own + "with_settings", "--authenticate", own + "by_bearer")
    with (tmp_path / "errors").open("w+") as errors:
        with httpx.Client(transport=httpx.HTTPTransport(retries=8), headers={"authorization": "Bearer olga"}) as olga:
            with serving(
                *options, until="The inbox is on", errors=errors, environ=environment | {"PYTHONPATH": str(ROOT)}
            ) as (base, _):
                stream = olga.send(olga.build_request("GET", f"{base}/api/events"), stream=True)
                chunks = stream.iter_raw()
                assert next(chunks)
            assert b"".join(chunks) is not None  # it was ended, not cut
        errors.seek(0)
        assert errors.read() == ""


@contextmanager
def serving(
    *options: str, until: str, environ: Mapping[str, str] | None = None, errors: IO[str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the address of a running server, and what it said up to the line with ``until`` in it.

    Args:
        errors: A file that gets what it says on stderr.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("hitl-guard")), "serve", *options, "--port", str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | dict(environ or {})
    ) as process:
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
    environ = environment | {"PYTHONPATH": str(ROOT)}
    with serving(*options, until="The inbox is on", environ=environ) as (base, _), httpx.Client(
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


async def asked(shown: Demo) -> tuple[str, Any]:
    """Let the demo's agent ask for a refund, as its page does; return the run's id and the request."""
    result = await shown.agent.generate("Refund 12.50 for order A-17.", user=ANA)
    shown._runs.append({"asked": "12.50 for A-17", "run": result.run_id, "state": serve_demo._state(result)})
    waiting = shown.guard.pending()
    return result.run_id, waiting[0] if waiting.requests else None


def state_of(shown: Demo, run_id: str) -> str:
    return str(next(run["state"] for run in shown._runs if run["run"] == run_id))


async def look(shown: Demo) -> None:
    for waiting in (await shown.agent.list_suspended_runs(user=ANA)).runs:
        await shown._look_after(waiting)


ENDS: dict[str, tuple[dict[str, Any], str]] = {
    "approved": ({"approve": True}, "refunded 12.50 for A-17"),
    "too late": ({"approve": True, "execute_within": 1}, "expired: it was not decided, or did not run, in time"),
    "denied": ({"approve": False}, "denied"),
    "denied in lines": ({"approve": False, "reason": "Ask\nfirst."}, "denied: Ask\nfirst."),
    "answered": ({"approve": False, "respond": {"a": "b\nc"}}, "denied"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_the_demo_says_what_became_of_a_refund(tmp_path: Path, end: str) -> None:
    decision, said = ENDS[end]
    shown = Demo(tmp_path, "http://localhost:8080")
    run_id, request = await asked(shown)
    assert state_of(shown, run_id) == "waits for a decision"

    shown.guard.decide(request.id, approver=BOB, fingerprint=request.fingerprint, **decision)
    store: Any = shown.guard._desk.store
    until(store, store.now() + 2)
    await look(shown)

    assert state_of(shown, run_id) == said
    await offload(shown.guard.close)


async def test_the_demo_says_that_a_call_was_withdrawn_or_muted(tmp_path: Path) -> None:
    shown = Demo(tmp_path, "http://localhost:8080")
    withdrawn, request = await asked(shown)
    shown.guard.revoke(request.id, by=BOB)
    await look(shown)
    _, request = await asked(shown)
    shown.guard.decide(
        request.id, approver=BOB, approve=False, fingerprint=request.fingerprint, reason="Enough.", mute=600_000
    )
    muted, nothing = await asked(shown)

    assert nothing is None
    assert state_of(shown, withdrawn) == "withdrawn"
    assert state_of(shown, muted) == "denied without asking, since somebody muted it: Enough."
    await offload(shown.guard.close)


async def test_a_paused_run_of_the_demo_waits_and_goes_on_after_the_pause(tmp_path: Path) -> None:
    shown = Demo(tmp_path, "http://localhost:8080")
    run_id, request = await asked(shown)
    shown.guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)
    shown.guard.pause(by=BOB, tool="refund")
    await look(shown)
    refused, _ = await asked(shown)

    assert state_of(shown, run_id) == PAUSED
    assert state_of(shown, refused) == "not asked: an operator paused it"
    shown.guard.resume(by=BOB, tool="refund")
    await look(shown)
    assert state_of(shown, run_id) == "refunded 12.50 for A-17"
    await offload(shown.guard.close)


async def test_the_demo_s_page_takes_one_decimal_keeps_what_was_typed_and_shows_lines_as_one(tmp_path: Path) -> None:
    shown = Demo(tmp_path, "http://localhost:8080")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(shown.app), base_url="http://localhost:8080", headers=FETCH,
        follow_redirects=True,
    ) as ana:
        await ana.post(shown.links.link(ANA, "http://localhost:8080"))
        token = re.findall(r'name="csrf_token" value="([^"]+)"', (await ana.get("/demo/")).text)[0]
        taken = await ana.post("/demo/", data={"csrf_token": token, "order": "B-2", "amount": "12.5"})
        typed = {"order": 'C "3"', "amount": "1,5"}
        wrong = await ana.post("/demo/", data=typed | {"csrf_token": token})
        shown._runs[0]["state"] = "denied: Ask\nfirst."
        page = (await ana.get("/demo/")).text

    assert "12.5 for B-2: waits for a decision" in taken.text
    assert wrong.status_code == 422
    assert 'value="C &#34;3&#34;"' in wrong.text
    assert 'value="1,5"' in wrong.text
    assert "denied: Ask first." in page
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
    assert "not asked: too many requests wait" in answers[-1].text
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
            assert "82.00 for A-17: waits for a decision" in asked.text

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
