"""Where key rings come from: which texts, files and environments are accepted, and what a changed file does."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hitl_guard import clock, keyfile
from hitl_guard.errors import ConfigurationError, KeyUnavailableError, KeyUnknownError
from hitl_guard.keyring import Key, Keyring

from .rings import NOW, entry, key, ring, secret, text, write

PASSWORD = b"correct horse battery staple, and then some more words"


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the monotonic clock; add milliseconds to the one entry."""
    now = [1_000]
    monkeypatch.setattr(clock, "monotonic_ms", lambda: now[0])
    return now


def test_a_key_ring_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HITL_GUARD_KEYS", ring(entry(1), entry(2, deactivates_at=NOW + 99), epoch=7))

    keyring = Keyring.from_env()

    assert [(each.id, each.secret(), each.deactivates_at) for each in keyring.keys] == [
        ("k1", secret(1), None), ("k2", secret(2), NOW + 99),
    ]
    assert (keyring.epoch, keyring.generation) == (7, 0)


def test_a_key_ring_is_read_from_the_file_that_the_environment_names(tmp_path: Path) -> None:
    write(tmp_path / "ring.json", ring(entry(3)))

    keyring = Keyring.from_env({"HITL_GUARD_KEYS_FILE": str(tmp_path / "ring.json")})

    assert [each.id for each in keyring.keys] == ["k3"]


