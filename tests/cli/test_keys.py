"""`hitl-guard keys` and the root command, as a person at a terminal sees them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from hitl_guard import clock, errors
from hitl_guard.cli import COMMANDS, keys, main
from hitl_guard.keyring import Key, Keyring
from hitl_guard.rows import Draft, EventRow, Link, RequestRow
from hitl_guard.signing import Signer
from hitl_guard.store.base import AddRequest, Append
from hitl_guard.store.sql import SQLStore

NOW = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "epoch_ms", lambda: NOW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A key file with one active key."""
    target = tmp_path / "ring.json"
    assert run("keys", "generate", "--out", str(target)).exit_code == 0
    return target


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environ, prog_name="hitl-guard")


def ring(path: Path) -> Keyring:
    return Keyring.from_file(path)


def shows_a_secret(result: Result, keyring: Keyring) -> bool:
    secrets = [entry["secret"] for entry in json.loads(keyring.dump().reveal())["keys"]]
    return any(secret in result.output for secret in secrets)


# The root


def test_help_lists_every_command_without_importing_one() -> None:
    script = (
        "import sys; from hitl_guard.cli import main; main(['--help'], standalone_mode=False); "
        "print(sorted(name for name in sys.modules if name.startswith('hitl_guard')))"
    )

    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout

    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []
    assert shown.splitlines()[-1] == "['hitl_guard', 'hitl_guard.cli', 'hitl_guard.errors', 'hitl_guard.lazy']"


def test_help_shows_the_line_of_each_command_in_order() -> None:
    short, long = run("-h"), run("--help")

    listed = long.output[long.output.index("Commands:\n"):].splitlines()[1:]
    assert short.output == long.output
    assert [line.split(maxsplit=1) for line in listed] == [[name, COMMANDS[name][1]] for name in sorted(COMMANDS)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists_and_explains_itself(name: str) -> None:
    result = run(name, "--help")

    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: hitl-guard {name}")


def test_an_unknown_command_is_wrong_usage() -> None:
    result = run("approve-everything")

    assert result.exit_code == 2
    assert "No such command" in result.output


def test_our_errors_end_with_exit_code_1_and_their_slugs_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.argument("detail", required=False)
    def fails(detail: str | None) -> None:
        raise errors.StoreUnavailableError("The database does not answer.", detail=detail)

    monkeypatch.setattr(keys, "keys", fails)

    plain, detailed = run("keys"), run("keys", "timeout")

    assert (plain.exit_code, plain.stderr) == (1, "Error: The database does not answer. [store-unavailable]\n")
    assert detailed.stderr == "Error: The database does not answer. [store-unavailable: timeout]\n"


# generate


def test_generate_prints_a_key_ring_for_the_environment_on_stdout_alone() -> None:
    result = run("keys", "generate")

    keyring = Keyring.from_env({"HITL_GUARD_KEYS": result.stdout})

    assert result.exit_code == 0
    assert keyring.signing_key(NOW) is keyring.keys[0]
    assert keyring.signing_key(NOW - 60_000) is keyring.keys[0]  # a database's clock may be behind
    assert result.stdout.count("\n") == 1
    assert "key material" in result.stderr


def test_generate_creates_a_private_file_and_prints_no_secret(tmp_path: Path) -> None:
    result = run("keys", "generate", "--out", str(tmp_path / "ring.json"))

    keyring = ring(tmp_path / "ring.json")

    assert result.exit_code == 0
    assert stat.S_IMODE((tmp_path / "ring.json").stat().st_mode) == 0o600
    assert keyring.signing_key(NOW).id in result.output
    assert not shows_a_secret(result, keyring)


def test_generate_never_overwrites_a_file(path: Path) -> None:
    before = path.read_bytes()

    result = run("keys", "generate", "--out", str(path))

    assert (result.exit_code, path.read_bytes()) == (1, before)
    assert result.stderr.endswith("[config-error: file-exists]\n")


# list


def wide_ring(path: Path) -> Keyring:
    """Write and return a key ring with a key in every state."""
    def key(name: str, start: int, **fields: Any) -> Key:
        return Key(name, Key.generate(0).secret(), activates_at=start, **fields)

    keyring = Keyring(
        (
            key("old", NOW - 9_000, deactivates_at=NOW - 1_000),
            key("bad", NOW - 8_000, state="compromised", reason="laptop stolen"),
            Key("gone", None, activates_at=NOW - 7_000, state="destroyed"),
            key("now", NOW - 6_000),
            key("next", 2**53 - 1),
        ),
        epoch=3,
    )
    path.write_bytes(keyring.dump().reveal())
    path.chmod(0o600)
    return keyring


def test_list_shows_states_and_times_and_no_secret(tmp_path: Path) -> None:
    keyring = wide_ring(tmp_path / "ring.json")

    result = run("keys", "list", "--file", str(tmp_path / "ring.json"))

    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "Restore epoch 3",
        "old  deactivated  from 2027-01-15T07:59:51Z  until 2027-01-15T07:59:59Z",
        "bad  compromised  from 2027-01-15T07:59:52Z  (laptop stolen)",
        "gone  destroyed  from 2027-01-15T07:59:53Z",
        "now  active  from 2027-01-15T07:59:54Z",
        "next  pre-active  from 9007199254740991 ms",
    ]
    assert not shows_a_secret(result, Keyring(key for key in keyring.keys if key.state != "destroyed"))


