"""No secret shows: not in an error, a traceback, a representation, a pickle or a copy."""

from __future__ import annotations

import copy
import importlib
import os
import pickle  # noqa: TID251  to show that keys refuse it
import pkgutil
import pydoc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import pytest

import hitl_guard
from hitl_guard import keyfile
from hitl_guard.errors import ConfigurationError, KeyUnavailableError, KeyUnknownError
from hitl_guard.keyring import Key, Keyring, revoked

from .rings import NOW, entry, key, ring, secret, text, write

PASSWORD = b"correct horse battery staple, and then some more words"

NEEDLES = [
    form for raw in (secret(1), secret(2), PASSWORD)
    for form in (text(raw), text(raw)[:24], raw.hex(), repr(raw)[2:-1], repr(raw)[2:20], repr(list(raw))[1:-1])
]


def shows_nothing(shown: str) -> bool:
    return not any(needle in shown for needle in NEEDLES)


def frames(error: BaseException) -> Iterator[str]:
    """Yield every local variable of our frames, as a traceback printer with locals would show them, causes included."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        pending += [current.__cause__, current.__context__]
        yield f"{current!r} {current} {current.__dict__}"
        step: TracebackType | None = current.__traceback__
        while step is not None:
            if f"{os.sep}hitl_guard{os.sep}" in step.tb_frame.f_code.co_filename:
                yield from (f"{name}={value!r}" for name, value in step.tb_frame.f_locals.items())
            step = step.tb_next


def from_environment(source: str) -> Callable[[Path, pytest.MonkeyPatch], object]:
    def act(_: Path, patch: pytest.MonkeyPatch) -> object:
        patch.setenv("HITL_GUARD_KEYS", source)
        return Keyring.from_env()

    return act


def from_both(path: Path, patch: pytest.MonkeyPatch) -> object:
    patch.setenv("HITL_GUARD_KEYS_FILE", str(path))
    return from_environment(ring(entry(1)))(path, patch)


def from_bad_file(path: Path, _: pytest.MonkeyPatch) -> object:
    write(path, ring(entry(1), entry(2), extra=1))
    return Keyring.from_file(path)


def from_changed_file(path: Path, _: pytest.MonkeyPatch) -> object:
    write(path, ring(entry(1)))
    keyring = Keyring.from_file(path, refresh_s=0)
    write(path, ring(entry(1), entry(2))[:-1])
    return keyring.signing_key(NOW)


def in_code(raw: bytes, **fields: Any) -> Callable[[Path, pytest.MonkeyPatch], object]:
    return lambda _path, _patch: Key("k1", raw, **({"activates_at": NOW} | fields))


def edited(path: Path, _: pytest.MonkeyPatch) -> object:
    write(path, ring(entry(1), entry(2)))
    keyfile.edit(path, lambda content: revoked(Keyring.from_json(content.reveal()), "k9", now=NOW)[0].dump())
    return None


ERROR_PATHS: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "bad JSON": from_environment(ring(entry(1))[:-1]),
    "duplicate member": from_environment(ring(entry(1))[:-1] + ', "epoch": 2}'),
    "secret as member": from_environment(ring(entry(1) | {text(secret(2)): 1})),
    "secret as id": from_environment(ring(entry(1, id=text(secret(2)) + "="))),
    "secret as state": from_environment(ring(entry(1, state=text(secret(2))))),
    "padded": from_environment(ring(entry(1, secret=text(secret(1)) + "="))),
    "duplicate secret": from_environment(ring(entry(1), entry(2, secret=text(secret(1))))),
    "password": from_environment(ring(entry(1), entry(2, secret=text(PASSWORD)))),
    "the bare secret": from_environment(text(secret(1))),
    "both sources": from_both,
    "bad file": from_bad_file,
    "changed file": from_changed_file,
    "edit": edited,
    "weak key in code": in_code(PASSWORD),
    "short key in code": in_code(secret(1)[:31]),
    "bad time in code": in_code(secret(1), activates_at=-1),
    "destroyed in code": in_code(secret(1), state="destroyed"),
}


@pytest.mark.parametrize("act", ERROR_PATHS.values(), ids=ERROR_PATHS)
def test_no_error_and_no_frame_of_ours_shows_a_secret(
    act: Callable[[Path, pytest.MonkeyPatch], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((ConfigurationError, KeyUnavailableError, KeyUnknownError)) as caught:
        act(tmp_path / "ring.json", monkeypatch)

    shown = list(frames(caught.value))

    assert len(shown) > 1
    assert [line for line in shown if not shows_nothing(line)] == []


def test_the_scan_itself_finds_a_secret_in_each_spelling() -> None:
    raw = secret(1)

    assert not any(shows_nothing(form) for form in (text(raw), raw.hex(), repr(raw), repr(list(raw)), f"x{text(raw)}y"))


def holders() -> list[object]:
    subject = key(1)
    return [subject, subject._sealed, Keyring((subject, key(2))), Keyring((subject,)).dump(), Keyring((subject,))._ring]


@pytest.mark.parametrize("holder", holders(), ids=lambda holder: type(holder).__name__)
def test_nothing_that_holds_a_secret_shows_it_or_lets_it_be_copied(holder: object) -> None:
    slots = {name: getattr(holder, name, None) for name in getattr(type(holder), "__slots__", ())}

    shown = f"{holder!r} {holder} {holder:} {slots!r} {holder.__getstate__()!r}"

    assert shows_nothing(shown)
    with pytest.raises(TypeError):
        vars(holder)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(holder, protocol)
    with pytest.raises(TypeError):
        copy.deepcopy(holder)


def test_a_key_and_a_key_ring_refuse_a_shallow_copy() -> None:
    for holder in (key(1), Keyring((key(1),))):
        with pytest.raises(TypeError):
            copy.copy(holder)


def test_a_key_and_a_key_ring_show_ids_only() -> None:
    assert repr(key(1, state="compromised")) == "<Key id='k1' state='compromised'>"
    assert repr(Keyring((key(1), key(2, activates_at=NOW + 1)), 3)) == "<Keyring keys=['k1', 'k2'] epoch=3>"


def test_no_documentation_of_a_module_shows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HITL_GUARD_KEYS", "shown-by-a-signature")
    names = [one.name for one in pkgutil.walk_packages(hitl_guard.__path__, "hitl_guard.")]
    scripts = ("__main__", "migrations.env")  # these run when they are imported
    modules = [found for name in names if not name.endswith(scripts) and (found := _imported(name)) is not None]

    assert len(modules) > 150
    assert "shown-by-a-signature" in pydoc.render_doc(_shows)
    assert [one.__name__ for one in modules if "shown-by-a-signature" in pydoc.render_doc(one)] == []


def _imported(name: str) -> ModuleType | None:
    """Return a module; None for the adapter of a framework that is not installed here."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("hitl_guard") or not name.startswith("hitl_guard.integrations."):
            raise
        return None


def _shows(environ: object = os.environ) -> None:
    """What the test above would notice."""
