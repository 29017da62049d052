"""Passkeys in the store: what each step demands, alone and among others, and what is read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.errors import StoreUnavailableError
from hitl_guard.rows import CredentialRow, Draft, credential_record
from hitl_guard.store import credentials
from hitl_guard.store.base import Append, DropCredential, PutCredential, Step
from hitl_guard.store.sql import SQLStore
from tests.contract.build import digest, seal
from tests.databases import Database

BOB, CAROL = digest("bob"), digest("carol")
EVERY_BYTE = bytes(range(256))


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


def row(name: str = "phone", owner: bytes = BOB, body: bytes = b"body") -> CredentialRow:
    return CredentialRow(digest(name), owner, body)


def told(key: bytes, version: int = 1, spend_key: bytes | None = None) -> Append:
    kind = "credential:registered" if version == 1 else "credential:removed"
    return Append(Draft(kind, "tenant", 1_790_000_000_000, b"{}", credential_record(key), version, spend_key))


def written(store: SQLStore, *steps: Step) -> bool:
    return store.write(list(steps), seal) is not None


def test_a_passkey_is_read_as_it_was_written(store: SQLStore) -> None:
    one, other = row(body=EVERY_BYTE), row("laptop", CAROL)

    assert written(store, PutCredential(one), told(one.key))
    assert written(store, PutCredential(other), told(other.key))

    assert store.credentials(owner=BOB) == [(one, 1)]
    assert store.credentials(key=other.key) == [(other, 1)]
    assert store.credentials(owner=CAROL, key=one.key) == []
    assert store.credentials() == sorted([(one, 1), (other, 1)], key=lambda found: found[0].key)


def test_a_store_without_passkeys_has_none(store: SQLStore) -> None:
    assert store.credentials() == store.credentials(owner=BOB) == store.credentials(key=digest("phone")) == []
    assert store.last_version(credential_record(digest("phone"))) == 0


def test_a_key_that_is_taken_is_not_written_again_by_anybody(store: SQLStore) -> None:
    assert written(store, PutCredential(row()), told(row().key))

    assert not written(store, PutCredential(row(owner=CAROL, body=b"other")), told(row().key, 2))

    assert store.credentials() == [(row(), 1)]
    assert store.last_version(credential_record(row().key)) == 1


def test_a_row_is_replaced_only_as_it_was_read(store: SQLStore) -> None:
    assert written(store, PutCredential(row()), told(row().key))
    changed = row(body=b"changed")

    assert not written(store, PutCredential(changed, replaced=b"another"), told(digest("x")))
    assert not written(store, PutCredential(row("laptop"), replaced=b"body"), told(digest("x")))
    assert written(store, PutCredential(changed, replaced=b"body"), told(digest("x")))

    assert store.credentials() == [(changed, 1)]


def test_a_row_is_removed_only_as_it_was_read_and_its_events_stay(store: SQLStore) -> None:
    assert written(store, PutCredential(row()), told(row().key))

    assert not written(store, DropCredential(row().key, b"another"), told(row().key, 2))
    assert written(store, DropCredential(row().key, b"body"), told(row().key, 2))
    assert not written(store, DropCredential(row().key, b"body"), told(row().key, 3))

    assert store.credentials() == []
    assert store.last_version(credential_record(row().key)) == 2


def test_a_removed_passkey_is_never_registered_again(store: SQLStore) -> None:
    assert written(store, PutCredential(row()), told(row().key))
    assert written(store, DropCredential(row().key, b"body"), told(row().key, 2))

    assert not written(store, PutCredential(row(body=b"new")), told(row().key))

    assert store.credentials() == []


def test_a_challenge_is_spent_once_in_the_whole_store(store: SQLStore) -> None:
    spent = digest("challenge")
    assert written(store, PutCredential(row()), told(row().key, spend_key=spent))

    assert not written(store, PutCredential(row("laptop")), told(digest("laptop"), spend_key=spent))

    assert store.load("tenant", spend_key=spent).spent
    assert [found.key for found, _ in store.credentials()] == [row().key]


def test_nothing_of_a_transaction_stays_when_one_step_fails(store: SQLStore) -> None:
    assert written(store, PutCredential(row()), told(row().key))

    assert not written(store, PutCredential(row("laptop")), DropCredential(row().key, b"another"), told(digest("x")))

    assert store.credentials() == [(row(), 1)]


@pytest.mark.parametrize("applied", [False, True])
def test_a_lost_reply_is_resolved_by_the_event(store: SQLStore, plan: dict[str, Any], applied: bool) -> None:
    assert written(store, PutCredential(row("first")), told(digest("first")))
    plan |= {"broken": True, "applied": applied}

    if applied:
        assert written(store, PutCredential(row()), told(row().key))
    else:
        with pytest.raises(StoreUnavailableError):
            written(store, PutCredential(row()), told(row().key))

    assert len(store.credentials(owner=BOB)) == 1 + applied


def test_many_passkeys_are_read_in_pages(store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_PAGE", 2)
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        assert written(store, PutCredential(row(name)), told(digest(name)))

    assert {(found.key, version) for found, version in store.credentials()} == {(digest(name), 1) for name in names}