@pytest.mark.parametrize(
    ("environ", "detail"),
    [
        ({}, "missing"),
        ({"HITL_GUARD_KEYS": "", "HITL_GUARD_KEYS_FILE": ""}, "missing"),
        ({"HITL_GUARD_KEYS": ring(entry()), "HITL_GUARD_KEYS_FILE": "/nowhere"}, "two-sources"),
        ({"HITL_GUARD_KEYS_FILE": "/nowhere/ring.json"}, "file-missing"),
        ({"HITL_GUARD_KEYS_FILE": "nul\0byte"}, "file-unreadable"),
    ],
)
def test_an_environment_without_exactly_one_key_source_is_refused(environ: dict[str, str], detail: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Keyring.from_env(environ)

    assert (caught.value.code, caught.value.detail) == ("config-error", detail)


def test_a_missing_key_ring_tells_how_to_make_one() -> None:
    with pytest.raises(ConfigurationError, match="hitl-guard keys generate"):
        Keyring.from_env({})


NEW_KEY = secret(9)

AT49 = {
    "empty": ("", "secret-short"),
    "short": (text(NEW_KEY[:31]), "secret-short"),
    "password": (text(PASSWORD), "secret-weak"),
    "password with umlauts": (text("öäüß Straßenbahnhaltestellenschild 1 2 3".encode()), "secret-weak"),
    "password in lines": (text(PASSWORD + b"\n"), "secret-weak"),
    "hex of a key": (text(NEW_KEY.hex().encode()), "secret-weak"),
    "base64 of a key": (text(text(NEW_KEY).encode()), "secret-weak"),
    "zeros": (text(bytes(32)), "secret-weak"),
    "one byte": (text(b"\xff" * 64), "secret-weak"),
    "16 bytes pasted twice": (text(NEW_KEY[:16] * 2), "secret-weak"),
    "padding": (text(NEW_KEY) + "=", "secret-encoding"),
    "other alphabet": (base64.b64encode(b"\xfb" + NEW_KEY[1:]).decode().rstrip("="), "secret-encoding"),
    "white space": (text(NEW_KEY)[:20] + "\n" + text(NEW_KEY)[20:], "secret-encoding"),
    "impossible length": (text(NEW_KEY) + "AA", "secret-encoding"),
    "second spelling": (text(NEW_KEY)[:-1] + chr(ord(text(NEW_KEY)[-1]) + 1), "secret-encoding"),
    "not ASCII": ("é" * 43, "secret-encoding"),
    "number": (5, "secret-encoding"),
    "null": (None, "secret-encoding"),
}


@pytest.mark.parametrize(("spelling", "detail"), AT49.values(), ids=AT49)
def test_at49_a_weak_or_misspelt_secret_is_refused_at_load(spelling: object, detail: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Keyring.from_json(ring(entry(1), entry(2, secret=spelling)))

    assert (caught.value.code, caught.value.detail) == ("config-error", detail)


@pytest.mark.parametrize(
    ("second", "detail"),
    [
        (entry(2, id="k1"), "duplicate-id"),
        (entry(2, secret=text(secret(1))), "duplicate-secret"),
        (entry(2, secret=text(secret(1)), state="compromised"), "duplicate-secret"),
        (entry(2, activates_at=NOW + 1), "ambiguous"),
    ],
)
def test_at49_duplicate_ids_secrets_and_start_times_are_refused_at_load(second: dict[str, Any], detail: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Keyring.from_json(ring(entry(1), second))

    assert (caught.value.code, caught.value.detail) == ("config-error", detail)


def test_at49_a_key_made_in_code_is_held_to_the_same_rules() -> None:
    for weak in (b"", secret(1)[:31], PASSWORD, bytes(32), "a" * 32, bytearray(secret(1)), None):
        with pytest.raises(ConfigurationError) as caught:
            Key("k1", weak, activates_at=NOW)  # type: ignore[arg-type]

        assert caught.value.code == "config-error"


def test_a_revoked_key_may_have_the_start_time_of_another_since_it_never_signs() -> None:
    keyring = Keyring.from_json(ring(entry(1), entry(2, activates_at=NOW + 1, state="compromised")))

    assert keyring.signing_key(NOW + 1).id == "k1"


def test_a_destroyed_key_is_listed_without_a_secret() -> None:
    destroyed = entry(2, state="destroyed", reason="end of life")
    del destroyed["secret"]

    keyring = Keyring.from_json(ring(entry(1), destroyed))

    assert [(each.id, each.state, each.reason) for each in keyring.keys] == [
        ("k1", None, None), ("k2", "destroyed", "end of life"),
    ]


def without(member: str) -> dict[str, Any]:
    return {name: value for name, value in entry().items() if name != member}


SHAPES = {
    "not JSON": ("hunter2", None),
    "two documents": (ring(entry()) * 2, None),
    "byte order mark": ("\ufeff" + ring(entry()), None),
    "lone surrogate": ("\udcff", None),
    "list": ("[]", "shape"),
    "no epoch": (json.dumps({"keys": [entry()]}), "shape"),
    "no keys": ('{"epoch": 1}', "shape"),
    "other member": (ring(entry(), algorithm="none"), "shape"),
    "keys as object": ('{"epoch": 1, "keys": {}}', "shape"),
    "no key at all": (ring(), "empty"),
    "key as string": ('{"epoch": 1, "keys": ["k1"]}', "shape"),
    "unknown member of a key": (ring(entry(purpose="event")), "shape"),
    "no id": (ring(without("id")), "shape"),
    "no start": (ring(without("activates_at")), "shape"),
    "no secret": (ring(without("secret")), "secret-missing"),
    "destroyed with a secret": (ring(entry(state="destroyed")), "secret-kept"),
    "unknown state": (ring(entry(state="active")), "state"),
    "state as list": (ring(entry(state=[])), "state"),
    "reason of a good key": (ring(entry(reason="none")), "reason"),
    "empty reason": (ring(entry(state="compromised", reason="")), "reason"),
    "long reason": (ring(entry(state="compromised", reason="x" * 257)), "reason"),
    "reason with an escape sequence": (ring(entry(state="compromised", reason="\x1b[2J")), "reason"),
    "reason as number": (ring(entry(state="compromised", reason=1)), "reason"),
    "epoch zero": (ring(entry(), epoch=0), "epoch"),
    "epoch true": (ring(entry(), epoch=True), "epoch"),
    "epoch with a fraction": (ring(entry(), epoch=1.5), "epoch"),
    "epoch as text": (ring(entry(), epoch="1"), "epoch"),
    "epoch too large": (ring(entry(), epoch=2**53), "epoch"),
    "empty id": (ring(entry(id="")), "id"),
    "long id": (ring(entry(id="k" * 65)), "id"),
    "id with a path": (ring(entry(id="../k")), "id"),
    "id with a line end": (ring(entry(id="k1\n")), "id"),
    "id as number": (ring(entry(id=1)), "id"),
    "id not ASCII": (ring(entry(id="ké")), "id"),
    "negative start": (ring(entry(activates_at=-1)), "time"),
    "start true": (ring(entry(activates_at=True)), "time"),
    "start with a fraction": (ring(entry(activates_at=1.5)), "time"),
    "start as text": (ring(entry(activates_at="1")), "time"),
    "start too large": (ring(entry(activates_at=2**53)), "time"),
    "end at the start": (ring(entry(deactivates_at=NOW + 1)), "time"),
    "end true": (ring(entry(activates_at=0, deactivates_at=True)), "time"),
    "end too large": (ring(entry(deactivates_at=2**53)), "time"),
}


@pytest.mark.parametrize(("source", "detail"), SHAPES.values(), ids=SHAPES)
def test_a_key_ring_of_another_shape_is_refused_and_nothing_is_guessed(source: str, detail: str | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Keyring.from_json(source)

    assert caught.value.code == "config-error"
    assert detail is None or caught.value.detail == detail


def test_a_duplicate_member_is_refused_instead_of_the_last_one_winning() -> None:
    source = ring(entry()).replace('"id": "k1"', '"id": "k1", "id": "k2"')

    with pytest.raises(ConfigurationError, match="not strict JSON"):
        Keyring.from_json(source)


def test_a_message_names_the_key_by_its_place() -> None:
    with pytest.raises(ConfigurationError, match=r"^keys\[1\]: "):
        Keyring.from_json(ring(entry(1), entry(2, secret="AAAA")))


@pytest.mark.parametrize("epoch", [0, -1, True, 1.0, "1", None, 2**53])
def test_a_key_ring_made_in_code_needs_a_good_epoch(epoch: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Keyring((key(),), epoch)

    assert caught.value.detail == "epoch"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(text(secret(1))),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["epoch", "keys", "id", "secret", "activates_at", "deactivates_at", "state", "x"]), inner
    ),
)
KEYS = st.fixed_dictionaries(
    {"id": st.text(max_size=3) | st.just("k"), "activates_at": st.integers() | JSON},
    optional={"secret": st.binary(max_size=64).map(text) | JSON, "deactivates_at": st.integers() | JSON,
              "state": st.sampled_from(["compromised", "destroyed"]) | JSON, "reason": JSON},
)
RINGS = st.fixed_dictionaries({"epoch": st.integers() | JSON, "keys": st.lists(KEYS | JSON) | JSON}) | JSON


@given(st.text() | st.binary() | RINGS.map(json.dumps))
@example("[" * 100_000)
@example('{"epoch": 1' + "0" * 5_000 + "}")
@example(b"\xff\xfe")
def test_any_text_or_bytes_is_a_key_ring_or_a_configuration_error(source: Any) -> None:
    loaded: Keyring | None = None
    refusal: ConfigurationError | None = None

    try:
        loaded = Keyring.from_env({"HITL_GUARD_KEYS": source})
    except ConfigurationError as error:
        refusal = error

    if loaded is None:
        assert refusal is not None
        assert (refusal.code, refusal.__cause__) == ("config-error", None)
    else:
        assert Keyring.from_json(loaded.dump().reveal()).dump().reveal() == loaded.dump().reveal()


def test_a_value_that_is_no_text_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        Keyring.from_json(5)  # type: ignore[arg-type]


def test_a_dumped_key_ring_loads_as_it_was() -> None:
    keyring = Keyring(
        (
            key(1), key(2, activates_at=NOW + 1, deactivates_at=NOW + 2), key(3, state="compromised", reason="leaked"),
            Key("k4", None, activates_at=NOW, state="destroyed"),
        ),
        epoch=4,
    )

    loaded = Keyring.from_json(keyring.dump(indent=2).reveal())

    def facts(subject: Keyring) -> list[tuple[Any, ...]]:
        return [(k.id, k.activates_at, k.deactivates_at, k.state, k.reason) for k in subject.keys]

    assert facts(loaded) == facts(keyring)
    assert [k.secret() for k in loaded.keys[:3]] == [secret(1), secret(2), secret(3)]
    assert loaded.epoch == 4


def test_a_changed_file_is_loaded_after_the_refresh_interval_and_not_before(tmp_path: Path, ticks: list[int]) -> None:
    path = tmp_path / "ring.json"
    write(path, ring(entry(1)))
    keyring = Keyring.from_file(path, refresh_s=5)
    write(path, ring(entry(1), entry(2), epoch=2))

    ticks[0] += 4_999
    before = (keyring.epoch, keyring.generation, len(keyring.keys))
    ticks[0] += 1
    after = (keyring.epoch, keyring.generation, len(keyring.keys))

    assert (before, after) == ((1, 0, 1), (2, 1, 2))


def test_a_file_that_did_not_change_keeps_its_keys_and_generation(tmp_path: Path, ticks: list[int]) -> None:
    path = tmp_path / "ring.json"
    write(path, ring(entry(1)))
    keyring = Keyring.from_file(path)
    first = keyring.keys

    ticks[0] += 60_000
    write(path, ring(entry(1)))

    assert keyring.keys == first
    assert keyring.generation == 0


def test_a_file_is_looked_at_once_an_interval(
    tmp_path: Path, ticks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ring.json"
    write(path, ring(entry(1)))
    keyring = Keyring.from_file(path)
    looks: list[int] = []
    read = keyfile.read

    def counted(name: str) -> keyfile.Sealed:
        looks.append(ticks[0])
        return read(name)

    monkeypatch.setattr(keyfile, "read", counted)

    for _ in range(12):
        ticks[0] += 1_000
        keyring.signing_key(NOW + 1)

    assert looks == [6_000, 11_000]


def test_a_thread_that_waited_for_another_ones_look_does_not_look_again(
    tmp_path: Path, ticks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ring.json"
    write(path, ring(entry(1)))
    keyring = Keyring.from_file(path)
    looks: list[str] = []
    ready = threading.Barrier(2)
    read = keyfile.read

    def slow_read(name: Any) -> keyfile.Sealed:
        looks.append(threading.current_thread().name)
        second.start()
        ready.wait(30)  # the second thread has found the look overdue
        return read(name)

    class Late:
        """Holds the second thread between its own check of the time and the lock."""

        def __init__(self, lock: Any) -> None:
            self.lock = lock

        def __enter__(self) -> None:
            if threading.current_thread() is second:
                ready.wait(30)
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    second = threading.Thread(target=lambda: keyring.generation, name="second")
    monkeypatch.setattr(keyfile, "read", slow_read)
    keyring._lock = Late(keyring._lock)  # type: ignore[assignment]
    ticks[0] += 5_000

    assert keyring.generation == 0
    second.join(30)

    assert looks == ["MainThread"]


def remove(path: Path) -> None:
    path.unlink()


def spoil(path: Path) -> None:
    path.write_text("{")


def open_to_others(path: Path) -> None:
    path.chmod(0o640)


def lower_epoch(path: Path) -> None:
    write(path, ring(entry(1), entry(2, state="compromised"), epoch=4))


def take_back_revocation(path: Path) -> None:
    write(path, ring(entry(1), entry(2), epoch=5))


@pytest.mark.parametrize(
    ("damage", "detail"),
    [
        (remove, "file-missing"), (spoil, None), (open_to_others, "file-mode"), (lower_epoch, "epoch-back"),
        (take_back_revocation, "revocation-back"),
    ],
)
def test_a_file_that_became_unusable_stops_everything_until_it_is_good_again(
    damage: Callable[[Path], None], detail: str | None, tmp_path: Path, ticks: list[int]
) -> None:
    path = tmp_path / "ring.json"
    good = ring(entry(1), entry(2, state="compromised"), epoch=5)
    write(path, good)
    keyring = Keyring.from_file(path)

    damage(path)
    ticks[0] += 5_000

    uses: list[Callable[[], object]] = [
        lambda: keyring.epoch, lambda: keyring.generation, lambda: keyring.keys, lambda: keyring.signing_key(NOW + 1),
        lambda: keyring.verifying_key("k1", made_at=NOW + 1, now=NOW + 1), keyring.dump,
    ]
    for use in uses:
        with pytest.raises(KeyUnavailableError) as caught:
            use()
        assert caught.value.code == "key-unavailable"
        assert detail is None or caught.value.detail == detail

    write(path, good)
    ticks[0] += 5_000

    assert keyring.signing_key(NOW + 1).id == "k1"
    assert keyring.generation == 0


def test_a_revoked_key_may_leave_the_file(tmp_path: Path, ticks: list[int]) -> None:
    path = tmp_path / "ring.json"
    write(path, ring(entry(1), entry(2, state="compromised")))
    keyring = Keyring.from_file(path)
    write(path, ring(entry(1)))

    ticks[0] += 5_000

    with pytest.raises(KeyUnknownError):
        keyring.verifying_key("k2", made_at=NOW + 2, now=NOW + 2)


def test_a_relative_path_is_found_after_the_process_moved(
    tmp_path: Path, ticks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "ring.json", ring(entry(1)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    keyring = Keyring.from_file("ring.json")

    monkeypatch.chdir(tmp_path / "elsewhere")
    ticks[0] += 5_000

    assert keyring.epoch == 1


@pytest.mark.parametrize("refresh", [-1, True, float("nan"), float("inf"), "5", None, 3601])
def test_a_refresh_interval_that_is_no_number_of_seconds_is_refused(refresh: Any, tmp_path: Path) -> None:
    write(tmp_path / "ring.json", ring(entry(1)))

    with pytest.raises(ConfigurationError) as caught:
        Keyring.from_file(tmp_path / "ring.json", refresh_s=refresh)

    assert caught.value.detail == "refresh"


def test_a_look_at_the_key_file_finds_a_new_key_before_its_time(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    first, second = entry(1), entry(2)
    write(path, ring(first))
    keyring = Keyring.from_file(path, refresh_s=3600)

    assert not keyring.look()
    write(path, ring(first, second))
    assert [one.id for one in keyring.keys] == ["k1"]
    assert keyring.look()
    assert [one.id for one in keyring.keys] == ["k1", "k2"]


def test_a_key_ring_without_a_file_has_nothing_to_look_at() -> None:
    assert not Keyring([key()]).look()