def test_list_as_json_has_every_fact_but_the_secret(tmp_path: Path) -> None:
    wide_ring(tmp_path / "ring.json")

    result = run("keys", "list", "--json", HITL_GUARD_KEYS_FILE=str(tmp_path / "ring.json"))

    listed = json.loads(result.output)
    assert (result.exit_code, listed["epoch"], listed["now"]) == (0, 3, NOW)
    assert [entry["state"] for entry in listed["keys"]] == [
        "deactivated", "compromised", "destroyed", "active", "pre-active",
    ]
    assert listed["keys"][1] == {
        "activates_at": NOW - 8_000, "deactivates_at": None, "id": "bad", "reason": "laptop stolen",
        "state": "compromised",
    }


def test_list_reads_the_keys_of_the_environment() -> None:
    made = run("keys", "generate").stdout

    result = run("keys", "list", "--json", HITL_GUARD_KEYS=made)

    assert [entry["id"] for entry in json.loads(result.output)["keys"]] == [json.loads(made)["keys"][0]["id"]]


def test_list_without_any_keys_is_refused_and_says_what_to_do() -> None:
    result = run("keys", "list")

    assert result.exit_code == 1
    assert "hitl-guard keys generate" in result.stderr
    assert result.stderr.endswith("[config-error: missing]\n")


# rotate


def test_rotate_adds_a_key_one_interval_ahead_and_ends_the_old_one_an_interval_later(path: Path) -> None:
    old = ring(path).keys[0]

    result = run("keys", "rotate", "--file", str(path), "--refresh", "5m")

    first, second = ring(path).keys
    assert result.exit_code == 0
    assert (first.id, first.secret(), first.deactivates_at) == (old.id, old.secret(), NOW + 600_000)
    assert (second.activates_at, second.deactivates_at) == (NOW + 300_000, None)
    assert second.id in result.output
    assert not shows_a_secret(result, ring(path))


def test_rotate_takes_the_file_from_the_environment_and_a_minute_by_default(path: Path) -> None:
    result = run("keys", "rotate", HITL_GUARD_KEYS_FILE=str(path))

    assert result.exit_code == 0
    assert ring(path).keys[1].activates_at == NOW + 60_000


@pytest.mark.parametrize(
    ("spelling", "milliseconds"), [("250ms", 250), ("5s", 5_000), ("2m", 120_000), ("1h", 3_600_000)]
)
def test_rotate_reads_durations(path: Path, spelling: str, milliseconds: int) -> None:
    run("keys", "rotate", "--file", str(path), "--refresh", spelling)

    assert ring(path).keys[1].activates_at == NOW + milliseconds


@pytest.mark.parametrize("spelling", ["0s", "60", "-5s", "1w", "", "5 s", "99999999999s", "\u0665s"])
def test_rotate_refuses_what_is_no_duration_and_changes_nothing(path: Path, spelling: str) -> None:
    before = path.read_bytes()

    result = run("keys", "rotate", "--file", str(path), "--refresh", spelling)

    assert (result.exit_code, path.read_bytes()) == (2, before)


@pytest.mark.parametrize("arguments", [("rotate",), ("revoke", "k1")])
def test_a_change_without_a_file_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    result = run("keys", *arguments)

    assert result.exit_code == 2
    assert "HITL_GUARD_KEYS_FILE" in result.stderr


@pytest.mark.parametrize("arguments", [("rotate",), ("revoke", "k1")])
def test_a_change_of_a_broken_key_file_is_refused_and_leaves_it(path: Path, arguments: tuple[str, ...]) -> None:
    path.write_text('{"epoch": 1')

    result = run("keys", *arguments, "--file", str(path))

    assert (result.exit_code, path.read_text()) == (1, '{"epoch": 1')
    assert "config-error" in result.stderr


# revoke


