"""`hitl-guard serve`: what it refuses to start without, and the demo from the login link to the refund."""

from __future__ import annotations

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

from hitl_guard.cli import main


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


@contextmanager
def demo() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address of a running demo, and the login link of each person."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("hitl-guard")), "serve", "--demo", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if "quarter of an hour" in line:
                    break
            links = re.findall(r"^  (\w+) .*\n\s+(http\S+)", "".join(said), re.MULTILINE)
            yield f"http://localhost:{port}", dict(links)
        finally:
            process.terminate()
            process.wait(20)


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