def test_revoking_the_only_key_marks_it_and_makes_a_new_one_in_the_same_write(path: Path) -> None:
    old = ring(path).keys[0]

    result = run("keys", "revoke", old.id, "--file", str(path), "--reason", "laptop stolen")

    first, second = ring(path).keys
    assert result.exit_code == 0
    assert (first.id, first.state, first.reason) == (old.id, "compromised", "laptop stolen")
    assert ring(path).signing_key(NOW).id == second.id
    assert second.id in result.output
    assert "--store" in result.output
    assert not shows_a_secret(result, ring(path))


def test_revoking_one_of_two_active_keys_makes_no_new_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("keys", "rotate", "--file", str(path))
    old = ring(path).keys[0]
    monkeypatch.setattr(clock, "epoch_ms", lambda: NOW + 60_000)

    result = run("keys", "revoke", old.id, "--file", str(path))

    assert result.exit_code == 0
    assert [(key.state, key.reason) for key in ring(path).keys] == [("compromised", None), (None, None)]


def test_revoking_an_unknown_key_is_refused_and_changes_nothing(path: Path) -> None:
    before = path.read_bytes()

    result = run("keys", "revoke", "k-none", "--file", str(path))

    assert (result.exit_code, path.read_bytes()) == (1, before)
    assert result.stderr.endswith("[key-unknown]\n")


def test_a_reason_that_could_play_tricks_on_a_terminal_is_refused(path: Path) -> None:
    before = path.read_bytes()

    result = run("keys", "revoke", ring(path).keys[0].id, "--file", str(path), "--reason", "\x1b[2J\u202e")

    assert (result.exit_code, path.read_bytes()) == (1, before)
    assert result.stderr.endswith("[config-error: reason]\n")


# The requests that a revoked key takes down


def request_row(number: int, envelope: bytes, tenant: str = "default") -> RequestRow:
    return RequestRow(f"request-{number:014d}", tenant, bytes([number]) * 32, 0, envelope, b"{}", b"{}")


def sealed_by(key_id: str) -> Any:
    def seal(draft: Draft, link: Link) -> EventRow:
        return EventRow(
            draft.type, draft.tenant, draft.at, draft.body, draft.request_id, draft.version, draft.spend_key,
            link.chain, link.seq, link.previous, 1, key_id, bytes(32),
        )

    return seal


@pytest.fixture
def store_url(tmp_path: Path, path: Path) -> str:
    """A store whose open requests hang on the file's key in different ways, the most urgent last."""
    url = f"sqlite:///{tmp_path / 'approvals.db'}"
    old = ring(path)
    key_id = old.keys[0].id
    by_old = Signer(old).sign("request", "hitl-request", {}, now=NOW)
    by_other = Signer(Keyring((Key.generate(0),))).sign("request", "hitl-request", {}, now=NOW)
    store = SQLStore(url)
    store.setup()
    rows = [
        request_row(1, by_old, tenant="acme\u202e"), request_row(2, by_other), request_row(3, by_other),
        request_row(4, b"not a signed text"),
    ]
    for row in rows:
        assert store.write([AddRequest(row, bytes(32), NOW - int(row.id[-1]))], sealed_by("other"))
    vote = Draft("request:decided", "default", NOW, b"{}", rows[2].id, 1)
    assert store.write([Append(vote)], sealed_by(key_id))
    store.close()
    return url


@pytest.mark.parametrize("page", [1, 2, 3, 500])
def test_at45_revoking_lists_every_open_request_that_the_key_signed_or_decided(
    path: Path, store_url: str, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "PAGE", page)
    key_id = ring(path).keys[0].id

    result = run("keys", "revoke", key_id, "--file", str(path), "--store", store_url)

    assert result.exit_code == 0
    assert "3 open requests must be asked again.\n" in result.output
    assert [json.loads(line) for line in result.output.splitlines() if line.startswith("{")] == [
        {"request": "request-00000000000004", "signed": "unreadable", "tenant": "default"},
        {"request": "request-00000000000003", "signed": "event", "tenant": "default"},
        {"request": "request-00000000000001", "signed": "request", "tenant": "acme\u202e"},
    ]
    assert "\u202e" not in result.output


def test_the_store_may_come_from_the_environment(path: Path, store_url: str) -> None:
    result = run("keys", "revoke", ring(path).keys[0].id, "--file", str(path), HITL_GUARD_STORE=store_url)

    assert "3 open requests must be asked again.\n" in result.output


def test_a_key_is_revoked_even_when_the_store_cannot_be_asked(path: Path, tmp_path: Path) -> None:
    key_id = ring(path).keys[0].id

    result = run("keys", "revoke", key_id, "--file", str(path), "--store", f"sqlite:///{tmp_path}/none/approvals.db")

    assert result.exit_code == 1
    assert f"Key {key_id} is revoked.\n" in result.output
    assert ring(path).keys[0].state == "compromised"
